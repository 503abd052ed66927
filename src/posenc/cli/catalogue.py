# SPDX-License-Identifier: Apache-2.0
"""posenc list, posenc cite."""

import argparse

from posenc.cli.common import add_output, emit


def add_list(parser: argparse.ArgumentParser) -> None:
    add_output(parser)
    parser.set_defaults(run=run_list)


def run_list(options: argparse.Namespace, command: str) -> int:
    from posenc.cli.listing import catalogue, table

    return emit(options, catalogue(), table())


def add_cite(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="an encoding, or several joined by +")
    add_output(parser)
    parser.set_defaults(run=run_cite)


def run_cite(options: argparse.Namespace, command: str) -> int:
    from posenc.encodings.catalogue import cite

    found = cite(options.name)
    return emit(options, {"name": options.name, "bibtex": found}, found or f"{options.name} has no paper of its own")
