"""The recipes for packages that not every environment has. tests/test_documents.py runs the others."""

import re
from importlib.util import find_spec

import pytest
import torch
from website.page import DOCS

import posenc
from references import timm_here

CODE = re.compile(r"```py\n(.*?)```", re.DOTALL)
RECIPES = (DOCS / "guides/recipes.md").read_text(encoding="utf-8").split("\n## ")


def made(title):
    """The names of a recipe's code, which has run."""
    (recipe,) = (part for part in RECIPES if part.startswith(f"{title}\n"))
    names = {
        "torch": torch,
        "nn": torch.nn,
        "posenc": posenc,
        "Positions": posenc.Positions,
        "x": torch.randn(2, 9, 64),
    }
    exec(compile(CODE.search(recipe)[1], title, "exec"), names)
    return names


def test_a_vit_of_timm_has_the_encoding():
    timm_here.timm()
    vit = made("timm")["vit"].eval()
    with torch.no_grad():
        image = torch.randn(1, 3, 64, 64)
        found = vit(image)
        assert found.shape == (1, 4)
        for block in vit.blocks:
            block.attn.encoding = posenc.create("none")
        assert not torch.allclose(vit(image), found)


def test_attention_of_x_transformers_has_the_encoding():
    if find_spec("x_transformers") is None:
        pytest.skip("x-transformers is not installed")
    out = made("x-transformers")["out"]
    assert out.shape == (2, 9, 64)
    assert out.isfinite().all()
