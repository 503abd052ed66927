"""Training steps as CUDA graphs, with stand-ins for CUDA's: what is captured, replayed with new numbers, and refused."""

from contextlib import contextmanager, nullcontext
from types import SimpleNamespace

import pytest
import torch

from posenc.lab import repeated
from posenc.lab.synthetic.experiment import SequenceBatch


class Step:
    """A step whose loss is the sum of a batch over the number of targets, and CUDA's part of its capture."""

    def __init__(self, monkeypatch):
        self.eager = self.captured = self.replayed = 0
        self.capturing = self.draws = False
        self.waits = self.forgotten = False
        graph = SimpleNamespace(capture=self.capture, CUDAGraph=lambda: SimpleNamespace(replay=None))
        stream = SimpleNamespace(wait_stream=lambda other: None)
        for name, value in {
            "Stream": lambda device: stream,
            "current_stream": lambda device: stream,
            "stream": lambda stream: nullcontext(),
            "graph_pool_handle": lambda: (0, 1),
            "CUDAGraph": graph.CUDAGraph,
            "graph": graph.capture,
            "synchronize": lambda device: None,
            "get_rng_state": lambda device: torch.zeros(1, dtype=torch.uint8),
        }.items():
            monkeypatch.setattr(torch.cuda, name, value)
        self.steps = repeated.Repeated(self, nullcontext, self.forget, torch.device("cpu"))

    def forget(self):
        self.forgotten = True

    @contextmanager
    def capture(self, graph, pool, stream):
        self.capturing, inputs = True, []
        self.inputs = inputs
        try:
            yield
        finally:
            self.capturing = False

        def replay():
            self.replayed += 1
            ((batch, scored, loss),) = inputs
            loss.copy_(batch.inputs.sum() / scored)

        graph.replay = replay

    def __call__(self, batch, scored):
        if self.draws:
            torch.rand(())
        if not self.capturing:
            self.eager += 1
            return batch.inputs.sum() / scored
        if self.waits:
            raise RuntimeError("operation not permitted when stream is capturing\nmore")
        self.captured += 1
        loss = torch.tensor(float("nan"))
        self.inputs.append((batch, scored, loss))
        return loss

    def losses(self, lengths):
        """Of a step on a batch of each length, and what they are."""
        batches = [SequenceBatch(torch.full((2, n), at + 1.0), torch.zeros(2, n)) for at, n in enumerate(lengths)]
        wanted = [batch.inputs.sum() / (at + 2) for at, batch in enumerate(batches)]
        return [self.steps(batch, scored=at + 2) for at, batch in enumerate(batches)], wanted


@pytest.fixture
def step(monkeypatch):
    return Step(monkeypatch)


def test_a_shape_is_captured_once_and_replayed_with_new_numbers(step):
    found, wanted = step.losses([3, 3, 3, 3, 5, 3, 5, 5, 4])
    assert torch.equal(torch.stack(found), torch.stack(wanted))
    assert (step.eager, step.captured, step.replayed) == (repeated.EAGER, 3, 6)
    assert step.steps.refused == ""


def test_what_draws_or_waits_runs_as_it_is(step):
    for cause, why in (("draws", "draws random numbers"), ("waits", "not permitted when stream is capturing")):
        step.draws, step.waits = cause == "draws", cause == "waits"
        step.steps = repeated.Repeated(step, nullcontext, step.forget, torch.device("cpu"))
        step.eager = step.captured = 0
        found, wanted = step.losses([2, 2, 2, 2, 2])
        assert torch.equal(torch.stack(found), torch.stack(wanted))
        assert (step.eager, step.captured) == (5, 0)
        assert why in step.steps.refused
        assert "\n" not in step.steps.refused
        assert step.forgotten == (cause == "waits")  # a capture that fails leaves gradients behind


def test_shapes_beyond_the_most_run_as_they_are(step, monkeypatch):
    monkeypatch.setattr(repeated, "MOST", 1)
    found, wanted = step.losses([1, 1, 1, 2, 3, 2])
    assert torch.equal(torch.stack(found), torch.stack(wanted))
    assert (step.eager, step.captured, step.replayed) == (4, 1, 2)
