"""Encodings that read a layer's input: what the host makes, caches and hands on is the same however a text is read."""

from dataclasses import dataclass
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn.functional import logsigmoid
from torch.testing import assert_close

import posenc
from posenc import Encoding, InputError, PerLayer, Positions, Rotary, VisionConfig, VisionTransformer, attention
from posenc.analysis import codes_of
from posenc.bias import KeyValues, RunningSum
from posenc.cache import KVCache
from posenc.conformance import check
from posenc.conformance.checks import SLOW
from posenc.conformance.fixtures import EncodingUnderTest
from posenc.conformance.suite import run_check
from posenc.distributed import LAYOUTS, exchange, shard
from posenc.encoding import gates_of
from posenc.lab.transformer import Transformer, TransformerConfig
from references.calls import EXACT, refusals

DIM, HEADS, KV, WIDTH, N = 16, 4, 2, 4, 9
CONFIG = TransformerConfig(17, dim=DIM, num_layers=2, num_heads=HEADS, num_kv_heads=KV)


@dataclass(eq=False, repr=False)
class Temperate(Encoding):
    """Queries, keys, values and the sink of each key head are changed by a number of the token."""

    dim: int
    num_kv_heads: int
    num_layers: int = 1
    shift_invariant = True
    planes = ()  # each channel is scaled alike

    def setup(self):
        g = torch.Generator().manual_seed(0)
        self.weight = nn.Parameter(torch.randn(self.num_layers, self.num_kv_heads, 3, self.dim, generator=g))

    def gates(self, x, layer=0):
        return torch.einsum("bnd,hwd->bhnw", x, self.weight[self.own_layer(layer)].to(x)).tanh()

    def numbers(self, positions):
        return positions.gate(self.known_as).unbind(-1)

    def rotate(self, q, k, positions, layer=0):
        of_q, of_k, _ = self.numbers(positions)
        of_q = positions.of_queries(of_q[..., None]).repeat_interleave(q.shape[1] // self.num_kv_heads, 1)
        return (q * (1 + of_q)).to(q.dtype), (k * (1 + of_k[..., None])).to(k.dtype)

    def values(self, positions, layer=0):
        return KeyValues(self.numbers(positions)[2][..., None].expand(-1, -1, -1, WIDTH))

    def query_sink(self, q, positions, layer=0):
        of_q = positions.of_queries(self.numbers(positions)[0][..., None])[..., 0]
        return of_q.repeat_interleave(q.shape[1] // self.num_kv_heads, 1).expand(q.shape[0], -1, -1)


@dataclass(eq=False, repr=False)
class Forgetting(Encoding):
    """The logarithm of a forget gate."""

    dim: int
    num_heads: int
    shift_invariant = True
    bias_reads_keys = False

    def setup(self):
        g = torch.Generator().manual_seed(1)
        self.weight = nn.Parameter(torch.randn(self.num_heads, self.dim, generator=g))

    def gates(self, x, layer=0):
        return logsigmoid(torch.einsum("bnd,hd->bhn", x, self.weight.to(x)))[..., None]

    def bias(self, q, k, positions, layer=0):
        return RunningSum(positions.gate(self.known_as)[..., 0], positions)


def made(name: str, c: TransformerConfig = CONFIG) -> Encoding:
    temperate, forgetting = Temperate(c.dim, c.kv_heads), Forgetting(c.dim, c.num_heads)
    parts = {
        "one": lambda: temperate + Rotary(c.width),
        "two": lambda: forgetting + temperate + Rotary(c.width),
        "per layer": lambda: PerLayer(Forgetting(c.dim, c.num_heads) + temperate, Rotary(c.width)),
    }
    return parts[name]()


NAMES = pytest.mark.parametrize("name", ["one", "two", "per layer"])


@pytest.mark.parametrize("name", [pytest.param("one", marks=pytest.mark.slow), "two", "per layer"])
def test_conformance(name):
    """Full, cached, ragged, padded, packed, generated, sharded, in every backend, with gradients."""
    report = check(partial(made, name), slow=False)
    assert report.passed, str(report)


@pytest.mark.parametrize("compiled", SLOW)
def test_compiled_and_exported(compiled):
    outcome = run_check(compiled, EncodingUnderTest(partial(made, "two")))
    assert outcome.passed, str(outcome)


def call(*, n: int = N, batch: int = 2, dtype: torch.dtype = torch.float64):
    g = torch.Generator().manual_seed(3)
    q, *kv, x = (
        torch.randn(batch, *size, dtype=torch.float64, generator=g).to(dtype)
        for size in ((HEADS, n, WIDTH), (KV, n, WIDTH), (KV, n, WIDTH), (n, DIM))
    )
    return q, *kv, x


def test_a_sum_gives_each_part_its_gates():
    q, k, v, x = call()
    two, positions = made("two").double(), Positions.arange(N, causal=True)
    forgetting, temperate, rope = two
    expected = attention(q, k, v, two, positions, gates=gates_of(two, x))
    f, t = gates_of(forgetting, x)[0], gates_of(temperate.at(positions), x)[0]
    assert f.shape == (2, HEADS, N, 1)
    assert t.shape == (2, KV, N, 3)
    other = temperate + rope + forgetting
    assert_close(attention(q, k, v, other, positions, gates=[t, f]), expected, **EXACT)

    class Given(Encoding):
        def bias(self, q, k, positions, layer=0):
            return RunningSum(f[..., 0], positions)

    assert_close(attention(q, k, v, temperate + rope + Given(), positions, gates=t), expected, **EXACT)
    assert (attention(q, k, v, temperate + rope, positions, gates=t) - expected).abs().max() > 1e-3


def test_one_part_twice_reads_its_gates_twice():
    q, k, v, x = call()
    part, positions = Forgetting(DIM, HEADS).double(), Positions.arange(N, causal=True)
    doubled = Forgetting(DIM, HEADS).double()
    twice = attention(q, k, v, part + part, positions, gates=gates_of(part + part, x))
    assert_close(twice, attention(q, k, v, doubled, positions, gates=2 * gates_of(doubled, x)[0]), **EXACT)


def test_layers_count_as_of_the_part():
    """In PerLayer the third layer is the part's second."""
    _, _, _, x = call()
    part = Temperate(DIM, KV, num_layers=2).double()
    mixed = PerLayer(part, Rotary(WIDTH))
    assert gates_of(mixed, x, 1) == ()
    assert torch.equal(gates_of(mixed, x, 2)[0], gates_of(part, x, 1)[0])
    assert not torch.equal(gates_of(mixed, x, 2)[0], gates_of(mixed, x, 0)[0])


@pytest.mark.parametrize("layout", LAYOUTS)
@NAMES
def test_shards_gather_gates(name, layout, monkeypatch):
    encoding = made(name).double()
    for positions in (Positions.arange(8, causal=True), Positions.packed([3, 5], causal=True)):
        q, k, v, x = call(n=8)
        complete, gathered = gates_of(encoding, x), []
        want = attention(q, k, v, encoding, positions, gates=complete)
        monkeypatch.setattr(exchange, "gather_keys", lambda *local, k=k, v=v: (k, v))
        for rank in range(2):
            local = positions.shard(rank, 2, layout=layout)
            waiting = iter(complete)

            def gather(gate, at, axis, waiting=waiting, gathered=gathered):
                gathered.append(gate.shape[axis])
                return next(waiting)

            monkeypatch.setattr(exchange, "gather", gather)
            part = [shard(each, local, 2) for each in (q, k, v)]
            out = attention(*part, encoding, local, gates=gates_of(encoding, shard(x, local, 1)))
            assert_close(out, shard(want, local, 2), **EXACT)
            posenc.explain(*part, encoding, local, gates=gates_of(encoding, shard(x, local, 1)))
        assert gathered == [4] * 2 * len(complete)


def test_gates_of_a_failed_call_are_not_cached():
    model = Transformer(CONFIG, made("two")).double().eval()
    cache, tokens = KVCache(), torch.arange(6)[None]
    model(tokens[:, :4], None, cache)
    keys, _, *gates = cache.layer(0)
    assert [each.shape[2] for each in gates] == [4, 4]
    assert keys.shape[2] == 4
    with pytest.raises(InputError):
        model(tokens[:, 4:], Positions.arange(2, 5), cache)
    assert len(cache) == 4
    assert_close(model(tokens[:, 4:], None, cache), model(tokens)[:, 4:], **EXACT)


def test_a_cache_of_rotated_keys_is_refused():
    model = Transformer(CONFIG, made("one")).double().eval()
    with pytest.raises(InputError, match="Temperate cannot rotate queries and keys apart"):
        model(torch.arange(6)[None], None, KVCache(rotated=True))


def test_a_cache_of_rotated_keys_takes_gates_of_a_bias():
    model = Transformer(CONFIG, Rotary(WIDTH) + Forgetting(DIM, HEADS)).double().eval()
    cache, tokens = KVCache(rotated=True), torch.arange(8)[None]
    parts = [model(part, None, cache) for part in tokens.split([5, 1, 2], 1)]
    assert_close(torch.cat(parts, 1), model(tokens), **EXACT)


@pytest.mark.parametrize("prefix", [0, 1])
def test_images(prefix):
    """Packed images are as if alone, and the gates learn."""
    config = VisionConfig(5, patch_size=2, dim=DIM, num_layers=2, num_heads=HEADS, class_token=prefix > 0)
    torch.manual_seed(0)
    encoding = Temperate(DIM, HEADS) + posenc.AxialRotary(WIDTH)
    model = VisionTransformer(config, encoding).double().eval()
    images = [torch.randn(3, 4, 6, dtype=torch.float64), torch.randn(3, 6, 4, dtype=torch.float64)]
    together = model(images)
    assert_close(together, torch.cat([model(image[None]) for image in images]), **EXACT)
    together.square().sum().backward()
    assert encoding.parts[0].weight.grad.abs().min() > 0


def bad(gates, encoding=None, **options):
    q, k, v, _ = call()
    encoding = made("two").double() if encoding is None else encoding
    return attention(q, k, v, encoding, Positions.arange(N, causal=True), gates=gates, **options)


def two_gates(f=None, t=None):
    full = torch.zeros(2, HEADS, N, 1, dtype=torch.float64), torch.zeros(2, KV, N, 3, dtype=torch.float64)
    return [full[0] if f is None else f, full[1] if t is None else t]


REFUSED = {
    "none": (lambda: bad(None), "gates: 0 tensors, sum makes 2: pass gates=posenc.encoding.gates_of"),
    "one of two": (lambda: bad(torch.zeros(2, HEADS, N, 1)), "gates: 1 tensors, sum makes 2"),
    "of an encoding without": (lambda: bad(torch.zeros(2, 1, N, 1), Rotary(WIDTH)), "gates: 1 tensors, rope makes 0"),
    "of no encoding": (lambda: bad(torch.zeros(2, 1, N, 1), posenc.NoPE()), "gates: 1 tensors, none makes 0"),
    "too few tokens": (
        lambda: bad(two_gates(torch.zeros(2, HEADS, N - 1, 1))), "gates are of 8 tokens, there are 9 keys: cache the gates"
    ),
    "rank": (lambda: bad(two_gates(torch.zeros(2, HEADS, N))), r"pass \(batch, heads, num_keys, width\) of a floating dtype, batch 2"),
    "rows": (lambda: bad(two_gates(torch.zeros(3, HEADS, N, 1))), "pass .batch, heads, num_keys, width. of a floating dtype, batch 2"),
    "nan": (lambda: bad(two_gates(torch.full((2, HEADS, N, 1), torch.nan))), "not finite; check the layer's input"),
    "infinite": (lambda: bad(two_gates(None, torch.full((2, KV, N, 3), torch.inf))), "not finite"),
    "no tensor": (lambda: bad(two_gates("gates")), "gates='gates': pass"),
    "a number": (lambda: bad(1.0, Temperate(DIM, KV)), "gates=1.0: pass"),
    "integers": (lambda: bad(two_gates(torch.zeros(2, HEADS, N, 1).long())), "torch.int64: pass .* of a floating dtype"),
    "of an input without rows": (lambda: gates_of(made("one"), torch.zeros(N, DIM)), "pass the input of the layer's proj"),
    "device": (lambda: bad(two_gates(torch.zeros(2, HEADS, N, 1, device="meta"))), "gates are on meta, k on cpu"),
    "linear attention": (
        lambda: posenc.linear_attention(*call()[:3], Temperate(DIM, KV), causal=True), "gates: 0 tensors, Temperate makes 1"
    ),
    "explain": (lambda: posenc.explain(*call()[:3], made("one"), causal=True), "gates: 0 tensors, sum makes 1"),
    "codes": (
        lambda: codes_of(Forgetting(DIM, HEADS)), "Forgetting: what it does depends on the content of the text"
    ),
    "the curve of its bias": (
        lambda: posenc.analysis.bias(Forgetting(DIM, HEADS)), "Forgetting: what it does depends on the content of the text"
    ),
}  # fmt: skip

test_refusals = refusals(REFUSED)


@pytest.mark.parametrize(
    ("function", "found"),
    [
        (lambda s, x, layer=0: x, r"a tensor of shape \(1, 6, 16\)"),
        (lambda s, x, layer=0: [x[:, None, :5]], r"a tensor of shape \(1, 1, 5, 16\)"),
        (lambda s, x, layer=0: ["gate"], "'gate'"),
    ],
)
def test_what_the_hook_returns(function, found):
    model = Transformer(CONFIG, type("Mine", (Encoding,), {"gates": function})())
    with pytest.raises(
        InputError, match=f"Mine.gates returned {found}.*: return .batch, heads, seq, width., 1 x any x 6"
    ):
        model(torch.arange(6)[None])


GATED = [name for name, cls in posenc.ENCODINGS.items() if "gates" in cls.own_sites]


@pytest.mark.parametrize("name", GATED)
def test_every_gated_encoding_refuses_other_gates(name):
    model = Transformer(CONFIG, name).double().eval()
    encoding, (q, k, v, x) = model.encoding, call()
    model(torch.arange(N)[None])  # which gives the encoding the model's projections
    (gates,) = gates_of(encoding, x)

    def attend(gates):
        return attention(q, k, v, encoding, Positions.arange(N, causal=True), gates=gates)

    for other in (
        gates[..., :-1],
        torch.cat((gates, gates[..., :1]), 3),
        gates[:, [0] * (gates.shape[1] + 1)],
        gates[:, :0],
    ):
        with pytest.raises(InputError, match=rf"gates of shape .*: {name} makes .* pass gates=gates_of"):
            attend(other)
    if name != "selective_attention":  # whose gates are the model's projection
        with pytest.raises(InputError, match=f"{DIM + 1}.*dim={DIM}"):
            gates_of(encoding, torch.zeros(2, N, DIM + 1))
    assert_close(attend(gates[:1]), attend(gates[:1].expand_as(gates)), **EXACT)


@pytest.mark.parametrize("name", [name for name in GATED if name != "selective_attention"])
def test_gates_of_a_model_in_bfloat16_are_not_rounded(name):
    """A sum over a long text would add up the rounding of every gate."""
    encoding, x = Transformer(CONFIG, name).bfloat16().encoding, call(dtype=torch.bfloat16)[3]
    with torch.autocast("cpu", torch.bfloat16):
        (gates,) = gates_of(encoding, x)
    assert gates.dtype == torch.float32
    assert_close(gates.double(), gates_of(encoding.double(), x.double())[0], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", GATED)
def test_a_cut_cache(name):
    """A cut cache has gates of the tokens that it has, and is of one encoding."""
    model, tokens = Transformer(CONFIG, name).double().eval(), torch.arange(N)[None]
    cache = KVCache()
    model(tokens[:, :6], None, cache)
    cache.crop(4)
    assert_close(model(tokens[:, 4:], None, cache), model(tokens)[:, 4:], **EXACT)
    with pytest.raises(InputError, match=r"cache: layer 0 has 3 tensors, its encoding makes 2.*with one encoding"):
        Transformer(CONFIG, "none").double()(tokens[:, :1], None, cache)


def test_a_hook_without_gates_says_how_to_pass_them():
    with pytest.raises(InputError, match="Forgetting takes gates that it makes of a layer's input"):
        Forgetting(DIM, HEADS).bias(*call()[:2], Positions.arange(N))


def test_analysis_draws_a_text():
    finding = posenc.analysis.scores(Forgetting(DIM, HEADS), length=12, samples=4, head_dim=WIDTH)
    assert finding.unrelated.shape == (HEADS, 12)
    assert (finding.unrelated[:, 0].abs() < 1e-9).all()
    assert (finding.unrelated[:, 1:] < 0).all()


@pytest.mark.parametrize("name", [name for name, cls in posenc.ENCODINGS.items() if "gates" in cls.own_sites])
def test_gates_are_of_the_queries_tokens(name):
    """Of other tokens than the keys there are none: they are refused, whichever of the two sides is longer."""
    encoding = posenc.create(name, dim=DIM, num_heads=HEADS, num_kv_heads=KV)
    encoding.share([(nn.Linear(DIM, DIM), nn.Linear(DIM, KV * WIDTH))])
    padded, text = Positions.from_mask(torch.ones(1, 4)), Positions.arange(4)
    for keys in (padded, text):
        for queries in (Positions.arange(9), Positions.arange(2, 9)):
            positions = Positions.cross(queries, keys)
            q, k, v = (
                torch.randn(1, heads, n, WIDTH) for heads, n in ((HEADS, positions.num_queries), (KV, 4), (KV, 4))
            )
            with pytest.raises(InputError, match=r"queries are not among the 4 keys|causal positions"):
                attention(q, k, v, encoding, positions, gates=gates_of(encoding, torch.randn(1, 4, DIM)))
    some, x = Positions.arange(9, causal=True).keys(0, 4), torch.randn(1, 4, DIM)
    q, k, v = (torch.randn(1, heads, n, WIDTH) for heads, n in ((HEADS, 9), (KV, 4), (KV, 4)))
    with pytest.raises(InputError, match="9 queries are not among the 4 keys"):
        attention(q, k, v, encoding, some, softcap=5.0, gates=gates_of(encoding, x))
