# SPDX-License-Identifier: Apache-2.0
"""posenc conform."""

import argparse
import os

from posenc.cli.common import DONE, FAILED, TableFormatter, add_output, emit


def add_conform(parser: argparse.ArgumentParser) -> None:
    from posenc.conformance.kinds import conventions

    parser.formatter_class = TableFormatter
    parser.epilog = (
        f"{conventions()}\n\nArguments are passed by name where the function has these names, the rest in order to the"
        "\nparameters that remain. Arrays go in as torch tensors; tensors, numpy arrays and lists may come back."
        "\nExit code 0: it conforms, 1: it does not."
    )
    parser.add_argument("function", metavar="MODULE:FUNCTION", help="what to test; MODULE may be a path to a .py file")
    parser.add_argument("--as", dest="kind", metavar="KIND", required=True, help="what it is meant to be (below)")
    add_output(parser)
    parser.set_defaults(run=run_conform)


def run_conform(options: argparse.Namespace, command: str) -> int:
    from posenc.conformance.diagnose import conform
    from posenc.conformance.kinds import the_kind
    from posenc.spec import load_function, printing_to_stderr

    the_kind(options.kind, "--as")
    if options.out:
        options.out = os.path.abspath(options.out)  # the tested code may change the folder
    with printing_to_stderr():  # what the tested code prints is not our answer
        verdict = conform(load_function(options.function), options.kind)
    emit(options, {"function": options.function, **verdict.to_dict()}, f"{options.function} as {verdict}")
    return DONE if verdict.passed else FAILED
