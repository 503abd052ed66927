"""The tables of speed say what the committed results say, and nothing else; made-up results show how."""

import json
from pathlib import Path

import pytest
import speed_tables
from bench.table import in_seconds, markdown, notes

ROOT = Path(__file__).parents[2]
DOCUMENTS = speed_tables.DOCUMENTS


@pytest.mark.parametrize("name", DOCUMENTS)
def test_documents_are_what_the_generator_makes_of_the_committed_results(name):
    text = (ROOT / name).read_text(encoding="utf-8")
    assert speed_tables.generated(text, DOCUMENTS[name], speed_tables.committed(ROOT)) == text


def row(name, ratio=None, mebibytes=None, package=None, status="measured", note="", error=None):
    spread = None if ratio is None else {"median": ratio, "low": ratio - 0.1, "high": ratio + 0.25}
    seconds = None if ratio is None else {"median": ratio / 100, "low": ratio / 101, "high": ratio / 99}
    size = None if mebibytes is None else mebibytes * 2**20
    return {
        "name": name, "status": status, "note": note, "error": error, "tolerance": 1e-4, "bytes": size, "package": package,
        "rounds": 3, "seconds": seconds, "ratio": spread, "bytes_above_limit": size,
    }  # fmt: skip


def trial(case, mode, length, rows, what="time", dtype="float32", family="attention", limit="plain SDPA"):
    return {
        "what": what, "case": case, "mode": mode, "dtype": dtype, "length": length, "family": family, "limit": limit,
        "rows": rows,
    }  # fmt: skip


@pytest.fixture
def results():
    plain, ours = row("plain SDPA", 1.0), row("posenc", 1.05)
    peers = [
        row("transformers BLOOM", 2.5, package="transformers"),
        row("transformers MPT", 2.75, package="transformers"),
    ]
    far = row(
        "rotary-embedding-torch", package="rotary-embedding-torch", status="differs", error=0.5, note="differs by 0.5"
    )
    gone = row("torchtune", package="torchtune", status="missing", note="not installed: pip install torchtune")
    return {
        "schema": 1,
        "complete": True,
        "created": "2026-11-21T10:00:00+00:00",
        "machine": {"cpu": "A CPU", "cores": 2, "instruction_set": "AVX512", "python": "3.11.7"},
        "versions": {"posenc": "0.1.0", "torch": "2.13.0"},
        "settings": {"device": "cpu", "threads": 1, "clock": "cpu", "flush_denormal": False},
        "trials": [
            trial("alibi", "forward", 512, [plain, ours, *peers]),
            trial("alibi", "forward", 2048, [plain, ours, row("SDPA with a dense bias", 1.8), *peers]),
            trial("tupe", "forward", 2048, [plain, ours, row("SDPA with a dense bias", 1.8)]),
            trial("alibi", "train", 2048, [plain, row("posenc", status="failed", note="ValueError: no")]),
            trial(
                "alibi", "forward", 4096, [row("plain SDPA", mebibytes=44), row("posenc", mebibytes=45),
                row("transformers BLOOM", mebibytes=1598, package="transformers"),
                row("transformers MPT", mebibytes=1500, package="transformers")], what="memory",
            ),
            trial(
                "rotary", "forward", 4096, [row("copy of the same bytes", 1.0), row("posenc", 1.25), far, gone],
                dtype="bfloat16", family="rotary", limit="copy of the same bytes",
            ),
        ],
    }  # fmt: skip


def test_the_full_tables_have_all_lengths_and_say_what_is_missing(results):
    slow = row("transformers BLOOM", status="left out", note="takes 3 s", package="transformers")
    for index in (0, 1, 2):  # at 512 and 2048 tokens of one series, and of another one
        rows = results["trials"][index]["rows"]
        results["trials"][index]["rows"] = [r for r in rows if r["name"] != "transformers BLOOM"] + [slow]
    text = markdown(results)
    assert "| case |  | n = 512 | n = 2048 |" in text
    assert "| `alibi` | plain SDPA | 10 ms | 10 ms |" in text
    assert "|  | posenc | 1.05 (0.95..1.30) | 1.05 (0.95..1.30) |" in text
    assert "|  | SDPA with a dense bias |  | 1.80 (1.70..2.05) |" in text
    assert "|  | transformers MPT | 1500 |" in text
    assert notes(results) == [
        "transformers BLOOM: takes 3 s (alibi forward float32 n=512; tupe forward float32 n=2048)",
        "posenc: ValueError: no (alibi train float32 n=2048)",
        "rotary-embedding-torch: differs by 0.5 (rotary forward bfloat16 n=4096)",
        "torchtune: not installed: pip install torchtune",
    ]
    assert text.index("Forward: attention") < text.index("Forward: rotary alone") < text.index("Peak memory")


def test_times_have_a_unit_that_suits():
    assert [in_seconds(x) for x in (2.5, 0.0305, 4.2e-6)] == ["2.5 s", "30.5 ms", "4.2 us"]


def test_only_what_stands_between_the_marks_changes(results):
    text = f"before\n{speed_tables.BEGIN}\nold\n{speed_tables.END}\nafter\n"
    made = speed_tables.generated(text, speed_tables.summary, [results])
    assert made.startswith(f"before\n{speed_tables.BEGIN}\nA CPU")
    assert made.endswith(f"{speed_tables.END}\nafter\n")
    assert speed_tables.generated(made, speed_tables.summary, [results]) == made
    empty = f"before\n{speed_tables.BEGIN}\n{speed_tables.END}\nafter\n"
    assert speed_tables.generated(made, speed_tables.summary, []) == empty
    with pytest.raises(ValueError, match="lacks the marks"):
        speed_tables.generated("no marks", speed_tables.summary, [results])


def test_the_command_adopts_results_and_writes(tmp_path, monkeypatch, capsys, results):
    monkeypatch.chdir(tmp_path)
    for name in DOCUMENTS:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"{speed_tables.BEGIN}\n{speed_tables.END}\n")
    path = tmp_path / "results.json"
    path.write_text(json.dumps(results))
    assert speed_tables.main([str(path)]) == 0
    assert json.loads((tmp_path / "benchmarks" / "results" / "cpu.json").read_text()) == results
    assert "(MPT)" in (tmp_path / "docs" / "bench.md").read_text()
    path.write_text(json.dumps(results | {"complete": False}))
    assert speed_tables.main([str(path)]) == 2
    assert "was interrupted" in capsys.readouterr().err
    with pytest.raises(ValueError, match="give a results"):
        speed_tables.adopt(tmp_path / "nothing.json", tmp_path)
