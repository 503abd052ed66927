"""Position maps against the papers' formulas, written out pair by pair, on every backend and token layout."""

import math
import pickle
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

import posenc
from posenc import ALiBi, LogN, Mapped, PerLayer, Positions, Rotary, SoftmaxN, functional, position_maps
from posenc.attention import Call, prepare
from posenc.backends import fused
from posenc.encodings.mapped import Rerotated
from posenc.position_maps import MAPS, dual_chunk, jet_long, leaky_rerope, rerope, self_extend, streaming, string
from posenc.positions.segments import segments
from posenc.positions.visibility import Region
from posenc.testing.oracles import maps

OPTIONS = [
    ("rerope", {"window": 4}), ("leaky_rerope", {"window": 4, "factor": 2.5}), ("inverse_leaky", {"window": 3, "factor": 2}),
    ("self_extend", {"window": 4, "group": 3}), ("jet_long", {"window": 3, "trained": 6, "groups": 4, "least": 1}),
    ("jet_long", {"window": 3, "trained": 5, "groups": 3, "least": 2}), ("dual_chunk", {"chunk": 6, "local": 2}), ("dual_chunk", {"chunk": 4, "local": 2}),
    ("string", {"shift": 5, "window": 2}), ("lampe", {"window": 3, "used": 7, "length": 20}),
    ("streaming", {"sinks": 2, "recent": 3}), ("streaming", {"sinks": 0, "recent": 5}), ("lm_infinite", {"sinks": 2, "window": 4}),
]  # fmt: skip
EVERY = pytest.mark.parametrize(
    ("name", "options"), OPTIONS, ids=[str(position_maps.create({"name": n, **o})) for n, o in OPTIONS]
)
LAYOUTS = {
    "plain": Positions.arange(17, causal=True),
    "chunk of a cache": Positions.arange(5, 12, causal=True),
    "one query": Positions.arange(1, 16, causal=True),
    "far into a cache": Positions.arange(2, 40, causal=True),
    "ragged cache": Positions.arange(2, torch.tensor([11, 4]), causal=True),
    "left padded": Positions.from_mask([[0] * 6 + [1] * 11, [1] * 17], causal=True),
    "left padded, one query": Positions.from_mask([[0] * 6 + [1] * 11, [1] * 17], 1, causal=True),
    "right padded": Positions.from_mask([[1] * 9 + [0] * 8, [1] * 17], causal=True),
    "mostly padding": Positions.from_mask([[0] * 12 + [1] * 3 + [0] * 2], causal=True),
    "padding alone": Positions.from_mask([[0] * 17], 2, causal=True),
    "packed": Positions.packed([3, 10, 4], causal=True),
    "starts late": Positions.from_ids(torch.arange(30, 47), causal=True),
    "gaps": Positions.from_ids(torch.arange(17) * 2, causal=True),
}  # fmt: skip
YARN = {"name": "yarn", "factor": 4.0, "original_max_positions": 16}
WHOLE = [name for name in LAYOUTS if name != "gaps"]


@pytest.fixture(autouse=True)
def _small_tiles(monkeypatch):
    torch.manual_seed(0)
    for name, size in (("ROWS", 3), ("MANY", 5), ("COLUMNS", 4), ("CELLS", 32)):
        monkeypatch.setattr(fused, name, size)


def inputs(p, heads=4, kv_heads=2, dtype=torch.float64):
    q = torch.randn(2, heads, p.num_queries, 8, dtype=dtype, requires_grad=True)
    k, v = (torch.randn(2, kv_heads, p.num_keys, 8, dtype=dtype, requires_grad=True) for _ in range(2))
    return q, k, v


def oracle(name, options, p):
    return maps.relative(getattr(maps, name)(**options), p.q, p.k, p.mask()[:, 0])


def mapped(name, options, **rotary):
    return Mapped(Rotary(8, **rotary), MAPS[name](**options))


GOLDEN = [
    (rerope(4), "4 4 4 4 4 4 4 4 3 2 1 0"),
    (leaky_rerope(4, factor=2), "7.5 7 6.5 6 5.5 5 4.5 4 3 2 1 0"),
    (self_extend(4, group=2), "7 7 6 6 5 5 4 4 3 2 1 0"),
    (jet_long(3, trained=4, groups=3), "3 3 3 2 2 2 1 1 1 2 1 0"),
    (jet_long(3, trained=4, groups=3, least=3), "3 3 3 2 2 2 1 1 1 2 1 0"),
    (jet_long(3, trained=4, groups=2), "5 5 4 4 3 3 2 2 1 2 1 0"),
    (dual_chunk(6, local=2), "6 5 4 3 6 5 4 3 3 2 1 0"),
    (string(6, window=2), "7 6 5 4 3 2 5 4 3 2 1 0"),
    (position_maps.lm_infinite(2, window=4), "4 4 nan nan nan nan nan nan 3 2 1 0"),
    (streaming(2, recent=4), "5 4 nan nan nan nan nan nan 3 2 1 0"),
    (position_maps.lampe(3, used=7, length=12), "8 8 7 7 6 5 5 4 3 2 1 0"),
]


@pytest.mark.parametrize(("made", "row"), GOLDEN, ids=[str(made) for made, _ in GOLDEN])
def test_the_last_row_of_twelve_tokens(made, row):
    actual = made.relative(Positions.arange(12, causal=True))[0, 11]
    assert_close(actual, torch.tensor([float(x) for x in row.split()], dtype=torch.float64), equal_nan=True)


@EVERY
@pytest.mark.parametrize("layout", LAYOUTS)
def test_relative_positions_are_the_formulas(name, options, layout):
    p = LAYOUTS[layout]
    if name == "streaming" and layout == "gaps":
        pytest.skip("a cache of tokens has no gaps")
    assert_close(MAPS[name](**options).relative(p), oracle(name, options, p), equal_nan=True)


@EVERY
@pytest.mark.parametrize("backend", ["sdpa", "reference"])
def test_attention_is_the_formula(name, options, backend):
    for layout in WHOLE if name == "streaming" else LAYOUTS:
        p = LAYOUTS[layout]
        q, k, v = (x.detach() for x in inputs(p))
        encoding = mapped(name, options, layout="interleaved", rope_theta=50.0)
        expected = maps.attend(q, k, v, oracle(name, options, p), encoding.encoding.inv_freq, "interleaved")
        actual = posenc.attention(q, k, v, encoding, p, backend=backend)
        assert_close(actual, expected, rtol=1e-10, atol=1e-12, msg=lambda m, at=layout: f"{at}: {m}")


@EVERY
def test_what_is_rotated_already_is_turned_to_the_same(name, options):
    rope, made = Rotary(8, rope_theta=50.0, schedule=YARN), MAPS[name](**options)
    assert rope.attention_factor > 1
    for layout, p in LAYOUTS.items():
        q, k, v = (x.detach() for x in inputs(p))
        expected = posenc.attention(q, k, v, Mapped(rope, made), p)
        actual = posenc.attention(*rope.rotate(q, k, p), v, pickle.loads(pickle.dumps(Rerotated(rope, made))), p)
        assert_close(actual, expected, rtol=1e-10, atol=1e-12, msg=lambda m, at=layout: f"{at}: {m}")


@pytest.mark.parametrize(
    ("name", "options", "layout"),
    [
        pytest.param(*option, layout, marks=pytest.mark.slow if (at + turn) % 3 else ())
        for at, option in enumerate(OPTIONS)
        for turn, layout in enumerate(WHOLE)
    ],
)
def test_gradients_are_the_formulas(name, options, layout):
    if layout == "starts late" and MAPS[name](**options).branches[0].most is not None:
        pytest.skip("log-n takes the first tokens, which a map keeps visible, to be there")
    p = LAYOUTS[layout]
    leaves = inputs(p)
    encoding = mapped(name, options) + LogN(4) + SoftmaxN(0.5) + ALiBi(4)
    seen = oracle(name, options, p)
    factors = ((~seen.isnan()).sum(-1).clamp(min=1).double().log() / math.log(4)).clamp(min=1)
    bias = -encoding.parts[3].slope_table[:, None, None] * (p.q[:, None, :, None] - p.k[:, None, None])
    frequencies = Rotary(8).inv_freq
    expected = maps.attend(
        *leaves,
        seen,
        frequencies,
        "half",
        factors=factors[:, None],
        bias=bias,
        sink=torch.full((4,), math.log(0.5), dtype=torch.float64),
    )
    weight = torch.randn_like(expected)
    wanted = torch.autograd.grad((expected * weight).sum(), leaves)
    for backend in ("sdpa", "reference"):
        actual = posenc.attention(*leaves, encoding, p, backend=backend)
        assert_close(actual, expected, rtol=1e-10, atol=1e-12)
        for one, other in zip(torch.autograd.grad((actual * weight).sum(), leaves), wanted, strict=True):
            assert_close(one, other, rtol=1e-9, atol=1e-11)
    # without a sink or a bias the kernel's own backward is taken
    plain = mapped(name, options)
    expected = maps.attend(*leaves, seen, frequencies, "half")
    wanted = torch.autograd.grad((expected * weight).sum(), leaves)
    actual = torch.autograd.grad((posenc.attention(*leaves, plain, p) * weight).sum(), leaves)
    for one, other in zip(actual, wanted, strict=True):
        assert_close(one, other, rtol=1e-9, atol=1e-11)


@EVERY
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_angles_stay_exact_far_out_and_in_half_precision(name, options, dtype):
    p = Positions.arange(9, 5000, causal=True)
    q, k, v = (x.detach().to(dtype) for x in inputs(p))
    encoding = mapped(name, options).to(dtype)
    bound = 2 * torch.finfo(dtype).eps if dtype != torch.float32 else 2e-5
    seen = MAPS[name](**options).relative(p)  # equal to the formulas, see above
    expected = maps.attend(q.double(), k.double(), v.double(), seen, Rotary(8).inv_freq, "half")
    for backend in ("sdpa", "reference"):
        actual = posenc.attention(q, k, v, encoding, p, backend=backend).double()
        assert (actual - expected).abs().max() < bound * max(1.0, float(v.abs().max())), backend


@given(window=st.integers(1, 20), group=st.integers(1, 9), trained=st.integers(21, 40), n=st.integers(1, 90))
def test_what_the_methods_promise(window, group, trained, n):
    full = group * max(1, window // group)  # the window, rounded down to a multiple of the group
    p = Positions.arange(max(1, (trained - full) * group + full), causal=True)
    assert self_extend(full, group=group).relative(p).nan_to_num().max() <= max(trained, full) - 1
    p = Positions.arange(n, causal=True)
    plain = p.q[0, :, None] - p.k[0]
    near = (plain >= 0) & (plain < window)
    for made in (
        rerope(window),
        leaky_rerope(window, factor=group),
        self_extend(window, group=group),
        dual_chunk(2 * trained, local=window),
    ):
        actual = made.relative(p)[0]
        assert torch.equal(actual[near], plain[near].double()), "near distances stay"
    assert rerope(window).relative(p).nan_to_num().max() <= window
    actual = dual_chunk(2 * trained, local=window).relative(p).nan_to_num()
    assert 0 <= actual.min() <= actual.max() <= 2 * trained


@pytest.mark.parametrize(
    "same",
    [
        rerope(23),
        rerope(400),
        leaky_rerope(5, factor=1),
        self_extend(5, group=1),
        string(5, window=5),
        dual_chunk(30, local=2),
        streaming(4, recent=19),
        jet_long(3, trained=23, groups=2),
        jet_long(3, trained=5, groups=1),
    ],
)
def test_maps_that_are_rope(same):
    q, k, v = (x.detach() for x in inputs(Positions.arange(23)))
    plain = posenc.attention(q, k, v, Rotary(8), causal=True)
    assert_close(posenc.attention(q, k, v, Mapped(Rotary(8), same), causal=True), plain, rtol=1e-10, atol=1e-12)


def test_a_text_within_the_window_takes_the_path_of_rope():
    q, k, v = (x.detach().float() for x in inputs(Positions.arange(23)))
    plain = posenc.attention(q, k, v, Rotary(8), causal=True)
    for made in (rerope(64), jet_long(4, trained=23, groups=3)):
        assert torch.equal(plain, posenc.attention(q, k, v, Mapped(Rotary(8), made), causal=True))


def test_a_query_alone_reads_only_the_keys_that_it_sees():
    p = Positions.arange(1, 99, causal=True)
    q, k, v = inputs(p)
    near, sinks = prepare(Call(q, k, v, Mapped(Rotary(8), streaming(4, recent=10)), p)).branches
    assert (near.first, near.k.shape[2]) == (90, 10)
    assert (sinks.first, sinks.k.shape[2]) == (0, 4)
    _, far = prepare(Call(q, k, v, Mapped(Rotary(8), rerope(10)), p)).branches
    assert (far.first, far.k.shape[2]) == (0, 90)


MASKS = {
    "one row": [[1] * 40],
    "left padded": [[0] * 17 + [1] * 23, [1] * 40],
    "all left padded": [[0] * 9 + [1] * 31] * 2,
    "a hole": [[1] * 20 + [0] * 3 + [1] * 17],
}
ROTATIONS = {
    "half": {}, "interleaved": {"layout": "interleaved"}, "partial": {"rotary_dim": 4},
    "partial, interleaved": {"rotary_dim": 4, "layout": "interleaved"},
    "yarn": {"schedule": {"name": "yarn", "factor": 8.0, "original_max_positions": 16}},
}  # fmt: skip


@EVERY
@pytest.mark.parametrize("more", [[], [LogN(3)], [LogN(3), SoftmaxN()]], ids=len)
def test_a_step_is_the_last_row_of_the_pass(name, options, more, monkeypatch):
    """Keys rotated as they are read, a few at a time, in two layers that share positions."""
    monkeypatch.setattr(functional, "BLOCK_BYTES", 1000)
    for rotary in ROTATIONS.values():
        encoding = sum(more, mapped(name, options, **rotary))
        for layout, mask in MASKS.items():
            full, last = (Positions.from_mask(mask, n, causal=True) for n in (None, 1))
            if layout == "one row":
                full, last = Positions.arange(40, causal=True), Positions.arange(1, 39, causal=True)
            for _ in range(2):
                q, k, v = (x.detach() for x in inputs(full))
                expected = posenc.attention(q, k, v, encoding, full)[:, :, -1:]
                actual = posenc.attention(q[:, :, -1:], k, v, encoding, last, scale=8**-0.5)
                assert_close(actual, expected, rtol=0, atol=1e-12, msg=lambda m, at=(rotary, layout): f"{at}: {m}")
            if not more:
                q, k, v = (x.bfloat16() for x in (q, k, v))
                expected = posenc.attention(q.double(), k.double(), v.double(), encoding, full)[:, :, -1:]
                actual = posenc.attention(q[:, :, -1:], k, v, encoding, last)
                assert_close(actual.double(), expected, rtol=2**-5, atol=2**-5)


def test_dropout_drops_weights_of_every_branch(monkeypatch):
    monkeypatch.undo()  # tiles as they are
    p = Positions.arange(60, causal=True)
    q, k, v = (x.detach() for x in inputs(p))
    encoding = Mapped(Rotary(8), self_extend(20, group=4))
    drawn = [posenc.attention(q, k, v, encoding, p, dropout_p=0.3) for _ in range(300)]
    expected = posenc.attention(q, k, v, encoding, p)
    assert (torch.stack(drawn).mean(0) - expected).abs().mean() < 0.05 * expected.abs().mean()
    assert not torch.equal(drawn[0], drawn[1])
    leaves = [x.requires_grad_() for x in (q, k, v)]

    def seeded(*x):
        torch.manual_seed(1)
        return posenc.attention(*x, encoding, p, dropout_p=0.3)

    assert torch.autograd.gradcheck(seeded, leaves, fast_mode=True)


def test_regions_are_visited_and_nothing_else():
    """The rectangles of a region hold its pairs, whatever the layout."""
    regions = [branch.region for name, options in OPTIONS for branch in MAPS[name](**options).branches]
    for p in LAYOUTS.values():
        actual = segments(p)
        if actual is None or not actual.regular:
            continue
        for region in dict.fromkeys(regions):
            covered = torch.zeros(p.batch, p.num_queries, p.num_keys, dtype=torch.bool)
            limits = Region() if region.chunk > 1 else region._replace(since=None, until=None)
            for row, q0, q1, k0, k1, diagonal in actual.within(region):
                distance = torch.arange(q0, q1)[:, None] - torch.arange(k0, k1) + diagonal
                part = (distance >= 0) & limits.contains(distance, torch.zeros_like(distance))
                covered[slice(None) if row < 0 else row, q0:q1, k0:k1] |= part
            visible = p.mask()[:, 0] & region.contains(p.q[:, :, None], p.k[:, None])
            assert torch.equal(covered, visible.expand_as(covered)), region


def test_specs_names_and_copies():
    for name, options in OPTIONS:
        made = MAPS[name](**options)
        assert position_maps.create(made.spec()) == made == pickle.loads(pickle.dumps(made))
        assert hash(made) == hash(position_maps.create(made.spec()))
        encoding = posenc.create(f"rope:rope_theta=500@{made}+alibi", head_dim=8, num_heads=4)
        assert encoding.spec() == (Mapped(Rotary(8, rope_theta=500), made) + ALiBi(4)).spec()
        assert posenc.from_spec(encoding.spec()).spec() == encoding.spec()
        assert posenc.cite(f"rope@{made}") == posenc.cite(Mapped(Rotary(8), made))
        assert str(made) in repr(encoding)
    assert rerope(3) != rerope(4)
    assert Mapped(Rotary(8), rerope(3)).shift_invariant
    assert not Mapped(Rotary(8), self_extend(3, group=2)).shift_invariant
    turns = posenc.create("rope@rerope:window=4/none", head_dim=8, num_layers=2)
    assert (len(turns.branches(0)), len(turns.branches(1))) == (2, 0)


def test_explain_names_the_branches_of_a_map():
    q, k, v = inputs(LAYOUTS["plain"])
    encoding = Mapped(Rotary(8), rerope(4))
    ask = partial(posenc.explain, q, k, v, encoding, backend="sdpa")
    assert "each branch of the position map by itself" in ask(causal=True).reason
    slow = ask(LAYOUTS["gaps"])
    assert "the scores of every branch" in slow.reason
    assert slow.faster == "contiguous positions"


ROPE, X = Mapped(Rotary(8), rerope(4)), torch.zeros(1, 2, 5, 8)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: leaky_rerope(4, factor=0), r"factor=0: must be a positive number"),
        (lambda: leaky_rerope(4, factor=math.nan), r"factor=nan"),
        (lambda: leaky_rerope(4, factor=True), r"factor=True: pass a number"),
        (lambda: jet_long(3, trained=8, groups=2, least=3), r"least=3, groups=2: least is at most groups"),
        (lambda: jet_long(9, trained=8, groups=2), r"window=9, trained=8: the window is at most"),
        (lambda: dual_chunk(4, local=3), r"chunk=4, local=3: local is at most half"),
        (lambda: position_maps.lampe(4, used=5, length=1), r"length=1"),
        (lambda: position_maps.create({"name": "rerop"}), r"did you mean 'rerope'"),
        (lambda: posenc.create("rope@rerope:windw=4", head_dim=8), r"option of position map 'rerope' 'windw': did you mean"),
        (lambda: posenc.create("rope@rerope", head_dim=8), r"^position map 'rerope' needs window: pass window=$"),
        (lambda: Mapped(ALiBi(2), rerope(4)), r"rotates by its positions, such as rope"),
        (lambda: Mapped(Rotary(8) + LogN(4), rerope(4)), r"add others outside"),
        (lambda: Mapped(PerLayer(Rotary(8)), rerope(4)), r"rotates by its positions"),
        (lambda: Mapped(LogN(4), rerope(4)), r"rotates by its positions"),
        (lambda: posenc.create("rope@rerope:window=4", head_dim=8, layout="half"), r"write them into the text"),
        (lambda: posenc.attention(X, X, X, ROPE), r"pass causal positions"),
        (lambda: posenc.attention(X, X, X, ROPE, causal=True, keys_rotated=True), r"keep keys unrotated in the cache"),
        (lambda: posenc.attention(X, X, X, ROPE + ROPE, causal=True), r"several position maps"),
        (lambda: posenc.attention(X, X, X, ROPE, causal=True, backend="triton"), r"knows no position maps"),
        (lambda: ROPE.rotate(X, X, Positions.arange(5, causal=True)), r"it takes posenc.attention"),
        (lambda: posenc.linear_attention(X, X, X, ROPE, causal=True), r"it takes posenc.attention"),
        (lambda: posenc.attention(X[:, :, :4], X[:, :, :4], X[:, :, :4], ROPE, Positions.grid(2, 2), causal=True), r"one coordinate"),
    ],
)  # fmt: skip
def test_refusals(make, message):
    with pytest.raises(posenc.InputError, match=message):
        make()
