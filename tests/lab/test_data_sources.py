"""Sources at their worst: rows, folders, broken and hostile files."""

import json
import os

import pytest

from lab.conftest import spelled
from posenc import InputError
from posenc.lab.data import load


def lines(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


ROWS = [{"id": i, "text": text} for i, text in enumerate(["first", "", None, "zwölf\u0000nul", "last row"])]
JOINED = "first\n\nzwölf\u0000nul\n\nlast row".encode()


def test_rows_of_every_format_are_the_same_documents(tmp_path):
    datasets = pytest.importorskip("datasets")
    plain = lines(tmp_path / "rows.jsonl", ROWS)
    datasets.Dataset.from_list(ROWS).to_parquet(tmp_path / "rows.parquet")
    corpora = [load(source) for source in (plain, str(tmp_path / "rows.parquet"))]
    assert [spelled(corpus) for corpus in corpora] == [JOINED] * 2
    assert len({corpus.digest for corpus in corpora}) == 1
    assert load(plain, packed=True).facts()["documents"] == 4  # the cut falls into the last, which becomes two


def test_a_pattern_in_a_name_is_a_name(tmp_path):
    pytest.importorskip("datasets")
    odd = lines(tmp_path / "rows[1]*.jsonl", [{"text": "odd name"}])
    lines(tmp_path / "rows1.jsonl", [{"text": "another"}])
    assert spelled(load(odd)) == b"odd name"


def test_the_text_column(tmp_path):
    pytest.importorskip("datasets")
    one = lines(tmp_path / "one.jsonl", [{"n": 1, "content": "only strings"}])
    two = lines(tmp_path / "two.jsonl", [{"n": 1, "a": "left", "b": "right"}])
    assert spelled(load(one)) == b"only strings"
    assert spelled(load(two, text_column="b")) == b"right"
    for column in (None, "c", "n"):
        with pytest.raises(InputError, match=rf"text_column={column!r}: .* n \(int64\), a \(string\), b \(string\)"):
            load(two, text_column=column)
    (tmp_path / "book.txt").write_text("no rows")
    for source in ("pydoc", "code", str(tmp_path / "book.txt")):
        with pytest.raises(InputError, match=f"text_column='a': data='{source}' has no columns"):
            load(source, text_column="a")


def test_broken_rows_are_refused_in_one_line_that_names_the_file(tmp_path):
    pytest.importorskip("datasets")
    for name, content in [
        ("bad.jsonl", b'{"text": "one"}\n{"text": broken}\n'),
        ("latin.jsonl", b'{"text": "one"}\n{"text": "caf\xe9"}\n'),
        ("a.parquet", b"PAR1"),
    ]:
        (tmp_path / name).write_bytes(content)
        with pytest.raises(InputError, match=rf"^data='.*{name}': after \d+ rows: .") as error:
            load(str(tmp_path / name))
        assert "\n" not in str(error.value)
    for name, content in [("empty.jsonl", b""), ("blank.jsonl", b"\n\n"), ("none.jsonl", b'{"text": null}\n')]:
        (tmp_path / name).write_bytes(content)
        with pytest.raises(InputError, match="the text is empty"):
            load(str(tmp_path / name))


def test_no_script_and_no_pickle_is_run(tmp_path):
    pytest.importorskip("datasets")
    evil = tmp_path / "evil"
    evil.mkdir()
    (evil / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    with pytest.raises(InputError, match=r"data='hf:.*script"):
        load(f"hf:{evil}")
    pickled = tmp_path / "pickled"
    pickled.mkdir()
    (pickled / "train.pkl").write_bytes(
        b"\x80\x04c" + f"builtins\neval\n(Vopen({str(tmp_path / 'ran')!r},'w')\ntR.".encode()
    )
    for source in (f"hf:{pickled}", str(pickled)):
        with pytest.raises(InputError):
            load(source)
    assert not (tmp_path / "ran").exists()


def test_links_in_circles_are_not_followed(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "one.txt").write_text("one text")
    for name in ("x", "y"):
        os.symlink(tmp_path, tmp_path / "a" / name)
    os.symlink(tmp_path / "self.txt", tmp_path / "self.txt")
    assert spelled(load(str(tmp_path))) == b"one text"
    with pytest.raises(InputError, match="no such file or folder"):
        load(str(tmp_path / "self.txt"))


def test_files_are_read_in_the_order_of_their_paths(tmp_path):
    names = ["a.txt", "b/x.txt", "b/z/w.md", "b-c/y.txt", "b.txt", "c/d.csv"]
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(name.encode())
    (tmp_path / "c" / "image.png").write_bytes(b"PNG")
    os.symlink(tmp_path / "a.txt", tmp_path / "link.txt")
    os.mkfifo(tmp_path / "pipe.txt")
    assert spelled(load(str(tmp_path))) == "\n\n".join([*names, "a.txt"]).encode()
    with pytest.raises(InputError, match="no such file"):
        load(str(tmp_path / "pipe.txt"))


def test_what_is_read_has_a_limit_and_a_boundary_of_characters(tmp_path):
    (tmp_path / "a.txt").write_text("ä" * 100)
    assert len(load(str(tmp_path / "a.txt"), data_tokens=51).train) == 44
    assert spelled(load(str(tmp_path / "a.txt"), data_tokens=51)) == ("ä" * 25).encode()
    (tmp_path / "b.txt").write_bytes(bytes(range(128, 192)) * 4)  # never the start of a character
    assert spelled(load(str(tmp_path / "b.txt"))) == bytes(range(128, 192)) * 4
    with pytest.raises(InputError, match="data_tokens=1: must be at least 2"):
        load(str(tmp_path / "a.txt"), data_tokens=1)
