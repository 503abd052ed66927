"""Stretches that benchmarks/learned_stretch.py learns on a text: found again where they are known, and nothing else is touched."""

import sys
from pathlib import Path

import pytest
import torch

import posenc
from posenc import InputError
from references.small_models import VOCABULARY, small_model, tokens

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

from learned_stretch import learn

TRUTH = torch.linspace(1, 4, 8)


def test_stretches_are_found_again_and_the_model_stays():
    model = small_model("llama")
    posenc.extend(model, "explicit", stretch=TRUTH, factor=2)
    torch.manual_seed(3)
    start = torch.randint(3, VOCABULARY, (12, 1))
    options = {"max_new_tokens": 127, "min_new_tokens": 127, "do_sample": True, "top_k": 0, "pad_token_id": 0}
    with torch.no_grad():
        drawn = model.generate(start, attention_mask=torch.ones_like(start), **options)
    posenc.restore(model)
    weights, before = {name: weight.clone() for name, weight in model.named_parameters()}, model(tokens(1, 60)).logits
    found = learn(model, drawn, 128, start="linear:factor=3", steps=30, held_out=0.3, patience=9)
    assert min(loss for _, loss in found.losses) < found.losses[0][1] - 0.02
    apart = [(torch.tensor(each).log() - TRUTH.log())[:4].abs().mean() for each in (found.start, found.stretch)]
    assert apart[1] < apart[0], "the fast pairs, which 128 tokens tell apart, come nearer"
    assert all(torch.equal(weight, weights[name]) for name, weight in model.named_parameters())
    assert torch.equal(model(tokens(1, 60)).logits, before)
    report = posenc.extend(model, "explicit", stretch=found.stretch, attention_factor=found.attention_factor, factor=2)
    assert report.stretch == pytest.approx(found.stretch)


def test_what_cannot_be_learned_is_refused():
    model = small_model("llama")
    with pytest.raises(InputError, match="no frequency schedule"):
        learn(model, tokens(4, 128), 128, start="rerope:window=16")
    with pytest.raises(InputError, match="each as long as a window, 128"):
        learn(model, tokens(4, 100), 128)
