"""Running text and its sentences."""

import pytest

from posenc.errors import InputError
from posenc.tasks import running_text
from references.tokenizers import ByteTokenizer


def test_sentences_of_the_default_text_are_prose():
    split = running_text.sentences(running_text.read("pydoc"))
    assert len(split) > 2000
    assert all("\n" not in sentence and sentence == sentence.strip() for sentence in split)
    assert sum(sentence.endswith((".", ")", '"', "?", "!")) for sentence in split) / len(split) > 0.99


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("One two. Three four! Five?", ["One two.", "Three four!", "Five?"]),
        ("A line\nthat goes on. And\n  ends here.", ["A line that goes on.", "And ends here."]),
        ('He said "stop." Then he went.', ['He said "stop."', "Then he went."]),
        ("As in Rome (e.g. Italy). i.e. Not there.", ["As in Rome (e.g. Italy). i.e. Not there."]),
        ("Version 3.5 is out. Take it.", ["Version 3.5 is out.", "Take it."]),
        ("Heading\n\nText below it.\n\n    code = here\n", ["Text below it."]),
        ("* First item. Its end.\n\n2. Second item.", ["First item.", "Its end.", "Second item."]),
        ("今日は晴れ。明日も。", ["今日は晴れ。", "明日も。"]),
        ("Waiting ... for it. Done…", ["Waiting ... for it.", "Done…"]),
    ],
)
def test_sentences(text, sentences):
    assert running_text.sentences(text) == tuple(sentences)


def test_a_file_is_read_again_where_it_was_written_anew(tmp_path):
    tokenizer, path = ByteTokenizer(), tmp_path / "story.txt"
    for text in ("once upon a time", "another – beginning"):
        path.write_text(text, encoding="utf-8")
        assert tokenizer.decode(running_text.passage(tokenizer, str(path), len(text.encode()), 0, 0)) == text


def test_what_is_no_text_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"source=.*nowhere\.txt': No such file or directory; give a text file"):
        running_text.read(str(tmp_path / "nowhere.txt"))
    with pytest.raises(InputError, match=r"Is a directory; give a text file"):
        running_text.read(str(tmp_path))
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match=r"not text in UTF-8; give a plain text file"):
        running_text.read(str(tmp_path / "bytes"))
    (tmp_path / "empty").write_text(" \n")
    with pytest.raises(InputError, match=r"the file is empty; give one with text in it"):
        running_text.read(str(tmp_path / "empty"))
    with pytest.raises(InputError, match=r"no paragraph in it ends with a full stop; give a text in sentences"):
        running_text.sentences("a list\n\nof words")
