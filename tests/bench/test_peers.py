"""The comparison with other packages, from its command to its tables."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_a_case_is_measured_and_its_results_are_kept(tmp_path):
    flags = ["alibi", "--n", "24", "--mode", "forward", "--rounds", "3", "--no-memory", "--dtype", "float32", "--out"]
    command = [sys.executable, "benchmarks/bench", *flags, str(tmp_path)]
    for kept in (0, 1):
        subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
        results = json.loads((tmp_path / "results.json").read_text())
        assert results["trials_kept_from_before"] == kept
    (trial,) = results["trials"]
    rows = {row["name"]: row for row in trial["rows"]}
    for name in ("plain SDPA", "posenc", "SDPA with a dense bias", "transformers BLOOM", "transformers MPT"):
        assert rows[name]["status"] == "measured", rows[name]["note"]
        assert rows[name]["rounds"] == 3
        assert name == "plain SDPA" or rows[name]["error"] <= rows[name]["tolerance"]
    assert "| `alibi` | plain SDPA |" in (tmp_path / "table.md").read_text()


def test_what_differs_from_the_formula_is_not_timed(monkeypatch):
    import torch
    from bench.case import Built, Candidate, Case
    from bench.cases import CASES
    from bench.measure import TIME, BenchSettings, PeerEffort, Trial, timed_rows

    one, two = torch.ones(3), torch.full((3,), 2.0)
    right, wrong = (Built(lambda: None, lambda x=x: (x,), lambda: (one,), 1e-4) for x in (one, two))
    candidates = [
        Candidate(name, lambda _, built=built: built)
        for name, built in {"limit": right, "right": right, "wrong": wrong}.items()
    ]
    monkeypatch.setitem(CASES, "made", Case("made", "made", "made", lambda problem: None, tuple(candidates)))
    settings = BenchSettings(effort=PeerEffort(rounds=3, block=0.0))
    rows = timed_rows(Trial(TIME, "made", "forward", "float32", 8), settings, {}, lambda name: None)
    assert [(row.status, len(row.seconds)) for row in rows] == [("measured", 3), ("measured", 3), ("differs", 0)]
