"""Caches of rotated keys: filling, attention over them, and moving their keys to other positions."""

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

import posenc
from posenc import (
    ALiBi,
    AxialRotary,
    CoPE,
    DeBERTa,
    DecoupledRotary,
    Encoding,
    InputError,
    LogN,
    MixedRotary,
    MRotary,
    NoPE,
    PerLayer,
    PoPE,
    Positions,
    PRotary,
    Rotary,
    Shaw,
    XPos,
    re_rotate,
)  # fmt: skip
from posenc.bias import Relative
from posenc.cache import KVCache
from posenc.encodings import ENCODINGS
from posenc.lab.transformer import Transformer, TransformerConfig

CONFIG = TransformerConfig(17, dim=48, num_layers=3, num_heads=4, num_kv_heads=2)
YARN = {"name": "yarn", "factor": 8.0, "original_max_positions": 64}
TURNING = {
    "rope": lambda: Rotary(12, layout="interleaved"),
    "partial": lambda: Rotary(12, rotary_dim=6),
    "yarn": lambda: Rotary(12, schedule=YARN),
    "p_rope": lambda: PRotary(12, fraction=0.5),
    "decoupled_rope": lambda: DecoupledRotary(12),
    "m_rope": lambda: MRotary(12),
    "axial_rope": lambda: AxialRotary(12),
    "mixed_rope": lambda: MixedRotary(12, num_heads=4, num_layers=3, num_kv_heads=2),
    "pope": lambda: PoPE(12, num_heads=4, num_layers=3),
}
SUMS = {
    "rope + alibi": lambda: Rotary(12) + ALiBi(4),
    "rope + shaw": lambda: Rotary(12) + Shaw(12, num_heads=4),
    "rope + log_n": lambda: LogN(4) + Rotary(12),
    "rope + xlnet": lambda: Rotary(12) + posenc.XLNet(48, num_heads=4, head_dim=12),
    "rope / none": lambda: PerLayer(Rotary(12), Rotary(12, rope_theta=100.0), NoPE()),
    "rope / cope": lambda: PerLayer(Rotary(12), CoPE(12)),
    "alibi": lambda: ALiBi(4),
    "cope": lambda: CoPE(12),
    "rope + rove": lambda: Rotary(12) + posenc.RoVE(12, rotary_dim=6),
    "deberta": lambda: DeBERTa(48, num_heads=4, head_dim=12, max_relative_positions=8),
}
MOVED = pytest.mark.parametrize("name", TURNING)


def model(encoding: Encoding) -> Transformer:
    host = Transformer(CONFIG, encoding).double().eval()
    for parameter in encoding.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return host


def keys(encoding: Encoding, *where: Positions, layer: int = 0) -> list[Tensor]:
    """The same keys, rotated at each of the given positions."""
    raw = torch.randn(2, 2, where[0].num_keys, 12, dtype=torch.float64)
    return [encoding.rotate_keys(raw, p, layer) for p in where]


# ---------------------------------------------------------------- caches


@pytest.mark.parametrize("name", [*TURNING, *SUMS])
def test_rotated_cache_is_raw_cache_is_full_pass(name):
    host, tokens = model((TURNING | SUMS)[name]()), torch.randint(17, (2, 11))
    full = host(tokens)
    for rotated in (True, False):
        cache = KVCache(rotated=rotated)
        parts = [host(tokens[:, a:b], cache=cache) for a, b in ((0, 4), (4, 7), (7, 8), (8, 9), (9, 11))]
        assert_close(torch.cat(parts, 1), full, rtol=0, atol=1e-10)
        assert len(cache) == 11


@MOVED
def test_rotated_cache_keeps_every_key_as_it_was(name):
    host, tokens, cache = model(TURNING[name]()), torch.randint(17, (1, 6)), KVCache(rotated=True)
    host(tokens[:, :5], cache=cache)
    before = [cache.layer(layer)[0].clone() for layer in range(3)]
    host(tokens[:, 5:], cache=cache)
    assert all(torch.equal(cache.layer(layer)[0][:, :, :5], old) for layer, old in enumerate(before))


@pytest.mark.parametrize("name", [*TURNING, "rope + alibi", "rope + log_n"])
def test_rotated_cache_with_left_padding_and_ragged_rows(name):
    host, tokens = model((TURNING | SUMS)[name]()), torch.randint(17, (2, 9))
    lengths = torch.tensor([6, 4])
    mask = (torch.arange(6) >= 6 - lengths[:, None]).long()
    together, cache = torch.zeros(2, 6, dtype=torch.long), KVCache(rotated=True)
    for row, n in enumerate(lengths.tolist()):
        together[row, 6 - n :] = tokens[row, :n]
    host(together, Positions.from_mask(mask), cache)
    steps = []
    for i in range(3):
        mask = torch.cat((mask, mask.new_ones(2, 1)), 1)
        new = torch.stack([tokens[row, n + i] for row, n in enumerate(lengths.tolist())])[:, None]
        steps.append(host(new, Positions.from_mask(mask, 1), cache))
    for row, n in enumerate(lengths.tolist()):
        alone = host(tokens[row : row + 1, : n + 3])[0, n:]
        assert_close(torch.cat(steps, 1)[row], alone, rtol=0, atol=1e-10)

    cache = KVCache(rotated=True)
    host(tokens[:, :6], Positions.from_mask((torch.arange(6) < lengths[:, None]).long()), cache)
    for i in range(3):
        new = torch.stack([tokens[row, n + i] for row, n in enumerate(lengths.tolist())])[:, None]
        steps[i] = host(new, Positions.arange(1, lengths + i), cache)
    for row, n in enumerate(lengths.tolist()):
        alone = host(tokens[row : row + 1, : n + 3])[0, n:]
        assert_close(torch.cat(steps, 1)[row], alone, rtol=0, atol=1e-10)


@MOVED
def test_packed_documents_and_explain(name):
    encoding, p = TURNING[name](), Positions.packed([4, 5], causal=True)
    q, k, v = (torch.randn(1, h, 9, 12, dtype=torch.float64) for h in (4, 2, 2))
    rotated = encoding.rotate_keys(k, p)
    wanted = posenc.attention(q, k, v, encoding, p)
    assert_close(posenc.attention(q, rotated, v, encoding, p, keys_rotated=True), wanted)
    assert str(posenc.explain(q, rotated, v, encoding, p, keys_rotated=True))
    assert (posenc.attention(q, rotated, v, encoding, p) - wanted).abs().max() > 1e-3 if name != "pope" else True
    assert_close(encoding.rotate_queries(q, p), encoding.rotate(q, k, p)[0])


def test_every_encoding_serves_it_or_refuses_it():
    shape = {
        "dim": 48,
        "num_heads": 4,
        "head_dim": 12,
        "num_kv_heads": 2,
        "num_layers": 3,
        "max_positions": 16,
        "causal": True,
    }
    tokens, served = torch.randint(17, (1, 5)), set()
    for name, cls in ENCODINGS.items():
        if "rotate" not in cls.own_sites:
            continue
        host, cache = (
            model(posenc.create(name, **shape | ({"height": 4, "width": 4} if name == "swin_v2" else {}))),
            KVCache(rotated=True),
        )
        try:
            parts = [host(tokens[:, :3], cache=cache), host(tokens[:, 3:], cache=cache)]
        except InputError:
            continue
        assert_close(torch.cat(parts, 1), host(tokens), rtol=0, atol=1e-10, msg=name)
        served.add(name)
    assert served == {
        "rope", "p_rope", "decoupled_rope", "axial_rope", "m_rope", "mixed_rope", "pope", "log_n", "temperature", "step_temperature",
        "transformer_xl", "xlnet", "head_rope", "learned_rope", "fope", "rope_pp", "liere", "comrope", "cayley_string",
    }  # fmt: skip


@pytest.mark.parametrize("name", ["rope", "mixed_rope", "rope + alibi"])
def test_compiled_over_rotated_keys(name):
    torch._dynamo.reset()
    encoding = (TURNING | SUMS)[name]()

    def step(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        p = Positions.arange(q.shape[2], k.shape[2] - q.shape[2], causal=True)
        return posenc.attention(q, k, v, encoding, p, keys_rotated=True)

    compiled = torch.compile(step, backend="aot_eager", fullgraph=True)
    for n in (9, 14):
        q, k, v = (torch.randn(2, h, m, 12, dtype=torch.float64) for h, m in ((4, 3), (2, n), (2, n)))
        for x in (k, v):
            torch._dynamo.mark_dynamic(x, 2)
        assert_close(compiled(q, k, v), step(q, k, v))


class Reader(Encoding):
    """A bias that does not declare whether it reads keys."""

    def bias(self, q, k, positions, layer=0):
        return Relative(lambda head, distance: distance * 0.0, 4, positions)


class Turner(Encoding):
    """A rotation that cannot rotate queries and keys apart to turn keys alone."""

    def rotate(self, q, k, positions, layer=0):
        return q, k - k.mean(2, keepdim=True)


@pytest.mark.parametrize(
    ("encoding", "message"),
    [
        (Rotary(12) + DeBERTa(48, num_heads=4, head_dim=12, max_relative_positions=8), "reads the keys as they were before"),
        (Rotary(12) + CoPE(12), "reads the keys as they were before"),
        (Rotary(12) + Reader(), "bias_reads_keys = False"),
        (XPos(12), "XPos cannot rotate queries and keys apart"),
        (AxialRotary(12, centred=True), "size of the image"),
        (posenc.FLOATER(4, head_dim=12, dim=48, num_layers=3, num_kv_heads=2), "FLOATER cannot rotate queries and keys apart"),
        (Turner(), "Turner cannot rotate queries and keys apart"),
        (PerLayer(Rotary(12), XPos(12)), "XPos cannot rotate queries and keys apart"),
    ],
)  # fmt: skip
def test_what_cannot_keep_rotated_keys_is_refused(encoding, message):
    host = model(encoding)
    with pytest.raises(InputError, match=message):
        host(torch.randint(17, (1, 4)), cache=KVCache(rotated=True))
    host(torch.randint(17, (1, 4)), cache=KVCache())


def test_deberta_without_the_keys_term_may():
    host = model(Rotary(12) + DeBERTa(48, num_heads=4, head_dim=12, max_relative_positions=8, terms="c2p"))
    tokens, cache = torch.randint(17, (1, 5)), KVCache(rotated=True)
    parts = [host(tokens[:, :4], cache=cache), host(tokens[:, 4:], cache=cache)]
    assert_close(torch.cat(parts, 1), host(tokens), rtol=0, atol=1e-10)


def test_keys_that_are_not_as_wide_as_rotated_queries():
    q, k = torch.randn(1, 4, 3, 12), torch.randn(1, 2, 3, 12)
    with pytest.raises(InputError, match="12 wide, queries once rotated 24"):
        posenc.attention(q, k, k, PoPE(12, num_heads=4), keys_rotated=True)


# ---------------------------------------------------------------- moving


@MOVED
@pytest.mark.parametrize("layer", [0, 2])
def test_moved_keys_are_those_of_a_new_prefill(name, layer):
    encoding = TURNING[name]()
    places = [torch.arange(9), torch.arange(9) + 1000, torch.randn(2, 9) * 50, torch.randperm(9), torch.zeros(9).long()]
    where = [Positions.from_ids(ids) for ids in places]
    rotated = keys(encoding, *where, layer=layer)
    for target, wanted in zip(where, rotated, strict=True):
        for start, found in zip(places, rotated, strict=True):
            moved = re_rotate(found, encoding, start, to=target, layer=layer)
            assert_close(moved, wanted, rtol=0, atol=1e-11)


@pytest.mark.parametrize(
    "encoding", [AxialRotary(12), MRotary(24, interleaved=True), MixedRotary(12, num_heads=4)], ids=lambda e: e.name
)
def test_keys_move_on_a_grid(encoding):
    axes = encoding.axes
    here, there = (Positions.from_ids(torch.randint(0, 30, (2, 7, axes))) for _ in range(2))
    raw = torch.randn(2, 4, 7, encoding.head_dim, dtype=torch.float64)
    moved = re_rotate(encoding.rotate_keys(raw, here), encoding, here, to=there)
    assert_close(moved, encoding.rotate_keys(raw, there), rtol=0, atol=1e-11)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (Rotary(12), Rotary(12, rope_theta=500000.0)),
        (Rotary(12, layout="interleaved"), Rotary(12, layout="interleaved", schedule=YARN)),
        (Rotary(12, schedule=YARN), Rotary(12)),
        (Rotary(12), PRotary(12, fraction=0.5)),
        (DecoupledRotary(12), DecoupledRotary(12, rope_theta=77.0)),
        (Rotary(12, rotary_dim=6), Rotary(12, rotary_dim=6, schedule={"name": "linear", "factor": 4.0})),
        (MRotary(12), MRotary(12, schedule=YARN)),
        (PoPE(12, num_heads=4), PoPE(12, num_heads=4, rope_theta=50.0)),
    ],
)
def test_another_base_or_schedule(before, after):
    raw, here, there = torch.randn(2, 2, 9, 12, dtype=torch.float64), Positions.arange(9), Positions.arange(1, 8)
    rotated, wanted = before.rotate_keys(raw, here), after.rotate_keys(raw, here)
    assert_close(re_rotate(rotated, before, here, into=after), wanted, rtol=0, atol=1e-11)
    assert (rotated - wanted).abs().max() > 1e-2
    moved = re_rotate(rotated, before, range(9), to=torch.arange(9) * 0.5, into=after)
    assert_close(moved, after.rotate_keys(raw, Positions.from_ids(torch.arange(9) * 0.5)), rtol=0, atol=1e-11)
    assert_close(re_rotate(moved, after, torch.arange(9) * 0.5, to=there, into=before), rotated, rtol=0, atol=1e-11)


def test_many_steps_are_one_to_float32_rounding():
    rope, raw = Rotary(64, rope_theta=500000.0), torch.randn(1, 2, 20, 64)
    found, at = rope.rotate_keys(raw, Positions.arange(20)), 0
    for step in range(200):
        shift = 1000 if step % 2 else -13
        found = re_rotate(found, rope, torch.arange(20) + at, to=torch.arange(20) + at + shift)
        at += shift
    wanted = rope.rotate_keys(raw, Positions.from_ids(torch.arange(20) + at))
    assert (found - wanted).abs().max() <= 200 * 2**-24 * 4
    once = re_rotate(rope.rotate_keys(raw, Positions.arange(20)), rope, torch.arange(20), to=torch.arange(20) + at)
    assert (once - wanted).abs().max() <= 2**-24 * 32
    half = re_rotate(
        rope.rotate_keys(raw.bfloat16(), Positions.arange(20)), rope, torch.arange(20), to=torch.arange(20) + at
    )
    assert half.dtype == torch.bfloat16
    assert (half.float() - wanted).abs().max() <= 2**-7 * 4


@MOVED
def test_dropping_tokens_closes_the_gap(name):
    """StreamingLLM: a step over a cache without its middle is attention over the other tokens, side by side."""
    encoding = TURNING[name]()
    remaining = torch.cat((torch.arange(2), torch.arange(6, 12)))
    q, k, v = (torch.randn(1, h, n, 12, dtype=torch.float64) for h, n in ((4, 1), (2, 12), (2, 12)))
    cached = encoding.rotate_keys(k, Positions.arange(12))
    moved = re_rotate(cached[:, :, remaining], encoding, remaining, to=range(8))
    p = Positions.from_ids([7], list(range(8)))
    found = posenc.attention(q, moved, v[:, :, remaining], encoding, p, keys_rotated=True)
    assert_close(found, posenc.attention(q, k[:, :, remaining], v[:, :, remaining], encoding, p))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda k: re_rotate(k, XPos(12), range(3)), "middle of all keys"),
        (lambda k: re_rotate(k, AxialRotary(12, centred=True), range(3)), "size of the image"),
        (lambda k: re_rotate(k, ALiBi(4), range(3)), "ALiBi does not rotate keys"),
        (lambda k: re_rotate(k, LogN(4), range(3)), "LogN does not rotate keys"),
        (lambda k: re_rotate(k, Rotary(12) + ALiBi(4), range(3)), "Sum does not rotate keys by an angle"),
        (lambda k: re_rotate(k, PerLayer(Rotary(12)), range(3)), "PerLayer does not rotate keys by an angle"),
        (lambda k: re_rotate(k, Rotary(12), range(3), into=Rotary(12, layout="interleaved")), "same head_dim, layout"),
        (lambda k: re_rotate(k, Rotary(12), range(3), into=Rotary(12, rotary_dim=6)), "same head_dim, layout"),
        (lambda k: re_rotate(k, Rotary(12), range(3), into=PoPE(6, num_heads=4)), "same head_dim, layout"),
        (lambda k: re_rotate(k, Rotary(8), range(3)), "keys of width 12"),
        (lambda k: re_rotate(k, PoPE(12, num_heads=4), range(3)), "they are 24 wide"),
        (lambda k: re_rotate(k, Rotary(12), range(4)), r"positions of shape \(1, 4\)"),
        (lambda k: re_rotate(k, Rotary(12), range(3), to=torch.zeros(5, 3)), r"to of shape \(5, 3\)"),
        (lambda k: re_rotate(k[0], Rotary(12), range(3)), "keys of shape"),
        (lambda k: re_rotate(k, Rotary(12), Positions.grid(1, 3)), "one coordinate"),
    ],
)  # fmt: skip
def test_what_cannot_be_moved_is_refused(call, message):
    with pytest.raises(InputError, match=message):
        call(torch.randn(2, 2, 3, 12))
