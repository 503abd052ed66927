"""The recipes of docs/vision-pretrained.md for images of another size run."""

import re
from pathlib import Path

import pytest

from references import timm_here

PAGE = (Path(__file__).parents[2] / "docs" / "vision-pretrained.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("language", "shapes"),
    [("python", ["[1, 385, 64]"] * 2), ("py", ["[1, 1000]) torch.Size([1, 1000]", "[1, 385, 64]"])],
    ids=["transformers", "timm"],
)
def test_the_recipes_run(language, shapes, tmp_path, monkeypatch, capsys):
    if language == "py":
        timm_here.timm()
    monkeypatch.chdir(tmp_path)
    exec("".join(re.findall(rf"```{language}\n(.*?)```", PAGE, flags=re.DOTALL)), {})
    assert capsys.readouterr().out.splitlines() == [f"torch.Size({shape})" for shape in shapes]
