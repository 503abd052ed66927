"""Which cases of the tests run by default."""

import os
import random
import subprocess
from collections import defaultdict
from pathlib import Path

FEW, WHERE_PRODUCTS_MATTER = 3, 6
"""Cases of a test that run by default; the second number in tests of backends, structures and dtypes together."""


def most(nodeid):
    """How many cases of a test run by default."""
    return WHERE_PRODUCTS_MATTER if nodeid.startswith(("tests/backends/", "tests/test_attention")) else FEW


def drawn(group, count, seed):
    """Cases of one test that have every value of every parameter, as far as a count of them can."""
    group = random.Random(seed).sample(group, len(group))
    values = {id(item): {*item.callspec.indices.items()} if hasattr(item, "callspec") else set() for item in group}
    wanted, taken = set().union(*values.values()), []
    while group and len(taken) < count:
        best = max(group, key=lambda item: len(values[id(item)] & wanted))
        wanted -= values[id(best)]
        taken.append(best)
        group.remove(best)
    return taken


def commit():
    """Twenty commits draw other cases, unless POSENC_DRAW names a draw; "" outside a clone."""
    if named := os.environ.get("POSENC_DRAW"):
        return named
    here = Path(__file__).parent
    try:
        return subprocess.run(["git", "-C", here, "rev-parse", "HEAD"], capture_output=True, text=True).stdout.strip()
    except OSError:
        return ""


def few(items, draw):
    """The items that run by default, in their order, and those that are left out. draw: what decides between them."""
    groups = defaultdict(list)
    for item in items:
        groups[item.nodeid.partition("[")[0]].append(item)
    kept = {id(item) for name, group in groups.items() for item in drawn(group, most(name), name + draw)}
    return [item for item in items if id(item) in kept], [item for item in items if id(item) not in kept]
