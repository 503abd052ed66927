# SPDX-License-Identifier: Apache-2.0
"""Your own encoding: checked, analysed and compared.

    python examples/your_own.py [FOLDER [STEPS]]

Each head subtracts slope * log(1 + distance) from its scores, so distances near a token are separated more than far ones.
Printed are the checks in a small model, the effect on scores by distance, and the losses of small models with it and with
two other encodings, up to four times the training length. FOLDER has the comparison and its report.html; the same command
resumes.
"""

import sys

import torch

import posenc
from posenc.analysis import analyze
from posenc.bias import Relative
from posenc.conformance import check
from posenc.lab import compare, data, text
from posenc.lab.engines import InProcess
from posenc.report.compare import files


class LogDistance(posenc.Encoding):
    """Slopes 0.5, 1, 1.5, ... from head to head."""

    name = "log_distance"
    shift_invariant = True
    bias_reads_keys = False

    def __init__(self, num_heads: int):
        super().__init__()
        self.num_heads = num_heads
        self.register_tables()

    def tables(self):  # what differs between heads
        return {"slopes": torch.arange(1, self.num_heads + 1) / 2}

    def bias(self, q, k, positions, layer=0):
        positions.require_one_axis("LogDistance")
        return Relative(lambda head, distance: -self.slopes[head] * distance.abs().log1p(), self.num_heads, positions)


posenc.ENCODINGS["log_distance"] = LogDistance


def main(folder="log-distance", steps=120):
    report = check(lambda model: LogDistance(model.num_heads), slow=False)
    print(report, end="\n\n")
    analysis = analyze(LogDistance(4), length=64, steps=0)
    print(*analysis.sentences(), sep="\n", end="\n\n")
    settings = text.Settings(length=32, factors=(1, 4), steps=int(steps), dim=32, head_dim=None, targets=16)
    comparison = compare.Comparison(("rope", "alibi", "log_distance"), seeds=2, settings=settings)
    results = compare.compare(comparison, data.load("pydoc"), folder, engine=InProcess(), pages=files)
    print(*results["answer"], sep="\n")
    return report, analysis, results


if __name__ == "__main__":
    main(*sys.argv[1:])
