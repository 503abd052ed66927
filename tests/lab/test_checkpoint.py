"""Interrupted trainings continue from their checkpoints, bit for bit."""

import random
from dataclasses import replace

import pytest
import torch

from posenc.errors import InputError
from posenc.lab import train
from posenc.lab.checkpoint import Checkpoints, TrainingCheckpoint
from posenc.lab.experiment import Run
from posenc.lab.measure import behaviour, measure
from posenc.lab.train import Training


def damages(content, chosen, times):
    """A file's content damaged in several ways: cut off, one bit changed; and empty, zeroes, noise, foreign."""
    for _ in range(times):
        yield "truncated", content[: chosen.randrange(len(content))]
        changed, at = bytearray(content), chosen.randrange(len(content))
        changed[at] ^= 1 << chosen.randrange(8)
        yield "one bit changed", bytes(changed)
    yield from (("empty", b""), ("zeroes", bytes(len(content))), ("noise", chosen.randbytes(len(content))))
    yield from (("foreign", b'{"schema": 1}'), ("foreign", b"\x80\x04cposix\nsystem\n."))


OFTEN = 1e-9
"""Minutes between two checkpoints."""


@pytest.fixture
def run(tiny, corpus):
    return Run("t5", 0, replace(tiny, steps=6), corpus.digest)


def advanced(steps, run, corpus, folder):
    """A training that was written after each of its first steps."""
    training = Training(run, corpus.train)
    checkpoint = TrainingCheckpoint(training, Checkpoints(folder, OFTEN), lambda: behaviour(run, corpus))
    for _ in range(steps):
        training.advance()
        checkpoint.save_if_due()
    return training


def resumed(run, corpus, folder, minutes=OFTEN):
    training = Training(run, corpus.train)
    return training, TrainingCheckpoint(training, Checkpoints(folder, minutes), lambda: behaviour(run, corpus))


@pytest.mark.parametrize("steps", [1, 3, 5])
def test_it_continues_bit_for_bit(run, corpus, tmp_path, steps):
    undisturbed = Training(run, corpus.train)
    while not undisturbed.finished:
        undisturbed.advance()
    advanced(steps, run, corpus, tmp_path)
    torch.manual_seed(12345)  # another process has another state
    training, checkpoint = resumed(run, corpus, tmp_path)
    assert len(training.losses) == steps
    assert checkpoint.seconds > 0
    while not training.finished:
        training.advance()
    assert training.losses == undisturbed.losses
    pairs = zip(training.model.parameters(), undisturbed.model.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)


def test_a_damaged_checkpoint_is_deleted_with_a_warning_and_the_training_starts_over(run, corpus, tmp_path):
    advanced(2, run, corpus, tmp_path)
    path = Checkpoints(tmp_path, OFTEN).path(run)
    for what, damaged in damages(path.read_bytes(), random.Random(0), 15):
        path.write_bytes(damaged)
        with pytest.warns(UserWarning, match="damaged: it is deleted"):
            training, _ = resumed(run, corpus, tmp_path)
        assert not training.losses, what
        assert not path.exists()


def test_the_checkpoint_of_another_program_is_deleted_with_a_warning_and_the_training_starts_over(
    run, corpus, tmp_path, monkeypatch
):
    advanced(2, run, corpus, tmp_path)
    monkeypatch.setattr(train, "WARM_UP", 0.5)
    with pytest.warns(UserWarning, match=r"another program's: .* is .* here and .* there: it is deleted"):
        training, _ = resumed(run, corpus, tmp_path)
    assert not training.losses
    assert not Checkpoints(tmp_path, OFTEN).path(run).exists()


def test_a_measured_run_is_that_of_one_that_was_never_stopped(run, corpus, tmp_path):
    undisturbed = measure(run, corpus)
    advanced(4, run, corpus, tmp_path)
    again = measure(run, corpus, checkpoints=Checkpoints(tmp_path, OFTEN))
    scores = [[variant.paired for variant in cell.variants] for cell in (again, undisturbed)]
    assert (again.losses, scores[0]) == (undisturbed.losses, scores[1])
    Checkpoints(tmp_path, OFTEN).remove(run)
    assert not (tmp_path / "checkpoints").exists()


def test_the_checkpoints_of_other_runs_are_left_alone(run, corpus, tmp_path):
    other = replace(run, seed=1)
    advanced(1, run, corpus, tmp_path)
    advanced(1, other, corpus, tmp_path)
    Checkpoints(tmp_path, OFTEN).remove(run)
    assert list((tmp_path / "checkpoints").iterdir()) == [Checkpoints(tmp_path, OFTEN).path(other)]


def test_zero_minutes_neither_read_nor_write(run, corpus, tmp_path):
    advanced(2, run, corpus, tmp_path)
    before = Checkpoints(tmp_path, OFTEN).path(run).read_bytes()
    training, checkpoint = resumed(run, corpus, tmp_path, 0)
    assert not training.losses
    training.advance()
    checkpoint.save_if_due()
    assert Checkpoints(tmp_path, OFTEN).path(run).read_bytes() == before


@pytest.mark.parametrize("minutes", [-1.0, float("nan"), float("inf")])
def test_times_that_cannot_be(minutes):
    with pytest.raises(InputError, match=r"checkpoint_minutes=.*: must be at least 0"):
        Checkpoints("", minutes)
