"""KERPLE, Sandwich and the simple relative form: the formulas, known answers."""

import json
from importlib import import_module

import pytest
import torch
from torch.testing import assert_close

import posenc
from posenc import KERPLE, ALiBi, GridALiBi, InputError, Positions, Sandwich, Sines
from posenc.testing.oracles import biases
from references.calls import (
    BACKENDS,
    EVERYWHERE,
    EXACT,
    at_distances,
    check_against,
    dense,
    distances,
    random,
    refusals,
)  # fmt: skip

# ---------------------------------------------------------------- ALiBi of images

HALVES = Positions.from_ids(torch.rand(2, 5, 2, generator=torch.Generator().manual_seed(0)) * 9 - 1)
IMAGES = {
    "wide": Positions.grid(2, 5),
    "prefix": Positions.grid(3, 2, prefix=2),
    "video": Positions.grid(2, 2, frames=3, prefix=1),
    "taken": Positions.grid(4, 5).take([[7, 0, 19], [3, 4, 5]]),
    "packed": Positions.grids([(2, 3), (3, 1)], prefix=1),
    "two images": Positions.cross(Positions.grid(2, 3), Positions.grid(4, 2)),
    "fractions": HALVES,
}  # fmt: skip


@pytest.mark.parametrize("backend", ["auto", "reference", "flex"])
@pytest.mark.parametrize("positions", IMAGES.values(), ids=IMAGES.keys())
@pytest.mark.usefixtures("untraced")
def test_grid_alibi_is_the_papers_formula(positions, backend):
    def formula(q, k):
        placed = [torch.tensor([[True]]) if x is None else x for x in (positions.q_placed, positions.k_placed)]
        both = placed[0][:, None, :, None] & placed[1][:, None, None]
        return torch.where(both, biases.grid_alibi(4, positions.q.double(), positions.k.double()), 0.0)

    with torch.no_grad():
        check_against(formula, GridALiBi(4), positions, backend, heads=4)


@EVERYWHERE
def test_grid_alibi_of_text_is_alibi(positions):
    assert torch.equal(dense(GridALiBi(3), positions, 3), dense(ALiBi(3), positions, 3))


def test_grid_alibi_known_answer():
    bias = dense(GridALiBi(1), Positions.grid(4, 5), 1)[0, 0]
    assert bias[0, 3 * 5 + 4].item() == -5 / 2**8, "3 rows and 4 columns away, at the only slope 2^-8"


# ---------------------------------------------------------------- KERPLE


@BACKENDS
@pytest.mark.parametrize("kind", ["log", "power"])
@EVERYWHERE
def test_kerple_is_the_papers_formula(positions, kind, backend):
    encoding = KERPLE(3, num_layers=2, kind=kind).double()
    p, a = encoding.p[0, :, None, None], encoding.a[0, :, None, None]
    check_against(lambda q, k: biases.kerple(kind, p, a, distances(positions)), encoding, positions, backend)
    assert not torch.equal(dense(encoding, positions, 3, layer=1), dense(encoding, positions, 3))


def test_kerple_starts_where_the_authors_do():
    # chijames/KERPLE get_parameter: p = 2 * rand, a = rand, then clamped at eps = 1e-2
    encoding = KERPLE(1000, num_layers=4)
    for parameter, top in ((encoding.p, 2), (encoding.a, 1)):
        assert 0.01 <= parameter.min() < 0.03
        assert top - 0.03 < parameter.max() <= top


@pytest.mark.parametrize(("kind", "p_used"), [("log", 5.0), ("power", 2.0)])
def test_kerple_keeps_parameters_in_bounds_and_lets_them_return(kind, p_used):
    encoding = KERPLE(2, kind=kind).double()
    encoding.p.data.copy_(torch.tensor([[-1.0, 5.0]]))
    encoding.a.data.copy_(torch.tensor([[-3.0, 0.5]]))
    actual = at_distances(encoding, [0, 1, 7], 2)
    want = [biases.kerple(kind, p, a, torch.tensor([0.0, 1.0, 7.0]).double()) for p, a in ((0.01, 0.01), (p_used, 0.5))]
    assert_close(actual, torch.stack(want), **EXACT)

    inside = KERPLE(2, kind=kind).double()
    inside.p.data.copy_(torch.tensor([[0.01, p_used]]))
    inside.a.data.copy_(torch.tensor([[0.01, 0.5]]))
    at_distances(inside, [0, 1, 7], 2).sum().backward()
    actual.sum().backward()
    for name in ("p", "a"):  # the gradient at the bound, where the authors' clamp in place would have put them
        assert_close(getattr(encoding, name).grad, getattr(inside, name).grad)
        assert getattr(encoding, name).grad.all()


@pytest.mark.parametrize("kind", ["log", "power"])
def test_kerple_is_finite_at_and_before_the_query(kind):
    encoding = KERPLE(3, kind=kind)
    actual = at_distances(encoding, [0, -1, -5, 5], 3)
    actual.sum().backward()
    assert all(x.isfinite().all() for x in (actual, encoding.p.grad, encoding.a.grad))
    assert not actual[:, 0].any()
    assert torch.equal(actual[:, 2], actual[:, 3])


# ---------------------------------------------------------------- Sandwich


@BACKENDS
@pytest.mark.parametrize(("dim_bar", "base"), [(128, 10000.0), (6, 500.0)])
@EVERYWHERE
def test_sandwich_is_the_papers_formula(positions, dim_bar, base, backend):
    encoding = Sandwich(3, dim_bar=dim_bar, base=base)
    check_against(lambda q, k: biases.sandwich(distances(positions), 3, dim_bar, base), encoding, positions, backend)


def test_sandwich_known_answers():
    # the last of 8 heads divides by 8, the first by 1; specs: sums over 64 frequencies
    actual = at_distances(Sandwich(8), [0, 1, 10, 100, 1000], 8)
    want = torch.tensor([64, 62.0937, 42.82, 30.5435, 10.1777], dtype=torch.float64)
    assert_close(actual[0], want, rtol=0, atol=1e-4)
    assert_close(actual[7], actual[0] / 8)


def test_sandwich_counts_exactly_where_float32_cannot():
    far = 2**24  # float32 has no 2^24 + 1
    actual = Sandwich(2).bias(*[torch.zeros(1, 2, 1, 4)] * 2, Positions.from_ids([far + 1], [far])).dense("cpu")
    assert_close(actual[0, :, 0, 0].double(), at_distances(Sandwich(2), [1], 2)[:, 0], rtol=1e-6, atol=0)


# ---------------------------------------------------------------- the simple relative form


@BACKENDS
@EVERYWHERE
def test_sines_is_its_formula(positions, backend):
    encoding = random(Sines(3, train_length=11))
    weights = encoding.weight[:, :, None, None].unbind(1)
    check_against(lambda q, k: biases.sines(distances(positions), 11, *weights), encoding, positions, backend)


# ---------------------------------------------------------------- refusals

SHORT, GRID = Positions.arange(4, causal=True), Positions.grid(2, 2)
REFUSED = {
    "kind": (lambda: KERPLE(2, kind="powr"), "kind 'powr'.*power"),
    "bound": (lambda: KERPLE(2, bound=1.5), "bound=1.5"),
    "heads": (lambda: dense(Sandwich(3), SHORT, 2), "2 heads.*num_heads=3"),
    "odd": (lambda: Sandwich(3, dim_bar=7), "dim_bar=7"),
    "std": (lambda: Sines(2, train_length=4, init_std=-1), "init_std=-1"),
}

test_refusals = refusals(REFUSED)


# ---------------------------------------------------------------- ALiBi with other slopes


@pytest.mark.parametrize("num_heads", [1, 2, 3, 8, 12])
@pytest.mark.parametrize("bias_max", [8, 16, 4.0])
def test_alibi_has_mpts_bias_max(num_heads, bias_max):
    mpt = import_module("transformers.models.mpt.modeling_mpt")
    theirs = mpt.build_mpt_alibi_tensor(num_heads, 9, alibi_bias_max=bias_max).double()  # of the last query
    ours = dense(ALiBi(num_heads, bias_max=bias_max), Positions.arange(1, 8, causal=True), num_heads)[0]
    assert_close(ours, theirs, rtol=1e-6, atol=0)


@EVERYWHERE
@BACKENDS
def test_alibi_with_slopes_of_heads_and_of_rows(positions, backend):
    of_heads, of_rows = [0.3, 0.0, -0.1], [[0.3, 0.0, -0.1], [2.0, 1.0, 0.5]]

    for slopes in (of_heads, of_rows, torch.tensor(of_rows, dtype=torch.float64)):
        each = torch.as_tensor(slopes, dtype=torch.float64)[..., None, None]
        check_against(lambda q, k, s=each: -s * distances(positions).abs(), ALiBi(3, slopes=slopes), positions, backend)


def test_slopes_are_in_the_spec_and_in_a_text():
    for encoding in (ALiBi(2, slopes=[0.5, 1]), ALiBi(2, slopes=torch.rand(3, 2)), ALiBi(2, bias_max=16)):
        assert torch.equal(posenc.from_spec(json.loads(json.dumps(encoding.spec()))).slope_table, encoding.slope_table)
    assert posenc.create("alibi:slopes=0.5,1", num_heads=2).slope_table.tolist() == [0.5, 1]
    assert posenc.create("grid_alibi:slopes=0.5,1", num_heads=2).slope_table.tolist() == [0.5, 1]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ALiBi(2, slopes=[1, 2, 3]), r"slopes=\[1, 2, 3\]: pass numbers up to 1e\+20, \(2,\) or \(batch, 2\)"),
        (lambda: ALiBi(2, slopes=[1, float("nan")]), "slopes=.*pass numbers up to"),
        (lambda: ALiBi(2, slopes=torch.ones(2, 2, 2)), "slopes=.*pass numbers up to"),
        (lambda: ALiBi(2, slopes=[[1, 2], [3]]), "slopes=.*as long"),
        (lambda: ALiBi(2, slopes="1,2"), "slopes='1,2'"),
        (lambda: ALiBi(1, slopes=0.5), "slopes=0.5: pass a list or a tensor or None$"),
        (
            lambda: ALiBi(2, slopes=torch.ones(2, requires_grad=True)),
            r"not learned: pass slopes\.detach\(\), or take KERPLE",
        ),
        (lambda: ALiBi(2, slopes=[1, 2], bias_max=16), r"slopes=\[1, 2\], bias_max=16: pass one of them"),
        (lambda: ALiBi(2, bias_max=0), "bias_max=0"),
        (lambda: ALiBi(2, bias_max=1e9), "bias_max=1000000000.0: must be at most 126"),
        (lambda: GridALiBi(2, bias_max=127.0), "bias_max=127.0: must be at most 126"),
        (lambda: dense(ALiBi(2, slopes=[[1, 2], [3, 4]]), Positions.arange(4), 2), "slopes of 2 rows, q has 1"),
        (lambda: dense(GridALiBi(2, slopes=[[1, 2]]), Positions.grid(2, 2), 2), "GridALiBi takes .* on a grid"),
    ],
)
def test_bad_slopes(make, message):
    with pytest.raises(InputError, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)
