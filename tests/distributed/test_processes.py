"""Every encoding on shards of a sequence in several processes, and what the page says about it."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from posenc.distributed import LAYOUTS
from references import PATIENCE

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "benchmarks"))  # the processes import it, too
import tensor_parallel  # noqa: E402
from sequence_shards import BEGIN, COMPOSITIONS, END, WORLD_SIZES, in_processes, subjects  # noqa: E402

BOUND = 1e-11  # logits and gradients of a few units, in float64; a wrong position shows in the first digits


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_every_encoding_is_the_same_on_shards(world_size):
    names = subjects()
    if world_size > 2:  # the page has them all
        names = {name: names[name] for name in ("grid_table", "xpos", "deberta_v2", "fire", "cape", *COMPOSITIONS)}
    results = in_processes(world_size, names)
    assert list(results) == list(names)
    wrong = {name: by for name, by in results.items() if not all(by[layout] <= BOUND for layout in LAYOUTS)}
    assert not wrong


def test_the_page_has_a_row_for_each():
    page = (ROOT / "benchmarks" / "sequence_shards.md").read_text(encoding="utf-8")
    rows = page[page.index(BEGIN) : page.index(END)].splitlines()[3:]
    cells = [[cell.strip(" `") for cell in row.split("|")[1:-1]] for row in rows]
    assert {row[0] for row in cells} <= set(subjects()), "run: python benchmarks/sequence_shards.py"
    for _, *numbers in cells:
        assert len(numbers) == len(WORLD_SIZES) * len(LAYOUTS)
        assert all(float(number) <= BOUND for number in numbers)


# -------------------------------------------------------------------- heads divided over processes


def test_the_page_of_tensor_parallelism_has_a_row_for_each():
    page = (ROOT / "benchmarks" / "tensor_parallel.md").read_text(encoding="utf-8")
    lines = page[page.index(tensor_parallel.BEGIN) : page.index(tensor_parallel.END)].splitlines()
    cells = [[cell.strip(" `") for cell in row.split("|")[1:-1]] for row in lines[3:] if row.startswith("|")]
    assert {row[0] for row in cells} <= set(tensor_parallel.subjects()), "run: python benchmarks/tensor_parallel.py"
    assert {row for row in lines if row.startswith("- ")} == {*tensor_parallel.refused()}
    for _, *numbers in cells:
        assert len(numbers) == len(tensor_parallel.COLUMNS)
        assert all(float(number) <= BOUND for number in numbers)


def test_heads_in_two_processes_are_one_process():
    names = dict(list(tensor_parallel.subjects().items())[::6])
    results = in_processes(2, names, tensor_parallel.differences)
    assert list(results) == list(names)
    assert all(difference <= BOUND for row in results.values() for difference in row.values())


def test_the_example_gives_the_loss_of_one_process():
    losses = []
    for count in (1, 2):
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={count}"]
        done = subprocess.run(
            [*command, str(ROOT / "examples" / "sequence_shards.py")], capture_output=True, text=True, timeout=PATIENCE
        )
        assert done.returncode == 0, done.stderr
        printed = re.findall(r"\d+\.\d{6}", done.stdout)  # two processes may write one line
        assert len(printed) == count
        losses += map(float, printed)
    assert losses == pytest.approx([losses[0]] * 3, abs=2e-6)
