"""Training steps as CUDA graphs, with stand-ins for CUDA's: what is captured, replayed with new numbers, and refused."""

import gc
import warnings
import weakref
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace

import pytest
import torch

from posenc.lab import repeated
from posenc.lab.experiment import Run
from posenc.lab.synthetic.experiment import SequenceBatch
from posenc.lab.train import Training

WAITS = "called a synchronizing CUDA operation"


class Step:
    """A step whose loss is the sum of a batch over the number of targets, and CUDA's part of its capture."""

    def __init__(self, monkeypatch):
        self.eager = self.captured = self.replayed = 0
        self.capturing = self.draws = False
        self.waits = self.fails = self.breaks = self.forgotten = False
        self.mode, self.streams = 0, []
        generator = SimpleNamespace(clone_state=lambda: "a copy", graphsafe_set_state=self.streams.append)
        graph = SimpleNamespace(capture=self.capture, CUDAGraph=lambda: SimpleNamespace(replay=None))
        self.stream = stream = SimpleNamespace(wait_stream=lambda other: None)
        for name, value in {
            "Stream": lambda device: stream,
            "current_stream": lambda device: stream,
            "stream": lambda stream: nullcontext(),
            "graph_pool_handle": lambda: (0, 1),
            "CUDAGraph": graph.CUDAGraph,
            "graph": graph.capture,
            "synchronize": lambda device: None,
            "set_stream": self.streams.append,
            "current_device": lambda: 0,
            "default_generators": (generator,),
            "get_sync_debug_mode": lambda: self.mode,
            "set_sync_debug_mode": lambda mode: setattr(self, "mode", mode),
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
            if self.breaks:
                raise RuntimeError("operation failed due to a previous error during capture")

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
            if self.waits > 0 and self.mode == "warn":
                self.waits -= 1
                warnings.warn(WAITS, stacklevel=2)
            return batch.inputs.sum() / scored
        if self.fails:
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


def test_a_shape_is_captured_at_its_second_step_and_replayed_with_new_numbers(step):
    found, wanted = step.losses([3, 3, 3, 3, 5, 3, 5, 5, 4])
    assert torch.equal(torch.stack(found), torch.stack(wanted))
    assert (step.eager, step.captured, step.replayed) == (repeated.EAGER + 2, 2, 4)
    assert step.steps.refused == ""


def test_a_dtype_is_another_shape(step):
    batches = [
        SequenceBatch(torch.ones(2, 3, dtype=dtype), torch.zeros(2, 3)) for dtype in (torch.float32, torch.float64)
    ]
    for batch in (*batches * 2, *batches):
        step.steps(batch, 1)
    assert {batch.inputs.dtype for batch in (each.batch for each in step.steps._captured.values())} == {
        torch.float32, torch.float64,
    }  # fmt: skip


@pytest.mark.parametrize("cause", ["draws", "waits", "fails", "breaks"])
def test_what_draws_or_waits_runs_as_it_is(step, cause):
    setattr(step, cause, 9)
    step.fails = step.fails or step.breaks
    found, wanted = step.losses([2] * 6)
    assert torch.equal(torch.stack(found), torch.stack(wanted))
    assert (step.eager, step.captured) == (6, 0)
    capture = "not permitted when stream is capturing"
    assert {"draws": "draws random numbers", "waits": WAITS}.get(cause, capture) in step.steps.refused
    assert "\n" not in step.steps.refused
    failed = cause in ("fails", "breaks")
    assert (
        step.forgotten == failed
    )  # a capture that fails leaves gradients behind, its stream, and a generator that cannot draw
    assert step.streams == [step.stream, "a copy"] * failed
    assert step.mode == 0


def test_a_shape_that_draws_later_than_the_first_is_not_captured(step):
    step.losses([2] * 5)
    step.draws = True
    found, wanted = step.losses([3, 3, 3])
    assert torch.equal(torch.stack(found), torch.stack(wanted))
    assert (step.eager, step.captured) == (repeated.EAGER + 3, 1)


def test_a_step_that_waits_once_is_captured_later(step):
    step.losses([2] * 5)
    step.waits = 1
    step.losses([3, 3, 3])
    assert (step.eager, step.captured, step.steps.refused) == (repeated.EAGER + 2, 2, "")


def test_other_warnings_of_a_step_are_passed_on(step, monkeypatch):
    inner = step.steps.step
    monkeypatch.setattr(step.steps, "step", lambda *given: warnings.warn("of the step", stacklevel=1) or inner(*given))
    with pytest.warns(UserWarning, match="of the step"):
        step.losses([2])


def test_a_training_that_captures_is_freed_with_its_last_reference(corpus, tiny, monkeypatch):
    """Its memory on a GPU would stay until Python looks for cycles."""
    make = torch.tensor
    monkeypatch.setattr(torch, "tensor", lambda *given, device=None, **options: make(*given, **options))
    monkeypatch.setattr("posenc.lab.train.Repeated", lambda *given: given)
    training = Training(Run("t5", 0, tiny, ""), corpus.train)
    training.passes = SimpleNamespace(place=torch.device("cuda"), compiled=False)
    training._repeat()
    step, drawing, forget, _ = training.repeated
    training.passes = SimpleNamespace(
        place=torch.device("cpu"), forward=lambda module, batch: (module(batch.inputs).float(), batch.targets)
    )
    batch = tiny.draw(corpus.train, training.order)
    with drawing():
        assert step(batch, batch.scored).isfinite()
    forget()
    alive = weakref.ref(training)
    gc.disable()
    try:
        del training
        assert alive() is None
    finally:
        gc.enable()


def test_shapes_beyond_the_most_run_as_they_are(step, monkeypatch):
    monkeypatch.setattr(repeated, "MOST", 1)
    found, wanted = step.losses([1, 2, 3, 2, 3, 2, 1])
    assert torch.equal(torch.stack(found), torch.stack(wanted))
    assert (step.eager, step.captured, step.replayed) == (5, 1, 2)
