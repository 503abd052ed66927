"""The explorer's mathematics, in a browser: the library's options, schedules and refusals, and the oracles' maps."""

from inspect import Parameter, signature
from itertools import product

import pytest
import torch

from posenc import frequencies, position_maps
from posenc.encodings import ENCODINGS
from posenc.encodings.catalogue import OF_THE_MODEL
from posenc.errors import InputError
from posenc.frequencies import SCHEDULES
from posenc.functional import frequency_curve
from posenc.position_maps import MAPS
from posenc.report import explorer
from posenc.testing.oracles import maps
from report.formulas import AS_TRAINED, SIZES, each, same, says

pytestmark = pytest.mark.browser

LISTS = {"explicit", "longrope"}
"""Schedules that need a number for every pair, which the page has no control for."""

NOT_OF_THE_CODE = {"merge", "spread", "init_std", "scaled", *OF_THE_MODEL} - {"train_length", "bidirectional"}
"""Arguments that say how codes meet the model, or how weights start."""


CAUSAL = {"alibi": {"bias_max", "slopes"}, "window": {"after"}, "learned_rope": {"groups"}}
"""What the page leaves out: other slopes than the paper's, keys after the query, what is added to the output, heads that differ."""


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
    fixed = {name: option for name, option in found.items() if not option[2]}
    assert {name: required for name, (required, _, _) in fixed.items()} == {k: v[0] for k, v in expected.items()}
    for name, (required, default, _) in fixed.items():
        of_the_positions = name == "bidirectional" and expected[name][1] is None  # the page draws both directions
        assert required or default == expected[name][1] or (of_the_positions and default is True), name


def test_every_schedule_with_its_options(ask):
    found = registry(ask, "posenc.frequencies.SCHEDULES")
    assert set(found) == set(SCHEDULES) - LISTS
    for name, options in found.items():
        is_declared(options, frequencies.options_of(name))


def test_every_map_with_its_options(ask):
    found = registry(ask, "posenc.maps.MAPS")
    assert set(found) == set(MAPS)
    for name, options in found.items():
        is_declared(options, signature(MAPS[name]).parameters)


def test_every_encoding_with_its_options(ask):
    found = registry(ask, "posenc.codes.ENCODINGS")
    undrawn = [name for names in explorer.settings()["undrawn"].values() for name in names]
    assert sorted([*found, *undrawn]) == sorted(ENCODINGS)
    assert sorted(name for names in explorer.settings()["encodings"].values() for name in names) == sorted(found)
    assert set(explorer.settings()["names"]) == set(found)
    for name, options in found.items():
        if name in AS_TRAINED - {"learned_rope"}:
            assert options == {}, name
        else:
            is_declared(options, ENCODINGS[name].arguments(), NOT_OF_THE_CODE | CAUSAL.get(name, set()))
    limits = ask("() => Object.entries(posenc.codes.ENCODINGS).map(([name, { limits }]) => [name, limits])")
    assert {name for name, of in limits if "trained" in of} == AS_TRAINED


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
    for dim, (curve, base, exponent), endpoint in product(
        (2, 8, 64, 128),
        [("geometric", base, 1.0) for base in (500.0, 10000.0, 500000.0)]
        + [("power", 10000.0, exponent) for exponent in (0.5, 1.0, 2.0)],
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
    "mrrope": [{}, {"progressive": False, "beta_fast": 16.0}, {"attention_factor": 1.1}],
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
    sizes = (8, 64, 128), (500.0, 10000.0, 500000.0), (1.0, 4.0, 13.5), (128, 4096, 100000)
    for name, at in product(sorted(set(SCHEDULES) - LISTS), product(range(3), repeat=4)):
        if sum(at) % 3:
            continue  # every pair of sizes is left
        dim, base, factor, length = (values[index] for values, index in zip(sizes, at, strict=True))
        for own in OWN.get(name, [{}]):
            shape = {"factor": factor, "original_max_positions": length, "length": 4 * length}
            schedule = frequencies.complete({"name": name}, **shape)
            yield {"head_dim": dim, "base": base, "schedule": schedule | own}
    for base, length in ((500.0, 6), (5.0, 300)):  # ramps that begin and end in one pair, or end after the last channel
        yield {
            "head_dim": 8,
            "base": base,
            "schedule": {"name": "yarn", "factor": 4.0, "original_max_positions": length},
        }
    yield {
        "head_dim": 8,
        "base": 0.001,
        "schedule": {"name": "resonance"},
    }  # more than a turn from position to position


def test_schedules(ask):
    cases = list({str(case): case for case in schedule_cases()}.values())
    function = """({ schedule, head_dim, base }) => {
        const { invFreq, attentionFactor } = posenc.frequencies.create(schedule, head_dim, base);
        return [attentionFactor, ...invFreq, ...posenc.frequencies.wavelengths(invFreq)];
    }"""
    for given, found in zip(cases, each(ask, function, cases), strict=True):
        expected = frequencies.create(given["schedule"], given["head_dim"], base=given["base"])
        factor = torch.tensor([expected.attention_factor], dtype=torch.float64)
        same(found, torch.cat((factor, expected.inv_freq, frequencies.wavelengths(expected))))


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
    {"name": "mrrope", "factor": 2.0, "original_max_positions": 64, "beta_slow": 40.0},
    {"name": "dynamic", "length": 0, "original_max_positions": 64},
    {"name": "proportional", "fraction": -0.5},
    {"name": "tapered"},
    {"name": "tapered", "pairs": 9},
]


@pytest.mark.parametrize("schedule", REFUSED_SCHEDULES, ids=str)
def test_what_the_library_refuses_of_a_schedule_the_page_refuses(ask, schedule):
    with pytest.raises(InputError):
        frequencies.create(schedule, 16, base=10000.0)
    (found,) = each(ask, "given => posenc.frequencies.create(given, 16, 10000).invFreq", [schedule])
    says(found, schedule)


# ------------------------------------------------------------------ position maps


def relative(name, options, n):
    at = torch.arange(n)[None]
    return maps.relative(getattr(maps, name)(**options), at, at, torch.ones(n, n).tril().bool())[0]


def test_maps(ask):
    cases = [[name, n, options] for (name, options), n in product(SIZES, (1, 17, 53))]
    assert {name for name, _ in SIZES} == set(MAPS)
    for (name, n, options), found in zip(cases, each(ask, "given => posenc.maps.grid(...given)", cases), strict=True):
        same(found, relative(name, options, n))


REFUSED_MAPS = [
    {"name": "rerope"},
    {"name": "rerope", "window": 0},
    {"name": "rerope", "window": 2.5},
    {"name": "rerope", "window": 2, "group": 1},
    {"name": "leaky_rerope", "window": 2, "factor": 0.0},
    {"name": "dual_chunk", "chunk": 6, "local": 4},
    {"name": "jet_long", "window": 4, "trained": 8, "groups": 2, "least": 3},
    {"name": "jet_long", "window": 9, "trained": 8, "groups": 2},
    {"name": "lampe", "window": 2, "used": 4, "length": 1},
    {"name": "streaming", "sinks": -1, "recent": 4},
]


@pytest.mark.parametrize("spec", REFUSED_MAPS, ids=str)
def test_what_the_library_refuses_of_a_map_the_page_refuses(ask, spec):
    with pytest.raises(InputError):
        position_maps.create(spec)
    (found,) = each(ask, "({ name, ...options }) => posenc.maps.grid(name, 8, options)", [spec])
    says(found, spec)
