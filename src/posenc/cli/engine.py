# SPDX-License-Identifier: Apache-2.0
"""Where a command computes: the options of `posenc.lab.engines`."""

import argparse
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from posenc.lab.engines import Engine

ENGINES = ("local", "ray")


def add_engine(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--engine",
        default="local",
        help=f"where cells are computed: {' or '.join(ENGINES)}; ray is a cluster, see docs/cluster.md",
    )
    text = "with --engine ray: the cluster (default: RAY_ADDRESS, or one started on this machine for the run)"
    add("--address", metavar="HOST:PORT|auto", help=text)
    add("--cpus-per-cell", type=int, metavar="N", help="with --engine ray: CPUs and threads of a cell (default: 1)")
    text = "with --engine ray: share of a GPU that a cell takes where it computes on one (default: 1)"
    add("--gpus-per-cell", type=float, metavar="X", help=text)


def read_engine(options: argparse.Namespace, local: str = "local", **more: Any) -> "Engine":
    """The engine that the options of `add_engine` ask for. local: what "local" means to this command.

    Raises:
        InputError: see `posenc.lab.engines.create`.
    """
    from posenc.errors import unknown
    from posenc.lab.engines import create

    if options.engine not in ENGINES:
        raise unknown("--engine", options.engine, ENGINES)
    return create(
        local if options.engine == "local" else options.engine,
        address=options.address,
        cpus_per_cell=options.cpus_per_cell,
        gpus_per_cell=options.gpus_per_cell,
        **more,
    )
