# SPDX-License-Identifier: Apache-2.0
"""Learn on a text how much slower each pair of channels turns, with all weights of a model frozen.

fit = learn(model, ids, target_length=1024)       # from YaRN, by Adam on the logarithms
posenc.extend(model, "explicit", target_length=1024, stretch=fit.stretch, attention_factor=fit.attention_factor)
"""

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from posenc.encodings.learned_rotary import LearnedRotary
from posenc.errors import InputError
from posenc.functional import cos_sin
from posenc.pretrained.attach import Attachment, RotaryModule
from posenc.pretrained.changes import Change
from posenc.pretrained.extend import plan_rotary
from posenc.pretrained.finetune import Windows
from posenc.pretrained.inference import modes_restored
from posenc.pretrained.models import unwrap

SCORED = 256
"""Tokens of a window that are predicted: spread over it, since a large vocabulary makes each of them dear."""
EVERY = 5
"""Steps between two readings of the held-out text."""
PULL = 0.001
"""Times the sum of squared logarithms of the stretches over the start's is added to the loss."""


@dataclass
class Learned:
    """losses: (step, nats a token on the held-out text), the start's first. start, stretch: how many times slower than in plain
    RoPE each pair turns before and after. attention_factor: of cos and sin after."""

    start: tuple[float, ...]
    losses: list[tuple[int, float]] = field(default_factory=list)
    stretch: tuple[float, ...] = ()
    attention_factor: float = 1.0


class LearnedModule(RotaryModule):
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


def nats(model: Any, window: dict[str, Tensor]) -> Tensor:
    """The mean loss of at most SCORED tokens of a window, which is spread over positions up to the new length."""
    device = next(model.parameters()).device
    ids, where, mask = (window[name][None].to(device) for name in ("input_ids", "position_ids", "attention_mask"))
    scored = torch.arange(0, ids.shape[1] - 1, max((ids.shape[1] - 1) // SCORED, 1), device=device)
    logits = model(input_ids=ids, position_ids=where, attention_mask=mask, use_cache=False).logits[0, scored]
    return nn.functional.cross_entropy(logits.float(), ids[0, scored + 1])


def learn(
    model: Any, ids: Tensor, target_length: int, *, start: str = "yarn", length: int | None = None, steps: int = 60,
    batch_size: int = 2, learning_rate: float = 0.05, temperature: bool = False, held_out: float = 0.1, patience: int = 4,
    seed: int = 0,
) -> Learned:  # fmt: skip
    """Adam on the logarithm of each pair's stretch, from a schedule; the stretches that read held-out text best are taken.

    ids: (texts, tokens) to learn on, the last of which are held out, a share. length: of a window; shorter ones than the new length
    skip positions up to there. temperature: learn the factor of cos and sin as well. patience: readings without a gain.
    The model is as it was, however this ends.

    Raises:
        InputError: a start that is no frequency schedule, or texts that are shorter than a window.
    """
    attachment = plan_rotary(unwrap(model), start, None, target_length, {})
    if attachment.design.encodings or not attachment.design.rotations:
        raise InputError("is no frequency schedule", "give one, such as yarn, ntk or linear", start=start)
    structure, length = attachment.structure, length or target_length
    count = max(round(held_out * len(ids)), 1)
    if ids.shape[-1] < length or len(ids) < 2:
        raise InputError(f"pass two texts or more, each as long as a window, {length} tokens", argument="ids")
    skipping = target_length if length < target_length else None
    read = Windows(list(ids[:-count]), length, steps * batch_size, seed, skipping)
    judged = [Windows(list(ids[-count:]), length, 4, seed + 1, skipping)[index] for index in range(4)]
    module = LearnedModule(attachment).to(next(structure.model.parameters()).device)
    learned = [module.learned.log_scale, *([module.log_temperature] if temperature else [])]
    optimizer = torch.optim.Adam(learned, lr=learning_rate, betas=(0.9, 0.95))
    found, best = Learned(attachment.report.stretch), math.inf
    exchange = [
        Change(owner, "rotary_emb", module) for owner in structure.model.modules() if hasattr(owner, "rotary_emb")
    ]
    with modes_restored(structure.model):
        structure.model.eval().requires_grad_(False)
        for each in exchange:
            each.swap()
        try:
            for step in range(steps + 1):
                if step % EVERY == 0 or step == steps:
                    with torch.no_grad():
                        loss = sum(nats(model, window).item() for window in judged) / len(judged)
                    found.losses.append((step, loss))
                    if loss < best:
                        best, plain = loss, module.learned.plain()
                        found.stretch = tuple(plain.schedule["stretch"])
                        found.attention_factor = module.learned.attention_factor * module.log_temperature.exp().item()
                    since = len(found.losses) - 1 - min(range(len(found.losses)), key=lambda n: found.losses[n][1])
                    if step == steps or since >= patience:
                        break
                optimizer.param_groups[0]["lr"] = learning_rate * (1 - 0.9 * step / steps)
                optimizer.zero_grad()
                (PULL * learned[0].square().sum()).backward()
                for index in range(step * batch_size, (step + 1) * batch_size):
                    (nats(model, read[index]) / batch_size).backward()  # one graph at a time
                optimizer.step()
        finally:
            for each in exchange:
                each.swap()
    return found
