"""What an encoding returns is looked at once, at the boundary, and a refusal names the class and the method."""

import pytest
import torch

from posenc import Encoding, InputError, Positions, attention, explain
from posenc.bias import Dense, Factored, KeyRelative, KeyValues, QueryRelative, Relative, Score, Values

B, H, N, D = 2, 4, 6, 8


class Mine(Encoding):
    def __init__(self, bias=None, values=None) -> None:
        super().__init__()
        self.made = bias, values

    def bias(self, q, k, positions, layer=0):
        return self.made[0] and self.made[0](q, k, positions)

    def values(self, positions, layer=0):
        return self.made[1] and self.made[1](positions)


class Bare(Score):
    """One that sets no sizes."""


class Rows(Score):
    """One that gives rows alone."""

    def __init__(self, positions) -> None:
        self.batch, self.num_heads = 1, 1
        self.num_queries, self.num_keys = positions.num_queries, positions.num_keys

    def rows(self, device):
        return lambda first, end: (torch.arange(first, end)[:, None] * torch.arange(self.num_keys) * 0.1)[None, None]


def inputs(kv_heads=H, dtype=torch.float64):
    g = torch.Generator().manual_seed(0)
    shapes = (B, H, N, D), (B, kv_heads, N, D), (B, kv_heads, N, D)
    return [torch.randn(shape, dtype=torch.float64, generator=g).to(dtype) for shape in shapes]


def row(distance):
    return distance + N - 1


def table(rows=2 * N - 1, heads=1, width=D):
    return torch.ones(heads, rows, width, dtype=torch.float64)


WRONG = {
    "a tensor": (lambda q, k, p: torch.zeros(1, H, N, N), r"Mine.bias returned a tensor of shape .*Dense\(tensor\)"),
    "a number in a list": (lambda q, k, p: [1.5], r"Mine.bias returned 1.5: return a posenc.bias.Score"),
    "too many heads": (lambda q, k, p: Dense(torch.zeros(1, 6, N, N)), r"Mine.bias returned a Dense that has 6 heads, q has 4"),
    "key heads": (lambda q, k, p: Dense(torch.zeros(1, 2, N, N)), r"has 2 heads, q has 4"),
    "too many rows": (lambda q, k, p: Dense(torch.zeros(3, H, N, N)), r"has 3 rows, q has a batch of 2"),
    "other tokens": (lambda q, k, p: Dense(torch.zeros(1, H, N, N + 1)), r"is of 6 queries and 7 keys; q has 6"),
    "a mask": (lambda q, k, p: Dense(torch.ones(1, H, N, N, dtype=torch.bool)), r"Dense: tensor is bool.*-torch.inf"),
    "three dimensions": (lambda q, k, p: Dense(torch.zeros(H, N, N)), r"Dense: tensor is a tensor of shape \(4, 6, 6\)"),
    "factors of key heads": (
        lambda q, k, p: Factored(torch.zeros(1, H, N, 2), torch.zeros(1, 2, N, 2)),
        r"a Factored that has right of shape \(1, 2, 6, 2\): .* num_heads is 4",
    ),
    "factors of two widths": (
        lambda q, k, p: Factored(torch.zeros(1, H, N, 2), torch.zeros(1, H, N, 3)), r"right of shape \(1, 4, 6, 3\): .* m is 2"
    ),
    "a flat table": (lambda q, k, p: QueryRelative(q, table()[0], row, p), r"QueryRelative: table is a tensor of shape \(11, 8\)"),
    "a narrow table": (lambda q, k, p: KeyRelative(k, table(width=3), row, p), r"a KeyRelative that has table of shape"),
    "a table of key heads": (lambda q, k, p: QueryRelative(q, table(heads=2), row, p), r"has table of shape \(2, 11, 8\)"),
    "another device": (lambda q, k, p: Dense(torch.zeros(1, H, N, N, device="meta")), r"has tensor on meta, q is on cpu"),
    "no sizes": (lambda q, k, p: Bare(), r"a Bare that has no batch: set self.batch"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_bias_is_refused(name):
    make, message = WRONG[name]
    for ask in (attention, explain):
        with pytest.raises(InputError, match=message):
            ask(*inputs(kv_heads=2 if "key heads" in name else H), Mine(make), Positions.arange(N))


VALUES = {
    "a tensor": (lambda p: torch.zeros(1, 11, D), r"Mine.values returned a tensor"),
    "a flat table": (lambda p: Values(torch.zeros(11, D), row), r"Values: table is a tensor of shape \(11, 8\)"),
    "another width": (
        lambda p: Values(torch.zeros(1, 11, 3), row),
        r"Mine.values returned Values that has table of shape \(1, 11, 3\): .* width of v is 8",
    ),
    "other heads": (lambda p: Values(torch.zeros(3, 11, D), row), r"table of shape \(3, 11, 8\): .* num_heads is 4"),
    "other key heads": (
        lambda p: KeyValues(torch.zeros(1, 3, N, D)),
        r"added of shape \(1, 3, 6, 8\): .* num_kv_heads is 4",
    ),
    "other tokens": (lambda p: KeyValues(torch.zeros(1, H, 5, D)), r"of shape \(1, 4, 5, 8\): .* num_keys is 6"),
}


@pytest.mark.parametrize("name", VALUES)
def test_wrong_values_are_refused(name):
    make, message = VALUES[name]
    with pytest.raises(InputError, match=message):
        attention(*inputs(), Mine(values=make), Positions.arange(N))


@pytest.mark.parametrize("backend", ["auto", "flex", "reference"])
@pytest.mark.parametrize("structure", [QueryRelative, KeyRelative, Values])
@pytest.mark.parametrize("off", [1, -1])
def test_rows_that_a_table_does_not_have_are_refused_alike(off, structure, backend):
    q, k, v = inputs()
    content = q if structure is QueryRelative else k
    mine = Mine(lambda q, k, p: structure(content, table(), lambda distance: row(distance) + off, p))
    if structure is Values:  # which FlexAttention has not
        mine, backend = Mine(values=lambda p: Values(table(), lambda d: row(d) + off)), backend.replace("flex", "sdpa")
    missing = 2 * N - 1 if off > 0 else -1
    for where in (Positions.arange(N), Positions.from_ids(list(range(N)))):
        with pytest.raises(InputError, match=rf"index gives row {missing} of a table of 11 rows: .* from -5 to 5"):
            attention(q, k, v, mine, where, backend=backend)


def test_a_users_score_may_give_rows_alone(monkeypatch):
    from posenc.backends import sdpa

    monkeypatch.setattr(sdpa, "BLOCK_CELLS", B * H * N * 2)
    monkeypatch.setattr(sdpa, "LEAST_ROWS", 1)
    leaves, mine = inputs(), Mine(lambda q, k, p: Rows(p))
    for where in (Positions.arange(N), Positions.arange(N, causal=True)):
        out = attention(*leaves, mine, where)
        assert torch.allclose(out, attention(*leaves, mine, where, backend="reference"), atol=1e-12)
        explained = explain(*leaves, mine, where)
        reason = "a term is a Rows, of whose form nothing is known: a dense mask, for some queries at a time"
        assert reason in explained.reason
        assert explained.faster == "Relative, QueryRelative, KeyRelative or Factored terms"


def test_one_head_or_one_row_may_serve_all():
    q, k, v = inputs(kv_heads=2)
    shared = [Dense(torch.ones(1, 1, N, N)), Factored(torch.ones(1, 1, N, 2), torch.ones(B, 1, N, 2))]
    mine = Mine(lambda q, k, p: (*shared, Relative(lambda head, d: 0.0 * head - d.abs(), 1, p)))
    p = Positions.arange(N)
    assert torch.allclose(attention(q, k, v, mine, p), attention(q, k, v, mine, p, backend="reference"), atol=1e-12)
