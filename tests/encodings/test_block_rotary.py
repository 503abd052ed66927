"""LieRE, ComRoPE and STRING: scores through scipy's matrix exponential, one pair of tokens at a time."""

import numpy as np
import pytest
import torch
from scipy.linalg import expm
from torch.testing import assert_close

from posenc import STRING, AxialRotary, ComRoPE, InputError, LieRE, Positions, Rotary
from references.calls import EVERYWHERE, EXACT, qkv, random, scores

GRID = Positions.grid(3, 4, prefix=1)


def skew(x):
    upper = np.triu(x.detach().numpy(), 1)
    return upper - upper.T


def table(positions, q, k, rotation):
    """Scores of vectors turned by rotation(key head, position), a (head_dim, head_dim) matrix."""
    groups, out = q.shape[1] // k.shape[1], torch.zeros(*q.shape[:3], k.shape[2], dtype=torch.float64)
    for b, h, i, j in torch.cartesian_prod(*(torch.arange(n) for n in out.shape)).tolist():
        of_q, of_k = (x[b % len(x), n].double().numpy() for x, n in ((positions.q, i), (positions.k, j)))
        turned = (rotation(h // groups, p) @ x.numpy() for p, x in ((of_q, q[b, h, i]), (of_k, k[b, h // groups, j])))
        out[b, h, i, j] = float(np.dot(*turned))
    return out


def blocks(matrices):
    size = sum(len(matrix) for matrix in matrices)
    out, at = np.zeros((size, size)), 0
    for matrix in matrices:
        out[at : at + len(matrix), at : at + len(matrix)] = matrix
        at += len(matrix)
    return out


def of_generators(generators):
    """rotation(head, position) from generator(head, axis, block), skew-symmetric."""

    def rotation(head, position, count, axes):
        position = np.atleast_1d(position)
        where = np.broadcast_to(position, axes)
        return blocks([expm(sum(x * generators(head, a, b) for a, x in enumerate(where))) for b in range(count)])

    return rotation


@EVERYWHERE
def test_liere_on_text_is_its_formula(positions):
    encoding = random(LieRE(8, num_heads=4, num_kv_heads=2, num_layers=2, block=4), std=0.1)
    q, k, _ = qkv(positions, 4, 2, 8)
    rotation = of_generators(lambda head, axis, block: skew(encoding.generator[1, head, axis, block]))
    expected = table(positions, q, k, lambda head, p: rotation(head, p, 2, 1))
    assert_close(scores(encoding, q, k, positions, layer=1), expected, **EXACT)


def test_liere_on_a_grid_is_its_formula():
    encoding = random(LieRE(8, num_heads=2, axes=2, block=4), std=0.3)
    q, k, _ = qkv(GRID, 2, 2, 8)
    rotation = of_generators(lambda head, axis, block: skew(encoding.generator[0, head, axis, block]))
    expected = table(GRID, q, k, lambda head, p: rotation(head, p, 2, 2))
    assert_close(scores(encoding, q, k, GRID), expected, **EXACT)


@pytest.mark.parametrize("variant", ["ld", "ap"])
def test_comrope_on_a_grid_is_its_formula_and_relative(variant):
    encoding = random(ComRoPE(8, num_heads=2, axes=2, block=2, variant=variant), std=0.3)
    q, k, _ = qkv(GRID, 2, 2, 8)

    def generator(head, axis, block):
        one = skew(encoding.generator[0, head, block])
        return one * (float(encoding.factors[0, axis, block]) if variant == "ld" else block % 2 == axis)

    rotation = of_generators(generator)
    expected = table(GRID, q, k, lambda head, p: rotation(head, p, 4, 2))
    assert_close(scores(encoding, q, k, GRID), expected, **EXACT)
    ids = torch.tensor([[[0, 0], [2, 1], [1, 5]]])
    at, moved = (Positions.from_ids(ids + torch.tensor(shift)) for shift in ([0, 0], [7, 3]))
    q, k = q[:, :, :3], k[:, :, :3]
    assert_close(scores(encoding, q, k, at), scores(encoding, q, k, moved), **EXACT)
    together = random(LieRE(8, num_heads=2, axes=2, block=4), std=0.3)
    assert (scores(together, q, k, at) - scores(together, q, k, moved)).abs().max() > 1e-3, "LieRE's do not commute"


@EVERYWHERE
def test_string_is_rope_in_another_basis(positions):
    encoding = random(STRING(8, num_heads=4, num_kv_heads=2, num_layers=2), std=0.3)
    q, k, _ = qkv(positions, 4, 2, 8)
    bases = []
    for head in range(2):
        s, identity = skew(encoding.skew[1, head]), np.eye(8)
        bases.append(torch.from_numpy((identity - s) @ np.linalg.inv(identity + s)))
        assert_close(bases[-1] @ bases[-1].T, torch.eye(8, dtype=torch.float64), **EXACT)
    k_in = torch.stack([k[:, h] @ bases[h].T for h in range(2)], 1)
    q_in = torch.stack([q[:, h] @ bases[h // 2].T for h in range(4)], 1)
    assert_close(scores(encoding, q, k, positions, layer=1), scores(Rotary(8), q_in, k_in, positions), **EXACT)


def test_string_without_a_basis_is_axial_rope():
    encoding = random(STRING(8, axes=2, rope_theta=100.0, num_heads=2), std=0.0)
    q, k, _ = qkv(GRID, 2, 2, 8)
    axial = AxialRotary(8, axes=2, rope_theta=100.0, layout="half").double()
    assert_close(scores(encoding, q, k, GRID), scores(axial, q, k, GRID), **EXACT)


@pytest.mark.parametrize(
    "encoding", [LieRE(8, num_heads=2, block=4), ComRoPE(8, num_heads=2, block=4), STRING(8, num_heads=2)], ids=repr
)
def test_distances_far_from_the_start_are_exact_in_float32(encoding):
    q, k = torch.randn(2, 1, 2, 4, 8)
    near, far = Positions.arange(4), Positions.from_ids(torch.arange(4) + 10**6)
    assert_close(scores(encoding, q, k, far), scores(encoding, q, k, near), rtol=0, atol=2e-5)


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: LieRE(12, num_heads=2, block=8), "block=8"),
        (lambda: LieRE(8, num_heads=4, num_kv_heads=3), "num_kv_heads=3"),
        (lambda: ComRoPE(8, num_heads=2, axes=2, block=8, variant="ap"), "block=8"),
        (lambda: ComRoPE(8, num_heads=2, variant="lp"), "variant"),
        (lambda: STRING(6, axes=2, num_heads=2), "head_dim=6"),
    ],
)
def test_sizes_that_do_not_fit_are_named(make, named):
    with pytest.raises(InputError, match=named):
        make()
