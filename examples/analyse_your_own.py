"""Two codes of one's own, analysed: a wave that comes round within the text, and waves of many lengths.

Prints, for each, whether every position has a code of its own, and how far the best matrix is from moving every code one
position on. The single wave collides where it comes round; its shift is a rotation all the same.
"""

import torch

from posenc.analysis import analyze


def one_wave(positions):
    """The hand of a clock with 24 hours."""
    angle = positions.double() * 2 * torch.pi / 24
    return torch.stack((angle.sin(), angle.cos()), -1)


def many_waves(positions):
    """Eight hands, each slower than the last."""
    angles = positions.double()[:, None] / 3.0 ** torch.arange(8)
    return torch.cat((angles.sin(), angles.cos()), -1)


def main():
    """What was found, by name: (every code unique, the first collision, how far the shift misses)."""
    found = {}
    for function in (one_wave, many_waves):
        analysis = analyze(function, length=128, steps=0)
        unique, shift = analysis["properties"].finding.unique, analysis["shift"].finding
        found[analysis.subject] = unique.holds, unique.collision, shift
        print(f"{analysis.subject}: {unique.sentences()[0]} {shift.sentences()[0]}")
    return found


if __name__ == "__main__":
    main()
