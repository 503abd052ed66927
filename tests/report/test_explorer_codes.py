"""The explorer's codes and biases, in a browser, are what posenc.analysis reads off the library's encodings."""

import pytest
import torch

from posenc import encodings
from posenc.analysis import codes_of
from posenc.errors import InputError
from posenc.functional import t5_bucket
from posenc.testing.oracles.biases import alibi
from report.formulas import each, same, says

pytestmark = pytest.mark.browser


# ------------------------------------------------------------------ codes


DIRECTED = {"normalized", "integer"}


def codes(name, options, dim):
    spread = {"spread": "first_channel"} if name in DIRECTED else {}
    return codes_of(encodings.create(name, dim=dim, head_dim=dim, **options, **spread))


def test_a_narrow_head_still_turns_a_pair(ask):
    (found,) = each(ask, "dim => posenc.codes.ENCODINGS.decoupled_rope.codes([0, 1, 5], { dim })", [4])
    same(found, codes("decoupled_rope", {}, 4)(torch.tensor([0, 1, 5])))


def test_means_and_spreads_by_distance(ask):
    table = torch.randn(9, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    table[[4, 5, 8], [0, 1, 0]] = torch.nan
    function = "m => { const { mean, spread } = posenc.codes.byDistance(m, 9); return [...mean, ...spread]; }"
    (found,) = each(ask, function, [table.flatten().tolist()])
    diagonals = [table.diagonal(-d) for d in range(9)]
    seen = [values[~values.isnan()] for values in diagonals]
    means, spreads = (
        [values.mean() for values in seen],
        [(values - values.mean()).square().mean().sqrt() for values in seen],
    )
    same(found, torch.stack(means + spreads))


REFUSED_CODES = [
    ("rope", {"dim": 7}),
    ("rope", {"dim": 8, "rotary_dim": 10}),
    ("rope", {"dim": 8, "rotary_dim": 3}),
    ("rope", {"dim": 8, "layout": "halves"}),
    ("rope", {"dim": 8, "rope_theta": 0.0}),
    ("xpos", {"dim": 8, "gamma": 0.0}),
    ("p_rope", {"dim": 8, "fraction": 2.0}),
    ("sinusoidal", {"dim": 9}),
    ("sinusoidal", {"dim": 8, "curve": "power", "exponent": -1.0}),
    ("binary", {"dim": 8, "bits": 9}),
    ("none", {"dim": 8}),
]


@pytest.mark.parametrize(("name", "settings"), REFUSED_CODES, ids=str)
def test_what_the_library_refuses_of_an_encoding_the_page_refuses(ask, name, settings):
    options = {key: value for key, value in settings.items() if key != "dim"}
    with pytest.raises(InputError):
        codes(name, options, settings["dim"])
    function = "([name, settings]) => posenc.codes.ENCODINGS[name].codes([0, 1], settings)"
    (found,) = each(ask, function, [[name, settings]])
    says(found, {"name": name, **settings})


# ------------------------------------------------------------------ biases


def test_slopes_for_any_number_of_heads(ask):
    cases = [*range(1, 41), 96, 128]
    for heads, found in zip(cases, each(ask, "posenc.biases.alibiSlopes", cases), strict=True):
        same(found, alibi(heads))


DISTANCES = [-3000, *range(-150, 151), 2999]


@pytest.mark.parametrize("p", [0.5, 2.5])
def test_learned_weights_can_be_set_and_are_held_within_bounds(ask, p):
    encoding = encodings.create("kerple", num_heads=2, kind="power")
    with torch.no_grad():
        encoding.p.fill_(p)
        encoding.a.fill_(0.001)
    given = ["kerple", DISTANCES, {"num_heads": 2, "kind": "power", "p": p, "a": 0.001}]
    (found,) = each(ask, "given => posenc.biases.rows(...given)", [given])
    same(found, codes_of(encoding)(torch.tensor(DISTANCES)).T, rtol=1e-6)


@pytest.mark.parametrize(("buckets", "longest"), [(32, 128), (64, 4000), (20, 50), (4, 3), (33, 1000), (46, 164)])
@pytest.mark.parametrize("both", [True, False])
def test_buckets_have_the_librarys_edges(ask, both, buckets, longest):
    distances = torch.arange(-5000, 5001)
    given = {"bidirectional": both, "num_buckets": buckets, "max_distance": longest}
    function = f"o => Array.from({{ length: 10001 }}, (_, i) => posenc.biases.t5Bucket(i - 5000, {given})"
    function = function.replace("True", "true").replace("False", "false") + ")"
    expected = t5_bucket(
        -distances, bidirectional=both, num_buckets=buckets, max_distance=longest
    )  # in float32, as T5's
    assert ask(function) == expected.tolist()


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("t5", {"num_buckets": 2}),
        ("t5", {"max_distance": 8}),
        ("kerple", {"bound": 1.0}),
        ("kerple", {"kind": "linear"}),
        ("sandwich", {"dim_bar": 7}),
        ("alibi", {"num_heads": 0}),
        ("sines", {"train_length": 0}),
    ],
    ids=str,
)
def test_what_the_library_refuses_of_a_bias_the_page_refuses(ask, name, settings):
    with pytest.raises(InputError):
        encodings.create(name, **{"num_heads": 2} | settings)
    (found,) = each(ask, f"o => posenc.biases.rows('{name}', [1], {{ num_heads: 2, ...o }})", [settings])
    says(found, {"name": name, **settings})
