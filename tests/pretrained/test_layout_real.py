"""convert_layout on a real model: SmolLM2-135M, whose file holds interleaved weights and whose authors rotate halves."""

import pytest
import torch
import transformers
from torch.nn import functional as F

from posenc import convert_layout
from references import smollm2


def test_smollm2_says_the_same_in_either_layout_and_nonsense_unconverted():
    interleaved, config, tokenizer = smollm2.read(smollm2.require())

    def converted(state, source, target):
        return {
            name: convert_layout(weight, smollm2.HEAD_DIM, source=source, target=target)
            if ".q_proj." in name or ".k_proj." in name
            else weight
            for name, weight in state.items()
        }

    half = converted(interleaved, "interleaved", "half")
    back = converted(half, "half", "interleaved")
    assert all(torch.equal(back[name], interleaved[name]) for name in interleaved)
    tokens = torch.tensor([tokenizer.encode(smollm2.TEXT).ids])

    def run(cls, config_cls, state):
        with torch.no_grad():
            logits = smollm2.load(cls, config_cls, state, config)(tokens).logits[0]
        return logits, F.cross_entropy(logits[:-1], tokens[0, 1:]).item()

    # transformers' Ernie 4.5 is its Llama with interleaved rotation
    llama = transformers.LlamaForCausalLM, transformers.LlamaConfig
    ernie = transformers.Ernie4_5ForCausalLM, transformers.Ernie4_5Config
    want, loss = run(*llama, half)
    same, same_loss = run(*ernie, interleaved)
    wrong, wrong_loss = run(*llama, interleaved)
    swapped, swapped_loss = run(*ernie, half)
    assert (same - want).abs().max() < 1e-3
    assert loss == pytest.approx(2.597, abs=5e-3)
    assert same_loss == pytest.approx(loss, abs=1e-4)
    assert f"{wrong_loss:.2f} instead of {loss:.2f}" == "4.82 instead of 2.60"  # docs/guides/convert.md
    assert min((x - want).abs().max() for x in (wrong, swapped)) > 10
    assert min(wrong_loss, swapped_loss) > loss + 1
