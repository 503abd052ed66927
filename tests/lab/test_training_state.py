"""A training that goes on from its state is the one that was never stopped, bit for bit."""

from dataclasses import replace

import pytest
import torch

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
    pairs = zip(resumed.model.state_dict().values(), undisturbed.model.state_dict().values(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)


def test_a_state_is_a_copy(corpus, tiny):
    training = Training(Run("t5", 0, tiny, ""), corpus.train)
    training.advance()
    state = training.state()
    before = {name: tensor.clone() for name, tensor in state["model"].items()}
    training.advance()
    assert all(torch.equal(before[name], state["model"][name]) for name in before)
    assert len(state["losses"]) == 1


def test_the_state_of_another_model_is_refused(corpus, tiny):
    state = Training(Run("t5", 0, tiny, ""), corpus.train).state()
    for run in (Run("rope", 0, tiny, ""), Run("t5", 0, replace(tiny, dim=16), "")):
        with pytest.raises(RuntimeError, match="state_dict"):
            Training(run, corpus.train).restore(state)
