import hashlib
import json
from dataclasses import replace

import pytest

from lab.conftest import spelled
from posenc import InputError
from posenc.lab import data
from posenc.tasks import running_text


def test_the_default_text_is_pythons_reference():
    from pydoc_data.topics import topics

    corpus = data.load("pydoc")
    assert len(corpus.test) / len(corpus.train) == pytest.approx(1 / 9, rel=1e-3)
    content = spelled(corpus)
    assert corpus.digest == hashlib.sha256(content).hexdigest()
    assert content.decode() == running_text.read("pydoc") == "\n\n".join(topics[k] for k in sorted(topics))


def test_hugging_face_dataset(tmp_path):
    pytest.importorskip("datasets")
    rows = [{"id": i, "text": f"document {i}"} for i in range(5)]
    (tmp_path / "train.jsonl").write_text("\n".join(map(json.dumps, rows)))
    corpus = data.load(f"hf:{tmp_path}")
    assert spelled(corpus) == b"\n\n".join(r["text"].encode() for r in rows)
    with pytest.raises(InputError, match="data='hf:"):
        data.load(f"hf:{tmp_path / 'nothing'}")


def test_refusals(tmp_path, corpus, tiny):
    (tmp_path / "empty.txt").touch()
    (tmp_path / "folder").mkdir()
    for source, message in [
        ("no/such", "no such file or folder; a Hugging Face dataset is written hf:no/such"),
        (str(tmp_path / "empty.txt"), "the text is empty"),
        (str(tmp_path / "folder"), "no files with one of the suffixes"),
    ]:
        with pytest.raises(InputError, match=message):
            data.load(source)
    tiny.check_data(corpus)
    with pytest.raises(InputError, match=r"\d+ bytes are too short to test at 4096 tokens .* needs about 4\d{4} bytes"):
        replace(tiny, factors=(1, 256)).check_data(corpus)
