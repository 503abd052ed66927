"""What there is to know of a GPU, in one command: correctness, speed and memory, training and decoding throughput.

    python benchmarks/gpu.py --out gpu-results --minutes 25               everything; also `make gpu`
    python benchmarks/gpu.py --out gpu-results --stages rotary tiles      some stages
    TRITON_INTERPRET=1 python benchmarks/gpu.py --out /tmp/dry --dry-run  no GPU: every stage on tiny shapes, times mean nothing
    python benchmarks/gpu.py --out gpu-results --record                   what was verified, into the package

Needs torch, triton and numpy, and posenc installed or on PYTHONPATH. Stages run in order of value, each for its share of
the minutes, in processes of their own, so that a crash costs one case: all at once where the result is right or wrong, or where
code is compiled; one at a time where time is measured. Each case is written when it is measured (OUT/gpu.jsonl), and the
same command goes on where the last one stopped. OUT/gpu.md has the tables.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Lock
from typing import Any

import torch
from gpu_stages import STAGES
from gpu_stages.stage import LATE
from gpu_stages.timing import machine

PATIENCE = 30
"""Seconds that a case may take past the end of its stage, to compile for the most part."""
PREPARATION = 0.6
"""The share of a stage's time after which no more is compiled ahead."""
CONTEXT = get_context("spawn")
RECORD = Path(__file__).parents[1] / "src" / "posenc" / "backends" / "gpus.json"


class Results:
    """The lines of OUT/gpu.jsonl: {stage, case, result}."""

    def __init__(self, folder: Path, name: str = "gpu.jsonl") -> None:
        self.path = folder / name
        self.lock = Lock()

    def lines(self) -> list[dict[str, Any]]:
        found = []
        for line in self.path.read_text().splitlines() if self.path.exists() else ():
            with suppress(json.JSONDecodeError):  # cut off as it was written
                found.append(json.loads(line))
        return found

    @property
    def machine(self) -> dict[str, Any]:
        """That of the cases; empty if there are none."""
        return next((line["case"] for line in self.lines() if line["stage"] == "machine"), {})

    def failed(self) -> list[dict[str, Any]]:
        return [line for line in self.lines() if "failed" in line.get("result", {})]

    def forget(self, lines: list[dict[str, Any]]) -> None:
        """Have the cases of some lines measured again."""
        gone = [(line["stage"], line["case"]) for line in lines]
        rest = [line for line in self.lines() if (line["stage"], line["case"]) not in gone]
        self.path.write_text("".join(json.dumps(line) + "\n" for line in rest))

    def rows(self, stage: str) -> list[dict[str, Any]]:
        return [line for line in self.lines() if line["stage"] == stage and "result" in line]

    def add(self, stage: str, case: Any, **result: Any) -> None:
        with self.lock, self.path.open("a") as file:
            file.write(json.dumps({"stage": stage, "case": case, **result}) + "\n")


class Worker:
    """A process that measures one case after another. When it dies or hangs, its case has failed, and another takes its place."""

    def __init__(self, dry: bool, jobs: int = 1) -> None:
        self.dry, self.jobs = dry, jobs
        self._start()

    def _start(self) -> None:
        self.connection, other = CONTEXT.Pipe()
        self.process = CONTEXT.Process(target=serve, args=(other, self.dry, self.jobs), daemon=True)
        self.process.start()
        other.close()

    def ask(self, stage: str, case: Any, prepare: bool, until: float) -> dict[str, Any]:
        """What `serve` answers, or {"failed": why}."""
        try:
            self.connection.send((stage, case, prepare))
            if self.connection.poll(max(until - time.time(), 0) + PATIENCE):
                result: dict[str, Any] = self.connection.recv()
                why = result.get("failed", "")
                if "CUDA error" in why or "illegal memory access" in why:
                    self._restart()  # no later call of that process would work
                return result
            why = LATE
        except (EOFError, ConnectionError):
            self.process.join(10)
            why = f"its process ended with status {self.process.exitcode}"
        self._restart()
        return {"failed": why}

    def _restart(self) -> None:
        self.close()
        self._start()

    def close(self) -> None:
        self.connection.close()
        self.process.kill()
        self.process.join()


def serve(connection: Connection, dry: bool, jobs: int) -> None:
    """Answer (stage, case, whether to prepare it only) with the result until the other end is closed."""
    torch.set_num_threads(max(1, torch.get_num_threads() // jobs))
    with suppress(EOFError):
        while True:
            stage, case, prepare = connection.recv()
            try:
                work = STAGES[stage].prepare if prepare else STAGES[stage].measure
                result = work(case, dry)
            except Exception as error:
                result = {"failed": f"{type(error).__name__}: {error}".splitlines()[0][:300]}
            if torch.cuda.is_available():
                torch.cuda.empty_cache()  # for the other processes
            connection.send(result)


def run(stage: str, results: Results, workers: Sequence[Worker], begin: float, end: float, dry: bool) -> None:
    """Measure the cases of a stage that have no result, until a time: what is checked by all workers at once, what is timed one
    case at a time, after the workers have compiled, all at once, what they will run."""
    finished = [row["case"] for row in results.rows(stage)]
    cases = [case for case in STAGES[stage].cases(dry) if case not in finished]
    if not STAGES[stage].TIMED:

        def check(worker: Worker) -> None:
            while cases and time.time() < end:
                case = cases.pop(0)
                results.add(stage, case, result=worker.ask(stage, case, False, end))

        at_once(check, workers)
        return
    ahead = {json.dumps(each): each for each in map(STAGES[stage].prepared_by, cases)}
    waiting, owner = [*ahead.values()], dict[str, Worker]()

    def prepare(worker: Worker) -> None:
        while waiting and time.time() < begin + PREPARATION * (end - begin):
            case = waiting.pop(0)
            owner[json.dumps(case)] = worker  # and not another process, which would compile it again
            worker.ask(stage, case, True, end)

    if len(workers) > 1:
        at_once(prepare, workers)
    for case in cases:
        if time.time() > end:
            return
        worker = owner.get(json.dumps(STAGES[stage].prepared_by(case)), workers[0])
        results.add(stage, case, result=worker.ask(stage, case, False, end))


def at_once(work: Callable[[Worker], None], workers: Sequence[Worker]) -> None:
    with ThreadPoolExecutor(len(workers)) as pool:
        list(pool.map(work, workers))


def tables(results: Results) -> str:
    parts = [f"# {' · '.join(f'{name} {value}' for name, value in results.machine.items())}"]
    for name, stage in STAGES.items():
        rows = results.rows(name)
        if not rows:
            continue
        failed = [row for row in rows if "failed" in row["result"]]
        parts.append(f"## {name}\n\n{stage.table([row for row in rows if 'failed' not in row['result']])}")
        parts += [f"- failed: {json.dumps(row['case'])}: {row['result']['failed']}" for row in failed]
    return "\n\n".join(parts) + "\n"


def record(results: Results) -> None:
    """Write to the package from which size on kernels are the default on the architecture of the results: those that were right
    in every case, and faster than PyTorch's in every one that was timed there. What was not measured now stays, with the machine
    that it was measured on."""
    capability = results.machine["capability"]
    known = json.loads(RECORD.read_text())
    before = known.get(capability, {})
    kernels, machines = before.get("kernels", {}), before.get("machines", {})
    for name, stage in STAGES.items():
        if results.rows(name) and (stage.DECIDES or name == "tiles"):
            rest = {kernel: least for kernel, least in kernels.items() if kernel not in stage.DECIDES}
            kernels, machines = rest | stage.verified(results.rows), machines | {name: results.machine}
    tiles = before.get("tiles", {}) | STAGES["tiles"].best(results.rows("tiles"))
    known[capability] = {"kernels": kernels, "tiles": tiles, "machines": machines}
    RECORD.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")
    print(f"{RECORD}: compute capability {capability} takes {kernels or 'none of our kernels'}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of the results")
    parser.add_argument("--minutes", type=float, default=25)
    parser.add_argument("--stages", nargs="+", default=list(STAGES), choices=STAGES, metavar="STAGE")
    parser.add_argument("--dry-run", action="store_true", help="tiny shapes, on a CPU too")
    parser.add_argument("--record", action="store_true", help="write what was verified into the package")
    parser.add_argument("--retry-failed", action="store_true", help="measure cases again that failed")
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count() or 1, help="processes that check and compile (default: one a core)"
    )
    options = parser.parse_args()
    results = Results(options.out)
    if options.record:
        if "capability" not in results.machine:
            parser.error(f"--out {options.out}: has no results of a GPU; measure first")
        record(results)
        return 0
    if not torch.cuda.is_available() and not options.dry_run:
        parser.error("PyTorch sees no GPU: nothing can be measured here; --dry-run shows that every stage runs")
    options.out.mkdir(parents=True, exist_ok=True)
    if results.machine not in ({}, machine()):
        parser.error(f"--out {options.out}: has results of {results.machine}; give another folder for {machine()}")
    if not results.machine:
        results.add("machine", machine())
    if options.retry_failed:
        results.forget(results.failed())
    end = time.time() + 60 * options.minutes
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1" if options.jobs > 1 else "8")
    workers = [Worker(options.dry_run, options.jobs) for _ in range(options.jobs)]
    for number, stage in enumerate(options.stages):
        shares = [STAGES[name].SHARE for name in options.stages[number:]]
        begin = time.time()
        run(stage, results, workers, begin, begin + (end - begin) * shares[0] / sum(shares), options.dry_run)
        rows = results.rows(stage)
        failed = sum("failed" in row["result"] for row in rows)
        cases = len(STAGES[stage].cases(options.dry_run))
        print(f"{stage}: {len(rows)} of {cases} cases, {failed} failed, {time.time() - begin:.0f} s", flush=True)
        (options.out / "gpu.md").write_text(tables(results))
    for worker in workers:
        worker.close()
    print((options.out / "gpu.md").read_text())
    return int(any("failed" in row["result"] for stage in options.stages for row in results.rows(stage)))


if __name__ == "__main__":
    sys.exit(main())
