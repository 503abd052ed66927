"""The NTK table: what its example measures, token by token."""

import json
from dataclasses import replace
from itertools import groupby

import pytest
import torch

from posenc.lab import data
from posenc.lab.experiment import Run
from posenc.lab.text import Settings
from posenc.lab.train import build
from posenc.tasks.running_text import pydoc
from test_examples import example

COPIED = 64
"""Noise has bytes below it."""


def test_a_text_to_copy_from_has_pieces_once_twice_and_as_noise_twice():
    text = torch.arange(COPIED, 256, dtype=torch.uint8)
    runs = [
        list(run) for _, run in groupby(example("ntk_table").with_copies(text, 8).tolist(), lambda byte: byte < COPIED)
    ]
    noise = [run for run in runs if run[0] < COPIED]
    natural = [run for run in runs if run[0] >= COPIED]
    assert len(noise) > 5
    for run in noise:
        assert 4 <= len(run) // 2 <= 8
        assert run[: len(run) // 2] == run[len(run) // 2 :]
    for run in natural[:-1]:  # one piece, then the next one twice
        twice = [byte for byte in run if run.count(byte) == 2]
        once = run[: len(run) - len(twice)]
        assert twice[: len(twice) // 2] == twice[len(twice) // 2 :]
        assert once + twice[: len(twice) // 2] == list(range(run[0], run[0] + len(once) + len(twice) // 2))
        assert 4 <= min(len(once), len(twice) // 2) <= max(len(once), len(twice) // 2) <= 8


@pytest.mark.parametrize("seen", [16, 64])
@pytest.mark.parametrize("period", [None, 6, 40])
def test_accuracy_is_that_of_one_token_after_another(seen, period):
    shape = {"dim": 16, "num_layers": 1, "num_heads": 1, "head_dim": 8}
    s = Settings(length=16, factors=(1, 4), batch_size=1, windows=5, targets=4, **shape)
    model = build(Run("rope", 0, s, "")).eval()
    tokens = torch.randint(4, (130,), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    actual = example("ntk_table").accuracy(model, tokens, s, seen, period)
    assert 0 < actual.mean() < 1
    for window, end in enumerate((64, 80, 96, 112, 129)):
        hits = 0
        for target in range(end - 3, end + 1):
            places = range(end - seen, target)
            context = [tokens[at if period is None else end - (end - at) % period] for at in places]
            with torch.no_grad():
                hits += int(model(torch.tensor(context)[None].long())[0, -1].argmax() == tokens[target])
        assert actual[window] == hits / 4


def test_the_example_trains_what_is_missing_and_shows_a_table(tmp_path, monkeypatch, capsys):
    module, path = example("ntk_table"), tmp_path / "results.json"
    small = {"steps": 2, "batch_size": 2, "dim": 16, "num_layers": 1, "num_heads": 1, "windows": 4}
    monkeypatch.setattr(module, "S", replace(module.S, **small))
    monkeypatch.setattr(data, "load", lambda name: data.corpus(pydoc().encode()[:20000], name))
    module.main(str(path), 1)
    first = json.loads(path.read_text())
    assert len(first) == 2
    plain, scaled = first.values()
    assert len(plain) == 2 * len(scaled) == 2 * len(module.VARIANTS)
    assert plain["cut off"] == plain["cut off + log n†"], "within the context length the clipped factor is 1"
    assert all(len(values) == 4 for row in plain.values() for values in row.values())
    table = [[cell.strip() for cell in line.split("|")[1:-1]] for line in capsys.readouterr().out.splitlines()]
    assert [row[0] for row in table[2:5]] == ["cut off", "cut off + log n†", "cut off + log n"]
    assert len(table) == 2 + 3 * len(module.VARIANTS)
    mean = 100 * sum(plain["direct"]["512 bytes"]) / 4
    assert next(row for row in table if row[0] == "direct")[3].startswith(f"{mean:.1f} ± ")
    module.main(str(path), 2)
    second = json.loads(path.read_text())
    assert len(second) == 4
    assert all(second[name] == run for name, run in first.items())
