"""The model of docs/guides/your-model.md takes every encoding, and decodes with a cache as in a full pass."""

import re
from pathlib import Path

import pytest
import torch

import posenc
from posenc import KVCache, Positions
from posenc.encodings import ENCODINGS

GUIDE = Path(__file__).parents[2] / "docs/guides/your-model.md"
SHAPE = {"dim": 16, "num_heads": 2, "num_layers": 2, "max_positions": 32, "causal": True}
IMAGES = {"swin_v2": {"height": 4, "width": 4}, "rope_mixed": {}, "axial_rope": {}}


@pytest.fixture(scope="module")
def gpt():
    (code,) = (
        text
        for text in re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
        if "class GPT" in text
    )
    names: dict = {}
    exec(compile(code, GUIDE.name, "exec"), names)
    return names["GPT"]


@pytest.mark.parametrize("name", [*ENCODINGS, "rope+alibi", "sinusoidal+t5", "shaw+fox", "cope+rope+sink"])
def test_the_guides_model_trains_and_decodes_under_every_encoding(gpt, name):
    torch.manual_seed(0)
    encoding = posenc.create(name, **SHAPE | IMAGES.get(name, {}))
    model = gpt(11, encoding, dim=16, num_heads=2, num_layers=2).double()
    ids = torch.randint(11, (2, 9))
    full = model(ids, Positions.arange(9, causal=True))
    full.sum().backward()
    assert all(parameter.grad is not None for layer in model.attention for parameter in layer.query.parameters())
    if encoding.needs_length:
        return
    model.eval()
    full = model(ids, Positions.arange(9, causal=True))
    with torch.no_grad():
        cache = KVCache()
        pieces = [model(ids[:, a:b], cache.positions(b - a), cache) for a, b in ((0, 4), (4, 6), (6, 7), (7, 9))]
    torch.testing.assert_close(torch.cat(pieces, 1), full.detach(), rtol=0, atol=1e-9)
