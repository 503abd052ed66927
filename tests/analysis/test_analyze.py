"""Everything that is asked of every encoding, of functions, tables and models, and what is refused."""

import json
import re

import numpy as np
import pytest
import torch
from torch import nn

import posenc
from posenc.analysis import Finding
from posenc.analysis.analyze import QUESTIONS, analyze
from posenc.errors import InputError

SLOW = {"floater"}
"""Encodings whose codes are integrated position by position."""


def waves(positions):
    angles = positions[:, None] / 50.0 ** torch.linspace(0, 1, 8)
    return torch.cat((angles.sin(), angles.cos()), -1)


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in (*posenc.ENCODINGS, "rope+alibi")],
)
def test_every_encoding_is_analysed(name):
    found = analyze(name, length=16)
    assert found.sentences()
    assert {s.name for s in found.sections} | set(found.left_out) == set(QUESTIONS)
    for section in found.sections:
        assert isinstance(section.finding, Finding)
        assert all(sentence.strip() for sentence in section.finding.sentences())
    assert all(re.fullmatch(r"[A-Z].*\.", reason, flags=re.DOTALL) for reason in found.left_out.values())
    json.dumps(found.to_dict(), allow_nan=False)


def test_each_section_applies_where_it_should():
    sections = {name: {s.name for s in analyze(name, length=16).sections} for name in ("rope", "alibi", "none")}
    assert {"rotation", "base", "kernel", "shift"} <= sections["rope"]
    assert "bias" not in sections["rope"]
    assert sections["alibi"] & {"bias", "rotation", "kernel"} == {"bias"}
    assert sections["none"] & {"properties", "bias", "rotation"} == set()


def test_a_function_is_analysed_as_codes_that_are_added():
    found = analyze(waves, length=32)
    assert found.subject == "waves"
    assert found.settings["kind"] == "codes"
    names = {section.name for section in found.sections}
    assert {"properties", "kernel", "shift", "spectrum", "scores"} <= names
    with pytest.raises(InputError, match=r"no section 'base': It has no frequencies of RoPE"):
        found["base"]


@pytest.mark.parametrize(
    "make", [lambda t: t, lambda t: t.numpy(), nn.Embedding.from_pretrained], ids=["tensor", "array", "embedding"]
)
def test_a_table_is_analysed_as_far_as_it_goes(make):
    table = torch.randn(20, 8, generator=torch.Generator().manual_seed(0))
    found = analyze(make(table))
    assert found.settings["length"] == 20
    assert found["kernel"].finding.length == 20


def test_a_class_is_made_and_an_object_taken():
    class Slope(posenc.Encoding):
        def __init__(self, num_heads):
            super().__init__()
            self.num_heads = num_heads

        def bias(self, q, k, positions, layer=0):
            return posenc.bias.Relative(lambda h, d: -d.abs() * (h + 1.0), self.num_heads, positions)

    assert analyze(Slope, length=8)["bias"].finding.heads.shape[0] == 4
    assert analyze(Slope(2), length=8)["bias"].finding.heads.shape[0] == 2
    with pytest.raises(InputError, match=r"dict: is a class, but no Encoding"):
        analyze(dict)


@pytest.mark.parametrize(
    ("subject", "options", "message"),
    [
        (waves, {"dim": 8}, r"gave \(16, 16\) .* must give real \(n, 8\)"),
        (waves, {"length": 1}, r"length=1: must be at least 2"),
        (np.ones(3), {}, r"\(n, dim\), a row per position"),
    ],
)
def test_mistakes_are_reported(subject, options, message):
    with pytest.raises(InputError, match=message):
        analyze(subject, **{"length": 16} | options)


def test_the_same_seed_gives_the_same_numbers():
    found = [analyze("t5", length=12, seed=seed).to_dict() for seed in (1, 1, 2)]
    numbers = [{s["name"]: s["numbers"] for s in one["sections"]} for one in found]
    assert numbers[0] == numbers[1]
    assert numbers[0]["bias"] != numbers[2]["bias"]
