# SPDX-License-Identifier: Apache-2.0
"""The generated tasks, by their papers' definitions. None has a scratchpad: the model reads the question and answers."""

from abc import abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from posenc.errors import InputError
from posenc.lab.synthetic.experiment import IGNORED, SequenceBatch, Synthetic, answered

__all__ = ["TASKS"]


class OfSymbols(Synthetic):
    """Symbols, and signs that are none, such as a separator."""

    signs = 1

    @property
    def vocabulary(self) -> int:
        return self.symbols + self.signs

    def tokens_in(self, length: int) -> int:
        return length


class Rewriting(OfSymbols):
    """Symbols, a separator, and the same symbols in another order."""

    def tokens_in(self, length: int) -> int:
        return 2 * length

    def rewrite(self, symbols: Tensor) -> Tensor:
        raise NotImplementedError

    def generate(self, n: int, length: int, generator: torch.Generator) -> SequenceBatch:
        symbols = torch.randint(self.symbols, (n, length), generator=generator)
        separator = torch.full((n, 1), self.symbols)
        return answered(torch.cat((symbols, separator), 1), self.rewrite(symbols))


@dataclass(frozen=True, kw_only=True)
class Copy(Rewriting):
    """Write the symbols again.

    Source: Kazemnejad et al. 2023, "The Impact of Positional Encoding on Length Generalization in Transformers".
    """

    name = "copy"

    def rewrite(self, symbols: Tensor) -> Tensor:
        return symbols


@dataclass(frozen=True, kw_only=True)
class Reverse(Rewriting):
    """Write the symbols again, the last one first.

    Source: Kazemnejad et al. 2023.
    """

    name = "reverse"

    def rewrite(self, symbols: Tensor) -> Tensor:
        return symbols.flip(1)


@dataclass(frozen=True, kw_only=True)
class Sort(Rewriting):
    """Write the symbols again in ascending order; symbols repeat.

    Source: Kazemnejad et al. 2023, sorting numbers of one token.
    """

    steps: int = 500

    name = "sort"

    def rewrite(self, symbols: Tensor) -> Tensor:
        return symbols.sort(1).values


@dataclass(frozen=True, kw_only=True)
class Addition(OfSymbols):
    """The sum of two numbers of as many digits, the least significant digit first; the sum has one digit more.

    Source: Kazemnejad et al. 2023; the order of the digits is that of binary addition in Deletang et al. 2023, "Neural Networks
    and the Chomsky Hierarchy". symbols is the base.
    """

    length: int = 4
    symbols: int = 4
    steps: int = 600

    name = "addition"
    counted = "digit"
    signs = 2

    def tokens_in(self, length: int) -> int:
        return 3 * length + 2

    def generate(self, n: int, length: int, generator: torch.Generator) -> SequenceBatch:
        a, b = torch.randint(self.symbols, (2, n, length), generator=generator)
        plus, equals = (torch.full((n, 1), self.symbols + which) for which in range(2))
        return answered(torch.cat((a, plus, b, equals), 1), added(a, b, self.symbols))


def added(a: Tensor, b: Tensor, base: int) -> Tensor:
    """The digits (n, length + 1) of the sums of numbers given as digits (n, length), the least significant one first."""
    carry, digits = torch.zeros(len(a), dtype=torch.long), []
    for column in (a + b).unbind(1):
        digits.append((column + carry) % base)
        carry = (column + carry) // base
    return torch.stack((*digits, carry), 1)


@dataclass(frozen=True, kw_only=True)
class Recall(OfSymbols):
    """Pairs of a key and a value, then each of the keys once more between blanks: at each, its value is asked for. An eighth of
    the length is pairs.

    Source: multi-query associative recall of Arora et al. 2023, "Zoology: Measuring and Improving Recall in Efficient Language
    Models", with their power law (exponent 0.01 - 1) of the gaps. symbols is the number of keys, and of values.
    """

    length: int = 32
    symbols: int = 32

    name = "recall"
    shortest = 8
    stride = 2
    POWER = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        most = self.pairs(self.size_at(self.factors[-1]))
        if self.symbols < most:
            raise InputError(
                f"symbols={self.symbols}: task recall has {most} different keys at length {self.size_at(self.factors[-1])}; "
                f"give at least {most}, or a smaller length or factors"
            )

    def pairs(self, length: int) -> int:
        """Pairs in a sequence."""
        return length // 8

    @property
    def vocabulary(self) -> int:
        return 2 * self.symbols + 1

    def generate(self, n: int, length: int, generator: torch.Generator) -> SequenceBatch:
        pairs, blank = self.pairs(length), 2 * self.symbols
        keys, values = (
            torch.rand(n, self.symbols, generator=generator).argsort(1)[:, :pairs] + first
            for first in (0, self.symbols)
        )
        inputs = torch.full((n, length), blank)
        inputs[:, : 2 * pairs] = torch.stack((keys, values), 2).flatten(1)
        slots = (length - 2 * pairs) // 2
        weights = torch.arange(1, slots + 1, dtype=torch.float64) ** (self.POWER - 1)
        at = 2 * pairs + 2 * weights.expand(n, -1).multinomial(pairs, generator=generator)
        targets = torch.full((n, length), IGNORED)
        return SequenceBatch(inputs.scatter(1, at, keys), targets.scatter(1, at, values))


@dataclass(frozen=True, kw_only=True)
class Induction(OfSymbols):
    """A mark stands once among random symbols and again at the end: which symbol followed it?

    Source: the induction heads task of Fu et al. 2023, "Hungry Hungry Hippos", and Gu & Dao 2023, "Mamba".
    """

    length: int = 32

    steps: int = 150

    name = "induction"
    shortest = 3

    def generate(self, n: int, length: int, generator: torch.Generator) -> SequenceBatch:
        inputs = torch.randint(self.symbols, (n, length), generator=generator)
        at = torch.randint(length - 2, (n, 1), generator=generator)
        answer = inputs.gather(1, at + 1)
        inputs = inputs.scatter(1, at, self.symbols)
        inputs[:, -1] = self.symbols
        return answered(inputs, answer)


class Question(OfSymbols):
    """Symbols and a mark that asks for one answer about all of them."""

    def tokens_in(self, length: int) -> int:
        return length + 1

    @abstractmethod
    def answer(self, symbols: Tensor) -> Tensor:
        """Of (n, length) symbols, (n, 1)."""

    def generate(self, n: int, length: int, generator: torch.Generator) -> SequenceBatch:
        symbols = torch.randint(self.symbols, (n, length), generator=generator)
        question = torch.full((n, 1), self.symbols)
        return answered(torch.cat((symbols, question), 1), self.answer(symbols))


@dataclass(frozen=True, kw_only=True)
class FirstToken(Question):
    """Which symbol was the first?

    Source: FIRST of Chiang & Cholak 2022, "Overcoming a Theoretical Limitation of Self-Attention", with any alphabet.
    """

    length: int = 32
    steps: int = 100

    name = "first_token"

    def answer(self, symbols: Tensor) -> Tensor:
        return symbols[:, :1]


@dataclass(frozen=True, kw_only=True)
class Parity(Question):
    """Is the number of ones even or odd?

    Source: Anil et al. 2022, "Exploring Length Generalization in Large Language Models"; Deletang et al. 2023, "Neural
    Networks and the Chomsky Hierarchy". symbols is the modulus that the sum of the symbols is taken by: 2 is parity.
    """

    symbols: int = 2

    name = "parity"

    def answer(self, symbols: Tensor) -> Tensor:
        return symbols.sum(1, keepdim=True) % self.symbols


@dataclass(frozen=True, kw_only=True)
class Modular(OfSymbols):
    """The value modulo a number of an expression such as 1 + 2 * 3 - 4, products first.

    Source: modular arithmetic without brackets of Deletang et al. 2023. symbols is the modulus.
    """

    length: int = 8
    symbols: int = 5

    name = "modular"
    counted = "number"
    signs = 4

    def tokens_in(self, length: int) -> int:
        return 2 * length

    def generate(self, n: int, length: int, generator: torch.Generator) -> SequenceBatch:
        numbers = torch.randint(self.symbols, (n, length), generator=generator)
        operators = torch.randint(3, (n, length - 1), generator=generator)
        equals = torch.full((n, 1), 3)
        question = torch.stack((numbers, torch.cat((operators, equals), 1) + self.symbols), 2).flatten(1)
        return answered(question, valued(numbers, operators, self.symbols)[:, None])


def valued(numbers: Tensor, operators: Tensor, modulus: int) -> Tensor:
    """(n,): numbers (n, length) joined by operators (n, length - 1), 0 for +, 1 for -, 2 for *."""
    total, product = torch.zeros(len(numbers), dtype=torch.long), numbers[:, 0]
    for number, operator in zip(numbers.unbind(1)[1:], operators.unbind(1), strict=True):
        times = operator == 2
        total = torch.where(times, total, total + product)
        product = torch.where(times, product * number, torch.where(operator == 1, -number, number)) % modulus
    return (total + product) % modulus


@dataclass(frozen=True, kw_only=True)
class Dyck(OfSymbols):
    """Brackets of several kinds, opened and closed at random and nested up to eight deep: at every token, which kind would have
    to be closed next, or none?

    Source: bounded hierarchical languages of Hewitt et al. 2020, "RNNs Can Generate Bounded Hierarchical Languages with Optimal
    Memory". symbols is the number of kinds.
    """

    length: int = 32
    symbols: int = 4
    steps: int = 200

    name = "dyck"
    DEPTH = 8

    @property
    def vocabulary(self) -> int:
        return 2 * self.symbols + 1

    def generate(self, n: int, length: int, generator: torch.Generator) -> SequenceBatch:
        kinds = torch.randint(self.symbols, (length, n), generator=generator)
        opening = torch.rand(length, n, generator=generator) < 0.5
        none, row = 2 * self.symbols, torch.arange(n)
        open_kinds = torch.full((n, self.DEPTH + 1), none)  # of each depth; none at depth 0
        depth, inputs, targets = torch.zeros(n, dtype=torch.long), [], []
        for kind, wish in zip(kinds, opening, strict=True):
            opens = (wish | (depth == 0)) & (depth < self.DEPTH)
            inputs.append(torch.where(opens, kind, open_kinds[row, depth] + self.symbols))
            depth = torch.where(opens, depth + 1, depth - 1)
            open_kinds[row, depth] = torch.where(opens, kind, open_kinds[row, depth])
            targets.append(open_kinds[row, depth])
        return SequenceBatch(torch.stack(inputs, 1), torch.stack(targets, 1))


TASKS: dict[str, type[Synthetic]] = {
    task.name: task for task in (Copy, Reverse, Recall, Addition, Sort, Dyck, Parity, Induction, FirstToken, Modular)
}
"""Every generated task by name."""
