import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from posenc import InputError
from posenc import functional as F
from posenc.testing.oracles import biases, codes

EVEN = st.integers(1, 16).map(lambda n: 2 * n)
BASES = st.sampled_from([100.0, 10000.0, 500000.0])


@given(dim=EVEN, base=BASES, layout=st.sampled_from(["interleaved", "concat"]), position=st.integers(0, 100000))
def test_sinusoidal_is_the_papers_formula(dim, base, layout, position):
    got = F.sinusoidal(torch.tensor([position]), dim, base=base, layout=layout, dtype=torch.float64)[0]
    want = codes.sinusoidal([position], dim, base, layout=layout)[0]
    assert torch.allclose(got, want, atol=1e-9)


@pytest.mark.parametrize("layout", ["interleaved", "concat"])
@given(t=st.integers(0, 5000), a=st.integers(-300, 300), b=st.integers(-300, 300))
def test_shift_matrix_moves_every_code_and_composes(layout, t, a, b):
    def code(n):
        return F.sinusoidal(torch.tensor(n), 16, base=10000.0, layout=layout, dtype=torch.float64)

    move = F.shift_matrix(a, dim=16, layout=layout)
    assert torch.allclose(move @ code(t), code(t + a), atol=1e-9)
    assert torch.allclose(move @ move.T, torch.eye(16, dtype=torch.float64), atol=1e-12)
    assert torch.allclose(
        move @ F.shift_matrix(b, dim=16, layout=layout), F.shift_matrix(a + b, dim=16, layout=layout), atol=1e-12
    )


@pytest.mark.parametrize(
    ("curve", "exponent", "theta"),
    [
        ("geometric", 1.0, lambda t: 10000.0**-t),
        ("power", 1.0, lambda t: t),
        ("power", 0.5, math.sqrt),
        ("power", 2.0, lambda t: t * t),
    ],
)
def test_frequency_curves(curve, exponent, theta):
    got = F.frequency_curve(8, curve=curve, exponent=exponent).tolist()
    assert got == pytest.approx([theta(c / 4) for c in range(4)])
    got = F.frequency_curve(8, curve=curve, exponent=exponent, endpoint=True).tolist()
    assert got == pytest.approx([theta(c / 3) for c in range(4)])


@given(st.integers(1, 40))
def test_alibi_slopes_are_the_authors_recursion(heads):
    assert F.alibi_slopes(heads).tolist() == pytest.approx(biases.alibi(heads), rel=1e-12)


@pytest.mark.parametrize("sizes", [(32, 128), (64, 256), (8, 20), (10, 50)])
@pytest.mark.parametrize("bidirectional", [True, False])
def test_t5_buckets_are_the_formula_at_every_distance(sizes, bidirectional):
    relative = torch.arange(-700, 701)
    named = dict(zip(("num_buckets", "max_distance"), sizes, strict=True))
    want = biases.t5(relative, bidirectional, *sizes).tolist()
    assert F.t5_bucket(relative, bidirectional=bidirectional, **named).tolist() == want


@given(st.integers(0, 2**40), st.integers(1, 40))
def test_binary_digits_spell_the_number(position, bits):
    digits = F.binary_digits(torch.tensor([position]), bits)[0].tolist()
    assert sum(d << t for t, d in enumerate(digits)) == position % 2**bits


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: F.sinusoidal(torch.arange(3), 5), "dim=5: .*even"),
        (lambda: F.sinusoidal(torch.arange(3), 4, layout="concatenated"), "did you mean 'concat'"),
        (lambda: F.sinusoidal(torch.arange(3), 4, base=-1), "base=-1"),
        (lambda: F.frequency_curve(4, curve="powr"), "did you mean 'power'"),
        (lambda: F.frequency_curve(4, curve="power", exponent=0), "exponent=0"),
        (lambda: F.frequency_curve(4, curve="power", base=3.0), "base=3.0: t.exponent has no base"),
        (lambda: F.sinusoidal(torch.arange(3), 4, exponent=3.0), "exponent=3.0: base.-t has no exponent"),
        (lambda: F.shift_matrix(1, dim=4, layout="x"), "unknown layout"),
        (lambda: F.binary_digits(torch.tensor([0.5]), 4), "pass integers"),
        (lambda: F.rotary(torch.ones(3, 4), torch.ones(3, 4), torch.ones(3, 4)), "one per rotated pair"),
        (lambda: F.rotary(torch.ones(3, 4), torch.ones(3, 2), torch.ones(3, 2), layout="neox"), "unknown layout"),
        (lambda: F.t5_bucket(torch.arange(3), bidirectional=True, num_buckets=2), "num_buckets=2"),
        (lambda: F.t5_bucket(torch.arange(3), bidirectional=True, num_buckets=32, max_distance=8), "max_distance=8"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(InputError, match=message):
        call()


@pytest.mark.skipif(torch.__version__.startswith("2.8."), reason="its Dynamo cannot raise an exception of ours")
def test_an_unknown_layout_is_named_in_compiled_code_too():
    def codes(positions):
        return F.sinusoidal_from(positions, torch.ones(2), "interleavd")

    with pytest.raises(InputError, match="unknown layout 'interleavd': did you mean 'interleaved'"):
        torch.compile(codes, backend="eager")(torch.arange(3.0))
