# SPDX-License-Identifier: Apache-2.0
"""RULER's variable tracking."""

import random
import string
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from posenc.errors import InputError
from posenc.tasks.passkey import NOISE
from posenc.tasks.ruler.base import RulerTask
from posenc.tasks.task import Sample, asked, encode, fit

TEMPLATE = (
    "Memorize and track the chain(s) of variable assignment hidden in the following text.\n\n{context}\n"
    "Question: Find all variables that are assigned the value {value} in the text above."
    " Answer: According to the chain(s) of variable assignment in the text above, {count} variables are assigned the "
    "value {value}, they are: "
)
Chain = tuple[str, list[str]]
"""A value and the variables that it is handed on to."""


@dataclass(frozen=True)
class VariableTracking(RulerTask):
    """A value is handed on from variable to variable through noise: all that hold it are asked for (RULER's vt).

    As in NVIDIA/RULER, scripts/data/synthetic/variable_tracking.py (Hsieh et al. 2024, arXiv 2404.06654): variables have
    five letters, those of the worked example before the text three. Scored: the part of the variables that are named.

    hops: how often it is handed on. chains: how many values are; the first one is asked for. example: tokens that the
    worked example takes at most, its question included; 0 leaves it out.
    """

    name: ClassVar[str] = "variable_tracking"
    takes_depth: ClassVar[bool] = False
    new_tokens: ClassVar[int] = 30

    hops: int = 4
    chains: int = 1
    example: int = 500

    def __post_init__(self) -> None:
        for name, least in {"hops": 1, "chains": 1, "example": 0}.items():
            if getattr(self, name) < least:
                raise InputError(f"{name}={getattr(self, name)} of {self.name}: give at least {least}")

    def sample(self, tokenizer: Any, length: int, *, depth: float = 0.5, seed: int = 0, index: int = 0) -> Sample:
        draws = self.draws(seed, index)
        example = self._example(tokenizer, draws)
        chains = self._chains(draws, letters=5)
        places = draws.getrandbits(64)

        def build(count: int) -> Sample:
            prompt = example + write(chains, count, random.Random(places))
            return asked(tokenizer, prompt, " ".join(chains[0][1]), chains[0][1])

        return fit(self, length, build, least=self.hops + 1)

    def _chains(self, draws: random.Random, letters: int) -> list[Chain]:
        names: dict[str, None] = {}  # distinct, in order
        while len(names) < self.chains * (self.hops + 1):
            names["".join(draws.choices(string.ascii_uppercase, k=letters))] = None
        values = draws.sample(range(10000, 99999), self.chains)
        return [(str(value), list(names)[i :: self.chains]) for i, value in enumerate(values)]

    def _example(self, tokenizer: Any, draws: random.Random) -> str:
        """The longest text of `example` tokens, or the shortest there is, with its answer."""
        chains, places = self._chains(draws, letters=3), draws.getrandbits(64)
        if not self.example:
            return ""
        count = self.hops + 1
        found = write(chains, count, random.Random(places))
        while len(encode(tokenizer, longer := write(chains, count + 1, random.Random(places)))) <= self.example:
            found, count = longer, count + 1
        return f"{found} {' '.join(chains[0][1])}\n\n"


def write(chains: Sequence[Chain], count: int, draws: random.Random) -> str:
    """The prompt whose context is `count` lines of noise with each chain's assignments, in order, at random places."""
    lines = [NOISE] * count
    for value, (first, *rest) in chains:
        held = zip((first, *rest), rest, strict=False)
        assignments = [f"VAR {first} = {value}", *(f"VAR {new} = VAR {old} " for old, new in held)]
        for i, place in enumerate(sorted(draws.sample(range(len(lines)), len(assignments)))):
            lines.insert(place + i, assignments[i])
    value, names = chains[0]
    return TEMPLATE.format(context="\n".join(lines), value=value, count=len(names))
