"""Sources at their worst: rows, folders, broken and hostile files."""

import gzip
import json
import os
from functools import partial

import pytest
import torch

from lab.conftest import spelled
from posenc import InputError
from posenc.lab.data import Corpus, load, making
from posenc.lab.data.tokenizers import Tokenizer
from posenc.lab.machine import measurable, peak

CPU = torch.device("cpu")


def lines(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


ROWS = [{"id": i, "text": text} for i, text in enumerate(["first", "", None, "zwölf\u0000nul", "last row"])]
JOINED = "first\n\nzwölf\u0000nul\n\nlast row".encode()


def test_rows_of_every_format_are_the_same_documents(tmp_path):
    datasets = pytest.importorskip("datasets")
    plain = lines(tmp_path / "rows.jsonl", ROWS)
    (tmp_path / "rows.jsonl.gz").write_bytes(gzip.compress((tmp_path / "rows.jsonl").read_bytes()))
    datasets.Dataset.from_list(ROWS).to_parquet(tmp_path / "rows.parquet")
    found = [load(source) for source in (plain, f"{plain}.gz", str(tmp_path / "rows.parquet"))]
    assert [spelled(corpus) for corpus in found] == [JOINED] * 3
    assert len({corpus.digest for corpus in found}) == 1
    assert load(plain, packed=True).facts()["documents"] == 4  # the cut falls into the last, which becomes two
    both = load(str(tmp_path / "rows.j*"))
    assert spelled(both) == JOINED + b"\n\n" + JOINED


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
    with pytest.raises(InputError, match=r"--text-column : .*n \(int64\), a \(string\), b \(string\); name the one"):
        load(two)
    with pytest.raises(InputError, match=r"--text-column c: .* has the columns n \(int64\)"):
        load(two, text_column="c")
    with pytest.raises(InputError, match=r"--text-column n: holds int64 in .*, not text"):
        load(two, text_column="n")


def test_broken_rows_are_named_by_file_and_line(tmp_path):
    pytest.importorskip("datasets")
    rows = [json.dumps({"text": f"row {i} " + "x" * 1000}) for i in range(12000)]  # datasets reads 10 MB at a time
    bad = tmp_path / "bad.jsonl"
    bad.write_text("\n".join([*rows, '{"text": broken}', rows[0]]))
    with pytest.raises(InputError, match=r"bad\.jsonl: line 12001 is not JSON: Expecting value"):
        load(str(bad))
    (tmp_path / "latin.jsonl").write_bytes(b'{"text": "one"}\n{"text": "caf\xe9"}\n')
    with pytest.raises(InputError, match=r"latin\.jsonl: line 2 is not UTF-8"):
        load(str(tmp_path / "latin.jsonl"))
    for name, content in [("a.parquet", b"PAR1"), ("b.jsonl.gz", b"\x1f\x8b broken"), ("c.jsonl.zst", b"\x28\xb5")]:
        (tmp_path / name).write_bytes(content)
        with pytest.raises(InputError, match=rf"{name}: after 0 rows: .") as error:
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
    with pytest.raises(InputError, match=r"--data hf:.*script"):
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
    for source in (tmp_path, tmp_path / "**" / "*.txt"):
        assert spelled(load(str(source))) == b"one text"
    with pytest.raises(InputError, match="no such file or folder"):
        load(str(tmp_path / "self.txt"))


def test_files_are_found_in_the_order_of_their_paths_and_no_further_than_needed(tmp_path, monkeypatch):
    names = ["a.txt", "b/x.txt", "b/z/w.md", "b-c/y.txt", "b.txt", "c/d.csv", "c/e.txt.gz"]
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(gzip.compress(name.encode()) if name.endswith("gz") else name.encode())
    (tmp_path / "c" / "image.png").write_bytes(b"PNG")
    os.symlink(tmp_path / "a.txt", tmp_path / "link.txt")
    assert spelled(load(str(tmp_path))) == "\n\n".join([*names, "a.txt"]).encode()
    for pattern, found in [
        ("b*/*.txt", ["b/x.txt", "b-c/y.txt"]),
        ("**/*.md", ["b/z/w.md"]),
        ("*/z/*", ["b/z/w.md"]),
        ("c/*.rst", None),
    ]:
        if found:
            assert spelled(load(str(tmp_path / pattern))) == "\n\n".join(found).encode()
        else:
            with pytest.raises(InputError, match="no file has such a name"):
                load(str(tmp_path / pattern))
    looked, scandir = [], os.scandir
    monkeypatch.setattr(os, "scandir", lambda path: looked.append(path) or scandir(path))
    load(str(tmp_path), max_tokens=16)
    assert str(tmp_path / "b") in looked
    assert str(tmp_path / "c") not in looked


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="what Linux shows as files")
def test_what_is_no_ordinary_file_is_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe.txt")
    for source in (tmp_path / "pipe.txt", "/dev/zero", "/proc/self/environ", "/proc"):
        with pytest.raises(InputError, match=r"is no ordinary file or folder"):
            load(str(source))
    os.symlink("/proc/self/environ", tmp_path / "environ.txt")
    (tmp_path / "one.txt").write_text("one text")
    assert spelled(load(str(tmp_path))) == b"one text"
    with pytest.raises(InputError, match="is no ordinary folder"):
        load("hf:/proc")


def test_compressed_text(tmp_path):
    whole = gzip.compress(b"some text " * 1000)
    for name, content in (("cut.txt.gz", whole[:-9]), ("bad.txt.gz", b"no gzip"), ("a.txt.zst", b"(\xb5")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(InputError, match=rf"--data .*{name}: .*; ") as error:
            load(str(tmp_path / name))
        assert "\n" not in str(error.value)


def test_what_is_read_has_a_limit_and_a_boundary_of_characters(tmp_path):
    (tmp_path / "a.txt").write_text("ä" * 100)
    assert len(load(str(tmp_path / "a.txt"), max_tokens=51).train) == 44
    assert spelled(load(str(tmp_path / "a.txt"), max_tokens=51)) == ("ä" * 25).encode()
    (tmp_path / "b.txt").write_bytes(bytes(range(128, 192)) * 4)  # never the start of a character
    assert spelled(load(str(tmp_path / "b.txt"))) == bytes(range(128, 192)) * 4
    with pytest.raises(InputError, match="--data-tokens 1: must be at least 2"):
        load(str(tmp_path / "a.txt"), max_tokens=1)


@pytest.mark.parametrize(("tokenizer", "packed"), [("bytes", False), ("bytes", True), ("bpe:300", True)])
def test_a_corpus_is_written_and_mapped(tmp_path, tokenizer, packed):
    corpus = load("pydoc", tokenizer, packed=packed, max_tokens=20000)
    corpus.write(tmp_path)
    again = Corpus.read(tmp_path)
    assert again.facts() == corpus.facts()
    for part in ("train", "test"):
        own, kept = getattr(corpus, part), getattr(again, part)
        assert own.tokens.dtype == kept.tokens.dtype
        assert own.tokens.tolist() == kept.tokens.tolist()
        assert own.edges.tolist() == kept.edges.tolist()


@pytest.mark.skipif(not measurable(CPU), reason="the system does not tell a process its peak")
@pytest.mark.slow
@pytest.mark.parametrize("tokenizer", ["bytes", "letters"])
def test_memory_does_not_grow_with_the_file(tokenizer, tmp_path, monkeypatch):
    pytest.importorskip("datasets")
    letters = Tokenizer("letters", 300, 299, "", lambda texts: [list(text.encode()) for text in texts], str)
    monkeypatch.setattr(making, "pretrained", lambda name: letters)
    row = json.dumps({"text": "some words that make a document " * 30}) + "\n"
    peaks = []
    for size in (12, 20, 120):  # megabytes, of which datasets reads 10 at a time; the first one warms up
        (tmp_path / "rows.jsonl").write_text(row * (size * 1_000_000 // len(row)))
        peaks.append(peak(partial(load, str(tmp_path / "rows.jsonl"), tokenizer), CPU))
    assert peaks[2] - peaks[1] < 50_000_000
