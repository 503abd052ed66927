# SPDX-License-Identifier: Apache-2.0
"""How far apart the behaviours of `posenc compare` are on other processors and of other programs; write benchmarks/behaviour.md.

    python benchmarks/behaviour.py

`posenc.lab.behaviour.TOLERANCE` has to lie between the two. Every row is of a process of its own, which computes the behaviours
(`posenc.lab.measure.behaviour`) of some encodings under the settings of the leaderboard: in the arithmetic of another processor, or
with one change of the program.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from multiprocessing import get_context
from pathlib import Path
from typing import Any

PAGE = Path(__file__).with_suffix(".md")
TASK = "text"
ENCODINGS = ("rope", "alibi", "fox", "complex_order")

PROCESSORS: Mapping[str, Mapping[str, str]] = {
    "no vector instructions in torch's kernels": {"ATEN_CPU_CAPABILITY": "default"},
    "SSE in oneDNN and MKL": {"ONEDNN_MAX_CPU_ISA": "SSE41", "MKL_CBWR": "COMPATIBLE"},
    "both, and two threads": {
        "OMP_NUM_THREADS": "2",
        "ATEN_CPU_CAPABILITY": "default",
        "ONEDNN_MAX_CPU_ISA": "SSE41",
        "MKL_CBWR": "COMPATIBLE",
    },
}
PROGRAMS: Mapping[str, tuple[tuple[str, ...], str]] = {
    "ALiBi's slopes times 50": (
        ("alibi",),
        "from posenc.encodings import distance as b; o = b.alibi_slopes; b.alibi_slopes = lambda *a, **k: o(*a, **k) * 50",
    ),
    "ALiBi's slopes times 1.1": (
        ("alibi",),
        "from posenc.encodings import distance as b; o = b.alibi_slopes; b.alibi_slopes = lambda *a, **k: o(*a, **k) * 1.1",
    ),
    "RoPE's base 11000, not 10000": (
        ("rope",),
        "from posenc.encodings import rotary as r; from posenc import frequencies as f; "
        "r.PairwiseRotary.frequencies = lambda s: f.create(s.schedule, s.rotated, base=1.1 * s.rope_theta)",
    ),
    "scores times 1.05": (
        ("rope", "alibi"),
        "from posenc.encoding import Encoding as E; o = E.scale; E.scale = lambda s, d: 1.05 * o(s, d)",
    ),
    "momentum 0.9, not 0.95": (
        ("rope",),
        "import posenc.lab.train as t; o = t.Muon; t.Muon = lambda *a, **k: o(*a, **{**k, 'momentum': 0.9})",
    ),
    "warm-up over 10 % of the steps, not 5": (("rope",), "import posenc.lab.train as t; t.WARM_UP = 0.1"),
    "a learning rate that falls along a line": (
        ("rope",),
        "import posenc.lab.train as t; t.schedule = lambda step, steps: 1 - step / steps",
    ),
    "weight decay 0.09, not 0.1": (
        ("rope",),
        "import posenc.lab.train as t; o = t.Muon; t.Muon = lambda *a, **k: o(*a, **{**k, 'weight_decay': 0.09})",
    ),
    "other texts": (
        ("rope",),
        "import posenc.lab.text as t; o = t.Settings.draw; t.Settings.draw = lambda s, x, g: o(s, x, g.manual_seed(7))",
    ),
}


def computed(encodings: Sequence[str]) -> dict[str, dict[str, float]]:
    """The behaviours in this process, by encoding."""
    import torch

    from posenc.lab.compare import experiment
    from posenc.lab.experiment import Run
    from posenc.lab.machine import flushed_denormals
    from posenc.lab.measure import behaviour

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    kind, behaviours = experiment(TASK), {}
    corpus, settings = kind.presets["leaderboard"].settings.load(kind.data)
    for encoding in encodings:
        with flushed_denormals():
            behaviours[encoding] = behaviour(Run.of(encoding, 0, settings, corpus.digest), corpus)
    return behaviours


def elsewhere(environment: Mapping[str, str]) -> Any:
    """The behaviours of all encodings in another process."""
    code = f"import json, sys; sys.path.insert(0, {str(PAGE.parent)!r}); import behaviour; print()\n"
    code += f"print(json.dumps(behaviour.computed({list(ENCODINGS)!r})))"
    variables = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    done = subprocess.run([sys.executable, "-c", code], env=variables, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def changed(encodings: Sequence[str], change: str) -> Any:
    """The behaviours of some encodings by a changed program, in a copy of this process."""
    with get_context("fork").Pool(1) as copy:
        return copy.apply(_changed, (list(encodings), change))


def _changed(encodings: list[str], change: str) -> dict[str, dict[str, float]]:
    exec(change, {})
    return computed(encodings)


def apart(here: Mapping[str, Mapping[str, float]], there: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """How far apart two behaviours are, by encoding: of their numbers the largest difference, as `disagreement` has it."""
    return {
        each: max(abs(a - there[each][name]) / max(1, abs(a), abs(there[each][name])) for name, a in here[each].items())
        for each in there
    }


def row(what: str, distances: Mapping[str, float]) -> str:
    least, most = (pick(distances, key=lambda each: distances[each]) for pick in (min, max))
    line = f"| {what} | {distances[least]:.1g} ({least}) | {distances[most]:.1g} ({most}) |"
    print(line, flush=True)
    return line


def main() -> None:
    """Measure, and write the page."""
    from posenc.lab.behaviour import TOLERANCE
    from posenc.lab.machine import cpu

    os.environ["OMP_NUM_THREADS"] = "1"
    here = computed(list(ENCODINGS))
    head = ["| | least | most |", "|---|---|---|"]
    processors = [row(what, apart(here, elsewhere(how))) for what, how in PROCESSORS.items()]
    programs = [row(what, apart(here, changed(names, change))) for what, (names, change) in PROGRAMS.items()]
    PAGE.write_text(
        "\n".join(
            [
                "# How far apart behaviours are",
                "",
                "Written by `python benchmarks/behaviour.py` "
                f"on {cpu()}: the largest difference of a number of two behaviours, as a share of the larger or of 1, over "
                f"{len(ENCODINGS)} encodings on {TASK}. Up to {TOLERANCE:g} two are taken to be of one "
                "program.",
                "",
                "## One program, other arithmetic",
                "",
                *head,
                *processors,
                "",
                "## Other programs",
                "",
                *head,
                *programs,
                "",
            ]
        )
    )


if __name__ == "__main__":
    main()
