# SPDX-License-Identifier: Apache-2.0
"""Sentences of docs that state a number have the number of the committed results."""

import gzip
import json
import math
import re
from pathlib import Path

import pytest
import torch

from posenc import analysis
from posenc.testing.oracles.rotations import frequencies as ladder

ROOT = Path(__file__).parents[1]
BENCHMARKS = ROOT / "benchmarks"
BOARD = json.loads(gzip.decompress((BENCHMARKS / "leaderboard.json.gz").read_bytes()))
SIZES = json.loads((BENCHMARKS / "ablations.json").read_text(encoding="utf-8"))["models"]
LONGER_TRAINING = json.loads((BENCHMARKS / "longer_training.json").read_text(encoding="utf-8"))
SPEED = json.loads((BENCHMARKS / "results/cpu.json").read_text(encoding="utf-8"))


def page(name):
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


def rows(task):
    return {row["name"]: row for row in BOARD["tasks"][task]["variants"] if row["trained"]}


def loss(name, at):
    return rows("text")[name]["lengths"][at]["loss"]["mean"]


def rise(name):
    return rows("text")[name]["lengths"][-1]["change"]["mean"]


def of_size(size, name):
    return SIZES[size]["ten"]["levels"][name]["1"]["mean"]


def leaderboard():
    """What its page says of the budget."""
    worlds = json.loads((BENCHMARKS / "budgets.json").read_text(encoding="utf-8"))["worlds"]
    steps, parameters = (max(world[what] for world in worlds) for what in ("steps", "parameters"))
    yield f"at most {steps} steps and {parameters / 1e6:.1f} M parameters"
    yield f"for {BOARD['tasks']['text']['settings']['steps']} steps"
    assert len({name for name in LONGER_TRAINING["loss"] if " + " not in name}) == 4


def claims():
    yield f"its loss has risen by {rise('rope'):.2f} nats per byte, ALiBi's by {rise('alibi'):.2f}"
    yield (
        f"sines gain {loss('none', 0) - loss('sinusoidal', 0):.2f} nats per byte, "
        f"a table {loss('none', 0) - loss('learned', 0):.2f}"
    )
    yield f"first preferred at distance {FIRST}; it is at {BELOW:.0f} % of the distances from there to 4096"


def chinese_claims():
    yield f"损失升高 {rise('rope'):.2f} 奈特，ALiBi 升高 {rise('alibi'):.2f}"
    yield (
        f"损失低 {loss('none', 0) - loss('sinusoidal', 0):.2f} 奈特，"
        f"可学习的表低 {loss('none', 0) - loss('learned', 0):.2f} 奈特"
    )
    yield f"距离 {FIRST} 处第一次反而偏好无关的键；从那里到 4096，有 {BELOW:.0f} % 的距离如此"


FIRST = analysis.longest_length(1e4, 128)
DISTANCES = torch.arange(FIRST, 4097, dtype=torch.float64)
SUMS = torch.cos(DISTANCES[:, None] * ladder(128)).sum(1)
BELOW = 100 * float((SUMS < 0).double().mean())


def guide():
    assert BELOW < 50
    yield f"most of those from {FIRST} to 4096 are above zero again"


def chinese_guide():
    yield f"从 {FIRST} 到 4096，多数又在零以上"


def ablations():
    def both(size, *names):
        return "(" + ", ".join(f"{of_size(size, name):.3f}" for name in names) + ")"

    def differences(models, name, at):
        """From the first row, in the order of the rows."""
        return list(SIZES[models]["ablations"][name]["differences"][at].values())

    most = max(differences("text", "xl", "1"), key=lambda e: abs(e["mean"]))
    yield f"at most {abs(most['mean']):.3f} ± {(most['high'] - most['low']) / 2:.3f}: not measurable"
    copied = differences("copy", "shaw", "2")
    low, high = min(e["low"] for e in copied), max(e["high"] for e in copied)
    yield f"reach from {100 * low:.0f} to +{100 * high:.0f} points".replace("-", "−")
    (wide,) = (e for e in differences("text", "shaw", "1")[:3] if abs(e["mean"]) > 0.015)
    yield f"differs from 16 (1.381) by at most {wide['mean']:.3f} ± {(wide['high'] - wide['low']) / 2:.3f}"
    yield (
        f"FoX, ahead of RoPE in the small model {both('text', 'fox', 'rope')}, is behind it at 7.5 M {both('size*16', 'fox', 'rope')}; "
        f"T5, ahead of ALiBi {both('text', 't5', 'alibi')}, is behind it {both('size*16', 't5', 'alibi')}"
    )
    assert of_size("text", "fox") < of_size("text", "rope")
    assert of_size("size*16", "fox") > of_size("size*16", "rope")
    assert of_size("size*16", "t5") > of_size("size*16", "alibi")


def bench():
    """Biases of the distance at 2048 tokens, T5 at 4096."""
    most, memory = 0.0, {}
    for trial in SPEED["trials"]:
        if trial["family"] != "attention" or trial["dtype"] != "float32":
            continue
        for row in trial["rows"]:
            timed = (trial["what"], trial["length"], row["name"]) == ("time", 2048, "posenc")
            if timed and trial["mode"] in ("forward", "train") and trial["case"] in ("t5", "t5_causal", "alibi"):
                most = max(most, row["ratio"]["median"])
            if (trial["what"], trial["length"], trial["case"], trial["mode"]) == (
                "memory",
                4096,
                "t5",
                "forward",
            ) and row["bytes"]:
                memory[row["name"]] = row["bytes"] / 2**20
    yield f"cost up to {100 * (most - 1):.0f} % over attention without position, forward and backward"
    ours = memory.pop("posenc")
    memory.pop("plain SDPA")
    yield f"needs {ours:.0f} MiB, where the best of the others measured needs {min(memory.values()):.0f}"
    yield from frontier()


def frontier():
    """The encodings of 2024 to 2026, at 2048 tokens where nothing else is said."""
    found: dict[tuple, dict[str, float]] = {}
    for trial in json.loads((BENCHMARKS / "frontier.json").read_text(encoding="utf-8"))["bench"]["trials"]:
        for row in trial["rows"]:
            value = row["bytes"] / 2**20 if row["bytes"] else row["ratio"] and row["ratio"]["median"]
            if value and row["name"] != "plain SDPA":
                found.setdefault((trial["case"], trial["what"], trial["mode"], trial["length"]), {})[row["name"]] = (
                    value
                )

    def forward(name, length=2048):
        others = dict(found[name, "time", "forward", length])
        return others.pop("posenc"), sorted(others.values())

    rotations = [forward(name) for name in (
        "selective_rope", "mamba3_rope", "carope", "rope+rove", "fope", "rope_pp", "learned_rope", "head_rope"
    )]  # fmt: skip
    ours, naive = [ours for ours, _ in rotations], [each for _, others in rotations for each in others]
    yield f"take {min(ours):.2f} to {max(ours):.2f}, the naive formulas {min(naive):.2f} to {max(naive):.2f}"

    def beside(name):
        ours, others = forward(name)
        return f"{ours:.2f} ({' to '.join(dict.fromkeys(f'{each:.2f}' for each in (others[0], others[-1])))})"

    yield (
        f"`fox` takes {beside('fox').replace('(', '(others ')}, `grape_a` {beside('grape_a')}, "
        f"`projected_relative` {beside('projected_relative')}, `pope` {beside('pope')}"
    )
    yield f"`chunks` takes {forward('chunks')[0]:.2f}, and {forward('chunks', 8192)[0]:.2f} at 8192 tokens"
    every = [forward(name)[0] for name in ("cope", "selective_attention", "dape", "path", "wall", "stick_breaking")]
    yield f"examine every pair of tokens and take {min(every):.2f} to {max(every):.2f}"
    memory = found["cope", "memory", "forward", 4096]
    yield f"`cope` needs {memory['posenc']:.0f} MiB at 4096 tokens, the naive formula {memory['naive, on all pairs']:.0f}"
    wall, (naive,) = forward("wall")
    assert wall > naive
    slower = {name for name, what, mode, length in found if (what, mode, length) == ("time", "forward", 2048)
              and forward(name)[0] > 1.1 * min([*forward(name)[1], math.inf])}  # fmt: skip
    assert slower == {"wall"}
    yield f"for `wall` ({wall:.2f}, naive {naive:.2f})"


@pytest.mark.parametrize(
    ("name", "sentences"),
    [
        ("leaderboard.md", leaderboard),
        ("claims.md", claims),
        ("claims.zh.md", chinese_claims),
        ("position_from_scratch.md", guide),
        ("position_from_scratch.zh.md", chinese_guide),
        ("ablations.md", ablations),
        ("bench.md", bench),
    ],
    ids=lambda each: getattr(each, "__name__", each),
)
def test_sentences_have_the_numbers_of_the_results(name, sentences):
    text = page(name)
    for sentence in sentences():
        assert sentence in text


def test_encodings_of_longer_training_are_of_the_leaderboard():
    assert {name.partition(" + ")[0] for name in LONGER_TRAINING["loss"]} <= rows("text").keys()


OVERCLAIMS = {
    r"\brun in linear memory": "CoPE does not",
    r"differ in the last digits": "generated tasks differ by more",
    r"--preset longer +# what": "two months of one thread on the demo model",
    r"(?i)seven minutes": "the suite takes longer",
    r"on how many tasks it is among the best": "it is not known which are",
    r"(?i)\bgroup 1\b|\bfirst group\b|not measurably (worse|behind)|no measurable difference|no (significant )?difference can be measured|cannot be distinguished from": "not significant is not equal",
}


@pytest.mark.parametrize("pattern", OVERCLAIMS, ids=OVERCLAIMS.values())
def test_what_was_found_false_is_not_said_again(pattern):
    paths = [
        ROOT / "README.md",
        ROOT / "pyproject.toml",
        ROOT / "mkdocs.yml",
        ROOT / "Makefile",
        ROOT / "CONTRIBUTING.md",
    ]
    for path in [*paths, *(ROOT / "docs").rglob("*.md")]:
        assert not re.search(pattern, path.read_text(encoding="utf-8")), path
