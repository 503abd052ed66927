# SPDX-License-Identifier: Apache-2.0
"""Speed and memory of posenc and of the packages installed here, into DIR/results.json and DIR/table.md.

    python benchmarks/bench [CASE ...] [--n 512 2048] [--mode forward] [--quick] [--out DIR]

A family stands for its cases: attention, rotary, call, tables; frontier, the encodings of 2024 to 2026, is measured only where it
is named. The same command goes on where it stopped.
"""

import argparse
import sys
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for `bench`, here and in the processes that measure

import torch

from bench.case import DTYPES, MODES
from bench.measure import BenchSettings, PeerEffort
from bench.study import QUICK, QUICK_EFFORT, STANDARD, BenchStudy, plan
from bench.table import markdown
from posenc.errors import InputError
from posenc.lab.study import run
from posenc.report.terminal import Display


def main(arguments: list[str] | None = None) -> int:
    """Exit code 1: a candidate of posenc or torch failed or differs from the formula, or the run was stopped."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="CASE", help="what to measure; default: all but frontier")
    parser.add_argument("--n", nargs="+", type=int, default=[], help="tokens; default: the preset's, by case and mode")
    parser.add_argument("--mode", nargs="+", choices=MODES, default=[])
    parser.add_argument("--dtype", nargs="+", choices=DTYPES, default=[])
    parser.add_argument("--quick", action="store_true", help="short sequences and few rounds")
    parser.add_argument("--no-memory", action="store_true", help="do not measure peak memory")
    parser.add_argument("--no-peers", action="store_true", help="measure posenc and torch alone")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--wall", action="store_true", help="wall time instead of processor time")
    parser.add_argument("--flush-denormal", action="store_true", help="torch.set_flush_denormal(True) while measuring")
    parser.add_argument("--rounds", type=int, help="of each trial")
    parser.add_argument("--patience", type=float, help="leave out what takes longer for one call, in seconds")
    parser.add_argument("--out", default="posenc-peers", metavar="DIR")
    a = parser.parse_args(arguments)
    changed = {name: value for name in ("rounds", "patience") if (value := getattr(a, name)) is not None}
    clock = "cuda" if a.device != "cpu" else "wall" if a.wall or a.threads > 1 else "cpu"
    try:
        settings = BenchSettings(
            device=a.device, threads=a.threads, clock=clock, flush_denormal=a.flush_denormal, peers=not a.no_peers,
            effort=replace(QUICK_EFFORT if a.quick else PeerEffort(), **changed),
        )  # fmt: skip
        trials = plan(a.cases, a.n, a.mode, a.dtype, not a.no_memory, QUICK if a.quick else STANDARD)
        with Display() as progress:
            results = run(
                BenchStudy(trials, settings), a.out, progress=progress,
                command=" ".join(["python benchmarks/bench", *(sys.argv[1:] if arguments is None else arguments)]),
                pages=lambda results: {"table.md": markdown(results)},
            )  # fmt: skip
    except InputError as error:
        parser.error(str(error))
    print(f"{a.out}/table.md")
    ours = [row for trial in results["trials"] for row in trial["rows"] if row["package"] is None]
    return int(not results["complete"] or any(row["status"] in ("failed", "differs") for row in ours))


if __name__ == "__main__":
    sys.exit(main())
