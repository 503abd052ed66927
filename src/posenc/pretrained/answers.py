# SPDX-License-Identifier: Apache-2.0
"""What an extension gains and costs in words: a passkey past the old context length and three short questions, before and after."""

from dataclasses import dataclass, field
from typing import Any

import torch

from posenc.errors import InputError
from posenc.pretrained.inference import evaluating
from posenc.tasks.passkey import Passkey

QUESTIONS = ("The capital of France is", "The opposite of hot is", "The day after Monday is")
SECONDS = 30.0


@dataclass
class Answers:
    """What a model says, by state: passkey: to one past the old context length. short: to QUESTIONS. about: which passkey, or why none."""

    about: str = ""
    key: str = ""
    tokens: list[int] = field(default_factory=list, repr=False)
    passkey: dict[str, str] = field(default_factory=dict)
    short: dict[str, list[str]] = field(default_factory=dict)

    def hide(self, tokenizer: Any, trained: int, longest: int, speed: float) -> None:
        """Make a passkey a little past the old context length, `trained`. longest: the new one. speed: tokens a second."""
        length = min(trained + max(trained // 8, 64), longest)
        try:
            if not trained < length <= SECONDS * speed:
                raise InputError(f"one at {length} tokens takes {length / speed:.0f} s")
            sample = Passkey().sample(tokenizer, length, depth=0.25)
            self.tokens, self.key = sample.ids[: sample.prompt_tokens].tolist(), sample.references[0]
            self.about = (
                f"a passkey at a quarter of {len(self.tokens)} tokens ({trained} was the context length): {self.key}"
            )
        except InputError as why:
            self.about = f"no passkey was asked for: {why}; posenc eval MODEL --tasks passkey asks for it"

    def ask(self, state: str, model: Any, tokenizer: Any) -> None:
        """Answers of the model in a state: at most 8 tokens, each the most likely one."""

        def answer(ids: list[int]) -> str:
            given = torch.tensor([ids], device=model.device)
            made = model.generate(given, attention_mask=torch.ones_like(given), max_new_tokens=8, do_sample=False)
            return str(tokenizer.decode(made[0, len(ids) :], skip_special_tokens=True))

        with torch.no_grad(), evaluating(model):
            if self.tokens:
                self.passkey[state] = answer(self.tokens)
            self.short[state] = [answer(tokenizer(each, verbose=False).input_ids) for each in QUESTIONS]

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {name: getattr(self, name) for name in ("about", "key", "passkey", "short")} | {"questions": QUESTIONS}

    def __str__(self) -> str:
        found = {state: "found" if self.key in answer else "not found" for state, answer in self.passkey.items()}
        lines = [self.about, *(f"  {state}: {found[state]}, {answer!r}" for state, answer in self.passkey.items())]
        for question, *answers in zip(QUESTIONS, *self.short.values(), strict=True):
            lines.append(f"{question!r}: {'; '.join(f'{s} {a!r}' for s, a in zip(self.short, answers, strict=True))}")
        return "\n".join(lines)
