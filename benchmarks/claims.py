# SPDX-License-Identifier: Apache-2.0
"""The numbers of docs/claims.md that have no link: print them.

python benchmarks/claims.py
"""

import math
import sys
from pathlib import Path

import torch

sys.path.append(str(Path(__file__).parents[1] / "docs"))

import guide_code
import posenc
from posenc import Positions, functional


def order() -> None:
    """What a recurrent network and attention make of order; the two words of a sentence."""
    gru = torch.nn.GRU(16, 16, batch_first=True).double()
    attention = torch.nn.MultiheadAttention(16, 2, batch_first=True).double()
    print(f"outputs of a GRU change by {guide_code.equivariance(lambda x: gru(x)[0], dim=16).order:.1f} when permuted")
    assert guide_code.equivariance(lambda x: attention(x, x, x)[0], dim=16).order < 1e-12
    twins = guide_code.twins("can you open a can", "sinusoidal")
    print(f"cosine of the two can: {twins.cosine_without:.2f} without codes, {twins.cosine:.2f} with them")


def sinusoidal() -> None:
    """What sines alone miss, one pair for all positions, which channels vary, how far codes are
    similar, integrals of a wave."""
    sines = functional.sinusoidal(torch.arange(512), 64, dtype=torch.float64)
    angles = torch.arange(1024, dtype=torch.float64) * torch.pi / 512
    distances = torch.pdist(torch.stack((angles.sin(), angles.cos()), 1))
    print(f"nearest codes of one pair: {distances.min():.3f}, of all pairs {torch.pdist(sines).min() / 32**0.5:.2f}")
    for name, codes in (("sines", sines[:, ::2]), ("cosines", sines[:, 1::2])):
        best = torch.linalg.lstsq(codes[:-5], codes[5:], driver="gelsd").solution
        missed = (codes[5:] - codes[:-5] @ best).norm() / codes[5:].norm()
        print(f"the best matrix misses {100 * missed:.0f} % of the {name}")

    short = functional.sinusoidal(torch.arange(20), 512, dtype=torch.float64)
    still = short.amax(0) - short.amin(0) < 0.1
    energy = torch.linalg.svdvals(short - short.mean(0)).square()
    directions = int((energy.cumsum(0) / energy.sum() < 0.99).sum()) + 1
    assert abs(still.double().mean() - 1 / 2) < 0.02
    assert short[:, still].amin() > -0.1
    print(f"99 % of the variance in {directions} directions")

    far = functional.sinusoidal(torch.tensor([0, 10_000, 30_000, 60_000]), 128, dtype=torch.float64)
    print("similarity at 10000, 30000, 60000:", *(f"{x:.2f}" for x in (far[1:] @ far[0] / 64).tolist()))

    w, phase, damping = 3.0, 1.0, 0.1
    time = torch.arange(0, 2000, 0.001, dtype=torch.float64)
    wave = torch.cos(w * time + phase) * 0.001
    mean, damped = wave.cumsum(0).mean(), (wave * (-damping * time).exp()).sum()
    assert abs(mean + math.sin(phase) / w) < 0.01
    assert abs(damped - (damping * math.cos(phase) - w * math.sin(phase)) / (damping**2 + w**2)) < 0.01
    print(f"mean of the integral {mean:.2f}, damped integral {damped:.2f}")


def adding() -> None:
    """No word is mistaken for another."""
    words, codes = torch.randn(256, 128), functional.sinusoidal(torch.arange(128), 128).float()
    nearest = torch.cdist((words[:, None] + codes).flatten(0, 1), words).argmin(-1).view(256, 128)
    assert (nearest == torch.arange(256)[:, None]).all()


def direction() -> None:
    """RoPE's scores of one query and key at several positions."""
    rope = posenc.Rotary(64)
    q, k = torch.randn(2, 1, 1, 1, 64)

    def score(i: int, j: int) -> float:
        (q_i, _), (_, k_j) = (rope.rotate(q, k, Positions.from_ids(torch.tensor([[at]]))) for at in (i, j))
        return float((q_i * k_j).sum())

    print(f"{score(3, 1):.2f} is not {score(1, 3):.2f}")
    assert abs(score(103, 101) - score(3, 1)) < 1e-4


def main() -> None:
    """Everything, with seed 0."""
    torch.manual_seed(0)
    for claims in (order, sinusoidal, adding, direction):
        claims()


if __name__ == "__main__":
    main()
