"""posenc analyze A B: its numbers against a loop, its words, its table and its JSON."""

import json
import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from posenc import InputError, frequencies
from posenc.analysis import diff
from posenc.frequencies import SCHEDULES, options_of
from posenc.testing.oracles.schedules import default
from references import commands

PLAIN = sorted(set(SCHEDULES) - {"abf", "longrope", "explicit"})
"""Those that need nothing but factor and lengths."""
TEXTS = st.tuples(
    st.sampled_from(PLAIN), st.sampled_from(["", "+resonance", "+tapered:pairs=2", "+tapered:pairs=1:hard=true"])
).map("".join)
HEADS = st.integers(2, 40).map(lambda n: 2 * n)
SHAPES = {
    "head_dim": HEADS,
    "base": st.sampled_from([1e4, 5e5]),
    "factor": st.floats(1, 40),
    "length": st.integers(16, 9000),
}


@given(first=TEXTS, second=TEXTS, at=st.floats(1, 1e6), **SHAPES)
def test_numbers(first, second, head_dim, base, factor, length, at):
    actual = diff(first, second, head_dim, base, factor=factor, length=length, at=at)
    full = [frequencies.create(frequencies.parse(text), head_dim, base=base) for text in actual.schedules]
    assert actual.attention_factors == tuple(f.attention_factor for f in full)
    assert [pair.pair for pair in actual.pairs] == list(range(head_dim // 2))
    for c, pair in enumerate(actual.pairs):
        plain, (a, b) = default(head_dim, base)[c], (f.inv_freq[c].item() for f in full)
        assert pair.turns == pytest.approx(plain * length / (2 * math.pi))
        for frequency, stretch, wavelength in zip((a, b), pair.stretches, pair.wavelengths, strict=True):
            assert stretch == pytest.approx(plain / frequency if frequency else math.inf)
            assert wavelength == pytest.approx(2 * math.pi / frequency if frequency else math.inf)
        assert pair.phase == pytest.approx(abs(a - b) * at, rel=1e-9)
        assert pair.same == (a == b or (a > 0 and b > 0 and abs(math.log(a / b)) <= 1e-12))
    assert actual.largest.phase == max(pair.phase for pair in actual.pairs)
    turned = diff(second, first, head_dim, base, factor=factor, length=length, at=at)
    assert (turned.largest.phase, turned.equal) == (actual.largest.phase, actual.equal)


@given(text=TEXTS, **SHAPES)
def test_a_schedule_does_not_differ_from_itself(text, head_dim, base, factor, length):
    actual = diff(text, text, head_dim, base, factor=factor, length=length)
    assert actual.equal
    assert actual.largest.phase == 0
    assert actual.sentences()[0] == f"{text} and {text} give the same frequencies in all {head_dim // 2} pairs."
    assert len(actual.sentences()) == 2


@given(first=TEXTS, second=TEXTS, **SHAPES)
def test_json_and_table_hold_for_any_two(first, second, head_dim, base, factor, length):
    actual = diff(first, second, head_dim, base, factor=factor, length=length)
    again = json.loads(json.dumps(actual.to_dict(), allow_nan=False))
    assert again["largest_phase"] == {"pair": actual.largest.pair, "radians": actual.largest.phase}
    assert [row["phase"] for row in again["pairs"]] == [pair.phase for pair in actual.pairs]
    lines = str(actual).splitlines()
    shown = (re.match(r" *(\d+)(?: to (\d+))?  ", line) for line in lines)
    ranges = [range(int(row[1]), int(row[2] or row[1]) + 1) for row in shown if row]
    assert [pair for pairs in ranges for pair in pairs] == list(range(head_dim // 2))


def test_yarn_of_the_code_and_of_the_paper():
    """The golden stretches of pair 12, and a difference that the paper's readers do not expect."""
    actual = diff("yarn", "yarn_paper", factor=4, length=2048)
    assert actual.schedules[0] == "yarn:factor=4:original_max_positions=2048"
    assert actual.pairs[12].stretches == pytest.approx((1.3, 2.104468), rel=1e-5)
    assert (actual.largest.pair, actual.largest.phase) == (10, pytest.approx(99.20705, rel=1e-6))
    assert actual.at == 8192
    assert actual.sentences() == [
        "From a distance of 52 tokens on, a model trained under one schedule is given other angles under the other: pair 10 is "
        "off by 36° there. At a distance of 8192, 10 of 32 pairs are off by 36° or more.",
        "yarn and yarn_paper differ in 12 of 32 pairs: 9 to 20.",
        "Their frequencies are furthest apart in pair 15, which turns 4.35 times in the 2048 trained positions: "
        "stretched 1.677 times under yarn, stretched 3.021 times under yarn_paper.",
        "Between tokens 8192 apart the largest phase difference is 99.21 radians, 15.8 turns, in pair 10.",
        "Both multiply cos and sin by 1.1386, and so scores by 1.2965.",
    ]


def test_words_for_pairs_at_rest_and_other_temperatures():
    actual = diff("default", "tapered:pairs=2+resonance", head_dim=8)
    assert "pair 3, which turns" in actual.sentences()[2]
    assert "unchanged under default, at rest under tapered:pairs=2+resonance." in actual.sentences()[2]
    assert actual.sentences()[-1] == "Neither changes the temperature."
    assert actual.to_dict()["pairs"][3]["stretches"] == [1.0, None]
    warmer = diff("yarn", {"name": "yarn", "attention_factor": 1.0})
    assert not warmer.equal
    assert warmer.names[1] == "yarn:attention_factor=1.0"
    assert warmer.sentences() == [
        "yarn and yarn:attention_factor=1.0 give the same frequencies in all 32 pairs.",
        "yarn multiplies cos and sin by 1.1386 and so scores by 1.2965; yarn:attention_factor=1.0 by 1 and 1.",
    ]
    scattered = {"name": "explicit", "stretch": [1, 2, 1, 3, 3, 1, 1, 2]}
    near = diff("default", {"name": "explicit", "stretch": [1 + 1e-6] * 8}, head_dim=16)
    same = "Up to a distance of 16384, every pair is at the same angle under both, to within 36°."
    assert near.sentences()[0] == same
    assert diff("default", scattered, head_dim=16).sentences()[1].endswith("differ in 4 of 8 pairs: 1, 3 to 4, 7.")


def test_lengths_go_to_the_schedules_that_need_them():
    assert diff("dynamic", "ntk:factor=3", length=1000, at=3000).equal
    assert diff("dynamic:length=500", "default", length=1000).equal
    longrope = "longrope:short_factor=1,1:long_factor=2,2"
    assert diff(longrope, "default", 4, length=100, at=100, factor=2).pairs[0].stretches == (1, 1)
    assert diff(longrope, "linear", 4, length=100, factor=2).pairs[0].stretches == (2, 2)
    assert set(options_of("longrope")) >= {"length", "factor"}


def run(capsys, *arguments):
    return commands.run(capsys, "analyze", *arguments)


def test_the_command(capsys, tmp_path):
    code, out, err = run(capsys, "yarn", "yarn_paper", "--factor", "4", "--length", "2048")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[:2] == [
        "A: yarn:factor=4.0:original_max_positions=2048",
        "B: yarn_paper:factor=4.0:original_max_positions=2048",
    ]
    assert lines[2] == "head_dim 64, base 10000, trained on 2048 positions, phases of tokens 8192 apart"
    row = next(line for line in lines if line.split()[:1] == ["15"])
    assert row.split()[:5] == ["15", "4.347", "790.4", "1424", "1.677"]
    assert lines[-1] == "- Both multiply cos and sin by 1.1386, and so scores by 1.2965."
    code, out, _ = run(
        capsys, "yarn", "ntk", "--json", "--base", "1e5", "--head-dim", "32", "--at", "100", "--out", str(tmp_path)
    )
    actual = json.loads(out)
    assert (code, actual["at"], actual["base"], len(actual["pairs"])) == (0, 100.0, 1e5, 16)
    assert json.loads((tmp_path / "analysis.json").read_text()) == actual
    assert "posenc analyze yarn ntk --json" in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["yarn", "yran"], "unknown schedule 'yran': did you mean 'yarn'?"),
        (["yarn:beta=3", "ntk"], "unknown option of schedule 'yarn' 'beta=3'"),
        (["yarn:truncate=4", "ntk"], "option truncate=4 of schedule 'yarn': pass True or False"),
        (["yarn+ntk", "ntk"], "ntk is not applied to another schedule"),
        (["abf", "ntk"], "schedule 'abf' needs new_base"),
        (["rope", "--factor", "4"], "--factor: is for two schedules"),
        (["yarn", "ntk", "--factor", "0.5"], "--factor 0.5: must be at least 1"),
        (["yarn", "ntk", "--factor", "nan"], "--factor nan"),
        (["yarn", "ntk", "--length", "0"], "--length 0: must be from 1"),
        (["default", "default", "--length", "0", "--at", "5"], "--length 0: must be from 1"),
        (["yarn", "ntk", "--at", "0"], "--at 0: must be a positive number"),
        (["yarn", "ntk", "--at", "inf"], "--at inf: pass a number that is finite"),
        (["yarn", "ntk", "--head-dim", "63"], "dim 63: channels go in pairs, so it must be even"),
        (["yarn", "ntk", "--head-dim", "0"], "--head-dim 0: "),
        (["yarn", "ntk", "--head-dim", "-4"], "--head-dim -4: "),
        (["yarn", "ntk", "--base", "0"], "--base 0"),
        (["yarn", "ntk", "--out", "/proc/nothing/here"], "--out /proc/nothing/here: "),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(capsys, arguments, message):
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert err.startswith("posenc analyze: error: ")
    assert len(err.splitlines()) == 1


def test_python_refuses_the_same():
    with pytest.raises(InputError, match="name the schedule"):
        diff({"factor": 4}, "yarn")
