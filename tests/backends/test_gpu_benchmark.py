"""benchmarks/gpu.py without a GPU: that it runs, goes on where it stopped, and records only what was verified."""

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.append(str(BENCHMARKS))

import gpu  # noqa: E402
from gpu_stages import STAGES  # noqa: E402
from gpu_stages.attention import ENCODINGS, READ, TILED, Subject  # noqa: E402
from gpu_stages.checks import _checkable  # noqa: E402

from posenc.backends.triton_kernels import TILES  # noqa: E402


def run(out, *arguments):
    environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, BENCHMARKS / "gpu.py", "--out", out, "--dry-run", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment)


def test_every_stage_has_cases_that_a_line_of_json_holds():
    for name, stage in STAGES.items():
        for dry in (True, False):
            cases = stage.cases(dry)
            assert cases == json.loads(json.dumps(cases)), name
            assert len({json.dumps(case) for case in cases}) == len(cases) > 0, name


def test_a_case_whose_process_dies_has_failed_and_another_process_goes_on():
    worker = gpu.Worker(dry=True)
    try:
        worker.process.kill()
        worker.process.join()
        ends = gpu.time.time() + 60
        assert worker.ask("limits", {"what": "launch"}, False, ends) == {"failed": "its process ended with status -9"}
        assert worker.ask("limits", {"what": "launch"}, False, ends).keys() == {"ms", "limit"}
        assert worker.ask("limits", {}, False, ends) == {"failed": "KeyError: 'what'"}
    finally:
        worker.close()


class Asked:
    """Stands for a process, and notes what it was asked."""

    def __init__(self):
        self.prepared, self.measured = [], []

    def ask(self, stage, case, prepare, until):
        (self.prepared if prepare else self.measured).append(case)
        return {"ms": 1}


def test_what_is_timed_runs_in_the_process_that_compiled_it_and_alone(tmp_path):
    workers = [Asked(), Asked()]
    results = gpu.Results(tmp_path)
    begin = gpu.time.time()
    gpu.run("attention", results, workers, begin, begin + 60, dry=False)
    stage = STAGES["attention"]
    for worker in workers:
        assert all(stage.prepared_by(case) in worker.prepared for case in worker.measured)
    assert [row["case"] for row in results.rows("attention")] == stage.cases(False)
    ahead = {str(stage.prepared_by(case)) for case in stage.cases(False)}
    assert sum(len(worker.prepared) for worker in workers) == len(ahead)


def test_what_is_checked_is_shared_out(tmp_path):
    workers = [Asked(), Asked()]
    results = gpu.Results(tmp_path)
    results.add("checks", STAGES["checks"].cases(False)[3], result={"errors": {}})
    gpu.run("checks", results, workers, 0, gpu.time.time() + 60, dry=False)
    measured = workers[0].measured + workers[1].measured
    cases = STAGES["checks"].cases(False)
    assert not any(worker.prepared for worker in workers)
    assert sorted(map(str, measured)) == sorted(map(str, cases[:3] + cases[4:]))


def rotary_rows(ours, right=True):
    checks = [{"case": {"what": "rotary kernel"}, "result": {"errors": {"x": 0.0}, "wrong": [] if right else ["x"]}}]
    times = {"posenc, one kernel": {"ms": ours}, "posenc, formula": {"ms": 2.0}}
    timed = [{"case": {}, "result": {"candidates": times}}] * len(STAGES["rotary"].cases(False))
    return {"checks": checks, "rotary": timed}


def test_a_kernel_is_recorded_if_it_is_right_and_faster_in_every_case():
    good, died = rotary_rows(1.0), [{"case": {}, "result": {"failed": "died"}}]
    assert STAGES["rotary"].verified(good.get) == {"rotary": 0}
    bad = rotary_rows(2.5), rotary_rows(1.0, right=False), good | {"checks": []}, {"checks": [], "rotary": []}
    for rows in (*bad, good | {"rotary": good["rotary"] + died}):
        assert STAGES["rotary"].verified(rows.get) == {}


def attention_rows(**times):
    """times: of each kernel, (length, milliseconds of ours), where FlexAttention takes 2."""
    rows = [
        {
            "case": {"encoding": name, "length": length, "pass": "decoding" if "query" in kernel else "forward"},
            "result": {"candidates": {"triton": {"ms": ours}, "flex": {"ms": 2.0}}},
        }
        for kernel, timed in times.items()
        for name in READ[kernel]
        for length, ours in timed
    ]
    checks = [{"case": {"backend": "triton", "what": "attention"}, "result": {"errors": {"x": 0.0}, "wrong": []}}]
    return {"checks": checks, "attention": rows}


def test_attention_kernels_are_recorded_by_what_they_read_and_from_which_size_on_they_are_faster():
    faster, one = [(2048, 1.0), (8192, 1.0)], {"products, one query": [(8192, 1.0), (32768, 1.0)]}
    rows = attention_rows(vector=[(512, 1.0), (1024, 2.5), *faster], products=[(2048, 1.0), (8192, 3.0)], **one)
    assert STAGES["attention"].verified(rows.get) == {"vector": 2048, "products, one query": 8192}
    case = {"encoding": "t5", "length": 8192, "pass": "forward"}
    for why, found in (("not done in time", 2048), ("illegal memory access", None)):  # of which the first says nothing
        failed = rows | {"attention": rows["attention"] + [{"case": case, "result": {"failed": why}}]}
        assert STAGES["attention"].verified(failed.get).get("vector") == found
    few = attention_rows(vector=faster)
    few["attention"].pop()
    for too_few in (few, rows | {"checks": []}, attention_rows(vector=faster[:1])):
        assert STAGES["attention"].verified(too_few.get) == {}


def test_a_record_of_some_stages_leaves_the_others(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu, "RECORD", tmp_path / "gpus.json")
    before = {"kernels": {"rotary": 0, "products": 512}, "tiles": {"64": {}, "128": {"forward": [9]}}}
    gpu.RECORD.write_text(json.dumps({"9.0": before | {"machines": {"rotary": {"device": "a"}}}}))
    results = gpu.Results(tmp_path)
    results.add("machine", {"capability": "9.0"})
    for stage, rows in attention_rows(vector=[(2048, 1.0), (8192, 1.0)]).items():
        [results.add(stage, **row) for row in rows]
    gpu.record(results)
    found = {"kernels": {"rotary": 0, "vector": 2048}}
    found["machines"] = {"rotary": {"device": "a"}, "attention": {"capability": "9.0"}}
    assert json.loads(gpu.RECORD.read_text()) == {"9.0": before | found}


def test_the_packages_record_is_what_the_committed_results_say():
    h100, h200 = (gpu.Results(BENCHMARKS / "gpu", f"{name}.jsonl") for name in ("h100", "h200"))
    record = json.loads(gpu.RECORD.read_text())["9.0"]
    assert record["kernels"] == STAGES["rotary"].verified(h100.rows) | STAGES["attention"].verified(h200.rows)
    assert record["machines"] == {"rotary": h100.machine, "tiles": h100.machine, "attention": h200.machine}


def test_what_float32_does_not_hold_says_nothing_of_a_gpu():
    exact, wrong = [torch.ones(3)], [torch.zeros(3)]
    for on_cpu, kind in ((exact, float), (wrong, str)):
        ((_, result),) = _checkable("8 float32", wrong, exact, partial(list, on_cpu))
        assert isinstance(result, kind)


@pytest.mark.parametrize("name", ENCODINGS)
def test_every_structure_is_served(name):
    subject = Subject({"encoding": name, "length": 64, "pass": "training", "shape": "1x4x16"})
    assert subject.error("sdpa") < 0.03
    assert subject.dense_bytes() >= 0


def test_the_best_tiles_are_those_that_serve_each_encoding():
    default = TILES[64]

    def rows(tiles, *times):
        cases = [{"kernel": "forward", "shape": "4x16x64", "encoding": name, "tiles": list(tiles)} for name in TILED]
        return [{"case": case, "result": {"ms": ms}} for case, ms in zip(cases, times, strict=True)]

    timed = rows((1, 1, 1), 1.5, 2.0, 1.0) + rows((3, 3, 3), 0.1, 0.1, 0.1)
    timed[-1]["result"] = {"failed": "out of registers"}
    assert STAGES["tiles"].best(timed) == {}  # the default has no time
    timed += rows(default, 1.0, 4.0, 1.0)
    assert STAGES["tiles"].best(timed) == {"64": {"forward": [1, 1, 1]}}
    assert STAGES["tiles"].cases(False)[0]["tiles"] == list(TILES[128])


def test_results_of_another_machine_are_not_mixed_and_failures_can_be_measured_again(tmp_path):
    results = gpu.Results(tmp_path)
    results.add("machine", {"device": "another"})
    results.add("limits", "a", result={"failed": "once"})
    results.add("limits", "b", result={"ms": 1})
    done = run(tmp_path, "--stages", "limits")
    assert done.returncode == 2
    assert "has results of {'device': 'another'}" in done.stderr
    results.forget(results.failed())
    assert [row["case"] for row in results.rows("limits")] == ["b"]
    with results.path.open("a") as file:
        file.write('{"stage": "limits", "ca')  # the machine went away
    assert len(results.lines()) == 2


def test_every_stage_runs_without_a_gpu_and_the_same_command_goes_on(tmp_path):
    done = run(tmp_path, "--minutes", "60")  # of which a busy machine gives each stage a share
    assert done.returncode == 0, done.stdout + done.stderr
    results = gpu.Results(tmp_path)
    assert all(len(results.rows(name)) == len(stage.cases(True)) for name, stage in STAGES.items())
    assert "| alibi triton attention contiguous |" in (tmp_path / "gpu.md").read_text()
    before = results.path.read_text()
    rest, last, _ = before.rsplit("\n", 2)
    results.path.write_text(rest + "\n")
    assert run(tmp_path, "--stages", json.loads(last)["stage"]).returncode == 0
    assert results.path.read_text().count("result") == before.count("result")


def test_without_a_gpu_nothing_is_timed(tmp_path):
    done = subprocess.run(
        [sys.executable, BENCHMARKS / "gpu.py", "--out", tmp_path / "x"],
        capture_output=True, text=True, env=os.environ | {"CUDA_VISIBLE_DEVICES": ""},
    )  # fmt: skip
    assert done.returncode == 2
    assert "PyTorch sees no GPU" in done.stderr
    assert not (tmp_path / "x").exists()


def test_the_committed_tables_are_those_of_one_gpu_each():
    for path in (BENCHMARKS / "gpu").glob("*.jsonl"):
        results = gpu.Results(path.parent, path.name)
        assert results.machine["device"].startswith(f"NVIDIA {path.stem.upper()}")
        assert gpu.tables(results) == path.with_suffix(".md").read_text(encoding="utf-8")
