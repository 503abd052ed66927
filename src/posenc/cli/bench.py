# SPDX-License-Identifier: Apache-2.0
"""posenc bench."""

import argparse

from posenc.cli.common import FAILED, TableFormatter, conclude, told
from posenc.cli.config import record


def add_bench(parser: argparse.ArgumentParser) -> None:
    from posenc.lab.bench.case import DTYPES, MODES
    from posenc.lab.bench.cases import CASES

    parser.formatter_class = TableFormatter
    width = max(map(len, CASES))
    parser.epilog = (
        "cases:\n" + "\n".join(f"  {name:{width}}  {case.summary}" for name, case in CASES.items()) + "\n\n"
        "One thread and processor time by default: what else runs on the machine then hardly counts. A benchmark that\n"
        "was stopped goes on when the same command is given again. Exit code 1: stopped, or a candidate\n"
        "without a package failed or differs from the formula."
    )
    add, missing = parser.add_argument, argparse.SUPPRESS
    add("cases", nargs="*", metavar="CASE", help="what to measure (default: all)")
    add(
        "--n",
        type=int,
        nargs="+",
        metavar="N",
        default=missing,
        help="tokens (default: the preset's, by case and mode)",
    )
    add("--mode", nargs="+", metavar="MODE", default=missing, help=f"{', '.join(MODES)} (default: the preset's)")
    add("--dtype", nargs="+", metavar="DTYPE", default=missing, help=f"{', '.join(DTYPES)} (default: the preset's)")
    add("--quick", action="store_true", help="short sequences and few rounds: a first look")
    add("--device", metavar="DEVICE", default=missing, help="cpu or cuda (default: cuda where there is one)")
    add("--threads", type=int, default=1, metavar="N", help="threads of the measuring process")
    add("--wall", action="store_true", help="wall time, as with several threads; otherwise processor time")
    add("--rounds", type=int, metavar="N", default=missing, help="rounds of each trial (default: the preset's)")
    text = "leave out what takes longer for one call, in seconds (default: the preset's)"
    add("--patience", type=float, metavar="S", default=missing, help=text)
    add("--peers", action=argparse.BooleanOptionalAction, default=True, help="measure other packages too")
    add("--memory", action=argparse.BooleanOptionalAction, default=True, help="measure peak memory too")
    add("--flush-denormal", action="store_true", help="torch.set_flush_denormal(True) while measuring")
    add("--out", default="posenc-bench", metavar="DIR", help="folder of results.json, table.md and report.html")
    add("--json", action="store_true", help="print results.json instead of the tables")
    parser.set_defaults(run=run_bench)


def run_bench(options: argparse.Namespace, command: str) -> int:
    from dataclasses import replace

    import torch

    from posenc.lab.bench.study import QUICK, QUICK_EFFORT, STANDARD, Bench, Settings, plan
    from posenc.lab.bench.table import markdown
    from posenc.lab.bench.timing import Effort
    from posenc.lab.machine import check_present
    from posenc.lab.study import run

    device = getattr(options, "device", "cuda" if torch.cuda.is_available() else "cpu")
    check_present(device)
    effort = QUICK_EFFORT if options.quick else Effort()
    given = {name: getattr(options, name) for name in ("rounds", "patience") if hasattr(options, name)}
    clock = "cuda" if device != "cpu" else "wall" if options.wall or options.threads > 1 else "cpu"
    settings = Settings(device, options.threads, clock, options.flush_denormal, options.peers, replace(effort, **given))
    preset = QUICK if options.quick else STANDARD
    lengths, modes, dtypes = (getattr(options, name, ()) for name in ("n", "mode", "dtype"))
    trials = plan(options.cases, lengths, modes, dtypes, options.memory, preset)
    from posenc.report.speed import page, show
    from posenc.report.terminal import Display

    resolved = {"device": device, "rounds": settings.effort.rounds, "patience": settings.effort.patience}
    with Display(options.out) as display, told(options.command):
        results = run(
            Bench(trials, settings),
            options.out,
            progress=display,
            command=command,
            pages={"table.md": markdown, "report.html": page},
            begin=lambda: record(options.out, options, **resolved),
        )
    done, planned = results["trials_finished"], results["trials_planned"]
    code = conclude(options, results, show, done, planned, "trials")
    own = [row for trial in results["trials"] for row in trial["rows"] if row["package"] is None]
    return FAILED if any(row["status"] in ("failed", "differs") for row in own) else code
