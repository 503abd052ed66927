"""`posenc.KVCache`: what it stores equals a full pass, however rows are padded, cut, reordered or rolled back."""

import copy
import pickle
import warnings

import pytest
import torch
from torch.testing import assert_close

import posenc
from posenc import InputError, KVCache, Positions, Rotary, attention
from posenc.encoding import gates_of

ENCODINGS = ("rope", "alibi", "rope+alibi", "xpos", "fox", "rope@self_extend:window=4:group=2", "learned")
SHAPE = {"dim": 32, "num_heads": 4, "head_dim": 8, "max_positions": 64, "num_layers": 2, "causal": True}
N = 12
CACHES = {"grows": {}, "unrotated": {"rotated": False}, "static": {"capacity": 20}}


def tokens(rows: int = 2, n: int = N) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    heads = [torch.randn(rows, 4, n, 8, generator=generator, dtype=torch.float64) for _ in "qkv"]
    return *heads, torch.randn(rows, n, 32, generator=generator, dtype=torch.float64)


def made(text: str) -> posenc.Encoding:
    torch.manual_seed(0)
    return posenc.create(text, **SHAPE).double()


def attend(encoding, given, positions, cache=None, layer=0):
    q, k, v, x = given
    return posenc.attention(q, k, v, encoding, positions, layer=layer, gates=gates_of(encoding, x), cache=cache)


def part(given, first, end):
    *heads, x = given
    return *(y[:, :, first:end] for y in heads), x[:, first:end]


def rows(given, which):
    return tuple(x[which] for x in given)


@pytest.mark.parametrize("kind", CACHES)
@pytest.mark.parametrize("text", ENCODINGS)
@pytest.mark.parametrize("trains", [False, True])
def test_pieces_equal_the_full_pass_in_every_layer(text, kind, trains):
    encoding, given = made(text), tokens()
    full = attend(encoding, given, Positions.arange(N, causal=True))
    with torch.set_grad_enabled(trains):
        cache, outs = KVCache(**CACHES[kind]), [[], []]
        for first, end in ((0, 5), (5, 6), (6, 9), (9, 12)):
            positions = cache.positions(end - first)
            for layer in (0, 1):
                outs[layer].append(attend(encoding, part(given, first, end), positions, cache, layer))
    assert len(cache) == N
    assert_close(torch.cat(outs[0], 2), full, rtol=0, atol=1e-10)
    assert_close(
        torch.cat(outs[1], 2), attend(encoding, given, Positions.arange(N, causal=True), layer=1), rtol=0, atol=1e-10
    )


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("text", [*ENCODINGS, "path", "selective_rope"])
@torch.no_grad()
def test_a_padded_prompt_goes_on_as_each_row_alone(text, side):
    encoding, given, lengths = made(text), tokens(), (6, 4)
    mask, together = torch.zeros(2, 6, dtype=torch.long), [torch.full_like(y[..., :6, :], torch.nan) for y in given]
    for row, n in enumerate(lengths):
        at = slice(6 - n, 6) if side == "left" else slice(0, n)
        mask[row, at] = 1
        for padded, x in zip(together, given, strict=True):
            padded[row, ..., at, :] = x[row, ..., :n, :]
    cache = KVCache()
    attend(encoding, together, Positions.from_mask(mask, causal=True), cache)
    steps = []
    for i in range(3):
        new = [torch.stack([x[row, ..., n + i : n + i + 1, :] for row, n in enumerate(lengths)]) for x in given]
        steps.append(attend(encoding, new, cache.positions(), cache))
    for row, n in enumerate(lengths):
        alone = attend(encoding, part(rows(given, [row]), 0, n + 3), Positions.arange(n + 3, causal=True))
        assert_close(torch.cat(steps, 2)[row], alone[0, :, n:], rtol=0, atol=1e-10)


@torch.no_grad()
def test_rejected_drafts_are_overwritten_and_beams_change_rows():
    encoding, given = made("fox"), tokens()
    full = attend(encoding, given, Positions.arange(N, causal=True))
    cache = KVCache()
    attend(encoding, part(given, 0, 6), cache.positions(6), cache)
    drafts = [x.flip(0) for x in part(given, 6, 9)]
    attend(encoding, drafts, cache.positions(3), cache)
    assert len(cache) == 9
    again = attend(encoding, part(given, 6, 8), Positions.arange(2, offset=6, causal=True), cache)  # by positions alone
    assert_close(again, full[:, :, 6:8], rtol=0, atol=1e-10)
    cache.crop(7)
    assert_close(attend(encoding, part(given, 7, 9), cache.positions(2), cache), full[:, :, 7:9], rtol=0, atol=1e-10)
    beams = torch.tensor([1, 1, 0])
    cache.reorder(beams)
    out = attend(encoding, rows(part(given, 9, 10), beams), cache.positions(), cache)
    assert_close(out, full[beams, :, 9:10], rtol=0, atol=1e-10)


@torch.no_grad()
def test_beams_of_a_padded_prompt():
    encoding, given, mask = made("rope"), tokens(), torch.tensor([[0, 1, 1, 1], [1, 1, 1, 1]])
    cache = KVCache()
    attend(encoding, part(given, 0, 4), Positions.from_mask(mask, causal=True), cache)
    cache.reorder(torch.tensor([1, 0]))
    assert cache.positions().q.tolist() == [[4], [3]]


def test_a_cache_of_inference_mode_goes_on_outside_of_it():
    encoding, given = made("rope"), tokens()
    full = attend(encoding, given, Positions.arange(N, causal=True))
    cache = KVCache(capacity=N)
    with torch.inference_mode():
        attend(encoding, part(given, 0, 6), cache.positions(6), cache)
    with torch.no_grad():
        out = attend(encoding, part(given, 6, 9), cache.positions(3), cache)
    assert_close(out, full[:, :, 6:9], rtol=0, atol=1e-10)


def test_a_gradient_reaches_cached_keys():
    encoding, given = made("rope"), tokens()
    k = given[1].clone().requires_grad_()
    cache = KVCache()
    attend(encoding, part((given[0], k, *given[2:]), 0, 6), cache.positions(6), cache)
    attend(encoding, part((given[0], k, *given[2:]), 6, 7), cache.positions(), cache).square().sum().backward()
    assert k.grad is not None
    assert bool(k.grad[:, :, :7].any(-1).all())


@torch.no_grad()
def test_positions_left_out_are_the_next_ones_of_each_layer():
    encoding, given, cache = made("rope"), tokens(), KVCache()
    for first, end in ((0, 5), (5, 6), (6, N)):
        outs = [attend(encoding, part(given, first, end), None, cache, layer) for layer in (0, 1)]
    full = attend(encoding, given, Positions.arange(N, causal=True))
    for out in outs:
        assert_close(out, full[:, :, 6:], rtol=0, atol=1e-10)
    meta = [x.to("meta") for x in given[:3]]
    assert attention(*meta, Rotary(8), cache=KVCache()).is_meta


@pytest.mark.parametrize("slots", [[3], [[3], [5]], [4, 5]])
@pytest.mark.parametrize("trains", [False, True])
def test_tokens_in_slots_take_the_place_of_those_there(slots, trains):
    encoding, (q, k, v, _), positions = made("rope"), tokens(n=8), Positions.in_slots(slots, 8)
    at = positions.q[:, None, :, None].expand(2, 4, -1, 8)
    new = [x.flip(1).gather(2, at) for x in (q, k, v)]
    k_after, v_after = (x.scatter(2, at, y) for x, y in zip((k, v), new[1:], strict=True))
    with torch.set_grad_enabled(trains):
        cache = KVCache()
        attention(q, k, v, encoding, Positions.arange(8, causal=True), cache=cache)
        out = attention(*new, encoding, positions, cache=cache)
    assert_close(out, attention(new[0], k_after, v_after, encoding, positions), rtol=0, atol=1e-10)
    assert_close(cache.layer(0)[1], v_after)


@torch.no_grad()
def test_bad_input_is_refused_before_anything_is_stored():
    encoding, given = made("rope"), tokens()
    cache = KVCache(capacity=8)
    attend(encoding, part(given, 0, 5), cache.positions(5), cache)
    stored = [x.clone() for x in cache.layer(0)]
    new = part(given, 5, 6)
    for call, message in (
        (
            lambda: attend(encoding, new, Positions.arange(1, 7, causal=True), cache),
            "layer 0 has 5 tokens, positions are for 7",
        ),
        (lambda: attend(encoding, new, cache.positions(), cache, layer=1), "layer 1 has 0 tokens"),
        (lambda: attend(encoding, part(given, 5, 9), cache.positions(4), cache), "9 tokens, capacity=8"),
        (lambda: attend(encoding, part(given, 5, 7), cache.positions(1), cache), "positions are for 1 queries"),
        (lambda: attend(encoding, rows(new, [0]), cache.positions(), cache), "another batch"),
        (lambda: attend(encoding, [x.float() for x in new], cache.positions(), cache), "precision needs another cache"),
        (lambda: attend(made("fox"), new, cache.positions(), cache), "keys under rope.*under no rotation"),
        (lambda: posenc.attention(*new[:3], encoding, cache.positions(), cache={}), "pass a posenc.KVCache"),
        (
            lambda: posenc.attention(*new[:3], encoding, cache.positions(), keys_rotated=True, cache=cache),
            "pass them unrotated",
        ),
        (lambda: cache.crop(6), "length=6: the cache has 5"),
        (lambda: cache.layer(3), "layer=3"),
        (lambda: cache.reorder(torch.tensor([True])), "rows of torch.bool"),
        (lambda: cache.reorder(torch.tensor([0, 5])), "row numbers below 2"),
        (lambda: attention(*new[:3], encoding, cache=cache, backend="triton"), "cannot serve this"),
        (lambda: attention(new[0][:, :3], *new[1:3], encoding, cache=cache), "3 query heads cannot share 4"),
        (lambda: attend(made("xpos"), given, None, KVCache(rotated=True)), "cannot rotate queries and keys apart"),
    ):
        with pytest.raises(InputError, match=message):
            call()
    assert all(torch.equal(x, y) for x, y in zip(cache.layer(0), stored, strict=True))
    packed = KVCache()
    attend(encoding, given, Positions.packed([5, 7], causal=True), packed)
    with pytest.raises(InputError, match="not one text a row"):
        packed.positions()
    attend(encoding, given, Positions.arange(N, causal=True), packed)
    attend(encoding, given, Positions.arange(N, causal=True).with_window(2), packed, layer=1)
    with pytest.raises(InputError, match="layers differ in their windows"):
        packed.positions()


@torch.no_grad()
def test_keys_that_another_encoding_rotated_are_refused():
    q, more = torch.randn(1, 2, 5, 8), torch.randn(1, 2, 1, 8)
    for rotated in (True, None, False):
        cache = KVCache(rotated=rotated)
        attention(q, q, q, Rotary(8), Positions.arange(5, causal=True), cache=cache)
        attention(more, more, more, Rotary(8), cache.positions(), cache=cache)
        for kept in (cache, pickle.loads(pickle.dumps(cache)), copy.deepcopy(cache)):
            other = Rotary(8, rope_theta=500.0)
            if rotated is False:
                attention(more, more, more, other, kept.positions(), cache=kept)
                continue
            for call in (posenc.explain, attention):
                with pytest.raises(InputError, match=r"^cache: layer 0 has keys under rope\(.*500.*one encoding"):
                    call(more, more, more, other, kept.positions(), cache=kept)
            attention(more, more, more, Rotary(8), kept.positions(), cache=kept)


@torch.no_grad()
def test_a_forgotten_layer_is_warned_of():
    q, positions = torch.randn(1, 2, 5, 8), Positions.arange(5, causal=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cache = KVCache()
        for _ in range(2):
            for layer in range(3):
                attention(q, q, q, Rotary(8), positions, cache=cache, layer=layer)
        alone = KVCache()
        attention(q, q, q, Rotary(8), positions, cache=alone)
        attention(q, q, q, Rotary(8), Positions.arange(5, causal=True), cache=alone)
    cache = KVCache()
    attention(q, q, q, Rotary(8), positions, cache=cache)
    with pytest.warns(UserWarning, match="layer=0 again for the same positions.*pass layer="):
        attention(q, q, q, Rotary(8), positions, cache=cache)


@pytest.mark.parametrize("name", ["rope+alibi", "fox", "rope@rerope:window=3"])
def test_explain_says_what_a_call_with_a_cache_does_and_leaves_the_cache(name):
    encoding = posenc.create(name, num_heads=2, head_dim=8, dim=16)
    q, k, v, x = *torch.randn(3, 1, 2, 6, 8), torch.randn(1, 6, 16)
    gates = posenc.encoding.gates_of(encoding, x) or None
    cache, at = KVCache(), slice(5, 6)
    new = {} if gates is None else {"gates": [gate[:, :, at] for gate in gates]}
    old = {} if gates is None else {"gates": [gate[:, :, :5] for gate in gates]}
    with torch.no_grad():
        attention(q[:, :, :5], k[:, :, :5], v[:, :, :5], encoding, cache=cache, **old)
        kept = [x.clone() for x in cache.layer(0)]
        given = [x[:, :, at] for x in (q, k, v)]
        whole = Positions.arange(1, offset=5, causal=True)
        said = posenc.explain(*given, encoding, cache=cache, **new)
        for offset in (5, 3):  # of tokens that are there as well
            posenc.explain(*given, encoding, Positions.arange(1, offset=offset, causal=True), cache=cache, **new)
        assert len(cache) == 5
        assert all(torch.equal(*pair) for pair in zip(kept, cache.layer(0), strict=True))
        assert str(said) == str(posenc.explain(q[:, :, at], k, v, encoding, whole, gates=gates))
        attention(*given, encoding, cache=cache, **new)


class Late(posenc.Encoding):
    """A bias for the queries from the 20th on."""

    def bias(self, q, k, positions, layer=0):
        late = positions.q[:, None, :, None] >= 20
        return posenc.bias.Dense(late * positions.k[:, None, None].double()) if late.any() else None


@pytest.mark.parametrize(
    "name", ["rope+alibi", "alibi", "t5", "rope", "tupe", "rope+log_n:train_length=4", "sink+rope", "late"]
)
def test_a_token_computed_as_the_one_before_is_right(name):
    """The plan of a token is kept for the next ones; what it reads is theirs."""
    sizes = {"num_heads": 2, "head_dim": 8, "dim": 16, "num_layers": 1, "max_positions": 64}
    encoding = Late() if name == "late" else posenc.create(name, **sizes)
    q, k, v = torch.randn(3, 1, 2, 40, 8).double().unbind()
    with torch.no_grad():
        want = attention(q, k, v, encoding, causal=True)
        cache, got = KVCache(), []
        for n in (*range(20), *range(15, 40)):  # rolled back once
            here = posenc.encoding.Pass(encoding, Positions.arange(1, offset=n, causal=True))
            at = slice(n, n + 1)
            got.append((n, here.attention(q[:, :, at], k[:, :, at], v[:, :, at], cache=cache)))
        assert cache.plans
        for n, out in got:
            torch.testing.assert_close(out, want[:, :, n : n + 1])
