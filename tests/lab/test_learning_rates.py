import json
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import posenc
from posenc import InputError, Transformer, TransformerConfig, create, parameter_groups
from posenc.lab.learning_rates import table_rates

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SHAPE = {"dim": 32, "num_heads": 2, "num_layers": 2, "max_positions": 16}


def decoder(encoding, **options):
    return Transformer(TransformerConfig(64, dim=32, num_layers=2, num_heads=2), create(encoding, **SHAPE, **options))


def rates(groups):
    return {id(p): group["lr"] for group in groups for p in group["params"]}


@pytest.mark.parametrize("name", [name for name in posenc.ENCODINGS if table_rates().get(name, 1) != 1])
def test_an_encoding_has_its_measured_rate_and_the_rest_the_models(name):
    model = decoder(name, causal=True)
    own = {id(p) for p in model.encoding.parameters()}
    found = rates(parameter_groups(model, 1e-3))
    assert found.keys() == {id(p) for p in model.parameters()}
    for key, rate in found.items():
        assert rate == pytest.approx(1e-3 * (table_rates()[name] if key in own else 1))


def test_a_sum_and_a_pattern_have_the_rates_of_their_parts():
    model = decoder("rope+t5/none")
    (table,) = model.encoding.parameters()
    assert rates(parameter_groups(model, 1e-3))[id(table)] == pytest.approx(1e-3 * table_rates()["t5"])


def test_frozen_parameters_are_left_out_and_an_optimizer_takes_the_groups():
    model = decoder("t5")
    model.embedding.requires_grad_(False)
    groups = parameter_groups(model, 1e-3)
    assert id(model.embedding.weight) not in rates(groups)
    torch.optim.AdamW(groups)


@pytest.mark.parametrize("lr", [0.0, -1.0, float("nan"), float("inf")])
def test_a_rate_is_above_0_and_finite(lr):
    with pytest.raises(InputError, match="lr="):
        parameter_groups(nn.Linear(2, 2), lr)
    with pytest.raises(InputError, match="no trainable parameters"):
        parameter_groups(nn.Identity(), 1e-3)


def test_the_factors_follow_from_the_losses(monkeypatch):
    monkeypatch.setattr(sys, "path", [str(BENCHMARKS), *sys.path])
    from table_rates import NUMBERS, choice

    losses = json.loads(NUMBERS.read_text())["losses"]
    assert table_rates() == {name: made[0] for name, each in sorted(losses.items()) if (made := choice(each))}
    assert choice({"1": [2.0, 2.1, 2.0], "10": [1.5, 1.6, 1.5], "50": [1.9, 2.0, 1.9]})[0] == 10
    assert choice({"1": [2.0, 2.4, 1.6], "10": [1.5, 2.5, 1.7], "50": [3.0, 3.0, 3.0]})[0] == 1, (
        "not beyond its interval"
    )
    assert choice({"1": [2.0], "10": [1.0], "50": [1.0]}) is None
