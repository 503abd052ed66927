# SPDX-License-Identifier: Apache-2.0
"""Why do `tupe_r`, `tapa` and `repo` learn no more than `none` in early.py's trainings? Shorter ones, by the same model and schedule, at
other rates.

    python benchmarks/early_rates.py    # trains what early_rates.json lacks; `early.py judge --write` puts what came of it into early.md

`prose`: the held-out loss in nats per byte; `long`: as many steps and passages as in early.py. `back`: each target is the token three before, of 16 at random; the share of right answers.
`weight`: the largest that the positions alone would give a key of the last of 128 tokens, mean of the heads, after 10 steps of `prose`.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import early
import torch
from torch import Tensor

from posenc.encodings.shared import HeadProjection
from posenc.errors import InputError
from posenc.lab import budgets
from posenc.lab.experiment import Run
from posenc.lab.text import Settings
from posenc.lab.train import Training
from posenc.positions import Positions

FILE = Path(__file__).with_suffix(".json")
STEPS = {"prose": 300, "back": 200, "long": early.LATE, "weight": 300}
FACTORS = {"prose": (1,), "back": (1,), "long": (1, early.FAR), "weight": (1,)}
"""They decide which passages are held out."""
WINDOWS = {"prose": 48, "back": 48, "long": early.PASSAGES, "weight": 48}
RATES = "learning_rate", "adamw_learning_rate", "position_learning_rate"
SYMBOLS, BACK = 16, 3
BEFORE = "projections x5"
"""Of an encoding: the tables' rate, which they had in early.py's trainings."""
CELLS: dict[str, dict[str, tuple[str, ...]]] = {
    "prose": {
        "none": ("", "all x0.25"), "rope": ("",), "t5": ("",), "rope/none": ("",), "rope/repo": ("",),
        "tupe_r": ("", BEFORE, "all x0.25", "all x4", "projections x0.5"), "tupe_r:untie_cls=False": (BEFORE,),
        "tupe": ("", BEFORE), "transformer_xl": ("", BEFORE), "xlnet": ("", BEFORE),
        "fire": ("", "encoding x0.2"),
        "tapa": ("", "all x0.06", "all x0.25", "all x4", "phase x0.16"), "tapa:alpha=1": ("",),
        "repo": ("", "all x0.25", "all x4", "encoding x10"),
    },
    "back": {
        "none": ("",), "rope": ("",), "t5": ("",), "alibi": ("",), "tupe_r": ("", BEFORE), "tapa": ("", "phase x0.16"),
        "tapa:alpha=1": ("",), "repo": ("",), "rope/repo": ("",),
    },
    "weight": {"tupe_r": ("", BEFORE), "t5": ("",)},
    "long": {"tupe_r": ("",)},
}  # fmt: skip


class Batch(NamedTuple):
    """Of the task `back`: inputs and targets (batch, length), of which the first BACK are not scored."""

    inputs: Tensor
    targets: Tensor
    positions: None = None

    def to(self, device: torch.device) -> "Batch":
        return self

    @property
    def scored(self) -> int:
        return int((self.targets >= 0).sum())


class Back(Settings):
    def draw(self, part: Any, generator: torch.Generator) -> Any:
        tokens = torch.randint(SYMBOLS, (self.batch_size, self.length), generator=generator)
        targets = torch.full_like(tokens, -100)
        targets[:, BACK:] = tokens[:, :-BACK]
        return Batch(tokens, targets)


def missing(done: list[dict[str, Any]]) -> Iterator[tuple[str, str, str]]:
    known = {(cell["task"], cell["encoding"], cell["change"]) for cell in done}
    for task, encodings in CELLS.items():
        for encoding, changes in encodings.items():
            yield from ((task, encoding, change) for change in changes if (task, encoding, change) not in known)


def trained(task: str, encoding: str, change: str) -> dict[str, Any]:
    """The result, the mean loss of the last ten steps, and by parameter of the encoding that does not start at 0 how far it
    moved, over its norm at the start."""
    settings = (Back if task == "back" else Settings)(steps=STEPS[task], factors=FACTORS[task], windows=WINDOWS[task])
    corpus, settings = settings.load("prose")
    what, _, factor = change.partition(" x")
    if what == "all":
        settings = settings.changed(**{name: getattr(settings, name) * float(factor) for name in RATES})
    training = Training(Run.of(encoding, 0, settings, corpus.digest), corpus.train)
    model = training.model
    if what in ("encoding", "projections"):
        of = [model.encoding] if what == "encoding" else model.encoding.modules()
        chosen = [m for m in of if what == "encoding" or isinstance(m, HeadProjection)]
        _scale(training, [p for m in chosen for p in m.parameters()], float(factor))
    if (
        what == "phase"
    ):  # of TAPA: the second half of a head's channels, whose queries start smaller and have smaller steps
        _scale_phase(training, float(factor))
    start = {name: p.detach().clone() for name, p in model.encoding.named_parameters()}
    try:
        for step in range(10 if task == "weight" else settings.steps):
            training.advance(budgets.rate(step, settings.steps))
    except InputError:  # the loss is not finite
        return {"result": None, "training": None, "moved": {}}
    model.eval()
    if task == "weight":
        result = _largest_weight(model)
    elif task == "back":
        with torch.no_grad():
            batch = settings.changed(batch_size=WINDOWS[task]).draw(None, torch.Generator().manual_seed(1))
            result = ((model(batch.inputs).argmax(-1) == batch.targets).sum() / batch.scored).item()
    else:
        variant = settings.variants(encoding, model.encoding)[0]
        result = settings.evaluate(model, variant, corpus.test).paired[1].mean().item()
    moved = {
        name: round(((p.detach() - start[name]).norm() / start[name].norm()).item(), 2)
        for name, p in model.encoding.named_parameters()
        if start[name].any()
    }
    return {"result": round(result, 4), "training": round(sum(training.losses[-10:]) / 10, 4), "moved": moved}


def _scale(training: Training, chosen: list[torch.nn.Parameter], factor: float) -> None:
    """Multiply the rates of some parameters."""
    ids = {id(p) for p in chosen}
    for optimizer in training.optimizers:
        for group in list(optimizer.param_groups):
            those = [p for p in group["params"] if id(p) in ids]
            group["params"] = [p for p in group["params"] if id(p) not in ids]
            if those:
                optimizer.param_groups.append({**group, "params": those, "initial_lr": group["initial_lr"] * factor})


def _scale_phase(training: Training, factor: float) -> None:
    from posenc.encodings import cope

    scores = cope.TAPA.scores

    def smaller(self: Any, q: Tensor, *more: Any, **options: Any) -> Any:
        found = scores(self, q, *more, **options)
        found.q = torch.cat((found.q[..., : self.amplitude], found.q[..., self.amplitude :] * factor), -1)
        return found

    training.model.encoding.scores = smaller.__get__(training.model.encoding)  # type: ignore[method-assign]


@torch.no_grad()
def _largest_weight(model: Any) -> float:
    nothing = torch.zeros(1, model.config.num_heads, 128, model.config.width)
    scores = model.encoding.bias(nothing, nothing, Positions.arange(128).with_causal(True))
    parts = scores if isinstance(scores, list) else [scores]
    return float(sum(part.dense(nothing.device)[0] for part in parts)[:, -1].softmax(-1).amax(-1).mean())


def main() -> None:
    torch.set_num_threads(1)
    done = json.loads(FILE.read_text()) if FILE.exists() else []
    for task, encoding, change in missing(done):
        done.append({"task": task, "encoding": encoding, "change": change, **trained(task, encoding, change)})
        FILE.write_text("[\n" + ",\n".join(map(json.dumps, done)) + "\n]\n")
        print({name: value for name, value in done[-1].items() if name != "moved"}, flush=True)


if __name__ == "__main__":
    main()
