"""A training that goes on from its state is the one that was never stopped, bit for bit."""

from dataclasses import replace

import pytest
import torch

from posenc import InputError
from posenc.lab.experiment import Run
from posenc.lab.train import Training


@pytest.mark.parametrize("name", ["t5", "learned+rope", "shape+sinusoidal", "randomized+deberta", "none"])
def test_going_on_from_a_state_equals_never_stopping(name, corpus, tiny):
    run = Run(name, 3, replace(tiny, steps=6), corpus.digest)
    undisturbed = Training(run, corpus.train)
    for _ in range(3):
        undisturbed.advance()
    state = undisturbed.state()
    while not undisturbed.finished:
        undisturbed.advance()
    torch.manual_seed(99)
    resumed = Training(run, corpus.train)
    resumed.advance()  # whatever it did before
    resumed.restore(state)
    assert len(resumed.losses) == 3
    while not resumed.finished:
        resumed.advance()
    assert resumed.losses == undisturbed.losses
    ours, theirs = resumed.state(), undisturbed.state()
    assert ours.keys() == theirs.keys()
    tensors = [key for key, value in ours.items() if isinstance(value, torch.Tensor)]
    assert all(torch.equal(ours[key], theirs[key]) for key in tensors)


def test_a_state_is_a_copy_and_names_each_tensor_once(corpus, tiny):
    training = Training(Run("t5", 0, tiny, ""), corpus.train)
    training.advance()
    state = training.state()
    tensors = [value for value in state.values() if isinstance(value, torch.Tensor)]
    assert len({tensor.untyped_storage().data_ptr() for tensor in tensors}) == len(tensors)
    before = {key: value.clone() for key, value in state.items() if isinstance(value, torch.Tensor)}
    training.advance()
    assert all(torch.equal(before[key], state[key]) for key in before)
    assert len(state["losses"]) == 1
    parameters = {f"model.{name}" for name, _ in training.model.named_parameters()}
    assert parameters == {key for key in state if key.startswith("model.")}


def test_the_state_of_another_model_is_refused(corpus, tiny):
    state = Training(Run("t5", 0, tiny, ""), corpus.train).state()
    for run in (Run("rope", 0, tiny, ""), Run("t5", 0, replace(tiny, dim=16), "")):
        with pytest.raises(InputError, match=r"state: not of '"):
            Training(run, corpus.train).restore(state)
