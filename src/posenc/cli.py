"""The command line. Exit codes: 0 done, 1 failed or interrupted, 2 bad usage; a user's mistake is one line."""

import argparse
import io
import json
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from posenc import __version__
from posenc.errors import InputError, unknown

DONE, FAILED, USAGE = 0, 1, 2


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise InputError(message)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that cannot show ± shows ?
    parser = _Parser(prog="posenc", description="Positional encodings: list, compare, conform, bench, cite.")
    parser.add_argument("--version", action="version", version=f"posenc {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=_Parser)
    for name, (add, help_text) in COMMANDS.items():
        add(commands.add_parser(name, help=help_text, description=help_text, formatter_class=_HelpFormatter))
    named = f"posenc {arguments[0]}" if arguments and arguments[0] in COMMANDS else "posenc"
    try:
        if arguments and not arguments[0].startswith("-") and arguments[0] not in COMMANDS:
            raise unknown("command", arguments[0], COMMANDS)
        options = parser.parse_args(arguments)
        if options.command is None:
            parser.print_help()
            return USAGE
        run: Callable[[argparse.Namespace, str], int] = options.run
        code = run(options, shlex.join(["posenc", *arguments]))
        sys.stdout.flush()
        return code
    except InputError as error:
        print(f"{named}: error: {error}", file=sys.stderr)
        return USAGE
    except BrokenPipeError:  # whoever read our output has left
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except KeyboardInterrupt:
        print(f"{named}: interrupted", file=sys.stderr)
        return FAILED
    except RuntimeError as error:
        print(f"{named}: failed: {error}", file=sys.stderr)
        return FAILED


class _HelpFormatter(argparse.ArgumentDefaultsHelpFormatter):
    """Names the defaults that say something."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=32, width=110)

    def _get_help_string(self, action: argparse.Action) -> str | None:
        told = action.default in (None, False, []) or "(default: " in (action.help or "")
        return action.help if told else super()._get_help_string(action)


# -------------------------------------------------------------------- list, cite


def _add_output(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--out", metavar="DIR", help="also write the JSON into this folder")


def _emit(options: argparse.Namespace, data: object, text: str) -> int:
    from posenc.files import Folder

    if options.out is not None:
        Folder(options.out).write(f"{options.command}.json", json.dumps(data, indent=1))
    print(json.dumps(data, indent=1) if options.json else text)
    return DONE


def _add_list(parser: argparse.ArgumentParser) -> None:
    _add_output(parser)
    parser.set_defaults(run=_list)


def _list(options: argparse.Namespace, command: str) -> int:
    from posenc.listing import catalogue, table

    return _emit(options, catalogue(), table())


def _add_cite(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="an encoding, or several joined by +")
    _add_output(parser)
    parser.set_defaults(run=_cite)


def _cite(options: argparse.Namespace, command: str) -> int:
    from posenc.bibliography import cite

    found = cite(options.name)
    return _emit(options, {"name": options.name, "bibtex": found}, found or f"{options.name} has no paper of its own")


# -------------------------------------------------------------------- conform


class _TableFormatter(_HelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Leaves the table under the options as it is."""


def _add_conform(parser: argparse.ArgumentParser) -> None:
    from posenc.conformance.kinds import conventions

    parser.formatter_class = _TableFormatter
    parser.epilog = (
        f"{conventions()}\n\nArguments are passed by name where the function has these names, the rest in order to the"
        "\nparameters that remain. Arrays go in as torch tensors; tensors, numpy arrays and lists may come back."
        "\nExit code 0: it conforms, 1: it does not."
    )
    parser.add_argument("function", metavar="MODULE:FUNCTION", help="what to test; MODULE may be a path to a .py file")
    parser.add_argument("--as", dest="kind", metavar="KIND", required=True, help="what it is meant to be (below)")
    _add_output(parser)
    parser.set_defaults(run=_conform)


def _conform(options: argparse.Namespace, command: str) -> int:
    from posenc.conformance.diagnose import conform
    from posenc.conformance.kinds import the_kind
    from posenc.conformance.target import find, prints_aside

    the_kind(options.kind, "--as")
    if options.out:
        options.out = os.path.abspath(options.out)  # the tested code may change the folder
    with prints_aside():  # what the tested code prints is not our answer
        verdict = conform(find(options.function), options.kind)
    _emit(options, {"function": options.function, **verdict.to_dict()}, f"{options.function} as {verdict}")
    return DONE if verdict.passed else FAILED


# -------------------------------------------------------------------- compare


def _add_compare(parser: argparse.ArgumentParser) -> None:
    from posenc.lab.config import PRESETS

    parser.epilog = (
        "Encodings are named as `posenc list` shows them, with options after colons (rope:rope_theta=500000) and "
        "joined by + (rope+alibi). A comparison that was stopped goes on when the same command is given again."
    )
    add = parser.add_argument
    missing: Any = argparse.SUPPRESS
    add("--encodings", nargs="+", metavar="NAME", default=missing, help="what to compare (default: the preset's)")
    add("--preset", default="standard", help=f"size of the comparison: {', '.join(PRESETS)}")
    add(
        "--data",
        default="pydoc",
        metavar="TEXT",
        help="pydoc (Python's reference), a text file or folder, or hf:NAME[:CONFIG]",
    )
    add("--out", default="posenc-compare", metavar="DIR", help="folder of results.json and report.html")
    add("--seeds", type=int, metavar="N", default=missing, help="trainings per encoding (default: the preset's)")
    for flag, kind, text in (
        ("--length", int, "training length in bytes"),
        ("--steps", int, "training steps"),
        ("--batch-size", int, "texts per step"),
        ("--dim", int, "width of the model"),
        ("--num-layers", int, "layers of the model"),
        ("--num-heads", int, "attention heads"),
        ("--head-dim", int, "width of a head"),
        ("--learning-rate", float, "of Muon, for the model's matrices"),
        ("--adamw-learning-rate", float, "of AdamW, for embedding and norms"),
        ("--position-learning-rate", float, "of AdamW, for an encoding's tables"),
        ("--windows", int, "held-out passages"),
        ("--targets", int, "scored bytes at the end of each passage"),
    ):
        add(
            flag,
            type=kind,
            metavar="X" if kind is float else "N",
            default=missing,
            help=f"{text} (default: the preset's)",
        )
    add(
        "--factors",
        type=int,
        nargs="+",
        metavar="F",
        default=missing,
        help="test lengths over the training length (default: the preset's)",
    )
    add("--workers", type=int, metavar="N", default=missing, help="models trained at a time (default: one per core)")
    add("--json", action="store_true", help="print results.json instead of the table")
    parser.set_defaults(run=_compare)


def _compare(options: argparse.Namespace, command: str) -> int:
    from dataclasses import fields, replace

    from posenc.lab.compare import Comparison, compare, names
    from posenc.lab.config import PRESETS, Settings
    from posenc.lab.data import load
    from posenc.lab.sweep import Interrupted
    from posenc.report.page import page
    from posenc.report.terminal import Terminal

    if options.preset not in PRESETS:
        raise unknown("--preset", options.preset, PRESETS)
    preset = PRESETS[options.preset]
    given = {f.name: getattr(options, f.name) for f in fields(Settings) if hasattr(options, f.name)}
    if "factors" in given:
        given["factors"] = tuple(given["factors"])
    comparison = Comparison(
        names(options.encodings) if hasattr(options, "encodings") else preset.encodings,
        getattr(options, "seeds", preset.seeds),
        replace(preset.settings, **given),
    )
    corpus = load(options.data)
    with Terminal(options.out) as terminal:
        try:
            workers = getattr(options, "workers", None)
            results = compare(
                comparison,
                corpus,
                options.out,
                workers=workers,
                progress=terminal.progress,
                command=command,
                render=page,
            )
        except Interrupted:
            print("posenc compare: interrupted before a run had finished; nothing was kept", file=sys.stderr)
            return FAILED
    if options.json:
        print(json.dumps(results))
    else:
        terminal.show(results)
    if not results["complete"]:
        done = results["runs"]
        print(
            f"posenc compare: interrupted; {done['finished']} of {done['planned']} runs are kept and reported, "
            "the same command goes on from there",
            file=sys.stderr,
        )
        return FAILED
    return DONE


# -------------------------------------------------------------------- bench


def _add_bench(parser: argparse.ArgumentParser) -> None:
    from posenc.bench.case import DTYPES, MODES
    from posenc.bench.cases import CASES

    parser.formatter_class = _TableFormatter
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
    parser.set_defaults(run=_bench)


def _bench(options: argparse.Namespace, command: str) -> int:
    from dataclasses import replace

    import torch

    from posenc.bench.harness import Effort
    from posenc.bench.plan import QUICK, QUICK_EFFORT, STANDARD, Settings, plan
    from posenc.bench.run import bench, check_device
    from posenc.bench.table import markdown

    device = getattr(options, "device", "cuda" if torch.cuda.is_available() else "cpu")
    check_device(device)
    effort = QUICK_EFFORT if options.quick else Effort()
    given = {name: getattr(options, name) for name in ("rounds", "patience") if hasattr(options, name)}
    clock = "cuda" if device != "cpu" else "wall" if options.wall or options.threads > 1 else "cpu"
    settings = Settings(device, options.threads, clock, options.flush_denormal, options.peers, replace(effort, **given))
    preset = QUICK if options.quick else STANDARD
    lengths, modes, dtypes = (getattr(options, name, ()) for name in ("n", "mode", "dtype"))
    trials = plan(options.cases, lengths, modes, dtypes, options.memory, preset)
    from posenc.report.speed import Terminal, page

    with Terminal(options.out) as terminal:
        results = bench(
            trials,
            settings,
            options.out,
            progress=terminal.progress,
            command=command,
            render={"table.md": markdown, "report.html": page},
        )
    if options.json:
        print(json.dumps(results))
    else:
        terminal.show(results)
    if not results["complete"]:
        done, planned = results["trials_finished"], results["trials_planned"]
        print(
            f"posenc bench: interrupted; {done} of {planned} trials are kept and reported, the same command goes on "
            "from there",
            file=sys.stderr,
        )
        return FAILED
    own = [row for trial in results["trials"] for row in trial["rows"] if row["package"] is None]
    return FAILED if any(row["status"] in ("failed", "differs") for row in own) else DONE


COMMANDS: dict[str, tuple[Callable[[argparse.ArgumentParser], None], str]] = {
    "list": (_add_list, "Every encoding: what it is, where it acts, its paper."),
    "compare": (
        _add_compare,
        "Train the same small Transformer with each encoding and test it past its training length.",
    ),
    "conform": (_add_conform, "Hold a function of yours against the authors' formulas and say what is wrong."),
    "bench": (_add_bench, "Measure speed and memory against the packages installed here."),
    "cite": (_add_cite, "BibTeX of an encoding's papers."),
}

if __name__ == "__main__":
    sys.exit(main())
