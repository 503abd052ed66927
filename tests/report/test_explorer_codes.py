"""The explorer's codes and biases, in a browser, are what posenc.analysis reads off the library's encodings."""

import json
from itertools import product

import pytest
import torch

from posenc import Positions, encodings, frequencies, position_maps
from posenc.analysis import codes_of
from posenc.errors import InputError
from posenc.functional import t5_bucket
from posenc.testing.oracles.biases import alibi
from report.formulas import SIZES, each, same, says

pytestmark = pytest.mark.browser


# ------------------------------------------------------------------ codes


YARN = {"name": "yarn", "factor": 4.0, "original_max_positions": 512}
CODES = [
    ("normalized", {}), ("normalized", {"length": 50}), ("integer", {}), ("binary", {}), ("binary", {"bits": 3, "signed": True}),
    ("sinusoidal", {}), ("sinusoidal", {"layout": "concat", "base": 500.0, "amplitude": 0.5}),
    ("sinusoidal", {"curve": "power", "exponent": 2.0, "endpoint": True}),
    ("rope", {}), ("rope", {"layout": "interleaved", "rotary_dim": 6, "rope_theta": 500.0}), ("rope", {"schedule": YARN}),
    ("rope", {"rotary_dim": 4, "schedule": YARN}), ("p_rope", {}), ("p_rope", {"fraction": 0.5, "schedule": YARN}),
    ("decoupled_rope", {}), ("decoupled_rope", {"rotary_dim": 4, "layout": "half"}),
    ("xpos", {}), ("xpos", {"gamma": 1.0, "scale_base": 128.0, "layout": "half", "rotary_dim": 4, "schedule": YARN}),
]  # fmt: skip
"""Encodings of positions; the naive ones along the first channel, where the page has them."""

DIRECTED = {"normalized", "integer"}
AT = [0, 1, 2, 3, 10, 64, 127, 128, 1000, 99999]


def codes(name, options, dim):
    spread = {"spread": "first_channel"} if name in DIRECTED else {}
    return codes_of(encodings.create(name, dim=dim, head_dim=dim, **options, **spread))


def test_codes(ask):
    cases = [[name, AT, {"dim": dim, **options}] for (name, options), dim in product(CODES, (8, 24, 128))]
    function = "([name, at, settings]) => posenc.codes.ENCODINGS[name].codes(at, settings)"
    for (name, at, settings), found in zip(cases, each(ask, function, cases), strict=True):
        options = {key: value for key, value in settings.items() if key != "dim"}
        same(found, codes(name, options, settings["dim"])(torch.tensor(at)), atol=1e-10)


def test_a_narrow_head_still_turns_a_pair(ask):
    (found,) = each(ask, "dim => posenc.codes.ENCODINGS.decoupled_rope.codes([0, 1, 5], { dim })", [4])
    same(found, codes("decoupled_rope", {}, 4)(torch.tensor([0, 1, 5])))


def test_frequencies_given_are_those_of_the_schedule(ask):
    inv = frequencies.create(YARN, 16, base=10000.0)
    given = {"dim": 16, "invFreq": inv.inv_freq.tolist(), "attentionFactor": inv.attention_factor}
    (found,) = each(ask, f"given => posenc.codes.ENCODINGS.rope.codes({AT}, given)", [given])
    same(found, codes("rope", {"schedule": YARN}, 16)(torch.tensor(AT)), atol=1e-10)


def test_dot_products_of_all_pairs(ask):
    cases = [[name, 40, {"dim": dim, **options}] for (name, options), dim in product(CODES, (8, 22))]
    for (name, n, settings), found in zip(
        cases, each(ask, "given => posenc.codes.allPairs(...given)", cases), strict=True
    ):
        options = {key: value for key, value in settings.items() if key != "dim"}
        dim, at = settings["dim"], torch.arange(n)
        queries = keys = codes(name, options, dim)(at)
        if name == "xpos":  # whose keys have codes of their own
            ones = torch.ones(1, 1, n, dim, dtype=torch.float64)
            xpos = encodings.create(name, head_dim=dim, **options)
            queries, keys = (turned[0, 0] for turned in xpos.rotate(ones, ones, Positions.from_ids(at)))
        same(found, queries @ keys.T, atol=1e-10)


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


ROTATIONS = [
    ("rope", {}), ("rope", {"schedule": YARN}), ("rope", {"rotary_dim": 8, "schedule": YARN}),
    ("p_rope", {"fraction": 0.5}), ("decoupled_rope", {}), ("xpos", {"scale_base": 20.0}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "options"), ROTATIONS, ids=str)
def test_scores_are_those_of_the_rotation_at_mapped_positions(ask, name, options):
    """The score of two vectors of ones, of a query turned to its relative position and a key at 0."""
    rotation = encodings.create(name, head_dim=16, **options)
    cases = [[None, {}], *SIZES]
    function = f"""([map, sizes]) => posenc.codes.scores(posenc.maps.grid(map, 40, sizes), 40,
        distances => posenc.codes.ENCODINGS.{name}.kernel(distances, {json.dumps({"dim": 16, **options})}))"""
    ones = torch.ones(1, 1, 1600, 16, dtype=torch.float64)
    plain = Positions.arange(40, causal=True)
    for (map_name, sizes), found in zip(cases, each(ask, function, cases), strict=True):
        spec = {"name": map_name, **sizes} if map_name else {"name": "rerope", "window": 41}
        at = position_maps.create(spec).relative(plain).flatten()
        place = Positions.from_ids(at.nan_to_num(), torch.zeros(1))
        query, key = rotation.rotate(ones, ones[:, :, :1], place)
        same(found, (query @ key.mT).flatten().masked_fill(at.isnan(), torch.nan))


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


BIASES = [
    ("alibi", {}), ("kerple", {}), ("kerple", {"kind": "power", "bound": 0.2}), ("sandwich", {}),
    ("sandwich", {"dim_bar": 16, "base": 300.0}), ("sines", {"train_length": 100}),
    ("t5", {}), ("t5", {"bidirectional": False}), ("t5", {"num_buckets": 20, "max_distance": 50}),
]  # fmt: skip
DISTANCES = [-3000, *range(-150, 151), 2999]


def biases(name, options, heads):
    """The library's encoding with its weights where the page has them, and codes of distances, (n, heads)."""
    encoding = encodings.create(name, num_heads=heads, **options)
    with torch.no_grad():
        if name == "kerple":
            encoding.p.fill_((encoding.bound + 2) / 2)
            encoding.a.fill_((encoding.bound + 1) / 2)
        elif name == "sines":
            encoding.weight.copy_(torch.tensor([0.0, 1.0]).expand(heads, 2))
        elif name == "t5":
            encoding.table.copy_(torch.arange(encoding.num_buckets).expand(heads, -1))
    return codes_of(encoding)


def test_biases(ask):
    cases = [[name, DISTANCES, {"num_heads": heads, **options}] for (name, options), heads in product(BIASES, (1, 6))]
    expected = [
        biases(name, {key: value for key, value in o.items() if key != "num_heads"}, o["num_heads"])(torch.tensor(at))
        for name, at, o in cases
    ]
    # the library's learned weights are float32
    near = [{"rtol": 1e-6, "atol": 1e-6} if name == "kerple" else {"atol": 1e-9} for name, _, _ in cases]
    rows = each(ask, "given => posenc.biases.rows(...given)", cases)
    vectors = each(ask, "([name, at, o]) => posenc.codes.ENCODINGS[name].codes(at, o)", cases)
    one = each(ask, "([name, at, o]) => [posenc.biases.BIASES[name].bias(o.num_heads - 1, at[9], o)]", cases)
    for want, tolerance, row, vector, (single,) in zip(expected, near, rows, vectors, one, strict=True):
        same(row, want.T, **tolerance)
        same(vector, want, **tolerance)
        same(single, want[9, -1], **tolerance)


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
