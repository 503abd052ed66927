"""Every schedule: known values, what holds for all of them, and what each one's definition promises."""

import math
from inspect import Parameter, signature

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from posenc import InputError, MRotary, Positions, Rotary, frequencies, from_spec
from posenc.frequencies import SCHEDULES, complete, create, options_of, parse, stretch, wavelengths
from posenc.functional import alibi_slopes
from references.schedules import BASES, DIMS, FACTORS, LENGTHS

BY_FACTOR = [name for name in SCHEDULES if getattr(options_of(name).get("factor"), "default", None) is Parameter.empty]
INTERPOLATE = [*BY_FACTOR, "dynamic"]
"""Those that slow pairs down, by 1 to factor."""


def made(name, head_dim, base, factor, length):
    """A schedule by its name, for texts of factor times the context length."""
    shape = {"factor": factor, "original_max_positions": length, "length": math.ceil(factor * length)}
    return create(complete({"name": name}, **shape), head_dim, base=base)


def plain(head_dim, base):
    return frequencies.default(head_dim, base=base).inv_freq


# -------------------------------------------------------------------- known values

PAIRS = [0, 4, 8, 12, 16, 20, 24, 28, 31]
SHORT = {"factor": 4.0, "original_max_positions": 2048, "length": 4096}
KNOWN = {
    "linear": [4] * 9,
    "ntk": [1, 1.195873, 1.430113, 1.710234, 2.045223, 2.445827, 2.924900, 3.497809, 4],
    "ntk_old": [1, 1.189207, 1.414214, 1.681793, 2, 2.378414, 2.828427, 3.363586, 3.830413],
    "ntk_fixed": [1.044274, 1.241858, 1.476826, 1.756252, 2.088548, 2.483716, 2.953652, 3.512504, 4],
    "ntk_mixed": [1.172226, 1.544196, 1.872718, 2.202292, 2.543685, 2.902078, 3.280808, 3.682432, 4],
    "yarn": [1, 1, 1, 1.3, 1.857143, 3.25, 4, 4, 4],
    "yarn_paper": [1, 1, 1, 2.104468, 3.282292, 3.988135, 4, 4, 4],
    "yarn_revised": [1, 1, 1, 1.923077, 2.846154, 3.769231, 4, 4, 4],
    "llama3": [1, 1, 1, 1, 1.227185, 3.880699, 4, 4, 4],
    "dynamic:factor=4": [1, 1.230806, 1.514884, 1.864529, 2.294873, 2.824544, 3.476467, 4.278857, 5],
    "resonance": [0.954930, 1.006584, 1.002676, 1.001551, 0.999493, 1.000041, 0.999971, 0.999991, 0.999995],
    "tapered": [1, 1, 1, 1, 1, 1, 1.259616, 4.851840, math.inf],
}
"""How many times slower every fourth pair turns, head_dim 64, base 10000, trained on 2048 positions, computed outside
posenc from the authors' formulas. dynamic: for 4096 positions."""


@pytest.mark.parametrize("text", KNOWN)
def test_known_stretches(text):
    actual = stretch(create(complete(parse(text), **SHORT), 64, base=1e4), 64, base=1e4)
    assert actual[PAIRS].tolist() == pytest.approx(KNOWN[text], rel=1e-5)


# -------------------------------------------------------------------- what holds for all


def test_factors_are_what_most_schedules_go_by():
    assert set(BY_FACTOR) == {
        "linear", "ntk", "ntk_old", "ntk_fixed", "ntk_mixed", "yarn", "yarn_paper", "yarn_revised", "mrrope",
        "llama3",
    }  # fmt: skip


@pytest.mark.parametrize("name", INTERPOLATE)
@given(head_dim=DIMS.filter(lambda d: d > 2), base=BASES, length=LENGTHS)
def test_factor_1_is_the_default(name, head_dim, base, length):
    actual = made(name, head_dim, base, 1.0, length)
    torch.testing.assert_close(actual.inv_freq, plain(head_dim, base), rtol=1e-14, atol=0)
    assert actual.attention_factor == 1


@pytest.mark.parametrize("name", INTERPOLATE)
@given(head_dim=DIMS.filter(lambda d: d > 2), base=BASES, factor=FACTORS, length=LENGTHS)
def test_pairs_are_slowed_more_and_more_up_to_factor(name, head_dim, base, factor, length):
    actual = stretch(made(name, head_dim, base, factor, length), head_dim, base=base)
    most = math.ceil(factor * length) / length if name == "dynamic" else factor
    assert bool((actual > 1 - 1e-12).all() and (actual < most * (1 + 1e-12)).all())
    assert bool((actual.diff() > -1e-9).all())


@pytest.mark.parametrize("name", SCHEDULES)
def test_float64_on_the_cpu_whatever_the_defaults(name):
    needed = {"new_base": 5e5, "stretch": [1.0] * 32, "short_factor": [1.0] * 32, "long_factor": [2.0] * 32}
    schedule = complete({"name": name}, **SHORT, **needed)
    with torch.device("meta"):
        actual = create(schedule, 64, base=1e4)
    assert (actual.inv_freq.dtype, actual.inv_freq.device.type, actual.inv_freq.shape) == (torch.float64, "cpu", (32,))
    assert isinstance(actual.attention_factor, float)


@pytest.mark.parametrize("name", [*SCHEDULES, "alibi_slopes"])
def test_each_is_made_in_a_compiled_function_of_any_sizes(name):
    needed = complete({"name": name}, **GIVEN) if name in SCHEDULES else {}
    options = {key: value for key, value in needed.items() if key != "name"}

    def scaled(x):
        return x * (SCHEDULES[name](64, base=1e4, **options).inv_freq if name in SCHEDULES else alibi_slopes(6))

    torch.compiler.reset()  # which counts the functions compiled from one text
    compiled = torch.compile(scaled, backend="eager", dynamic=True, fullgraph=True)
    assert torch.equal(compiled(torch.ones(1)), scaled(torch.ones(1)))


@pytest.mark.parametrize("name", SCHEDULES)
def test_each_can_be_written_down_pair_by_pair(name):
    needed = {"new_base": 5e5, "stretch": [3.0] * 32, "short_factor": [1.0] * 32, "long_factor": [2.0] * 32}
    actual = create(complete({"name": name}, **SHORT, **needed), 64, base=1e4)
    data = {
        "name": "explicit",
        "stretch": stretch(actual, 64, base=1e4).tolist(),
        "attention_factor": actual.attention_factor,
    }
    again = create(data, 64, base=1e4)
    torch.testing.assert_close(again.inv_freq, actual.inv_freq, rtol=1e-15, atol=0)
    assert again.attention_factor == actual.attention_factor
    encoding = Rotary(64, schedule=data)
    assert torch.equal(from_spec(encoding.spec()).inv_freq, encoding.inv_freq)


# -------------------------------------------------------------------- laws


@given(head_dim=DIMS, base=BASES, factor=FACTORS)
def test_mixed_lies_between_fixed_and_linear(head_dim, base, factor):
    ends = (
        frequencies.ntk_fixed(head_dim, base=base, factor=factor),
        frequencies.linear(head_dim, base=base, factor=factor),
    )
    for exponent, end in zip((1.0, 0.0), ends, strict=True):
        mixed = frequencies.ntk_mixed(head_dim, base=base, factor=factor, exponent=exponent)
        torch.testing.assert_close(mixed.inv_freq, end.inv_freq, rtol=1e-13, atol=0)
    mixed = frequencies.ntk_mixed(head_dim, base=base, factor=factor).inv_freq
    assert bool((mixed <= ends[0].inv_freq * (1 + 1e-12)).all() and (mixed >= ends[1].inv_freq * (1 - 1e-12)).all())


@given(head_dim=DIMS.filter(lambda d: d > 2), base=BASES, factor=FACTORS)
def test_ntk_is_a_change_of_base(head_dim, base, factor):
    for schedule, power in ((frequencies.ntk, head_dim / (head_dim - 2)), (frequencies.ntk_old, 1)):
        actual = schedule(head_dim, base=base, factor=factor).inv_freq
        for other in (
            frequencies.abf(head_dim, base=base, new_base=base * factor**power),
            frequencies.default(head_dim, base=base * factor**power),
        ):
            torch.testing.assert_close(actual, other.inv_freq, rtol=1e-13, atol=0)
    changed = stretch(frequencies.abf(head_dim, base=base, new_base=5 * base), head_dim, base=base)
    torch.testing.assert_close(changed, 5.0 ** (torch.arange(0, head_dim, 2).double() / head_dim), rtol=1e-13, atol=0)


# -------------------------------------------------------------------- by the length of the text


@given(
    head_dim=DIMS.filter(lambda d: d > 2),
    factor=FACTORS,
    trained=st.integers(64, 9000),
    lengths=st.lists(st.integers(1, 90000), min_size=2),
)
def test_dynamic_is_the_default_up_to_the_trained_length_and_slower_with_every_token(
    head_dim, factor, trained, lengths
):
    actual = []
    for length in sorted(lengths):
        options = {"length": length, "original_max_positions": trained, "factor": factor}
        actual.append(stretch(frequencies.dynamic(head_dim, **options), head_dim))
        assert actual[-1][0] == 1  # the first pair never changes
        assert actual[-1][-1] == pytest.approx(frequencies.dynamic_factor(**options), rel=1e-9)
        if length <= trained:
            assert torch.equal(actual[-1], torch.ones(head_dim // 2, dtype=torch.float64))
    assert bool((torch.stack(actual).diff(dim=0) > -1e-9).all())


def test_dynamic_factors():
    """emozilla's goes far beyond what the text needs; with factor 1 it is the ratio of lengths."""
    assert frequencies.dynamic_factor(8192, 2048, 4) == 13 == 4**2 - 4 + 1
    assert frequencies.dynamic_factor(16384, 2048, 8) == 57
    assert frequencies.dynamic_factor(8192, 2048) == 4
    assert frequencies.dynamic_factor(2048, 2048, 4) == frequencies.dynamic_factor(5, 2048) == 1


def test_longrope_chooses_by_the_length():
    short, long = [1.0 + c / 32 for c in range(32)], [2.0 + c for c in range(32)]
    for length, expected in ((1, short), (4096, short), (4097, long), (10**6, long)):
        options = {"short_factor": short, "long_factor": long, "original_max_positions": 4096, "length": length}
        actual = frequencies.longrope(64, **options, factor=32.0)
        torch.testing.assert_close(stretch(actual, 64), torch.tensor(expected, dtype=torch.float64), rtol=1e-14, atol=0)
        assert actual.attention_factor == pytest.approx(math.sqrt(1 + math.log(32) / math.log(4096)))
        assert frequencies.longrope(64, **options, attention_factor=1.5).attention_factor == 1.5


# -------------------------------------------------------------------- applied to another one

OF = st.sampled_from([None, "linear", "ntk_mixed", "yarn"])


@given(name=OF, head_dim=DIMS, base=BASES, factor=FACTORS)
def test_resonance_meets_the_same_angles_in_every_turn(name, head_dim, base, factor):
    of = None if name is None else made(name, head_dim, base, factor, 4096)
    actual = frequencies.resonance(head_dim, base=base, of=of)
    waves = wavelengths(actual)
    torch.testing.assert_close(waves, waves.round(), rtol=1e-14, atol=0)
    before = of or frequencies.default(head_dim, base=base)
    assert bool(((waves - wavelengths(before)).abs() <= 0.5 + 1e-9 * waves).all())
    positions = torch.arange(50, dtype=torch.float64)[:, None]
    again = positions + 3 * waves.round()
    torch.testing.assert_close((again * actual.inv_freq).cos(), (positions * actual.inv_freq).cos(), rtol=0, atol=1e-12)
    assert actual.attention_factor == before.attention_factor


def test_tapered_fades_the_slowest():
    plain = frequencies.default(128)
    actual = frequencies.tapered(128, pairs=20)
    weights = actual.inv_freq / plain.inv_freq
    assert torch.equal(weights[:45], torch.ones(45, dtype=torch.float64))  # the first of the faded has weight 1, too
    expected = [(1 + math.cos(math.pi * n / 19)) / 2 for n in range(20)]
    assert weights[44:].tolist() == pytest.approx(expected, abs=1e-15)
    assert actual.inv_freq[-1] == 0
    hard = frequencies.tapered(128, pairs=20, hard=True)
    assert torch.equal(hard.inv_freq, frequencies.fastest(plain, 44 / 64).inv_freq)
    assert torch.equal(frequencies.tapered(128, pairs=0).inv_freq, plain.inv_freq)
    trained = frequencies.tapered(128, original_max_positions=2048)
    slow = int((wavelengths(plain) > 2048).sum())
    assert torch.equal(trained.inv_freq, frequencies.tapered(128, pairs=slow).inv_freq)
    of = frequencies.yarn(128, factor=4, original_max_positions=2048)
    over = frequencies.tapered(128, pairs=20, of=of)
    torch.testing.assert_close(over.inv_freq, of.inv_freq * weights, rtol=1e-14, atol=1e-18)
    assert over.attention_factor == of.attention_factor > 1


# -------------------------------------------------------------------- as data and as text


def test_a_schedule_may_be_of_another():
    data = {"name": "resonance", "of": {"name": "yarn", "factor": 4.0, "original_max_positions": 2048}}
    actual = create(data, 64, base=1e4)
    expected = frequencies.resonance(64, of=frequencies.yarn(64, factor=4, original_max_positions=2048))
    assert torch.equal(actual.inv_freq, expected.inv_freq)
    assert parse("yarn:factor=4.0:original_max_positions=2048+resonance") == data
    assert Rotary(64, schedule=data).attention_factor == expected.attention_factor
    ids = Positions.from_ids(torch.zeros(1, 3, 3, dtype=torch.long))
    on_axes, x = MRotary(64, schedule=data, sections=[12, 10, 10]), torch.ones(1, 1, 3, 64)
    assert on_axes.rotate(x, x, ids)[0].isfinite().all()


@pytest.mark.parametrize(
    ("text", "data"),
    [
        ("ntk", {"name": "ntk"}),
        ("yarn:factor=8:truncate=false", {"name": "yarn", "factor": 8, "truncate": False}),
        ("abf:new_base=1e+5", {"name": "abf", "new_base": 1e5}),
        ("explicit:stretch=1,2.5,inf", {"name": "explicit", "stretch": [1.0, 2.5, math.inf]}),
        ("linear:factor=2+tapered:pairs=3+resonance", {"name": "resonance", "of": {"name": "tapered", "pairs": 3, "of": {"name": "linear", "factor": 2}}}),
    ],
)  # fmt: skip
def test_text_and_data(text, data):
    assert parse(text) == data
    assert parse(frequencies.as_text(data)) == data


@given(st.lists(st.floats(1e-3, 1e6) | st.just(math.inf), min_size=1), st.floats(0.1, 10))
def test_any_list_of_numbers_comes_back_from_its_text(numbers, temperature):
    data = {"name": "explicit", "stretch": numbers, "attention_factor": temperature}
    assert parse(frequencies.as_text(data)) == data
    tensor = data | {"stretch": torch.tensor(numbers, dtype=torch.float64)}
    assert parse(frequencies.as_text(tensor)) == data


def test_completed_by_what_it_needs():
    assert complete({"name": "yarn", "factor": 2}, **SHORT) == {
        "name": "yarn",
        "factor": 2,
        "original_max_positions": 2048,
    }
    assert complete({"name": "default"}, **SHORT) == {"name": "default"}
    assert complete({"name": "dynamic"}, **SHORT) == {"name": "dynamic", "length": 4096, "original_max_positions": 2048}
    assert complete(parse("ntk+resonance"), **SHORT)["of"] == {"name": "ntk", "factor": 4.0}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: frequencies.ntk_mixed(64, factor=2, exponent=1.5), r"exponent=1.5: must be"),
        (lambda: frequencies.linear(64, factor=math.inf), "factor=inf"),
        (lambda: create("yarn", 64, base=1e4), "schedule='yarn': pass a dict"),
        (lambda: frequencies.ntk(2, factor=2), "head_dim=2: NTK"),
        (lambda: frequencies.abf(64, new_base=0), "new_base=0: must be a positive number"),
        (lambda: frequencies.explicit(64, stretch=[1.0] * 31), r"stretch has shape \(31,\): .*each of the 32 pairs"),
        (lambda: frequencies.explicit(4, stretch=[1.0, 0.0]), "stretch: frequencies are divided by it"),
        (lambda: frequencies.explicit(4, stretch=[1.0, math.nan]), "stretch: .* above 0"),
        (lambda: frequencies.dynamic(64, length=9, original_max_positions=3, factor=0.5), "factor=0.5"),
        (lambda: frequencies.resonance(64, of=frequencies.default(32)), "head_dim=64: needs 32 frequencies, not 16"),
        (lambda: stretch(frequencies.default(32), 64), "head_dim=64: needs 32 frequencies, not 16"),
        (lambda: frequencies.tapered(64), "tapered: pass pairs, or original_max_positions"),
        (lambda: frequencies.tapered(64, pairs=33), "pairs=33: must be at most 32"),
        (lambda: longrope(short_factor=[1.0] * 3), r"short_factor has shape \(3,\)"),
        (lambda: longrope(long_factor=[0.0] * 32), "long_factor: frequencies are divided by it"),
        (lambda: longrope(factor=None), "longrope needs a temperature"),
        (lambda: longrope(original_max_positions=1), "original_max_positions=1: its logarithm is 0"),
        (lambda: create({"name": "yran"}, 64, base=1e4), "unknown schedule 'yran': did you mean 'yarn'"),
        (lambda: create({}, 64, base=1e4), "schedule={}: name the schedule"),
        (lambda: create({"rope_type": "yarn", "factor": 4.0}, 64, base=1e4), "rope_type is name"),
        (lambda: Rotary(64).with_schedule({"name": "ntk", "factor": 2}), "name the schedule.*with_schedule"),
        (lambda: parse(None), "text=None: pass a text"),
        (lambda: frequencies.ntk(4, factor=1e20), "factor=1e"),
        (lambda: create({"name": "yarn", "factor": 2}, 64, base=1e4), "schedule 'yarn' needs original_max_positions"),
        (lambda: create({"name": "yarn"}, 64, base=1e4), "schedule 'yarn' needs factor and original_max_positions"),
        (lambda: create({"name": "ntk", "factor": "4x"}, 64, base=1e4), "option factor='4x' of schedule 'ntk': pass a number"),
        (lambda: create({"name": "ntk", "factor": True}, 64, base=1e4), "factor=True of schedule 'ntk': pass a number"),
        (lambda: create({"name": "explicit", "stretch": "1"}, 2, base=1e4), "stretch='1' of .*: pass a list or a tensor"),
        (lambda: create({"name": "ntk", "factor": 4, "of": {"name": "linear"}}, 64, base=1e4), "unknown option of schedule 'ntk' 'of'"),
        (lambda: create({"name": "resonance", "of": {"name": "ntk"}}, 64, base=1e4), "schedule 'ntk' needs factor"),
        (lambda: create({"name": "resonance", "of": "ntk"}, 64, base=1e4), "option of='ntk' of schedule 'resonance'"),
        (lambda: parse("yarn:factor"), "option factor of yarn: write factor=value"),
        (lambda: parse("yarn:head_dim=4"), "unknown option of schedule 'yarn' 'head_dim"),
        (lambda: parse("resonance:of=yarn"), "unknown option of schedule 'resonance' 'of=yarn'"),
        (lambda: parse("yarn+linear"), r"'yarn\+linear': linear is not applied to another schedule; after \+ go resonance, tapered"),
        (lambda: parse(""), "unknown schedule ''"),
    ],
)  # fmt: skip
def test_bad_input_is_named(call, message):
    with pytest.raises(InputError, match=message):
        call()


GIVEN = {
    "factor": 4.0, "original_max_positions": 64, "length": 128, "new_base": 1e5, "mscale_all_dim": 0.5,
    **dict.fromkeys(("short_factor", "long_factor", "stretch"), [2.0] * 32), "head_dim": 64,
}  # fmt: skip


@pytest.mark.parametrize("schedule", [*SCHEDULES.values(), frequencies.softmax_factor, frequencies.dynamic_factor])
def test_every_option_refuses_what_it_cannot_be(schedule):
    parameters = signature(schedule).parameters
    given = {name: GIVEN.get(name, parameter.default) for name, parameter in parameters.items()}
    schedule(**given)
    for name in parameters:
        flag, optional = isinstance(parameters[name].default, bool), parameters[name].default is None
        for value in ("no", math.nan, -1, *[True] * (not flag), *[None] * (not optional)):
            with pytest.raises(InputError, match=name):
                schedule(**given | {name: value})


def longrope(**options):
    numbers = {"short_factor": [1.0] * 32, "long_factor": [2.0] * 32, "factor": 2.0, "original_max_positions": 64}
    return frequencies.longrope(64, **numbers | {"length": 64} | options)
