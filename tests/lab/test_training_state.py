"""A copy of a training goes on as the training itself would have, bit for bit."""

from copy import deepcopy
from dataclasses import replace

import pytest
import torch

from posenc.lab.experiment import Run
from posenc.lab.train import Training


@pytest.mark.parametrize("name", ["t5", "learned+rope", "shape+sinusoidal", "randomized+deberta", "none"])
def test_a_copy_goes_on_as_the_training_itself(name, corpus, tiny):
    run = Run(name, 3, replace(tiny, steps=6), corpus.digest)
    training = Training(run, corpus.train)
    for _ in range(3):
        training.advance()
    branch = deepcopy(training)
    while not training.finished:
        training.advance()
    torch.manual_seed(99)
    assert len(branch.losses) == 3
    while not branch.finished:
        branch.advance()
    assert branch.losses == training.losses
    pairs = zip(branch.model.state_dict().values(), training.model.state_dict().values(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)


def test_a_rate_in_place_of_the_schedules(corpus, tiny):
    usual, slow, still = (Training(Run("rope", 0, tiny, ""), corpus.train) for _ in range(3))
    for training, rate in ((usual, None), (slow, 0.1), (still, 0.0)):
        training.advance(rate)
        training.advance(rate)
    assert usual.losses[0] == slow.losses[0] == still.losses[0]
    assert len({usual.losses[1], slow.losses[1], still.losses[1]}) == 3
    assert all(not torch.count_nonzero(p.grad) for p in still.model.parameters() if p.grad is not None)
    start = Training(Run("rope", 0, tiny, ""), corpus.train).model
    assert all(torch.equal(a, b) for a, b in zip(still.model.parameters(), start.parameters(), strict=True))
