"""Every way to restrict what is seen, times every way to derive positions, against loops over pairs of tokens."""

from itertools import product

import pytest
import torch
from torch.testing import assert_close

import posenc
from posenc import InputError, KVCache, Positions, attention
from posenc.distributed.exchange import calls_of
from posenc.lab.transformer import Transformer, TransformerConfig
from posenc.positions.visibility import Branch, Region

N, SIZE = 8, 3
TABLE = torch.tensor([[1, 0, 1], [1, 1, 0], [0, 1, 1]]).bool()
TAKEN = [3, 0, 2, 6, 5]

TEXTS = {
    "text": (lambda n: Positions.arange(n), {}),
    "left padded": (lambda n: Positions.from_mask([[1] * n, [0, 0] + [1] * (n - 2)]), {"padding": 2}),
    "packed": (lambda n: Positions.packed([3, n - 3]), {"border": 3}),
    "any order": (lambda n: Positions.from_ids(torch.arange(n).flip(0) * 5, packed=False), {}),
}
RESTRICTIONS = {
    "causal": (lambda p: p.with_causal(True), {"causal": True}),
    "window": (lambda p: p.with_window(2), {"window": (2, 0)}),
    "causal window": (lambda p: p.with_causal(True).with_window(2), {"causal": True, "window": (2, 0)}),
    "window of both sides": (lambda p: p.with_window(None, 1), {"window": (N, 1)}),
    "blocks": (lambda p: p.with_blocks(SIZE), {"table": torch.eye(3).bool()}),
    "table": (lambda p: p.with_blocks(SIZE, TABLE).with_causal(True), {"causal": True, "table": TABLE}),
    "prefix": (lambda p: p.with_prefix(2), {"causal": True, "prefix": 2}),
    "prefix in a window": (lambda p: p.with_prefix(2).with_window(3), {"causal": True, "prefix": 2, "window": (3, 0)}),
}


def brute(n, padding=0, border=0, causal=False, window=(N, N), table=None, prefix=0):
    """What is visible, (rows, n, n): row 1 is padded, tokens from `border` on are another document."""
    seen = torch.zeros(2 if padding else 1, n, n, dtype=torch.bool)
    for row, i, j in product(range(len(seen)), range(n), range(n)):
        first = padding if row else 0
        index = lambda t: t - (border if border and t >= border else first)  # noqa: B023, E731
        fits = i >= first and j >= first and (i >= border) == (j >= border)
        fits = fits and (not causal or j <= i or index(j) < prefix) and -window[1] <= i - j <= window[0]
        fits = fits and (table is None or bool(table[index(i) // SIZE, index(j) // SIZE]))
        seen[row, i, j] = fits
    return seen


EVERY = list(range(N))
DERIVED = {
    "as it is": (lambda p: p, EVERY, EVERY),
    "on a device": (lambda p: p.to("cpu"), EVERY, EVERY),
    "moved": (lambda p: p.moved(lambda at, order: 2 * at + 1), EVERY, EVERY),
    "a branch of a map": (lambda p: p.at(Branch(Region())), EVERY, EVERY),
    "gated": (lambda p: p.with_gates((torch.zeros(1, 1, N, 1),)), EVERY, EVERY),
    "some keys": (lambda p: p.keys(1, 6), EVERY, EVERY[1:6]),
    "taken": (lambda p: p.take(TAKEN), TAKEN, TAKEN),
    "last queries": (lambda p: p.select(slice(5, None), None), EVERY[5:], EVERY),
    "first shard": (lambda p: p.shard(0, 2), EVERY[:4], EVERY),
    "zigzag shard": (lambda p: p.shard(1, 2, layout="zigzag"), EVERY[2:6], EVERY),
    "zigzag shard of two runs": (lambda p: p.shard(0, 2, layout="zigzag"), [0, 1, 6, 7], EVERY),
    "keys of a shard": (lambda p: p.shard(1, 2).keys(2, 8), EVERY[4:], EVERY[2:]),
    "branch of a shard": (lambda p: p.shard(1, 2).at(Branch(Region())), EVERY[4:], EVERY),
    "shard moved": (lambda p: p.shard(1, 2).moved(lambda at, order: at + 7), EVERY[4:], EVERY),
}


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("restriction", RESTRICTIONS)
@pytest.mark.parametrize("derivation", DERIVED)
def test_what_restricts_goes_along_and_comes_after(text, restriction, derivation):
    (make, facts), (restrict, limits) = TEXTS[text], RESTRICTIONS[restriction]
    derive, rows, columns = DERIVED[derivation]
    want = brute(N, **facts, **limits)[:, rows]
    before = derive(restrict(make(N)))
    counts_tokens = {"prefix", "table"} & limits.keys()  # of those that are left
    after = before if derivation == "taken" and counts_tokens else restrict(derive(make(N)))
    lengths = brute(N, **facts)[:, rows][:, :, TAKEN if derivation == "taken" else EVERY].sum(-1)
    for positions in (before, after):
        found = positions.lengths() * (1 if positions.q_valid is None else positions.q_valid)
        assert torch.equal(found.expand(len(want), -1), lengths)
        assert torch.equal(positions.mask()[:, 0], want[:, :, columns].expand(positions.batch, -1, -1))
        counted = want if derivation != "taken" else want[:, :, columns]
        assert torch.equal(positions.visible_counts().expand(len(want), -1), counted.sum(-1))
        if positions.sharding is not None and positions.of_keys is None:
            calls = calls_of(positions, positions.causal)
            for call, part in zip(calls, want.split([call.num_queries for call in calls], 1), strict=True):
                assert torch.equal(call.mask()[:, 0], part[:, :, : call.num_keys].expand(call.batch, -1, -1))
                assert torch.equal(call.visible_counts().expand(len(part), -1), part.sum(-1))


@pytest.mark.parametrize("derivation", DERIVED)
def test_a_mask_beside_them_goes_along(derivation):
    derive, *_ = DERIVED[derivation]
    with pytest.raises(InputError, match="4-D mask"):
        derive(Positions.arange(N).derived(counted=False)).visible_counts()


def test_cross_attention_takes_padding_documents_and_masks_along():
    padded, packed, text = Positions.from_mask([[0, 1, 1]]), Positions.packed([1, 2]), Positions.arange(3, causal=True)
    assert torch.equal(
        Positions.cross(text.with_window(1), padded).mask(), padded.valid[:, None, None].expand(-1, -1, 3, -1)
    )
    assert torch.equal(Positions.cross(packed, packed).mask(), packed.mask())
    for sides in ((text.derived(counted=False), padded), (padded, text.derived(counted=False))):
        with pytest.raises(InputError, match="4-D mask"):
            Positions.cross(*sides).visible_counts()


@torch.no_grad()
@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("restriction", RESTRICTIONS)
def test_a_cache_goes_on_under_what_it_was_filled_with_or_refuses(text, restriction):
    """Positions left out: what decodes is what a complete pass has, for every layout that is not refused."""
    (make, facts), (restrict, limits) = TEXTS[text], RESTRICTIONS[restriction]
    encoding, q, k, v = posenc.Rotary(8), *torch.randn(3, 2, 2, N, 8)
    cache, past = KVCache(), restrict(make(N - 2)).with_causal(True)
    attention(q[:, :, :-2], k[:, :, :-2], v[:, :, :-2], encoding, past, cache=cache)
    refused = text in ("packed", "any order") or "table" in limits
    if refused:
        with pytest.raises(InputError, match="not one text a row"):
            cache.positions()
        return
    for at in (N - 2, N - 1):
        new = (x[:, :, at : at + 1] for x in (q, k, v))
        out, last = attention(*new, encoding, cache=cache), cache._layers[0].at
        want = brute(N, **facts, **{**limits, "causal": True})[:, at : at + 1]
        assert torch.equal(last.mask()[:, 0], want[:, :, : at + 1].expand(last.batch, -1, -1))
        whole = attention(q, k, v, encoding, restrict(make(N)).with_causal(True), backend="reference")
        assert_close(out, whole[:, :, at : at + 1], atol=1e-5, rtol=0)


@torch.no_grad()
def test_a_model_goes_on_after_a_padded_or_windowed_text():
    model = Transformer(TransformerConfig(11, dim=16, num_layers=2, num_heads=2), posenc.Rotary(8)).eval()
    tokens, mask = torch.randint(11, (2, N)), torch.tensor([[1] * N, [0, 0, 0] + [1] * (N - 3)])
    for of in (lambda n: Positions.from_mask(mask[:, :n]), lambda n: Positions.arange(n).with_window(2)):
        cache = KVCache()
        model(tokens[:, :-1], of(N - 1), cache)
        assert_close(model(tokens[:, -1:], None, cache), model(tokens, of(N))[:, -1:], atol=1e-5, rtol=0)


# ---------------------------------------------------------------- ids that contradict what is seen


def test_slots_of_a_static_cache():
    ids = torch.tensor([[3, 4], [0, 1]])
    positions = Positions.in_slots(ids, 16)
    assert torch.equal(positions.mask()[:, 0], torch.arange(16) <= ids[..., None])
    encoding, (q, k, v) = posenc.create("rope+alibi", head_dim=8, num_heads=2), torch.randn(3, 1, 2, 16, 8)
    step = attention(q[:, :, 3:4], k, v, encoding, Positions.in_slots([3], 16))
    assert_close(step, attention(q, k, v, encoding, Positions.arange(16, causal=True))[:, :, 3:4], atol=1e-5, rtol=0)


REFUSED = [
    (lambda: Positions.from_ids([3], torch.arange(16), causal=True), r"not the last 1 of key_ids.*in_slots"),
    (lambda: Positions.from_ids([3], torch.arange(16)).with_causal(True), r"not the last 1 of key_ids"),
    (lambda: Positions.from_ids([3], torch.arange(16), causal=True, packed=False), r"not the last 1 of key_ids"),
    (lambda: Positions.in_slots([16], 16), r"positions from 16 to 16 lie in slots 0 \.\. 15"),
    (lambda: Positions.in_slots([0.5], 16), r"pass integers"),
    (lambda: Positions.from_ids(torch.arange(400).bfloat16()), r"torch\.bfloat16: neighbours share"),
    (lambda: Positions.from_ids((torch.arange(400) / 10).half() + 1000), r"torch\.float16: neighbours share"),
    (lambda: Positions.from_ids(torch.tensor([1.7e9, 1.7e9 + 60])), r"torch\.float32: neighbours share"),
    (
        lambda: Positions.from_ids(torch.arange(4).to(torch.float8_e5m2)),
        r"torch\.float8_e5m2: positions are integers or real",
    ),
    (lambda: Positions.cross(Positions.from_ids([3]), Positions.arange(16)).with_causal(True), r"are two sequences"),
]


@pytest.mark.parametrize(("make", "message"), REFUSED)
def test_ids_and_masks_that_cannot_be_meant_are_refused(make, message):
    with pytest.raises(InputError, match=message):
        make()


def test_a_row_without_a_token_is_said():
    with pytest.warns(UserWarning, match=r"row 1 of the mask has no token.*Positions\.from_padding"):
        positions = Positions.from_mask([[1, 1], [0, 0]])
    assert not positions.mask()[1].any()


def test_a_mask_that_hides_where_it_is_true():
    hidden = torch.tensor([[False, False, True], [False, False, False]])
    want = Positions.from_mask(~hidden, causal=True)
    for mask in (hidden, hidden.float().masked_fill(hidden, -torch.inf)):
        assert torch.equal(Positions.from_padding(mask, causal=True).mask(), want.mask())
    assert Positions.from_ids((torch.arange(8) / 4).half()).num_queries == 8


def test_what_is_known_is_read_from_the_ids():
    made = Positions.from_ids(torch.arange(3, 9), torch.arange(9), causal=True)
    assert (made.start, made.diagonal, made.span) == ((3, 0), 3, (-5, 8))
    far = Positions.from_ids([0, 10**12])
    assert (far.start, far.span) == (None, None)
    back = Positions.arange(6, causal=True).take([1, 0, 2, 3, 4, 5])
    assert (back.start, back.diagonal) == (None, None)
    padded = Positions.from_mask([[0, 1, 1], [1, 1, 1]], 2).derived(valid=None, q_valid=None)
    assert (padded.start, padded.diagonal, padded.span) == (None, 1, (-2, 2)), "its rows do not run from one number"
