# SPDX-License-Identifier: Apache-2.0
"""Training one model of a comparison: the same data order, the same initial host, the same steps for all."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from posenc.encoding import gates_of
from posenc.encodings.shared import Affine, HeadProjection
from posenc.errors import InputError
from posenc.lab import budgets
from posenc.lab.experiment import Execution, Experiment, Run, current_execution
from posenc.lab.muon import Muon
from posenc.lab.transformer import Attention, TransformerBase

RATES = "learning_rate", "adamw_learning_rate", "position_learning_rate"
WARM_UP = 0.05
"""Share of the steps over which the learning rate rises; it then falls along a cosine to this share of its peak."""


class Training:
    """An unfinished run: the model, its optimizers, the order of the data, the loss (nats per target) of every step so far.

    part: of a corpus, what to learn from; (n,) ids are one running text. random: the state of the generator that encodings
    draw from; the caller's generators are left alone. A `copy.deepcopy` goes on on its own, from the same state.
    """

    def __init__(self, run: Run, part: Any) -> None:
        self.run = run
        self.part = part
        self.passes: Execution = current_execution()
        self.model, self.random = _build(run)
        projections = projections_of(self.model)
        self.forward: nn.Module = self.passes.wrap(self.model)
        self.optimizers: list[torch.optim.Optimizer] = _optimizers(self.model, run, projections)
        self.order: torch.Generator = torch.Generator().manual_seed(run.seed)
        self.losses: list[float] = []

    @property
    def steps(self) -> int:
        """How many are done."""
        return len(self.losses)

    @property
    def finished(self) -> bool:
        return self.steps == self.run.settings.steps

    def advance(self, rate: float | None = None) -> None:
        """One step. rate: of learning, as a share of its peak; None: that of `schedule`, or of `posenc.lab.budgets.rate`.

        Raises:
            InputError: the loss is no longer finite.
        """
        s, step = self.run.settings, self.steps
        usual = budgets.rate if s.budgets else schedule
        for group in (group for optimizer in self.optimizers for group in optimizer.param_groups):
            group["lr"] = group["initial_lr"] * (usual(step, s.steps) if rate is None else rate)
        batch = s.draw(self.part, self.order)
        with self.drawing():
            logits, targets = self.passes.forward(self.forward, batch)
            loss = F.cross_entropy(logits.flatten(0, -2), targets.flatten(), reduction="sum") / max(1, batch.scored)
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            for optimizer in self.optimizers:
                optimizer.step()
                optimizer.zero_grad()
        self.losses.append(loss.item())
        if not math.isfinite(self.losses[-1]):
            raise diverged(self.run, f"at step {self.steps} of {s.steps}")

    @contextmanager
    def drawing(self) -> Iterator[None]:
        """Inside, torch's random generators continue from what this training has drawn so far."""
        device = self.passes.place
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            torch.set_rng_state(self.random)
            if device.type == "cuda":
                torch.cuda.manual_seed(int(torch.randint(2**62, ())))
            yield
            self.random = torch.get_rng_state()


def train(run: Run, part: Any, on_step: Callable[[int], None] = lambda step: None) -> tuple[Any, list[float]]:
    """Train the run's model on a part of a corpus, as `Training`: the model in eval mode, and the loss of every step.

    Raises:
        InputError: the loss is no longer finite.
    """
    training = Training(run, part)
    while not training.finished:
        training.advance()
        on_step(training.steps)
    return training.model.eval(), training.losses


def diverged(run: Run, when: str) -> InputError:
    """The error for a loss that is no longer a number."""
    what, rates = (
        f"the loss of {run.encoding!r} (seed {run.seed})",
        {name: getattr(run.settings, name) for name in RATES},
    )
    return InputError(f"{what} is no longer finite {when}", "give smaller ones, or smaller rates of a sweep", **rates)


def activation_bytes(model: TransformerBase, part: Any, settings: Experiment) -> int:
    """Memory that one training batch occupies between its forward and its backward pass, parameters apart."""
    here = current_execution()
    storages: dict[int, int] = {}

    def pack(saved: Tensor) -> Tensor:
        storage = saved.untyped_storage()
        parameters = {p.untyped_storage().data_ptr() for p in model.parameters() if type(p) is nn.Parameter}
        if storage.data_ptr() not in parameters:
            storages[storage.data_ptr()] = storage.nbytes()
        return saved.detach()  # a node that holds its output itself is never freed

    batch = settings.draw(part, torch.Generator().manual_seed(0))
    hooks = torch.autograd.graph.saved_tensors_hooks(pack, lambda saved: saved)
    devices = [here.place] if here.place.type == "cuda" else []
    with torch.enable_grad(), torch.random.fork_rng(devices=devices), hooks:
        logits, targets = here.forward(model, batch)
        loss = F.cross_entropy(logits.flatten(0, -2), targets.flatten())
    del loss
    return sum(storages.values())


def build(run: Run) -> TransformerBase:
    """The untrained model: for one seed, the host starts from the same weights under every encoding."""
    return _build(run)[0]


def _build(run: Run) -> tuple[TransformerBase, Tensor]:
    """The untrained model, and the state that the random generator is in after it."""
    generator: torch.Generator = torch.random.default_generator  # type: ignore[attr-defined]
    with torch.random.fork_rng(devices=[]):
        generator.manual_seed(run.seed)
        encoding = run.make_encoding()
        generator.manual_seed(run.seed)
        return run.settings.make_model(encoding), generator.get_state()


def schedule(step: int, steps: int) -> float:
    """The learning rate of a step, counted from 0, over its peak."""
    rise = min(1.0, (step + 1) / max(1.0, WARM_UP * steps))
    return rise * (WARM_UP + (1 - WARM_UP) * 0.5 * (1 + math.cos(math.pi * step / steps)))


def projections_of(model: TransformerBase) -> set[str]:
    """The names of the encoding's parameters that act on features: on a layer's input, for gates, or on vectors of positions."""
    encoding, x = model.encoding, torch.ones(1, 2, model.config.dim)
    encoding.share([(m.query, m.key) for m in model.modules() if isinstance(m, Attention)])
    parameters = dict(encoding.named_parameters())
    read = [gate for layer in range(model.config.num_layers) for gate in gates_of(encoding, x, layer)]
    read += [p for m in encoding.modules() if isinstance(m, HeadProjection) for p in m.parameters()]
    total = sum((each.sum() for each in read if each.requires_grad), torch.zeros((), requires_grad=True))
    gradients = torch.autograd.grad(total, list(parameters.values()), allow_unused=True) if parameters else ()
    return {name for name, gradient in zip(parameters, gradients, strict=True) if gradient is not None}


def _optimizers(model: TransformerBase, run: Run, projections: set[str]) -> list[torch.optim.Optimizer]:
    """Muon for the matrices that act on features, AdamW for the rest, with a separate rate for the encoding's tables, which
    see less signal; its projections see as much as the model's, and at that rate TUPE's saturate. With AdamW alone, encodings
    hardly differ after a minute of training."""
    s = run.settings
    outer = (model.embedding, model.head)
    matrices = [m.weight for m in model.modules() if isinstance(m, nn.Linear | Affine) and m not in outer]
    # Muon's steps do not shrink with a weight: queries that start smaller, to make up for an encoding's larger
    # scale, need steps as much smaller, or that encoding would see a higher rate than the others
    queries = [m.query.weight for m in model.modules() if isinstance(m, Attention)]
    others = [p for p in matrices if all(p is not q for q in queries)]
    muon: list[dict[str, Any]] = [{"params": others}]
    for layer, query in enumerate(queries):
        muon.append({"params": [query], "lr": s.learning_rate * model.query_damping(model.encoding, layer)})
    grouped = {id(p) for p in matrices}
    tables = [p for name, p in model.encoding.named_parameters() if id(p) not in grouped and name not in projections]
    grouped |= {id(p) for p in tables}
    rest = [p for p in model.parameters() if id(p) not in grouped]
    groups = [{"params": rest, "lr": s.adamw_learning_rate}, {"params": tables, "lr": s.position_learning_rate}]
    fused = current_execution().place.type == "cuda" or None
    optimizers = [
        Muon(muon, lr=s.learning_rate, momentum=0.95, weight_decay=0.1),
        torch.optim.AdamW(groups, betas=(0.9, 0.95), weight_decay=0.0, fused=fused),
    ]
    for group in (group for optimizer in optimizers for group in optimizer.param_groups):
        group["initial_lr"] = group["lr"]  # the peak, see `schedule`
    return optimizers
