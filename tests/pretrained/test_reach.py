"""How far a method reaches, against the largest relative position that its map makes, token by token."""

import math

import pytest

import posenc
from posenc import InputError, Positions, position_maps
from posenc.pretrained.methods import METHODS
from references.small_models import TRAINED, small_model

LONG = 400
MAPS = [
    {"name": "rerope", "window": 63}, {"name": "rerope", "window": 64}, {"name": "leaky_rerope", "window": 32, "factor": 1.5},
    {"name": "leaky_rerope", "window": 32, "factor": 7.0}, {"name": "self_extend", "window": 16, "group": 2},
    {"name": "self_extend", "window": 15, "group": 4}, {"name": "self_extend", "window": 16, "group": 1},
    {"name": "dual_chunk", "chunk": 48, "local": 8}, {"name": "dual_chunk", "chunk": 70, "local": 35},
    {"name": "dual_chunk", "chunk": 1000, "local": 8}, {"name": "string", "shift": 21, "window": 4},
    {"name": "jet_long", "window": 16, "trained": 64, "groups": 3, "least": 1}, {"name": "jet_long", "window": 16, "trained": 50, "groups": 3, "least": 3},
    {"name": "jet_long", "window": 16, "trained": 65, "groups": 3, "least": 1},
    {"name": "lampe", "window": 12, "used": 40, "length": 100}, {"name": "lampe", "window": 16, "used": 60, "length": 200},
    {"name": "streaming", "sinks": 4, "recent": 60}, {"name": "streaming", "sinks": 4, "recent": 64},
]  # fmt: skip


@pytest.mark.parametrize("spec", MAPS, ids=str)
def test_a_map_reaches_as_far_as_its_distances_are_trained_ones(spec):
    relative = position_maps.create(spec).relative(Positions.arange(LONG, causal=True))[0]
    farthest = relative.nan_to_num(nan=-1).amax(1).cummax(0).values
    trained = int((farthest < TRAINED).sum())
    found = max(METHODS[spec["name"]].reach(spec, TRAINED), TRAINED)
    assert found == (math.inf if trained == LONG else trained)


def test_lm_infinite_sees_its_first_tokens_at_the_window_itself():
    """As the authors' code, which takes the context length for it."""
    assert METHODS["lm_infinite"].reach({"sinks": 10, "window": TRAINED}, TRAINED) == math.inf
    assert METHODS["lm_infinite"].reach({"sinks": 10, "window": TRAINED + 1}, TRAINED) == TRAINED


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        ("rerope", {"window": 1_000_000}, r"reaches 64 tokens, and 256 are wanted; leave the options of"),
        ("dual_chunk", {"chunk": 1000}, r"reaches 64 tokens.*; leave the options of"),
        ("self_extend:window=16:group=2", {}, r"reaches 112 tokens.*; leave the options of"),
        ("leaky_rerope:window=32:factor=1.5", {}, r"reaches 80 tokens.*; leave the options of"),
        ("leaky_rerope:window=64:factor=2", {}, r"reaches 64 tokens.*; leave the options of"),
        ("self_extend:window=70:group=2", {}, r"reaches 64 tokens.*; leave the options of"),
        ("jet_long:groups=3", {}, r"reaches 192 tokens, and 256 are wanted; leave the options of"),
        ("jet_long:trained=100", {}, r"reaches 64 tokens.*; leave the options of"),
        ("lampe:length=70", {}, r"; leave the options of"),
        ("streaming:recent=64", {}, r"; leave the options of"),
        ("lm_infinite:window=100", {}, r"; leave the options of"),
        ("yarn:factor=2", {}, r"reaches 128 tokens, and 256 are wanted; give factor=4 or more, or leave factor out"),
        ("linear:factor=2+log_n", {}, r"reaches 128 tokens"),
        ("yarn:factor=2+leaky_rerope:window=32:factor=1.5", {}, r"reaches 176 tokens.*; leave the options of"),
    ],
)
def test_options_that_do_not_reach_the_new_length_are_refused(method, options, message):
    model = small_model("llama")
    with pytest.raises(InputError, match=message):
        posenc.extend(model, method, target_length=4 * TRAINED, **options)
    assert not posenc.restore(model)


def test_what_the_refusal_says_is_enough():
    model = small_model("llama")
    for method in (
        "rerope:window=63", "dual_chunk:chunk=63", "self_extend:window=16:group=5", "jet_long:groups=4", "leaky_rerope:window=32:factor=7",
        "yarn:factor=4", "yarn:factor=2+leaky_rerope:window=32:factor=3", "yarn:factor=2+rerope",
    ):  # fmt: skip
        report = posenc.extend(model, method, target_length=4 * TRAINED)
        assert report.reach is None or report.reach >= 4 * TRAINED
        assert "reaches" not in str(report)


@pytest.mark.parametrize("method", ["rerope", "leaky_rerope", "self_extend", "jet_long", "dual_chunk", "lampe", "streaming", "lm_infinite",
                                    "linear", "ntk", "ntk_fixed", "ntk_mixed", "yarn", "yarn_paper", "mrrope", "dynamic", "llama3", "yarn+resonance"])  # fmt: skip
@pytest.mark.parametrize("trained", [TRAINED, 100, 8192])
def test_a_method_left_to_itself_reaches_what_is_asked_for(method, trained):
    model = small_model("llama", max_position_embeddings=trained)
    for factor in (2, 3.7, 4):
        report = posenc.extend(model, method, factor=factor)
        assert report.reach is None or report.reach >= 0.99 * report.new_length, (factor, report.reach)


def test_without_a_new_length_the_report_says_how_far_it_goes():
    model = small_model("llama")
    assert "from 64 tokens to any length" in str(posenc.extend(model, "rerope"))
    report = posenc.extend(model, "self_extend:window=16:group=2")
    assert (report.reach, report.new_length) == (112, None)
    assert "from 64 tokens to 112 tokens" in str(report)
    with pytest.raises(
        InputError, match=r"reaches 64 tokens, and the model reads as many without it; leave the options of"
    ):
        posenc.extend(model, "rerope:window=20000")
    # by 7 of 8 of the base's exponent
    assert posenc.extend(model, "abf:new_base=1e6").reach == round(64 * 100 ** (14 / 16))


def test_what_falls_short_by_its_nature_says_so_in_the_report():
    """string is for texts within the context length, llama3 was trained for more, log_n changes no distance."""
    model = small_model("llama")
    for method, reach in (("string", 81), ("llama3:factor=2", 128), ("log_n", 64)):
        report = posenc.extend(model, method, factor=4)
        assert report.reach == reach
        assert f"reaches {reach} of 256 tokens by construction" in str(report)
    for nothing in ("none", "abf:new_base=10000"):  # whose reports say it in other words
        assert "reaches" not in str(posenc.extend(model, nothing, factor=4))


def test_frequencies_that_all_come_round_have_no_new_angles():
    model = small_model("llama", rope_parameters={"rope_type": "default", "rope_theta": 3.0})
    assert posenc.extend(model, "yarn", factor=4).reach is None


def test_a_model_that_was_scaled_counts_from_what_it_is_good_for_now():
    given = {"rope_theta": 1e4, "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
    model = small_model("llama", max_position_embeddings=256, rope_parameters=given)
    for method, factor in (("yarn", 2), ("yarn+replace", 8)):
        assert posenc.extend(model, method, factor=factor).reach == 512
    with pytest.raises(InputError, match=r"give factor=4 or more"):
        posenc.extend(model, "yarn:factor=2", target_length=1024)
    posenc.extend(model, "rerope:window=200", target_length=1024)
    with pytest.raises(InputError, match=r"reaches 256 tokens"):
        posenc.extend(model, "rerope:window=300", target_length=1024)
    linear = {"rope_theta": 1e4, "rope_type": "linear", "factor": 4.0}
    model = small_model("llama", max_position_embeddings=256, rope_parameters=linear)
    assert posenc.extend(model, "yarn", factor=2).reach == 512
