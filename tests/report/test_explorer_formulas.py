"""The explorer's mathematics, in a browser, against the library: the same options, the same numbers, the same refusals."""

from importlib.resources import files
from inspect import Parameter, signature
from itertools import product

import pytest
import torch
from torch.testing import assert_close

from posenc import Positions, encodings, frequencies, position_maps
from posenc.analysis import codes_of
from posenc.encodings import ENCODINGS
from posenc.errors import InputError
from posenc.frequencies import SCHEDULES
from posenc.functional import alibi_slopes, frequency_curve, t5_bucket
from posenc.listing import OF_THE_MODEL
from posenc.position_maps import MAPS

pytestmark = pytest.mark.browser

LISTS = {"explicit", "longrope"}
"""Schedules that need a number for every pair, which the page has no control for."""

LEARNED = {
    "learned",
    "hierarchical",
    "multiplicative",
    "complex_order",
    "axial_table",
    "grid_table",
    "floater",
    "pope",
    "fire",
}
"""Encodings that are noise before training."""

OF_CONTENT = {"shaw", "transformer_xl", "xlnet", "tupe", "tupe_r", "deberta", "deberta_v2", "cope"}
"""Encodings whose effect depends on queries or keys, which are not on the page."""

GRIDS = {"grid_sinusoidal", "axial_rope", "m_rope", "mixed_rope", "swin", "beit", "swin_v2"}
"""Encodings of places with several coordinates."""

WITHOUT_CODES = {"shape", "cape", "randomized", "softmax_n", "sink", "log_n", "temperature", "step_temperature"}
"""Encodings that move positions in training or act on the softmax."""

NOT_OF_THE_CODE = {"merge", "spread", "init_std", "scaled", *OF_THE_MODEL} - {"train_length", "bidirectional"}
"""Arguments that say how codes meet the model, or how weights start."""


@pytest.fixture(scope="module")
def ask(browser):
    """JavaScript, a function of one argument, called with a value in a page that has the formulas."""
    tab = browser.new_page()
    complaints = []
    tab.on("pageerror", lambda error: complaints.append(str(error)))
    for name in ("options", "frequencies", "maps", "codes", "biases"):
        tab.add_script_tag(content=(files("posenc") / "report" / "explorer" / f"{name}.js").read_text())
    yield tab.evaluate
    assert complaints == []
    tab.close()


def each(ask, function, cases):
    """What a JavaScript function, written as text, gives for each case: a list of numbers, or what it says in refusing."""
    return ask(
        f"""cases => cases.map(given => {{
            try {{ return Array.from(({function})(given)); }} catch (error) {{ return error.message; }}
        }})""",
        cases,
    )


def same(found, expected, **tolerance):
    """Numbers of the page and the library's; NaN and infinity are equal to themselves."""
    expected = torch.as_tensor(expected, dtype=torch.float64)
    found = torch.tensor(found, dtype=torch.float64).view(expected.shape)
    assert_close(found, expected, **{"rtol": 1e-12, "atol": 1e-12, "equal_nan": True} | tolerance)


def says(found, given):
    """A refusal, in a sentence that names one of the options given, or what should have them."""
    assert isinstance(found, str), found
    shared = {"rope_theta": "base", "dim_bar": "dim", "dim": "head_dim"}  # with functions that have names of their own
    assert any(word in found for word in (given["name"], *given, *(shared.get(key, key) for key in given))), found


# ------------------------------------------------------------------ what there is


def registry(ask, path):
    """Name -> {option: (required, default, learned)} of a registry of the page."""
    found = ask(
        f"""() => Object.fromEntries(Object.entries({path}).map(([name, entry]) => [name, Object.fromEntries(
            Object.entries(entry.options).map(([key, option]) =>
                [key, [Boolean(option.required), option.default, Boolean(option.learned)]]))]))"""
    )
    return {name: dict(options) for name, options in found.items()}


def declared(parameters, without=()):
    return {
        name: (p.default is Parameter.empty, None if p.default is Parameter.empty else p.default)
        for name, p in parameters.items()
        if name not in without
    }


def is_declared(found, parameters, without=()):
    """The same options; the same defaults where the library has one."""
    expected = declared(parameters, without)
    told = {name: option for name, option in found.items() if not option[2]}
    assert {name: required for name, (required, _, _) in told.items()} == {k: v[0] for k, v in expected.items()}
    for name, (required, default, _) in told.items():
        assert required or default == expected[name][1], name


def test_every_schedule_with_its_options(ask):
    found = registry(ask, "posenc.frequencies.SCHEDULES")
    assert set(found) == set(SCHEDULES) - LISTS
    for name, options in found.items():
        is_declared(options, frequencies.options_of(name))


def test_what_schedules_need(ask):
    found = ask("() => Object.entries(posenc.frequencies.SCHEDULES).map(([name, { needs }]) => [name, needs])")
    for name, needs in found:
        shape = frequencies.complete({"name": name}, factor=4.0, original_max_positions=64, length=256)
        required = {key for key, p in frequencies.options_of(name).items() if p.default is p.empty}
        assert set(needs) == required | set(shape) - {"name"}, name


def test_every_map_with_its_options(ask):
    found = registry(ask, "posenc.maps.MAPS")
    assert set(found) == set(MAPS)
    for name, options in found.items():
        is_declared(options, signature(MAPS[name]).parameters)


def test_every_encoding_with_its_options(ask):
    found = registry(ask, "posenc.codes.ENCODINGS")
    assert set(found) == set(ENCODINGS) - LEARNED - OF_CONTENT - GRIDS - WITHOUT_CODES
    for name, options in found.items():
        inside = {"length"} if name == "normalized" else set()
        without = NOT_OF_THE_CODE - inside
        is_declared(options, ENCODINGS[name].arguments(), without)


def test_controls_can_start(ask):
    """Every option has a kind, a meaning and a range that holds its default."""
    for path in ("frequencies.SCHEDULES", "maps.MAPS", "codes.ENCODINGS", "biases.BIASES"):
        options = ask(f"() => Object.values(posenc.{path}).flatMap(({{ options }}) => Object.values(options))")
        for option in options:
            assert option["meaning"]
            if option["kind"] in ("number", "integer"):
                assert option["min"] < option["max"]
                assert option["default"] is None or option["min"] <= option["default"] <= option["max"]
            if option["kind"] == "choice":
                assert option["default"] in option["choices"]
        assert all(ask(f"() => Object.values(posenc.{path}).map(({{ summary }}) => summary)"))


# ------------------------------------------------------------------ frequencies


CURVES = [
    {"dim": dim, "base": base, "curve": curve, "exponent": exponent, "endpoint": endpoint}
    for dim, base, (curve, exponent), endpoint in product(
        (2, 8, 64, 128),
        (500.0, 10000.0, 500000.0),
        (("geometric", 1.0), ("power", 1.0), ("power", 0.5), ("power", 2.0)),
        (False, True),
    )
]


def test_curves(ask):
    for given, found in zip(CURVES, each(ask, "posenc.frequencies.curve", CURVES), strict=True):
        same(found, frequency_curve(**given))


OWN = {
    "ntk_mixed": [{"exponent": x} for x in (0.0, 0.625, 1.0)],
    "abf": [{"new_base": x} for x in (2000.0, 1e6)],
    "yarn": [
        {},
        {"beta_fast": 16.0, "beta_slow": 2.0, "truncate": False},
        {"mscale": 0.5, "mscale_all_dim": 0.707},
        {"attention_factor": 1.25},
    ],
    "yarn_paper": [{}, {"beta_fast": 8.0, "attention_factor": 1.0}],
    "yarn_revised": [{}, {"beta_slow": 0.5, "truncate": False, "attention_factor": 1.1}],
    "llama3": [{}, {"low_freq_factor": 0.5, "high_freq_factor": 16.0}],
    "dynamic": [{"length": 1000, "factor": 1.0}, {"length": 70000, "factor": 2.0}],
    "proportional": [{}, {"fraction": 0.25, "factor": 8.0}, {"fraction": 0.0}],
    "tapered": [
        {},
        {"hard": True},
        {"pairs": 3},
        {"pairs": 1},
        {"of": {"name": "ntk", "factor": 4.0}},
        {"pairs": 2, "of": {"name": "tapered", "pairs": 4, "hard": True}},
    ],
    "resonance": [
        {},
        {"of": {"name": "linear", "factor": 3.0}},
        {"of": {"name": "yarn", "factor": 8.0, "original_max_positions": 2048}},
        {"of": {"name": "tapered", "pairs": 2, "hard": True}},
    ],
}


def schedule_cases():
    for name, dim, base, factor, length in product(
        sorted(set(SCHEDULES) - LISTS), (8, 64, 128), (500.0, 10000.0, 500000.0), (1.0, 4.0, 13.5), (128, 4096, 100000)
    ):
        for own in OWN.get(name, [{}]):
            shape = {"factor": factor, "original_max_positions": length, "length": 4 * length}
            schedule = frequencies.complete({"name": name}, **shape)
            yield {"head_dim": dim, "base": base, "schedule": schedule | own}


def test_schedules(ask):
    cases = list({str(case): case for case in schedule_cases()}.values())
    function = """({ schedule, head_dim, base }) => {
        const { invFreq, attentionFactor } = posenc.frequencies.create(schedule, head_dim, base);
        const { wavelengths, stretch } = posenc.frequencies;
        return [attentionFactor, ...invFreq, ...wavelengths(invFreq), ...stretch(invFreq, head_dim, base)];
    }"""
    for given, found in zip(cases, each(ask, function, cases), strict=True):
        expected = frequencies.create(given["schedule"], given["head_dim"], given["base"])
        waves = frequencies.wavelengths(expected), frequencies.stretch(expected, given["head_dim"], given["base"])
        same(
            found,
            torch.cat((torch.tensor([expected.attention_factor], dtype=torch.float64), expected.inv_freq, *waves)),
        )


def test_factors(ask):
    cases = [[700, 1000, 4.0], [4000, 1000, 1.0], [4000, 1000, 4.0]]
    found = each(ask, "given => [posenc.frequencies.dynamicFactor(...given)]", cases)
    same(found, [[frequencies.dynamic_factor(*case)] for case in cases])
    cases = [[40.0, 1.0], [4.0, 0.707], [4.0, 0.0]]
    found = each(ask, "given => [posenc.frequencies.softmaxFactor(...given)]", cases)
    same(found, [[frequencies.softmax_factor(*case)] for case in cases])


REFUSED_SCHEDULES = [
    {"name": "linear", "factor": 0.5},
    {"name": "linear"},
    {"name": "linear", "factor": 2.0, "beta": 1},
    {"name": "nkt"},
    {"name": "ntk_mixed", "factor": 2.0, "exponent": 1.5},
    {"name": "abf", "new_base": -1.0},
    {"name": "yarn", "factor": 2.0, "original_max_positions": 0},
    {"name": "yarn", "factor": 2.0, "original_max_positions": 64, "beta_slow": 40.0},
    {"name": "yarn", "factor": 2.0, "original_max_positions": 64, "mscale": -1.0},
    {"name": "yarn", "factor": 2.0, "original_max_positions": 64, "attention_factor": 0.0},
    {"name": "llama3", "factor": 2.0, "original_max_positions": 64, "low_freq_factor": 8.0},
    {"name": "dynamic", "length": 0, "original_max_positions": 64},
    {"name": "proportional", "fraction": -0.5},
    {"name": "tapered"},
    {"name": "tapered", "pairs": 9},
]


@pytest.mark.parametrize("schedule", REFUSED_SCHEDULES, ids=str)
def test_what_the_library_refuses_of_a_schedule_the_page_refuses(ask, schedule):
    with pytest.raises(InputError):
        frequencies.create(schedule, 16, 10000.0)
    (found,) = each(ask, "given => posenc.frequencies.create(given, 16, 10000).invFreq", [schedule])
    says(found, schedule)


# ------------------------------------------------------------------ position maps


OPTIONS = [
    ("rerope", {"window": 4}), ("rerope", {"window": 1}), ("leaky_rerope", {"window": 4, "factor": 2.5}),
    ("inverse_leaky", {"window": 3, "factor": 2.0}), ("self_extend", {"window": 4, "group": 3}),
    ("self_extend", {"window": 8, "group": 4}), ("self_extend", {"window": 5, "group": 1}),
    ("dual_chunk", {"chunk": 6, "local": 2}), ("dual_chunk", {"chunk": 4, "local": 2}), ("dual_chunk", {"chunk": 24, "local": 3}),
    ("string", {"shift": 5, "window": 2}), ("string", {"shift": 2, "window": 5}),
    ("lampe", {"window": 3, "used": 7, "length": 20}), ("lampe", {"window": 20, "used": 300, "length": 97}),
    ("streaming", {"sinks": 2, "recent": 3}), ("streaming", {"sinks": 0, "recent": 5}),
    ("lm_infinite", {"sinks": 2, "window": 4}), ("lm_infinite", {"sinks": 0, "window": 4}),
]  # fmt: skip


def relative(name, options, n):
    return MAPS[name](**options).relative(Positions.arange(n, causal=True))[0]


def test_maps(ask):
    cases = [[name, n, options] for (name, options), n in product(OPTIONS, (1, 17, 97))]
    assert {name for name, _ in OPTIONS} == set(MAPS)
    for (name, n, options), found in zip(cases, each(ask, "given => posenc.maps.grid(...given)", cases), strict=True):
        same(found, relative(name, options, n))


def test_a_pair_of_a_map(ask):
    function = (
        "([name, options]) => [[30, 7], [30, 30], [7, 30]].map(p => posenc.maps.MAPS[name].relative(...p, options))"
    )
    for (name, options), found in zip(OPTIONS, each(ask, function, OPTIONS), strict=True):
        same(found, relative(name, options, 31)[[30, 30, 7], [7, 30, 30]])


def test_no_map_is_the_distance(ask):
    (found,) = each(ask, "n => posenc.maps.grid(null, n)", [5])
    at = torch.arange(5.0)
    same(found, (at[:, None] - at).masked_fill(at[:, None] < at, torch.nan))


def test_which_maps_go_by_the_distance(ask):
    function = "([name, options]) => [posenc.maps.MAPS[name].shiftInvariant(options)]"
    for (name, options), (found,) in zip(OPTIONS, each(ask, function, OPTIONS), strict=True):
        assert found == MAPS[name](**options).shift_invariant


REFUSED_MAPS = [
    {"name": "rerope"},
    {"name": "rerope", "window": 0},
    {"name": "rerope", "window": 2.5},
    {"name": "rerope", "window": 2, "group": 1},
    {"name": "leaky_rerope", "window": 2, "factor": 0.0},
    {"name": "dual_chunk", "chunk": 6, "local": 4},
    {"name": "lampe", "window": 2, "used": 4, "length": 1},
    {"name": "streaming", "sinks": -1, "recent": 4},
]


@pytest.mark.parametrize("spec", REFUSED_MAPS, ids=str)
def test_what_the_library_refuses_of_a_map_the_page_refuses(ask, spec):
    with pytest.raises(InputError):
        position_maps.create(spec)
    (found,) = each(ask, "({ name, ...options }) => posenc.maps.grid(name, 8, options)", [spec])
    says(found, spec)


# ------------------------------------------------------------------ codes


YARN = {"name": "yarn", "factor": 4.0, "original_max_positions": 512}
CODES = [
    ("normalized", {}), ("normalized", {"length": 50}), ("integer", {}), ("binary", {}), ("binary", {"bits": 3, "signed": True}),
    ("sinusoidal", {}), ("sinusoidal", {"layout": "concat", "base": 500.0, "amplitude": 0.5}),
    ("sinusoidal", {"curve": "power", "exponent": 2.0, "endpoint": True}),
    ("rope", {}), ("rope", {"layout": "interleaved", "rotary_dim": 6, "rope_theta": 500.0}), ("rope", {"schedule": YARN}),
    ("rope", {"rotary_dim": 4, "schedule": YARN}), ("p_rope", {}), ("p_rope", {"fraction": 0.5, "schedule": YARN}),
    ("decoupled_rope", {}), ("decoupled_rope", {"rotary_dim": 4, "layout": "half"}),
    ("xpos", {}), ("xpos", {"gamma": 1.0, "scale_base": 64.0, "layout": "half", "rotary_dim": 4, "schedule": YARN}),
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


def test_frequencies_given_are_those_of_the_schedule(ask):
    inv = frequencies.create(YARN, 16, 10000.0)
    given = {"dim": 16, "invFreq": inv.inv_freq.tolist(), "attentionFactor": inv.attention_factor}
    (found,) = each(ask, f"given => posenc.codes.ENCODINGS.rope.codes({AT}, given)", [given])
    same(found, codes("rope", {"schedule": YARN}, 16)(torch.tensor(AT)), atol=1e-10)


def test_dot_products_of_all_pairs(ask):
    cases = [[name, 70, {"dim": dim, **options}] for (name, options), dim in product(CODES, (8, 22))]
    for (name, n, settings), found in zip(
        cases, each(ask, "given => posenc.codes.allPairs(...given)", cases), strict=True
    ):
        options = {key: value for key, value in settings.items() if key != "dim"}
        expected = codes(name, options, settings["dim"])(torch.arange(n))
        same(found, expected @ expected.T, atol=1e-10)


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


@pytest.mark.parametrize("schedule", [{"name": "default"}, YARN, {"name": "proportional", "fraction": 0.5}], ids=str)
def test_scores_are_those_of_the_rotation_at_mapped_positions(ask, schedule):
    """The score of two vectors of ones, of a query turned to its relative position and a key at 0."""
    rope = encodings.create("rope", head_dim=16, schedule=schedule)
    cases = [None, *({"name": name, **options} for name, options in OPTIONS)]
    inv = frequencies.create(schedule, 16, 10000.0)
    function = f"""map => posenc.codes.scores(40, {{
        invFreq: {inv.inv_freq.tolist()}, attentionFactor: {inv.attention_factor}, map
    }})"""
    ones = torch.ones(1, 1, 1600, 16, dtype=torch.float64)
    plain = Positions.arange(40, causal=True)
    for spec, found in zip(cases, each(ask, function, cases), strict=True):
        at = (position_maps.create(spec) if spec else position_maps.rerope(41)).relative(plain).flatten()
        turned, _ = rope.rotate(ones, ones, Positions.from_ids(at.nan_to_num()))
        _, key = rope.rotate(ones[:, :, :1], ones[:, :, :1], Positions.from_ids(torch.zeros(1)))
        expected = (turned[0, 0] @ key[0, 0, 0]) / 16
        same(found, expected.masked_fill(at.isnan(), torch.nan))


def test_pairs_that_do_not_turn_keep_their_part_of_the_score(ask):
    inv = frequencies.create(YARN, 8, 10000.0)
    given = {"invFreq": inv.inv_freq.tolist(), "attentionFactor": inv.attention_factor, "pairs": 8}
    (found,) = each(ask, "given => posenc.codes.scores(30, given)", [given])
    of_library = codes("rope", {"rotary_dim": 8, "schedule": YARN}, 16)(torch.arange(30))
    expected = (of_library @ of_library.T / 16).masked_fill(torch.ones(30, 30).triu(1) > 0, torch.nan)
    same(found, expected)


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
        same(found, alibi_slopes(heads))


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
    cases = [
        [name, DISTANCES, {"num_heads": heads, **options}] for (name, options), heads in product(BIASES, (1, 6, 8))
    ]
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


def test_learned_weights_can_be_set(ask):
    encoding = encodings.create("kerple", num_heads=2, kind="power")
    with torch.no_grad():
        encoding.p.fill_(0.5)
        encoding.a.fill_(0.001)
    given = ["kerple", DISTANCES, {"num_heads": 2, "kind": "power", "p": 0.5, "a": 0.001}]
    (found,) = each(ask, "given => posenc.biases.rows(...given)", [given])
    same(found, codes_of(encoding)(torch.tensor(DISTANCES)).T, rtol=1e-6)


@pytest.mark.parametrize(("buckets", "longest"), [(32, 128), (64, 4000), (20, 50), (4, 3), (33, 1000)])
@pytest.mark.parametrize("both", [True, False])
def test_buckets_have_the_librarys_edges(ask, both, buckets, longest):
    distances = torch.arange(-5000, 5001)
    given = {"bidirectional": both, "num_buckets": buckets, "max_distance": longest}
    function = f"o => Array.from({{ length: 10001 }}, (_, i) => posenc.biases.t5Bucket(i - 5000, {given})"
    function = function.replace("True", "true").replace("False", "false") + ")"
    expected = t5_bucket(-distances, both, buckets, longest)
    assert ask(function) == expected.tolist()
    for towards in (1, -1):
        edges = ask("given => posenc.biases.t5Edges(...given)", [given, towards])
        along = t5_bucket(-towards * torch.arange(5001), both, buckets, longest)
        for edge in edges:
            end = min(edge["last"], 5000)
            assert set(along[edge["first"] : int(end) + 1].tolist()) == {edge["bucket"]}
            assert end == 5000 or along[int(end) + 1] != edge["bucket"]


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
        ("sines", {}),
    ],
    ids=str,
)
def test_what_the_library_refuses_of_a_bias_the_page_refuses(ask, name, settings):
    with pytest.raises(InputError):
        encodings.create(name, **{"num_heads": 2} | settings)
    (found,) = each(ask, f"o => posenc.biases.rows('{name}', [1], {{ num_heads: 2, ...o }})", [settings])
    says(found, {"name": name, **settings})
