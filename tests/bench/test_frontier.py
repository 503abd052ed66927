"""The table of benchmarks/frontier.md says what the committed results say."""

import json
from pathlib import Path

import frontier
from bench.frontier import FRONTIER

ROOT = Path(__file__).parents[2]
FOUND = json.loads((ROOT / "benchmarks/frontier.json").read_text(encoding="utf-8"))
PAGE = (ROOT / "benchmarks/frontier.md").read_text(encoding="utf-8")


def test_the_page_has_the_table_of_the_results():
    assert frontier.written(PAGE, FOUND) == PAGE
    changed = json.loads(json.dumps(FOUND))
    changed["bench"]["trials"][0]["rows"][1]["ratio"]["median"] += 1
    assert frontier.written(PAGE, changed) != PAGE


def test_every_encoding_was_measured_and_is_right():
    trials = FOUND["bench"]["trials"]
    assert {t["case"] for t in trials if (t["mode"], t["length"], t["what"]) == ("forward", 2048, "time")} == set(
        FRONTIER
    )
    rows = [row for trial in trials for row in trial["rows"]]
    assert {row["status"] for row in rows if row["name"] == "posenc"} <= {"measured", "left out"}
    assert all(row["error"] < 1e-4 for row in rows if row["status"] == "measured" and row["error"] is not None)
    differing = [(row["name"], row["error"]) for row in rows if row["status"] not in ("measured", "left out")]
    assert [name for name, _ in differing] == ["naive rotation, then SDPA"], "learned frequencies at 8192 in float32"


def test_several_folders_are_put_together(tmp_path):
    first, second = (FOUND["bench"] | {"trials": FOUND["bench"]["trials"][at]} for at in (slice(3), slice(2, 5)))
    for name, results in (("first", first), ("second", second)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "results.json").write_text(json.dumps(results))
    made = frontier.together([tmp_path / "first", tmp_path / "second"])
    assert made == FOUND["bench"] | {"trials": FOUND["bench"]["trials"][:5]}
    assert frontier.speed(made).count("\n| `") == len({trial["case"] for trial in made["trials"]})
