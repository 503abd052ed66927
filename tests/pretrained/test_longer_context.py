"""Every way to read past the context length, on a real model: stories15M, trained at 256 tokens, on texts of its own."""

import json
import runpy
from itertools import pairwise

import pytest
import torch

import posenc
from posenc.pretrained import loss_by_position
from references import stories15m
from test_examples import EXAMPLES

ROOT = EXAMPLES.parent
LENGTHS = (256, 512, 1024, 2048)

MEASURED = {
    "none": (1.16, 4.19, 5.91, 5.83),
    "linear:factor=4": (2.31, 2.32, 2.33, 4.21),
    "linear:factor=8": (3.22, 3.37, 3.42, 3.33),
    "ntk:factor=4": (1.25, 1.27, 3.81, 5.86),
    "ntk:factor=8": (1.40, 1.44, 1.77, 5.36),
    "ntk_fixed:factor=8": (1.43, 1.46, 1.71, 5.22),
    "ntk_mixed:factor=8": (1.71, 1.76, 1.74, 3.96),
    "yarn:factor=4": (1.37, 1.41, 1.37, 4.59),
    "yarn:factor=8": (1.58, 1.65, 1.67, 1.57),
    "llama3:factor=8": (2.21, 2.50, 2.59, 2.55),
    "ntk:factor=8+log_n": (1.40, 1.38, 1.53, 5.71),
    "rerope:window=128": (1.17, 1.18, 1.17, 1.13),
    "leaky_rerope:window=128:factor=16": (1.17, 1.17, 1.14, 1.07),
    "self_extend:window=128:group=16": (1.17, 1.17, 1.14, 1.07),
}
"""Nats per token in the second half of each length, measured with code that is not ours, on 12 texts that the same model
drew; how easy a draw is to read moves all of a column alike."""


def test_the_methods_separate_as_they_were_measured_to():
    model, texts = stories15m.load(), stories15m.texts()[:3]
    found = {}
    for method in MEASURED:
        posenc.extend(model, method, target_length=None if "factor" in method else max(LENGTHS))
        loss = loss_by_position(model, texts, chunk=2048)
        found[method] = [loss[:, length // 2 : length].mean().item() for length in LENGTHS]
        posenc.restore(model)
    for method, want in MEASURED.items():
        for length, ours, theirs in zip(LENGTHS, found[method], want, strict=True):
            assert ours == pytest.approx(theirs, abs=0.15 + 0.08 * theirs), (method, length)
    at = {length: {method: row[i] for method, row in found.items()} for i, length in enumerate(LENGTHS)}
    ranks = "rerope:window=128", "yarn:factor=4", "ntk:factor=8", "linear:factor=4", "ntk:factor=4", "none"
    assert all(at[1024][better] + 0.1 < at[1024][worse] for better, worse in pairwise(ranks))
    assert at[1024]["ntk:factor=8+log_n"] < at[1024]["ntk:factor=8"] - 0.05
    for method in ("rerope:window=128", "self_extend:window=128:group=16", "leaky_rerope:window=128:factor=16"):
        assert at[2048][method] < at[2048]["yarn:factor=8"] - 0.1, "position maps hold where a factor of eight does"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_is_promised_of_short_texts_holds_on_a_real_model(dtype):
    model, text = stories15m.load().to(dtype), stories15m.texts()[:2, :512]
    with torch.no_grad():
        before = model(text).logits
        for method in (
            "rerope:window=64",
            "leaky_rerope:window=64",
            "self_extend:window=64",
            "jet_long",
            "dual_chunk",
            "log_n",
        ):
            promised = posenc.extend(model, method, factor=2).exact_tokens
            off = (model(text).logits - before).abs().amax((0, 2))
            posenc.restore(model)
            # the sums run in another order: half precision shows it
            most, times = (2e-4, 5) if dtype == torch.float32 else (0.75, 2)
            assert off[:promised].max() < most, method
            assert off[promised : promised + 64].max() > times * off[:promised].max(), f"{method} promises too little"
        assert torch.equal(model(text).logits, before)


def test_the_table_of_jet_long_is_that_of_the_results():
    page = runpy.run_path(str(ROOT / "benchmarks" / "maps.py"))["page"]
    results = json.loads((ROOT / "benchmarks" / "maps.json").read_text())
    assert page(results) == (ROOT / "benchmarks" / "maps.md").read_text(encoding="utf-8")
