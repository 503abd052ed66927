# SPDX-License-Identifier: Apache-2.0
"""Training one model of a comparison: the same data order, the same initial host, the same steps for all."""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from posenc.errors import InputError
from posenc.lab.experiment import Experiment, Run
from posenc.lab.muon import Muon
from posenc.lab.parallel import Alone, processes
from posenc.transformer import Attention, TransformerBase

State = dict[str, Tensor | list[float]]
"""Tensors and lists by name, no two of which share memory."""

WARM_UP = 0.05
"""Share of the steps over which the learning rate rises; it then falls along a cosine to this share of its peak."""


class Training:
    """One run on its way: the model, its optimizers, the order of the data, the loss (nats a target) of every step so far.

    part: of a corpus, what to learn from; (n,) ids are one running text. random: the state of the generator that encodings
    draw from; the caller's own generators stay as they are.
    """

    def __init__(self, run: Run, part: Any) -> None:
        self.run = run
        self.part = part
        self.processes: Alone = processes()
        self.processes.check(run)
        self.model, self.random = _built(run)
        self.forward: nn.Module = self.processes.wrap(self.model)
        self.optimizers: list[torch.optim.Optimizer] = _optimizers(self.model, run)
        self.peaks: list[list[Any]] = [[group["lr"] for group in o.param_groups] for o in self.optimizers]
        self.order: torch.Generator = torch.Generator().manual_seed(run.seed)
        self.losses: list[float] = []

    @property
    def finished(self) -> bool:
        return len(self.losses) == self.run.settings.steps

    def advance(self) -> None:
        """One step, on every process that takes part.

        Raises:
            InputError: the loss is no longer finite.
        """
        s, step = self.run.settings, len(self.losses)
        for optimizer, rates in zip(self.optimizers, self.peaks, strict=True):
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate * schedule(step, s.steps)
        whole = s.draw(self.part, self.order)
        inputs, targets, positions = self.processes.share(whole)
        with self.drawing(), self.processes.placing(self.model.encoding, s.batch_size, whole.positions):
            logits = self.forward(inputs, positions)
        loss = F.cross_entropy(logits.flatten(0, -2), targets.flatten(), reduction="sum") / max(1, whole.scored)
        loss = loss * self.processes.world_size  # DDP and FSDP take the mean over the processes
        self.losses.append(self.processes.mean(loss).item())
        if not math.isfinite(self.losses[-1]):
            raise diverged(self.run, f"at step {step + 1} of {s.steps}")
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    @contextmanager
    def drawing(self) -> Iterator[None]:
        """Inside, what is drawn at random goes on from what this training has drawn."""
        device = self.processes.device
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            torch.set_rng_state(self.random)
            if device.type == "cuda":
                torch.cuda.manual_seed(int(torch.randint(2**62, ())))
            yield
            self.random = torch.get_rng_state()

    def state(self) -> State:
        """Everything that the steps to come depend on, as it is now: `restore` goes on from it, bit for bit. Where several
        processes train, each calls it, and each is given the whole."""
        found: State = {"losses": list(self.losses), "order": self.order.get_state(), "random": self.random.clone()}
        for name, tensor in self._tensors().items():
            found[f"model.{name}"] = self.processes.whole(tensor)
        for name, parameter in self.model.named_parameters():
            for key, tensor in self._optimizer_of(parameter).state[parameter].items():
                found[f"optimizer.{name}.{key}"] = self.processes.whole(tensor)
        return found

    def restore(self, state: Mapping[str, Tensor | list[float]]) -> None:
        """Go on from what `state` gave back, in a training of the same run. Where several processes train, each is given
        the same.

        Raises:
            InputError: the state of another model.
        """
        tensors = {name: value for name, value in state.items() if isinstance(value, Tensor)}
        own = self._tensors()
        needed = {f"model.{name}": tensor.shape for name, tensor in own.items()}
        if needed != {name: tensor.shape for name, tensor in tensors.items() if name.startswith("model.")}:
            raise InputError(f"state: not of {self.run.encoding!r} under these settings; give the one of this very run")
        with torch.no_grad():
            for name, tensor in own.items():
                tensor.copy_(self.processes.like(tensors[f"model.{name}"], tensor))
        for name, parameter in self.model.named_parameters():
            prefix = f"optimizer.{name}."
            self._optimizer_of(parameter).state[parameter] = {
                key.removeprefix(prefix): self.processes.like(value, parameter)
                for key, value in tensors.items()
                if key.startswith(prefix)
            }
        self.losses[:] = state["losses"]
        self.order.set_state(tensors["order"])
        self.random = tensors["random"].clone()

    def _tensors(self) -> dict[str, Tensor]:
        """The model's parameters and what else it saves, each once: tied weights go by their first name."""
        firsts = {
            id(tensor): (name, tensor) for name, tensor in reversed(self.model.state_dict(keep_vars=True).items())
        }
        return dict(reversed(firsts.values()))

    def _optimizer_of(self, parameter: Tensor) -> torch.optim.Optimizer:
        return next(o for o in self.optimizers for g in o.param_groups if any(p is parameter for p in g["params"]))


def train(run: Run, part: Any, on_step: Callable[[int], None] = lambda step: None) -> tuple[Any, list[float]]:
    """Train the run's model on a part of a corpus, as `Training`: the model in eval mode, and the loss of every step.

    Raises:
        InputError: the loss is no longer finite.
    """
    training = Training(run, part)
    while not training.finished:
        training.advance()
        on_step(len(training.losses))
    return training.model.eval(), training.losses


def diverged(run: Run, when: str) -> InputError:
    """The error for a loss that is not a number any more."""
    s = run.settings
    return InputError(
        f"--learning-rate {s.learning_rate} (--adamw-learning-rate {s.adamw_learning_rate}, --position-learning-rate "
        f"{s.position_learning_rate}): the loss of {run.encoding!r} (seed {run.seed}) is no longer finite {when}; "
        "give smaller ones"
    )


def activation_bytes(model: TransformerBase, part: Any, settings: Experiment) -> int:
    """Memory that one training batch keeps between its forward and its backward pass, parameters apart: of this process
    and its share of the batch, where several train together."""
    group = processes()
    kept: dict[int, int] = {}

    def pack(saved: Tensor) -> Tensor:
        storage = saved.untyped_storage()
        # asked anew each time: FSDP puts a block's parameters in place of their shards when it comes to it
        own = {p.untyped_storage().data_ptr() for p in model.parameters() if type(p) is nn.Parameter}
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return saved

    whole = settings.draw(part, torch.Generator().manual_seed(0))
    inputs, targets, positions = group.share(whole)
    hooks = torch.autograd.graph.saved_tensors_hooks(pack, lambda saved: saved)
    devices = [group.device] if group.device.type == "cuda" else []
    forked, placing = (
        torch.random.fork_rng(devices=devices),
        group.placing(model.encoding, settings.batch_size, whole.positions),
    )
    with torch.enable_grad(), forked, placing, hooks:
        loss = F.cross_entropy(model(inputs, positions).flatten(0, -2), targets.flatten())
    del loss
    return sum(kept.values())


def build(run: Run) -> TransformerBase:
    """The untrained model: for one seed, the host starts from the same weights under every encoding."""
    return _built(run)[0]


def _built(run: Run) -> tuple[TransformerBase, Tensor]:
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


def _optimizers(model: TransformerBase, run: Run) -> list[torch.optim.Optimizer]:
    """Muon for the matrices that act on features, AdamW for the rest, the encoding's own tables at a rate of theirs.
    With AdamW alone a minute of training is too short to tell encodings apart."""
    s = run.settings
    outer = (model.embedding, model.head)
    matrices = [m.weight for m in model.modules() if isinstance(m, nn.Linear) and m not in outer]
    taken = {id(p) for p in matrices}
    # Muon's steps do not shrink with a weight: queries that start smaller, to make up for an encoding's larger
    # scale, need steps as much smaller, or that encoding would see a higher rate than the others
    queries = [m.query.weight for m in model.modules() if isinstance(m, Attention)]
    others = [p for p in matrices if all(p is not q for q in queries)]
    muon: list[dict[str, Any]] = [{"params": others}]
    for layer, query in enumerate(queries):
        muon.append({"params": [query], "lr": s.learning_rate * model.query_damping(model.encoding, layer)})
    tables = [p for p in model.encoding.parameters() if id(p) not in taken]
    taken |= {id(p) for p in tables}
    rest = [p for p in model.parameters() if id(p) not in taken]
    groups = [{"params": rest, "lr": s.adamw_learning_rate}]
    if tables:
        groups.append({"params": tables, "lr": s.position_learning_rate})
    return [
        Muon(muon, lr=s.learning_rate, momentum=0.95, weight_decay=0.1),
        torch.optim.AdamW(groups, betas=(0.9, 0.95), weight_decay=0.0),
    ]
