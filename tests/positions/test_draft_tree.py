"""A tree of drafts after a KV cache: each draft's output is that of its path alone, for every encoding."""

import pytest
import torch
from torch.testing import assert_close

import posenc
from posenc import InputError, Positions

PARENTS, PAST, HEADS, WIDTH = [-1, 0, 0, 1, -1, 2, 4], 5, 4, 8
COUNT = len(PARENTS)
ENCODINGS = [
    *posenc.ENCODINGS, "rope+alibi", "rope@rerope:window=3", "rope@self_extend:window=3:group=2",
    "rope@streaming:sinks=1:recent=2", "alibi+log_n:train_length=3", "rope+prefix_kv:length=2", "rope+chunks:size=3",
]  # fmt: skip
A_LINE = {"window": "a window counts", "chunks": "blocks count", "rope+chunks:size=3": "blocks count"}
"""What counts the tokens of a line."""


def path(draft: int, parents: list[int] = PARENTS) -> list[int]:
    """A draft's ancestors, and itself."""
    return [*(path(parents[draft], parents) if parents[draft] >= 0 else []), draft]


def alone(encoding, q, k, v, past: int, drafts: list[int], gates=None):
    """The last output of some drafts after a cache, a line."""
    keys = [*range(past), *(past + draft for draft in drafts)]
    p = Positions.arange(len(drafts), offset=past, causal=True)
    return posenc.attention(q[:, :, drafts], k[:, :, keys], v[:, :, keys], encoding, p)[:, :, -1]


def made(name: str):
    encoding = posenc.create(
        name, dim=HEADS * WIDTH, num_heads=HEADS, head_dim=WIDTH, max_positions=64, num_layers=1, causal=True
    )
    for parameter in encoding.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    projections = torch.nn.Linear(HEADS * WIDTH, HEADS * WIDTH), torch.nn.Linear(HEADS * WIDTH, HEADS * WIDTH)
    encoding.share([projections])
    return encoding.double().eval()


@pytest.mark.parametrize("name", ENCODINGS)
def test_each_draft_is_as_its_path_alone(name):
    encoding, p = made(name), Positions.arange(COUNT, offset=PAST, causal=True).with_tree(PARENTS)
    q, k, v = (torch.randn(2, HEADS, n, WIDTH, dtype=torch.float64) for n in (COUNT, PAST + COUNT, PAST + COUNT))
    if name in A_LINE or "gates" in encoding.sites():
        gates = [torch.zeros(2, HEADS, PAST + COUNT, 1, dtype=torch.float64)] if name not in A_LINE else None
        with pytest.raises(InputError, match=A_LINE.get(name, "gates")):
            posenc.attention(q, k, v, encoding, p, gates=gates)
        return
    for backend in ("auto", "reference"):
        out = posenc.attention(q, k, v, encoding, p, backend=backend)
        for draft in range(COUNT):
            assert_close(out[:, :, draft], alone(encoding, q, k, v, PAST, path(draft)), rtol=0, atol=1e-10)


def test_rows_with_caches_of_several_lengths_and_a_tree_each():
    past, trees = [5, 2], [PARENTS, [-1, -1, 0, 2, 1, 1, 5]]
    p = Positions.arange(COUNT, offset=torch.tensor(past), causal=True).with_tree(torch.tensor(trees))
    q, k, v = (torch.randn(2, HEADS, n, WIDTH, dtype=torch.float64) for n in (COUNT, PAST + COUNT, PAST + COUNT))
    k[1, :, 2 + COUNT :] = v[1, :, 2 + COUNT :] = torch.nan  # of slots that are not filled
    for encoding in (made("rope"), made("t5"), made("shaw")):
        out = posenc.attention(q, k, v, encoding, p)
        for row, (cached, parents) in enumerate(zip(past, trees, strict=True)):
            one = [x[row : row + 1] for x in (q, k, v)]
            for draft in range(COUNT):
                want = alone(encoding, *one, cached, path(draft, parents))
                assert_close(out[row : row + 1, :, draft], want, rtol=0, atol=1e-10)


def test_siblings_share_a_position_and_the_cache_is_in_no_table():
    p = Positions.arange(3, offset=50_000, causal=True).with_tree([-1, -1, 1])
    assert p.q.tolist() == [[50_000, 50_000, 50_001]]
    assert p.k[0, -3:].tolist() == p.q[0].tolist()
    assert [each.table.numel() for each in p.blocks] == [3 * 4]
    mask = p.mask()[0, 0]
    assert mask[:, :50_000].all()
    assert mask[:, 50_000:].tolist() == [[True, False, False], [False, True, False], [False, True, True]]
    moved = p.to("cpu").mask()
    assert torch.equal(moved[0, 0], mask)


def test_rows_with_a_tree_each_after_one_length():
    q, (k, v) = torch.randn(2, 4, 3, 8), torch.randn(2, 2, 4, 8, 8)
    encoding, trees = posenc.Rotary(8) + posenc.ALiBi(4), [[-1, 0, 0], [-1, -1, 1]]
    line = Positions.arange(3, offset=5, causal=True)
    out = posenc.attention(q, k, v, encoding, line.with_tree(trees))
    for row, parents in enumerate(trees):
        at = slice(row, row + 1)
        torch.testing.assert_close(out[at], posenc.attention(q[at], k[at], v[at], encoding, line.with_tree(parents)))
    with pytest.raises(InputError, match="positions have 2 rows, q has a batch of 3"):
        encoding.rotate_queries(torch.randn(3, 4, 3, 8), line.with_tree(trees))


def test_a_line_of_drafts_is_no_tree():
    line = Positions.arange(4, offset=3, causal=True)
    tree = line.with_tree([-1, 0, 1, 2])
    assert torch.equal(tree.mask(), line.mask())
    assert torch.equal(tree.q, line.q)
    assert torch.equal(tree.k, line.k)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Positions.arange(2, causal=True).with_tree([-1, 1]), r"parents=\[-1, 1\]: a draft's parent comes before it"),
        (lambda: Positions.arange(2, causal=True).with_tree([-2, 0]), "or is -1 for the tokens of the cache"),
        (lambda: Positions.arange(2, causal=True).with_tree([-1]), r"pass integers \(2,\) or \(batch, 2\)"),
        (lambda: Positions.arange(2, causal=True).with_tree([0.5, 1]), "pass integers"),
        (lambda: Positions.arange(2).with_tree([-1, 0]), "pass causal positions"),
        (lambda: Positions.packed([2, 2], causal=True).with_tree([-1, 0, 1, 2]), "without documents"),
        (lambda: Positions.arange(2, offset=4, causal=True).with_window(2).with_tree([-1, 0]), "windows or blocks"),
        (lambda: Positions.arange(2, causal=True).with_tree([-1, 0]).with_window(2), "a window counts tokens"),
        (
            lambda: Positions.cross(Positions.arange(2), Positions.arange(9)).with_causal(True).with_tree([-1, 0]),
            "the queries must be the last keys",
        ),
    ],
)  # fmt: skip
def test_bad_trees(make, message):
    with pytest.raises(InputError, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)
