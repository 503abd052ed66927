# SPDX-License-Identifier: Apache-2.0
"""The generated tasks, by their papers' definitions. None has a scratchpad: the model reads the question and answers."""

from dataclasses import dataclass
from itertools import combinations, permutations

import torch
from torch import Tensor

from posenc.errors import InputError
from posenc.lab.experiment import Criterion
from posenc.lab.synthetic.experiment import ACCURACY, IGNORED, SequenceBatch, Synthetic, answered


class OfSymbols(Synthetic):
    """Symbols, each as so many tokens, and signs that are none, such as a separator."""

    forms = 1
    signs = 1

    @property
    def vocabulary(self) -> int:
        return self.forms * self.symbols + self.signs

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
    forms = 2
    shortest = 8
    stride = 2
    POWER = 0.01

    def different(self, length: int) -> int:
        return self.pairs(length)

    def pairs(self, length: int) -> int:
        """Pairs in a sequence."""
        return length // 8

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


@dataclass(frozen=True, kw_only=True)
class Parity(OfSymbols):
    """Symbols and a mark: is the number of ones even or odd?

    Source: Anil et al. 2022, "Exploring Length Generalization in Large Language Models"; Deletang et al. 2023, "Neural
    Networks and the Chomsky Hierarchy". symbols is the modulus that the sum of the symbols is taken by: 2 is parity.
    """

    symbols: int = 2

    name = "parity"

    def tokens_in(self, length: int) -> int:
        return length + 1

    def generate(self, n: int, length: int, generator: torch.Generator) -> SequenceBatch:
        symbols = torch.randint(self.symbols, (n, length), generator=generator)
        question = torch.full((n, 1), self.symbols)
        return answered(torch.cat((symbols, question), 1), symbols.sum(1, keepdim=True) % self.symbols)


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
    forms = 2
    DEPTH = 8

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


@dataclass(frozen=True, kw_only=True)
class FlipFlop(OfSymbols):
    """Instructions, each with a symbol: write it, ignore it, or read, at which the symbol that was last written is asked for. Of
    the instructions between the first, which writes, and the last, which reads, 80 % are ignored in training; of the test, 10 %
    (dense), 80 % and 98 % (sparse).

    Source: Liu et al. 2023, "Exposing Attention Glitches with Flip-Flop Language Modeling": FFL(0.8), FFL(0.1), FFL(0.98), of
    two symbols; the other instructions write or read, equally often. length is that of training and of the test.
    """

    length: int = 64
    factors: tuple[int, ...] = (1,)
    symbols: int = 2
    steps: int = 600
    batch_size: int = 32

    name = "flip_flop"
    counted = "instruction"
    shortest = 2
    signs = 3
    criterion = Criterion(ACCURACY, undertrained=0.2, points="shares", condition="ignored", size="share")
    conditions = (10, 80, 98)
    trained_at = 80

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.factors != (1,):
            why = "task flip_flop is tested with other shares of ignored instructions, at the length of training"
            raise InputError(why, "leave factors out", factors=self.factors)

    def size_at(self, condition: int) -> int:
        return condition

    def spelled(self, condition: int) -> str:
        return f"{condition} % ignored"

    def tokens_at(self, condition: int) -> int:
        return 1 + self.tokens_in(self.length)

    def tokens_in(self, length: int) -> int:
        return 2 * length

    def held_out(self, condition: int, generator: torch.Generator) -> SequenceBatch:
        return self.begun(self.instructed(self.sequences, self.length, condition, generator))

    def generate(self, n: int, length: int, generator: torch.Generator) -> SequenceBatch:
        return self.instructed(n, length, self.trained_at, generator)

    def instructed(self, n: int, length: int, ignored: int, generator: torch.Generator) -> SequenceBatch:
        """Sequences in which so many of a hundred instructions are ignored."""
        symbols = torch.randint(self.symbols, (n, length), generator=generator)
        shares = torch.tensor([(100 - ignored) / 2, (100 - ignored) / 2, float(ignored)])
        write, read, _ = range(3)
        done = shares.expand(n, -1).multinomial(length, replacement=True, generator=generator)
        done[:, 0], done[:, -1] = write, read
        last = torch.where(done == write, torch.arange(length), 0).cummax(1).values
        symbols = torch.where(done == read, symbols.gather(1, last), symbols)
        asked = torch.where(done == read, symbols, IGNORED)
        tokens = torch.stack((done + self.symbols, symbols), 2).flatten(1)
        return SequenceBatch(tokens, torch.stack((asked, torch.full_like(asked, IGNORED)), 2).flatten(1))


@dataclass(frozen=True, kw_only=True)
class OneBack(OfSymbols):
    """Four keys, each followed by a value, over and over: at each key, which value had it the given number of times before?

    Source: MQRAR-N-back of Yang et al. 2025, "PaTH Attention: Position Encoding via Accumulating Householder Transformations",
    section 4.1: the N-th last assignment of a variable; there with 32 pairs of keys and values in 768 tokens, here with an answer
    at every key that has been there often enough. symbols is the number of values.
    """

    length: int = 32

    name = "n_back_1"
    counted = "pair"
    KEYS = 4
    signs = KEYS
    BACK = 1
    shortest = KEYS * BACK + 1

    def tokens_in(self, length: int) -> int:
        return 2 * length

    def generate(self, n: int, length: int, generator: torch.Generator) -> SequenceBatch:
        keys = torch.randint(self.KEYS, (n, length), generator=generator)
        values = torch.randint(self.symbols, (n, length), generator=generator)
        times = (keys[:, :, None] == torch.arange(self.KEYS)).cumsum(1).gather(2, keys[:, :, None])
        meant = (keys[:, :, None] == keys[:, None]) & (times - self.BACK == times.mT)  # one value, or none
        asked = torch.where(meant.any(2), (meant * values[:, None]).sum(2), IGNORED)
        tokens = torch.stack((keys + self.symbols, values), 2).flatten(1)
        return SequenceBatch(tokens, torch.stack((asked, torch.full_like(asked, IGNORED)), 2).flatten(1))


@dataclass(frozen=True, kw_only=True)
class TwoBack(OneBack):
    __doc__ = OneBack.__doc__
    steps: int = 600

    name, BACK, shortest = "n_back_2", 2, 2 * OneBack.KEYS + 1


class ThreeBack(TwoBack):
    name, BACK, shortest = "n_back_3", 3, 3 * OneBack.KEYS + 1


class FourBack(TwoBack):
    name, BACK, shortest = "n_back_4", 4, 4 * OneBack.KEYS + 1


@dataclass(frozen=True, kw_only=True)
class SelectiveCopy(OfSymbols):
    """Eight symbols at random places among blanks: write them in their order.

    Source: selective copying of Gu & Dao 2023, "Mamba: Linear-Time Sequence Modeling with Selective State Spaces", there with
    16 symbols in a length of 4096. length is that of symbols and blanks.
    """

    length: int = 32

    name = "selective_copy"
    counted = "token"
    shortest = COPIED = 8
    signs = 2

    def tokens_in(self, length: int) -> int:
        return length + self.COPIED

    def generate(self, n: int, length: int, generator: torch.Generator) -> SequenceBatch:
        symbols = torch.randint(self.symbols, (n, self.COPIED), generator=generator)
        places = torch.rand(n, length, generator=generator).argsort(1)[:, : self.COPIED].sort(1).values
        question = torch.full((n, length + 1), self.symbols).scatter(1, places, symbols)
        question[:, -1] = self.symbols + 1
        return answered(question, symbols)


@dataclass(frozen=True, kw_only=True)
class IndirectIndexing(OfSymbols):
    """Different symbols, then one of them again, and a shift of up to eight places to the left or the right: which symbol stands
    there from it?

    Source: Gopalakrishnan et al. 2025, "Decoupling the 'What' and 'Where' With Polar Coordinate Positional Embeddings", section
    4: a string, a source, a shift and the target, where only the target is scored; their strings may repeat a letter, here
    symbols differ, so that the source has one place.
    """

    symbols: int = 128
    steps: int = 600

    name = "indirect_indexing"
    FARTHEST = 8
    signs = 2 * FARTHEST
    shortest = FARTHEST + 1

    def different(self, length: int) -> int:
        return length

    def tokens_in(self, length: int) -> int:
        return length + 2

    def generate(self, n: int, length: int, generator: torch.Generator) -> SequenceBatch:
        symbols = torch.rand(n, self.symbols, generator=generator).argsort(1)[:, :length]
        which = torch.randint(self.signs, (n, 1), generator=generator)
        shift = torch.where(which < self.FARTHEST, which - self.FARTHEST, which - self.FARTHEST + 1)
        room = length - shift.abs()
        source = (torch.rand(n, 1, generator=generator) * room).long().clamp(max=room - 1) - shift.clamp(max=0)
        question = torch.cat((symbols, symbols.gather(1, source), which + self.symbols), 1)
        return answered(question, symbols.gather(1, source + shift))


@dataclass(frozen=True, kw_only=True)
class A5(OfSymbols):
    """Even permutations of five things, one after another: at each, which one are all so far together?

    Source: the word problem of the group A5 of Merrill et al. 2024, "The Illusion of State in State-Space Models", and Liu et
    al. 2023, "Transformers Learn Shortcuts to Automata"; Yang et al. 2025 (PaTH) ask only whether the product is the identity.
    symbols is the order of the group, 60.
    """

    length: int = 8
    symbols: int = 60
    steps: int = 600

    name = "a5"
    counted = "element"
    signs = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.symbols != len(ELEMENTS):
            why = f"the group of task a5 has {len(ELEMENTS)} elements"
            raise InputError(why, "leave symbols out", symbols=self.symbols)

    def generate(self, n: int, length: int, generator: torch.Generator) -> SequenceBatch:
        factors = torch.randint(self.symbols, (n, length), generator=generator)
        products = [factors[:, 0]]
        for factor in factors.unbind(1)[1:]:
            products.append(PRODUCTS[products[-1], factor])
        return SequenceBatch(factors, torch.stack(products, 1))


def even(permutation: tuple[int, ...]) -> bool:
    return sum(a > b for a, b in combinations(permutation, 2)) % 2 == 0


ELEMENTS = [each for each in permutations(range(5)) if even(each)]
"""A5; each element sends i to its i-th number."""
PRODUCTS = torch.tensor([[ELEMENTS.index(tuple(b[i] for i in a)) for b in ELEMENTS] for a in ELEMENTS])
"""The element that is a, then b."""


TASKS: dict[str, type[Synthetic]] = {
    task.name: task
    for task in (
        Copy, Reverse, Recall, Addition, Sort, Dyck, Parity, Induction, FlipFlop, OneBack, TwoBack, ThreeBack,
        FourBack, SelectiveCopy, IndirectIndexing, A5,
    )
}  # fmt: skip
"""Every generated task by name."""
