"""Trainings that go on from a checkpoint, and checkpoints that are refused."""

import pickle
from dataclasses import replace

import pytest
import torch
from safetensors.torch import save

from posenc import InputError
from posenc.lab.checkpoint import Checkpoints, dumped, names
from posenc.lab.config import Run
from posenc.lab.measure import measure
from posenc.lab.train import Training

EVERY_STEP = 1e-9


@pytest.fixture
def run(corpus, tiny):
    return Run("t5", 1, replace(tiny, steps=6), corpus.digest)


def advanced(run, corpus, directory, steps):
    """A training that was killed after some steps, each of which was kept."""
    training = Training(run, corpus.train)
    checkpoint = Checkpoints(directory, EVERY_STEP).of(training)
    for _ in range(steps):
        training.advance()
        checkpoint.keep_if_due()
    return training


def numbers(cell):
    return cell.losses, [(arm.name, arm.paired, arm.by_position) for arm in cell.arms]


def test_a_killed_training_goes_on_bit_for_bit(run, corpus, tmp_path):
    undisturbed = measure(run, corpus)
    advanced(run, corpus, tmp_path, 4)
    told = []
    resumed = measure(run, corpus, told.append, Checkpoints(tmp_path, EVERY_STEP))
    assert numbers(resumed) == numbers(undisturbed)
    assert told[0] == 4 * 3 * run.settings.batch_size * run.settings.length
    Checkpoints(tmp_path, EVERY_STEP).remove(run)
    assert not list(tmp_path.iterdir())


def damaged(run, corpus, content):
    state = Training(run, corpus.train).state() | {"losses": [1.0]}
    other = replace(run, seed=2)
    name = next(name for name in state if name.startswith("model."))
    return {
        "cut": content[: len(content) // 2],
        "empty": b"",
        "flipped": content[:-9] + bytes([content[-9] ^ 16]) + content[-8:],
        "pickle": pickle.dumps(state["losses"]),
        "another file": save({"a": torch.zeros(2)}),
        "another run": dumped(other, state, 1.0),
        "a shape": dumped(run, state | {name: torch.zeros(3)}, 1.0),
        "a type": dumped(run, state | {name: state[name].double()}, 1.0),
        "no number": dumped(run, state | {name: state[name] * float("nan")}, 1.0),
        "a key": dumped(run, {key: value for key, value in state.items() if key != name}, 1.0),
        "no losses": dumped(run, state | {"losses": []}, 1.0),
    }


KINDS = ("cut", "empty", "flipped", "pickle", "another file", "another run", "a shape", "a type", "no number", "a key", "no losses")  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_checkpoint_is_set_aside_for_the_one_before(kind, run, corpus, tmp_path):
    advanced(run, corpus, tmp_path, 3)
    last, previous = (tmp_path / name for name in names(run))
    wrong = damaged(run, corpus, last.read_bytes())
    assert tuple(wrong) == KINDS
    last.write_bytes(wrong[kind])
    training = Training(run, corpus.train)
    checkpoint = Checkpoints(tmp_path, EVERY_STEP).of(training)
    assert len(training.losses) == 2
    assert [entry["file"] for entry in checkpoint.folder.set_aside()] == [names(run)[0]]
    previous.write_bytes(wrong[kind])
    fresh = Training(run, corpus.train)
    Checkpoints(tmp_path, EVERY_STEP).of(fresh)
    assert not fresh.losses


def test_mistakes_are_named(tmp_path):
    for minutes in (-1, float("nan"), float("inf")):
        with pytest.raises(InputError, match=r"--checkpoint-every .*: give minutes, or 0"):
            Checkpoints(tmp_path, minutes)
