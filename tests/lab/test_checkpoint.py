"""Trainings that go on from where they were kept, bit for bit."""

import json
import pickle
import random
from dataclasses import replace

import pytest
import torch
from posenc.measuring.records import Damaged, Records
from safetensors.torch import load, save

from hostile.faults import damages
from posenc.errors import InputError
from posenc.lab.checkpoint import Checkpoints, _digest, loaded, names
from posenc.lab.config import Run
from posenc.lab.measure import measure
from posenc.lab.train import Training

OFTEN = 1e-9
"""Minutes between two checkpoints."""


@pytest.fixture
def run(tiny, corpus):
    return Run("t5", 0, replace(tiny, steps=6), corpus.digest)


def kept_after(steps, run, corpus, folder):
    """A training that was kept after each of its first steps and then forgotten."""
    training = Training(run, corpus.train)
    checkpoint = Checkpoints(folder, OFTEN).of(training)
    for _ in range(steps):
        training.advance()
        checkpoint.keep_if_due()
    return training


def resumed(run, corpus, folder):
    training = Training(run, corpus.train)
    return training, Checkpoints(folder, OFTEN).of(training)


def check_same(training, other):
    assert training.losses == other.losses
    for (name, one), two in zip(training.model.state_dict().items(), other.model.state_dict().values(), strict=True):
        assert torch.equal(one, two), name


@pytest.mark.parametrize("steps", [1, 3, 5])
def test_it_goes_on_bit_for_bit(run, corpus, tmp_path, steps):
    whole = Training(run, corpus.train)
    while not whole.finished:
        whole.advance()
    kept_after(steps, run, corpus, tmp_path)
    torch.manual_seed(12345)  # another process has another state
    training, checkpoint = resumed(run, corpus, tmp_path)
    assert len(training.losses) == steps
    assert checkpoint.before > 0
    while not training.finished:
        training.advance()
    check_same(training, whole)


def test_every_damaged_checkpoint_is_set_aside_and_the_one_before_serves(run, corpus, tmp_path):
    kept_after(4, run, corpus, tmp_path)
    last, previous = (tmp_path / name for name in names(run))
    content, before = last.read_bytes(), previous.read_bytes()
    for what, damaged in damages(content, random.Random(0), 15):
        last.write_bytes(damaged)
        training, _ = resumed(run, corpus, tmp_path)
        assert len(training.losses) == 3, what
        assert not last.exists()
        assert previous.read_bytes() == before
    assert {entry["file"] for entry in Records(tmp_path).set_aside()} == {names(run)[0]}


def test_with_both_damaged_it_begins_anew(run, corpus, tmp_path):
    kept_after(4, run, corpus, tmp_path)
    for name in names(run):
        (tmp_path / name).write_bytes(b"")
    training, _ = resumed(run, corpus, tmp_path)
    check_same(training, Training(run, corpus.train))
    assert [entry["why"] for entry in Records(tmp_path).set_aside()] == ["it is empty"] * 2


def why(training, content):
    with pytest.raises(Damaged) as damaged:
        loaded(training, Training(training.run, training.part).state(), content)
    return str(damaged.value)


def test_pickles_are_never_read(run, corpus, tmp_path):
    class Trap:
        def __reduce__(self):
            return (tmp_path.joinpath("sprung").touch, ())

    training = Training(run, corpus.train)
    torch.save({"a": Trap()}, tmp_path / "torch.pt")
    for content in (pickle.dumps(Trap()), (tmp_path / "torch.pt").read_bytes()):
        assert why(training, content) == "it is a pickle, which is never read"
    assert not (tmp_path / "sprung").exists()


def test_another_runs_checkpoint_is_not_taken(run, corpus, tmp_path):
    kept_after(2, run, corpus, tmp_path)
    content = (tmp_path / names(run)[0]).read_bytes()
    other = Training(replace(run, seed=1), corpus.train)
    assert why(other, content) == f"it is of another run, '{run.id}'"


def forged(content, change):
    """A checkpoint that was changed, with a checksum that is right."""
    tensors = load(content)
    length = int.from_bytes(content[:8], "little")
    said = json.loads(json.loads(content[8 : 8 + length])["__metadata__"]["posenc"])
    change(tensors, said)
    text = json.dumps(said)
    return save(tensors, {"posenc": text, "sha256": _digest(text, tensors)})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t, said: t.update(order=t["order"][:-1]), r"order is torch\.uint8 of shape .*the training has it not"),
        (lambda t, said: t.update(order=torch.full_like(t["order"], 255)), "order is no state of a generator"),
        (lambda t, said: t.pop("random"), "it lacks random"),
        (lambda t, said: t.update(more=torch.zeros(3)), "more is torch.float32 of shape .*the training has it not"),
        (lambda t, said: t.pop(next(n for n in t if n.startswith("model."))), "it lacks model"),
        (
            lambda t, said: next(v for n, v in t.items() if n.startswith("model.")).fill_(float("nan")),
            ".*is not finite",
        ),
        (lambda t, said: said["lists"].update(losses=[]), "it has 0 of 6 losses"),
        (lambda t, said: said["lists"].update(losses=[1.0] * 6), "it has 6 of 6 losses"),
        (lambda t, said: said["lists"].update(more=[]), "it has lists that are not known"),
        (lambda t, said: said.update(seconds="1"), "_Said.seconds is '1', not float"),
        (lambda t, said: said.pop("run"), "_Said has the fields"),
        (lambda t, said: said.update(lists={"losses": ["x"]}), r"_Said.lists.losses\[0\] is 'x'"),
    ],
)
def test_what_cannot_be_the_trainings_is_refused(run, corpus, tmp_path, change, message):
    training = kept_after(2, run, corpus, tmp_path)
    content = (tmp_path / names(run)[0]).read_bytes()
    assert loaded(training, Training(run, corpus.train).state(), forged(content, lambda t, said: None))
    with pytest.raises(Damaged, match=f"^{message}"):
        loaded(training, Training(run, corpus.train).state(), forged(content, change))


def test_a_measured_run_is_that_of_one_that_was_never_stopped(run, corpus, tmp_path):
    whole = measure(run, corpus)
    kept_after(4, run, corpus, tmp_path)
    again = measure(run, corpus, checkpoints=Checkpoints(tmp_path, OFTEN))
    assert (again.losses, [arm.paired for arm in again.arms]) == (whole.losses, [arm.paired for arm in whole.arms])
    assert (tmp_path / names(run)[0]).exists()
    Checkpoints(tmp_path, OFTEN).remove(run)
    assert not (tmp_path / "checkpoints").exists()


def test_the_checkpoints_of_other_runs_stay(run, corpus, tmp_path):
    other = replace(run, seed=1)
    kept_after(2, run, corpus, tmp_path)
    kept_after(2, other, corpus, tmp_path)
    Checkpoints(tmp_path, OFTEN).remove(run)
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == sorted(
        name.removeprefix("checkpoints/") for name in names(other)
    )


def test_never_means_never(run, corpus, tmp_path):
    kept_after(2, run, corpus, tmp_path)
    training = Training(run, corpus.train)
    checkpoint = Checkpoints(tmp_path, 0).of(training)
    assert not training.losses
    before = (tmp_path / names(run)[0]).read_bytes()
    training.advance()
    checkpoint.keep_if_due()
    assert (tmp_path / names(run)[0]).read_bytes() == before


@pytest.mark.parametrize("minutes", [-1.0, float("nan"), float("inf")])
def test_times_that_cannot_be(minutes):
    with pytest.raises(InputError, match=r"--checkpoint-every .*: give minutes, or 0"):
        Checkpoints("", minutes)


def test_a_length_that_looks_like_a_pickle_is_none(run, corpus, tmp_path):
    """A safetensors file begins with the length of its header, whose first byte is that of a pickle now and then."""
    kept_after(2, run, corpus, tmp_path)
    content = (tmp_path / names(run)[0]).read_bytes()
    training = Training(run, corpus.train)
    seen = set()
    for digits in range(300):
        changed = forged(content, lambda t, said, more=digits: said.update(seconds=int("1" + "0" * more)))
        seen.add(changed[0])
        assert loaded(training, training.state(), changed)
    assert 0x80 in seen
