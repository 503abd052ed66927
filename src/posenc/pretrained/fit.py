# SPDX-License-Identifier: Apache-2.0
"""Learn how much slower each pair of channels turns, on a text, with all weights of the model frozen: `extend(model, "fit")`."""

import math
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, fields
from inspect import signature
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from posenc.encodings.augment import skipped_positions
from posenc.encodings.learned_rotary import LearnedRotary
from posenc.errors import InputError, check_integers, check_numbers, check_positive, check_sizes, check_word
from posenc.functional import cos_sin
from posenc.pretrained.attach import Attachment, RotaryModule
from posenc.pretrained.changes import Change, ChangeReport
from posenc.pretrained.finetune import StateFile, identity, token_rows
from posenc.pretrained.inference import check_tokens, modes_restored
from posenc.pretrained.stopping import stoppable
from posenc.tasks import create

STEPS = {"gradient": 60, "evolution": 12}
"""How to search -> steps of Adam, or generations, unless `steps` is given."""
SCORED = 256
"""Tokens of a window that are predicted: spread over it, since a large vocabulary makes each of them dear."""
HELD_OUT_WINDOWS = 4
EVERY = {"gradient": 5, "evolution": 1}
"""Steps between two readings of the held-out text."""
PARENTS, MUTANTS, CROSSINGS = 8, 8, 8
"""Of each generation."""
MUTATED, SPREAD = 0.3, 0.2
"""Share of the pairs that a mutation moves, and the standard deviation of the logarithm by which it does."""
DIGITS = 7
"""Of a stretch: a text can state it, and a turn moves by a millionth."""
NOT_SETTINGS = {"text", "tokenizer", "checkpoint", "progress"}


@dataclass(frozen=True)
class Fitting(ChangeReport):
    """What a fit found. start: the method it began with. losses: (step, nats a token on the held-out text), the start's first.
    start_stretch, stretch: of each pair before and after. attention_factor: of cos and sin after. settings: as given."""

    start: str
    losses: tuple[tuple[int, float], ...]
    start_stretch: tuple[float, ...]
    stretch: tuple[float, ...]
    attention_factor: float
    settings: dict[str, Any]
    seconds: float = field(compare=False)

    @property
    def best(self) -> tuple[int, float]:
        """The step whose stretches were taken, and their loss; step 0 is the start."""
        return min(self.losses, key=lambda each: each[1])

    @property
    def improved(self) -> bool:
        """Whether anything is better than the start on the held-out text."""
        return self.best[0] > 0

    def __str__(self) -> str:
        unit = "steps" if self.settings["search"] == "gradient" else "generations"
        done = (
            f"fitted from {self.start} by {self.settings['search']}, {self.losses[-1][0]} {unit}, {self.seconds:.0f} s"
        )
        before = f"{self.losses[0][1]:.4f} nats a token on held-out text"
        if not self.improved:
            return f"{done}: nothing is better than the start, {before}, which is taken"
        return f"{done}: {before} before, {self.best[1]:.4f} after {self.best[0]} {unit}, which are taken"


class FitWindow(NamedTuple):
    """A text (1, tokens) with its positions, the tokens after which the next is predicted, and its weight in the loss."""

    ids: Tensor
    positions: Tensor
    scored: Tensor
    weight: float


@dataclass(frozen=True)
class Fit:
    """Start from a schedule and learn on a text, with all weights frozen, how much slower each pair of channels turns.

    Raises:
        InputError: numbers out of range.
    """

    text: Any
    """A string, which needs the tokenizer, or token ids (tokens,) or (texts, tokens)"""
    tokenizer: Any = None
    start: str = "yarn"
    """The schedule from which the stretches start"""
    search: str = "gradient"
    """"gradient" (Adam on their logarithms) or "evolution" (mutations and crossings of stretches that grow from pair to
    pair, without gradients: LongRoPE, Ding et al. 2024, arXiv 2402.13753, section 3.2)."""
    temperature: bool = False
    """Learn the factor of cos and sin too"""
    task: str | None = None
    """"repeated" (the text repeated four times) or another task of `posenc.tasks`, which needs the tokenizer"""
    task_share: float = 0.5
    """Of the loss, that of the task's answers; the text has the rest. With 1 and a needle it is LongRoPE2's
    needle-driven perplexity (Shang et al. 2025, arXiv 2502.20082)."""
    steps: int | None = None
    """At most, of Adam (60) or generations (12)"""
    learning_rate: float = 0.05
    """Of Adam, which falls linearly to a tenth"""
    pull: float = 0.001
    """Times the sum of squared logarithms of the stretches over the start's is added to the loss"""
    length: int | None = None
    """Tokens of a window, None: of the new length; shorter windows skip positions up to there (PoSE)"""
    batch_size: int = 2
    """Windows a step, read one after the other"""
    held_out: float = 0.1
    """Share of the text, at its end, on which stretches are compared"""
    patience: int = 4
    """Readings of it without a gain after which the search stops"""
    seed: int = 0
    checkpoint: str | Path | None = None
    """A folder from which an interrupted search goes on, where the same call has run before; the first Ctrl-C or
    SIGTERM then completes the step and writes it"""
    progress: Callable[[int, int, float], object] | None = None
    """Called with the step, the number of steps and the loss on the held-out text"""

    def __post_init__(self) -> None:
        check_word("search", self.search, STEPS)
        check_sizes(steps=self.steps, batch_size=self.batch_size, patience=self.patience)
        check_integers(2, length=self.length)
        check_integers(0, seed=self.seed)
        check_positive(learning_rate=self.learning_rate)
        check_numbers(0, pull=self.pull)
        check_numbers(0, 1, task_share=self.task_share)
        check_numbers(held_out=self.held_out)
        if not 0 < self.held_out < 1:
            raise InputError("must lie between 0 and 1, a share of the text", held_out=self.held_out)
        if self.task not in (None, "repeated"):
            create(self.task)
            if self.tokenizer is None:
                raise InputError("is made of text", "pass the tokenizer, too", task=self.task)

    def run(self, start: Attachment) -> Fitting:
        """Search from an extension that is planned and not attached. The model is as it was, however this ends.

        Raises:
            InputError: a text that is too short, or a loss that is not finite.
        """
        structure, target = start.structure, start.report.new_length
        windows = Windows(self, structure.model, target)
        module = FittedRotary(start).to(next(structure.model.parameters()).device)
        began, exchange = time.perf_counter(), [Change(owner, "rotary_emb", module) for owner in structure.rotaries]
        with modes_restored(structure.model), torch.enable_grad():
            structure.model.eval().requires_grad_(False)
            try:
                for each in exchange:
                    each.swap()
                losses = self._search(module, windows)
            finally:
                for each in exchange:
                    each.swap()
        stretch, factor = module.result()
        return Fitting(
            start.report.method,
            tuple(losses),
            start.report.stretch,
            stretch,
            factor,
            self.settings,
            time.perf_counter() - began,
        )

    @property
    def settings(self) -> dict[str, Any]:
        """What decides the result, beside the text."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name not in NOT_SETTINGS}

    def _search(self, module: "FittedRotary", windows: "Windows") -> list[tuple[int, float]]:
        generator = torch.Generator().manual_seed(self.seed)
        store = None
        if self.checkpoint is not None:
            of = identity(windows.model, windows.rows, self.settings | {"target": windows.target})
            store = StateFile(Path(self.checkpoint) / "fit.safetensors", of)
        search = (Gradient if self.search == "gradient" else Evolution)(self, module, windows, generator)
        every, steps = EVERY[self.search], self.steps or STEPS[self.search]
        best = module.values()
        losses: list[tuple[int, float]] = []
        done, state = 0, None if store is None else store.load()
        if store is not None and state is not None:
            store.behaviour = {"loss before the fit": windows.mean(windows.held_out)}
            store.check_behaviour(state)
            done, losses, best = state["done"], state["losses"], state["best"].to(best)
            generator.set_state(state["generator"])
            search.load(state["search"])

        def save() -> None:
            if store is not None:
                found = {"done": done, "losses": losses, "best": best, "search": search.state()}
                store.save(found | {"generator": generator.get_state()})

        with ExitStack() as handlers:
            stopped = [] if store is None else handlers.enter_context(stoppable())
            while True:
                if done % every == 0 or done == steps:
                    if len(losses) == 0 or losses[-1][0] < done:
                        loss = windows.mean(windows.held_out)
                        if not losses and not math.isfinite(loss):
                            raise InputError(
                                f"its loss is {loss} before the fit",
                                "posenc.doctor(model) may find the cause",
                                argument="model",
                            )
                        if not losses and store is not None:
                            store.behaviour = {"loss before the fit": loss}
                        if loss < min((each for _, each in losses), default=math.inf):
                            best = module.values()
                        losses.append((done, loss))
                        if self.progress is not None:
                            self.progress(done, steps, loss)
                        save()
                    stale = len(losses) - 1 - min(range(len(losses)), key=lambda i: losses[i][1])
                    if done == steps or stale >= self.patience:
                        break
                if stopped:
                    save()
                    raise KeyboardInterrupt
                search.step(done / steps)
                done += 1
        module.assign(best)
        return losses


class FittedRotary(RotaryModule):
    """The rotary module of an extension whose frequencies and temperature are parameters."""

    def __init__(self, start: Attachment) -> None:
        structure, rotations = start.structure, start.design.rotations
        super().__init__(rotations, frozenset(), structure.family, structure.rotary)
        self.kinds = {kind for kind, rope in structure.ropes.items() if rope is structure.rope}
        of = rotations[next(iter(self.kinds & set(rotations)))]
        self.learned = LearnedRotary(of.rotated, rope_theta=of.rope_theta, schedule=of.schedule).double()
        self.log_temperature = nn.Parameter(torch.zeros((), dtype=torch.float64))

    def tables(self, kind: str, position_ids: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        if kind not in self.kinds:
            return super().tables(kind, position_ids, dtype)
        amplitude = self.learned.attention_factor * self.log_temperature.exp()
        return cos_sin(position_ids, self.learned.vectors(0)[0, :, 0], dtype, None, amplitude)

    def values(self) -> Tensor:
        """The logarithms of how much faster than at the start each pair turns, and last that of the temperature."""
        return torch.cat((self.learned.log_scale[0], self.log_temperature[None])).detach().clone()

    @torch.no_grad()
    def assign(self, values: Tensor) -> None:
        """Set what `values` returns."""
        self.learned.log_scale.copy_(values[None, :-1])
        self.log_temperature.copy_(values[-1])

    def result(self) -> tuple[tuple[float, ...], float]:
        """How much slower than in plain RoPE each pair turns, and the factor of cos and sin."""
        plain = self.learned.plain()
        factor = self.learned.attention_factor * self.log_temperature.exp().item()
        return tuple(float(f"{each:.{DIGITS}g}") for each in plain.schedule["stretch"]), float(f"{factor:.{DIGITS}g}")


class Windows:
    """What is read: windows of the text to fit on, and those held out, which no search reads."""

    def __init__(self, fit: Fit, model: Any, target: int) -> None:
        self.fit, self.model, self.target = fit, model, target
        self.length: int = min(fit.length or target, target)
        self.rows = token_rows(fit.text, fit.tokenizer, 1)
        check_tokens(model, self.rows)
        self.train, rest = self._split()
        self.keeps = "logits_to_keep" in signature(model.forward).parameters
        generator = torch.Generator().manual_seed(fit.seed + 1)
        count = len(rest) * (rest.shape[1] // self.length)
        self.held_out = self.drawn(rest, min(count, HELD_OUT_WINDOWS), generator, -1)

    def _split(self) -> tuple[Tensor, Tensor]:
        """The text to fit on, and the one that is held out: its end, or its last sequences."""
        (texts, tokens), share = self.rows.shape, self.fit.held_out
        if texts > 1:
            count = min(max(round(share * texts), 1), texts - 1)
            needed, parts = self.length, (self.rows[:-count], self.rows[-count:])
        else:
            count = max(round(share * tokens), self.length)
            needed = max(2 * self.length, math.ceil(self.length / (1 - share) - 1e-6))
            parts = self.rows[:, : max(tokens - count, 0)], self.rows[:, max(tokens - count, 0) :]
        if tokens < needed or parts[0].shape[1] < self.length:
            raise InputError(
                f"text has {tokens} tokens{' each' if texts > 1 else ''}: to fit and to compare in windows of {self.length} "
                f"with held_out={share} needs {needed}; pass a longer text, or a smaller length"
            )
        return parts

    def drawn(self, rows: Tensor, count: int, generator: torch.Generator, step: int) -> list[FitWindow]:
        """Windows of the text, and as many of the task; step numbers the sequences of a task, those before 0 are held out."""
        fit, share = self.fit, self.fit.task_share if self.fit.task else 0.0
        windows = []
        for index in range(count):
            for task, weight in ((None, 1 - share), (fit.task, share)):
                if weight == 0:
                    continue
                at = index / count if step < 0 else None
                ids, first = self._text(rows, task, generator, step * count + index, at)
                stride = max((len(ids) - first) // SCORED, 1)
                offset = int(torch.randint(stride, (), generator=generator))
                positions = torch.arange(len(ids))[None]
                if self.length < self.target:
                    draws = torch.rand(2, 1, 1, dtype=torch.float64, generator=generator)
                    positions = skipped_positions(positions, len(ids), self.target, *draws)
                scored = torch.arange(first - 1 + offset, len(ids) - 1, stride)
                windows.append(FitWindow(ids[None], positions, scored, weight / count))
        return windows

    def _text(
        self, rows: Tensor, task: str | None, generator: torch.Generator, index: int, at: float | None
    ) -> tuple[Tensor, int]:
        """One text, and which of its tokens is the first that is scored. at: where in the rows, 0 to 1; None: anywhere."""
        if task not in (None, "repeated"):
            depth = float(torch.rand((), generator=generator))
            sample = create(task).sample(
                self.fit.tokenizer, self.length, depth=depth, seed=self.fit.seed + (index < 0), index=abs(index)
            )
            return sample.ids, sample.prompt_tokens
        period = self.length if task is None else max(self.length // 4, 1)
        row = int(torch.randint(len(rows), (), generator=generator))
        last = rows.shape[1] - period
        begin = int(torch.randint(last + 1, (), generator=generator))
        if at is not None:  # one after the other, so that they do not overlap
            each = rows.shape[1] // self.length
            row, begin = divmod(int(at * len(rows) * each + 1e-6), each)
            begin *= self.length
        ids = rows[row, begin : begin + period].repeat(-(-self.length // period))[: self.length]
        return ids, 1 if task is None else period

    def nats(self, window: FitWindow) -> Tensor:
        """The mean loss of a window's scored tokens."""
        device = next(self.model.parameters()).device
        ids, scored = window.ids.to(device), window.scored.to(device)
        # without a mask, transformers takes positions that jump for packed sequences which do not see each other
        positions = window.positions.to(device)
        inputs = {"position_ids": positions, "attention_mask": torch.ones_like(ids), "use_cache": False}
        if self.keeps:
            logits = self.model(input_ids=ids, **inputs, logits_to_keep=scored).logits[0]
        else:
            logits = self.model(input_ids=ids, **inputs).logits[0, scored]
        return cross_entropy(logits.to(torch.promote_types(logits.dtype, torch.float32)), ids[0, scored + 1])

    @torch.no_grad()
    def mean(self, windows: Sequence[FitWindow]) -> float:
        """The weighted loss of windows."""
        return sum(window.weight * self.nats(window).item() for window in windows)


class Gradient:
    """Adam on the logarithms; new windows for each step."""

    def __init__(self, fit: Fit, module: FittedRotary, windows: Windows, generator: torch.Generator) -> None:
        self.fit, self.module, self.windows, self.generator = fit, module, windows, generator
        self.learned = [module.learned.log_scale, *([module.log_temperature] if fit.temperature else [])]
        module.log_temperature.requires_grad_(fit.temperature)
        self.optimizer = torch.optim.Adam(self.learned, lr=fit.learning_rate, betas=(0.9, 0.95))

    def step(self, progress: float) -> None:
        fit = self.fit
        self.optimizer.param_groups[0]["lr"] = fit.learning_rate * (1 - 0.9 * progress)
        self.optimizer.zero_grad()
        loss = fit.pull * self.learned[0].square().sum()
        loss.backward()
        number = int(torch.randint(1 << 20, (), generator=self.generator))
        for window in self.windows.drawn(self.windows.train, fit.batch_size, self.generator, number):
            part = window.weight * self.windows.nats(window)
            part.backward()  # one graph at a time: the memory is that of one window
            loss = loss.detach() + part.detach()
        if not loss.isfinite() or not all(bool(p.grad.isfinite().all()) for p in self.learned if p.grad is not None):
            raise InputError(
                f"the fit diverges, its loss is {loss.item():.4g}", "lower it", learning_rate=fit.learning_rate
            )
        self.optimizer.step()

    def state(self) -> dict[str, Any]:
        return {"values": self.module.values(), "optimizer": self.optimizer.state_dict()}

    def load(self, state: dict[str, Any]) -> None:
        self.module.assign(state["values"])
        self.optimizer.load_state_dict(state["optimizer"])


class Evolution:
    """Generations of stretches, compared on windows that stay the same; the best is the module's."""

    def __init__(self, fit: Fit, module: FittedRotary, windows: Windows, generator: torch.Generator) -> None:
        self.fit, self.module, self.windows, self.generator = fit, module, windows, generator
        fixed = torch.Generator().manual_seed(fit.seed)
        self.read = windows.drawn(windows.train, fit.batch_size, fixed, 0)
        self.start = module.learned.frequency[:, 0].log()
        self.population = module.values()[None]
        self.scores: list[float] = []

    def step(self, progress: float) -> None:
        parents = self.population
        if not self.scores:
            self.scores = [self._score(parents[0])]
        children = [self._mutant(self._pick(parents)) for _ in range(MUTANTS)]
        for _ in range(CROSSINGS):
            one, other = self._pick(parents), self._pick(parents)
            children.append(self._mutant(one) if torch.equal(one, other) else self._crossed(one, other))
        scores = torch.tensor([*self.scores, *map(self._score, children)], dtype=torch.float64)
        order = scores.argsort(stable=True)[:PARENTS]
        self.population = torch.stack([*parents, *children])[order]
        self.scores = scores[order].tolist()
        self.module.assign(self.population[0])

    def _pick(self, parents: Tensor) -> Tensor:
        return parents[torch.randint(len(parents), (), generator=self.generator)]

    def _mutant(self, parent: Tensor) -> Tensor:
        moved = torch.rand(len(parent), generator=self.generator) < MUTATED
        steps = SPREAD * torch.randn(len(parent), generator=self.generator, dtype=parent.dtype)
        steps[-1] *= 0.1 if self.fit.temperature else 0.0
        return self._ordered(parent + (moved * steps).to(parent))

    def _crossed(self, one: Tensor, other: Tensor) -> Tensor:
        mine = (torch.rand(len(one), generator=self.generator) < 0.5).to(one.device)
        return self._ordered(torch.where(mine, one, other))

    def _ordered(self, values: Tensor) -> Tensor:
        """With stretches that do not fall from pair to pair, relative to plain RoPE, as in LongRoPE's search."""
        of = self.module.learned
        plain = -2 * math.log(of.rope_theta) / of.head_dim * torch.arange(len(values) - 1, dtype=torch.float64)
        ahead = (self.start - plain.to(self.start)).nan_to_num()
        faster = (values[:-1] + ahead).sort(descending=True).values
        return torch.cat((faster - ahead, values[-1:]))

    def _score(self, values: Tensor) -> float:
        self.module.assign(values)
        loss = self.windows.mean(self.read) + self.fit.pull * values[:-1].square().sum().item()
        return loss if math.isfinite(loss) else math.inf

    def state(self) -> dict[str, Any]:
        return {"population": self.population, "scores": self.scores, "values": self.module.values()}

    def load(self, state: dict[str, Any]) -> None:
        self.population, self.scores = state["population"].to(self.population), state["scores"]
        self.module.assign(state["values"])
