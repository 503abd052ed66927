# SPDX-License-Identifier: Apache-2.0
"""Whether an answer depends on what was asked before: sequences of calls on positions and on positions made of these,
each call held against the same call alone, on fresh objects."""

import copy
import gc
import random
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from posenc.attention import attention
from posenc.conformance.subject import DECODER, LENGTH, Fails, Subject, equal
from posenc.encoding import Encoding
from posenc.errors import InputError
from posenc.positions import Positions
from posenc.transformer import Block

BASES = ("arange", "ids", "packed", "padded", "cached", "grid")
CAUSAL = (None, True, False)
BACKENDS = ("auto", "auto", "auto", "reference", "sdpa")
DTYPES = (torch.float64, torch.float64, torch.float32)
MODES = ("no_grad", "backward", "inference_mode")
LAYERS = (0, 1)


class New(NamedTuple):
    """Make positions from nothing."""

    base: str


class Derive(NamedTuple):
    """Make positions of those with a number."""

    number: int
    how: str


class Overwrite(NamedTuple):
    """Change the tensor that positions were made from, which is the caller's."""

    number: int


class Ask(NamedTuple):
    """Call the encoding, or a copy of it with other parameters, at the positions with a number."""

    number: int
    what: str
    causal: bool | None = None
    layer: int = 0
    backend: str = "auto"
    dtype: torch.dtype = torch.float64
    mode: str = "no_grad"
    other_parameters: bool = False


Step = New | Derive | Overwrite | Ask
Recipe = tuple[str, ...]
"""How positions were made: a base, and what was made of it in turn."""


def _hidden(index: int) -> Callable[[Positions], Positions]:
    def hide(positions: Positions) -> Positions:
        valid = torch.ones(1, positions.num_keys, dtype=torch.bool)
        valid[0, index] = False
        return replace(positions, valid=valid)

    return hide


def _across(positions: Positions) -> Positions:
    """To more keys, of a longer text or a larger image."""
    if positions.images is not None:
        return Positions.cross(positions, Positions.grid(4, 4))
    return Positions.cross(positions, Positions.arange(LENGTH + 3) if positions.axes == 1 else positions)


DERIVED: dict[str, Callable[[Positions], Positions]] = {
    "with_causal(True)": lambda positions: positions.with_causal(True),
    "with_causal(False)": lambda positions: positions.with_causal(False),
    "replace(valid=all but the first)": _hidden(0),
    "replace(valid=all but the second)": _hidden(1),
    "moved(to the next one's place)": lambda positions: positions.moved(lambda ids, order: ids.roll(-1, 1)),
    "cross(with more keys)": _across,
    "take(the first three)": lambda positions: positions.take(torch.arange(3)),
    "deepcopy": copy.deepcopy,
}
WHAT = ("attention", "attention", "attention", "embed")


def _in_turn(base: str) -> tuple[Step, ...]:
    """The call at a base, at everything made of it, and back, under either causality."""
    there = range(len(DERIVED) + 1)
    steps: list[Step] = [New(base), Ask(0, "embed"), Ask(0, "attention", True), *(Derive(0, how) for how in DERIVED)]
    steps += [Ask(number, "attention", causal) for number in there for causal in (True, False)]
    steps += [Ask(number, what) for number in reversed(there) for what in ("embed", "attention")]
    return tuple(steps)


WITH_FLEX: tuple[Step, ...] = (
    New("arange"),
    *(Derive(0, how) for how in ("replace(valid=all but the second)", "cross(with more keys)")),
    *(Ask(number, "attention", causal, backend="flex") for number in (0, 1, 2) for causal in (True, False)),
)
OVERWRITTEN: tuple[Step, ...] = (
    New("ids"),
    Derive(0, "deepcopy"),
    Derive(0, "with_causal(True)"),
    Overwrite(0),
    *(Ask(number, what, True) for number in (0, 1, 2) for what in ("embed", "attention")),
)


def drawn(source: random.Random, length: int) -> list[Step]:
    """A program of so many steps."""
    steps: list[Step] = [New(source.choice(BASES))]
    for _ in range(length):
        number, sort = source.randrange(length), source.random()
        if sort < 0.06:
            steps.append(New(source.choice(BASES)))
        elif sort < 0.30:
            steps.append(Derive(number, source.choice(list(DERIVED))))
        else:
            steps.append(
                Ask(
                    number, source.choice(WHAT), source.choice(CAUSAL), source.choice(LAYERS), source.choice(BACKENDS),
                    source.choice(DTYPES), source.choice(MODES), source.random() < 0.2,
                )
            )  # fmt: skip
    return steps


@dataclass
class _Made:
    positions: Positions | None
    """None: what they should be made of refuses it."""
    recipe: Recipe
    given: Tensor | None = None


class Sequences:
    """Runs programs on an encoding."""

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        self.model = subject.host(DECODER)
        self.pristine = self.model.encoding, copy.deepcopy(self.model.encoding)
        with torch.no_grad():
            for parameter in self.pristine[1].parameters():
                parameter.mul_(0.7)
        self.alone: dict[tuple[Recipe, Ask], list[Tensor] | str] = {}

    def run(self, steps: Iterable[Step]) -> None:
        """Raise Fails where a call's answer is not the one it has alone."""
        encodings = [self._fresh(which) for which in (False, True)]
        made: list[_Made] = []
        for step in steps:
            if isinstance(step, New):
                made.append(self._base(step.base))
                continue
            if not made:
                continue
            it = made[step.number % len(made)]
            if isinstance(step, Derive):
                made.append(_derived(it, step.how))
            elif isinstance(step, Overwrite):
                if it.given is not None:
                    it.given.copy_(it.given.flip(1).clone())
            elif it.positions is not None:
                self._compare(step, it, it.positions, encodings[step.other_parameters])

    def _compare(self, step: Ask, it: _Made, positions: Positions, encoding: Encoding) -> None:
        call = step._replace(number=0)
        if (it.recipe, call) not in self.alone:
            base, *derived = it.recipe
            fresh = self._base(base)
            for how in derived:
                fresh = _derived(fresh, how)
            assert fresh.positions is not None
            self.alone[it.recipe, call] = self._answer(self._fresh(step.other_parameters), fresh.positions, call)
        wanted, what = self.alone[it.recipe, call], f"{_told(call)} at {'.'.join(it.recipe)}"
        try:
            found = self._answer(encoding, positions, call)
        except Exception as error:
            raise Fails(f"{what} ends in {type(error).__name__} ({error}); alone it does not") from error
        if isinstance(found, str) or isinstance(wanted, str):
            if isinstance(found, str) != isinstance(wanted, str):
                now, alone = (f"is refused ({x})" if isinstance(x, str) else "is answered" for x in (found, wanted))
                raise Fails(f"{what} {now}; alone it {alone}")
            return
        for a, b in zip(found, wanted, strict=True):
            equal(a, b, f"{what}, after other calls and alone", 1e-9 if step.dtype == torch.float64 else 1e-3)

    def shortest(self, steps: Sequence[Step]) -> tuple[list[Step], Fails]:
        """Of a program that fails, one of which no step can be left out."""
        steps = _numbered(steps)
        failure = self._failure(steps)
        if failure is None:
            raise ValueError("the program does not fail")
        size = len(steps)
        while size:
            before = len(steps)
            for first in reversed(range(0, len(steps), size)):
                less = steps
                for i in reversed(range(first, min(first + size, len(steps)))):
                    less = _without(less, i)
                found = self._failure(less)
                if found is not None:
                    steps, failure = less, found
            size = size // 2 if size > 1 or len(steps) == before else 1
        return steps, failure

    def _failure(self, steps: Iterable[Step]) -> Fails | None:
        try:
            self.run(steps)
        except Fails as failure:
            return failure
        return None

    def _fresh(self, other_parameters: bool) -> Encoding:
        encoding = copy.deepcopy(self.pristine[other_parameters])
        layers = [block.attention for block in self.model.blocks if isinstance(block, Block)]
        encoding.share([(layer.query, layer.key) for layer in layers])
        return encoding

    def _base(self, name: str) -> _Made:
        s = self.subject
        if name == "ids":
            ids = s.ids(LENGTH)[None].clone()
            return _Made(Positions.from_ids(ids), (name,), ids)
        if name == "packed":
            return _Made(s.placed(Positions.packed([4, LENGTH - 4]), [4, LENGTH - 4]), (name,))
        if name == "padded":
            mask = torch.ones(2, LENGTH, dtype=torch.long)
            mask[1, :3] = 0
            return _Made(s.placed(Positions.from_mask(mask), [LENGTH], [LENGTH - 3]), (name,))
        if name == "cached":
            return _Made(s.placed(Positions.arange(3, LENGTH - 3), [LENGTH]), (name,))
        if name == "grid" and s.takes_images:
            return _Made(Positions.grid(3, 3), (name,))
        return _Made(s.document(LENGTH), (name,))

    def _answer(self, encoding: Encoding, positions: Positions, call: Ask) -> list[Tensor] | str:
        """What comes of a call, with the gradients; or what it is refused with."""
        config, generator = DECODER, torch.Generator().manual_seed(0)
        queries, keys = positions.num_queries, positions.num_keys
        grad = call.mode == "backward"

        def drawn_as(*shape: int) -> Tensor:
            x = torch.randn(2, *shape, dtype=torch.float64, generator=generator)
            return x.to(call.dtype).requires_grad_(grad)

        try:
            with torch.inference_mode(call.mode == "inference_mode"), torch.set_grad_enabled(grad):
                if call.what == "embed":
                    given = [drawn_as(queries, config.dim)]
                    out = encoding.embed(given[0], positions, call.layer)
                else:
                    given = [drawn_as(config.num_heads, queries, config.width)]
                    given += [drawn_as(config.kv_heads, keys, config.width) for _ in "kv"]
                    q, k, v = given
                    out = attention(
                        q, k, v, encoding, positions, causal=call.causal, layer=call.layer, backend=call.backend
                    )
            if not grad or not out.requires_grad:
                return [out]
            leaves = [*given, *encoding.parameters()]
            gradients = torch.autograd.grad(out.square().sum(), leaves, allow_unused=True)
        except InputError as refusal:
            return str(refusal)
        return [out, *(torch.zeros(()) if g is None else g for g in gradients)]


def _derived(it: _Made, how: str) -> _Made:
    try:
        positions = None if it.positions is None else DERIVED[how](it.positions)
    except InputError:
        positions = None
    return _Made(positions, (*it.recipe, how))


def _numbered(steps: Iterable[Step]) -> list[Step]:
    """The same program, in which numbers are those of positions that are there."""
    found: list[Step] = []
    count = 0
    for step in steps:
        if isinstance(step, New):
            found.append(step)
            count += 1
        elif count:
            found.append(step._replace(number=step.number % count))
            count += isinstance(step, Derive)
    return found


def _without(steps: Sequence[Step], i: int) -> list[Step]:
    """A numbered program without a step, and without those that need what it made."""
    gone, renamed, count = set(), {}, 0
    found: list[Step] = []
    for n, step in enumerate(steps):
        makes = isinstance(step, New | Derive)
        drop = n == i or (not isinstance(step, New) and step.number in gone)
        if drop and makes:
            gone.add(count)
        elif not drop:
            if makes:
                renamed[count] = count - len(gone)
            found.append(step if isinstance(step, New) else step._replace(number=renamed[step.number]))
        count += makes
    return found


def _told(call: Ask) -> str:
    if call.what == "embed":
        return f"embed(layer={call.layer})"
    return f"attention(causal={call.causal}, layer={call.layer}, backend={call.backend!r})"


def _written(steps: Iterable[Step]) -> str:
    """A program as one can read it."""
    lines, count = [], 0
    for step in steps:
        if isinstance(step, New):
            lines.append(f"p{count} = {step.base}")
            count += 1
        elif isinstance(step, Derive):
            lines.append(f"p{count} = p{step.number % max(count, 1)}.{step.how}")
            count += 1
        elif isinstance(step, Overwrite):
            lines.append(f"the ids that p{step.number % max(count, 1)} was made from are changed")
        else:
            mode = f", {step.dtype}, {step.mode}".replace("torch.", "")
            other = ", a copy with other parameters" if step.other_parameters else ""
            lines.append(f"{_told(step)} at p{step.number % max(count, 1)}{mode}{other}")
    return "; ".join(lines)


# -------------------------------------------------------------------- the checks

PROGRAMS, STEPS = 2, 40


def calls_do_not_remember(s: Subject) -> None:
    """A call gives what it gives alone, on fresh objects, whatever was called before: attention and codes at the same
    positions, at positions made of these (under another causality, with other keys hidden, moved, across, copied), under an
    encoder and a decoder, in other dtypes, with gradients and without; and positions stay where they are when the tensor
    that they were made from changes."""
    sequences = Sequences(s)
    at_random = (drawn(random.Random(seed), STEPS) for seed in range(PROGRAMS))
    for steps in (*map(_in_turn, BASES), *at_random, OVERWRITTEN, WITH_FLEX):
        try:
            sequences.run(steps)
        except Fails:
            shortest, failure = sequences.shortest(steps)
            raise Fails(f"{failure}; the calls: {_written(shortest)}") from None


class _Mark:
    """Alive as long as the graph whose leaves it hangs on."""


def no_graph_is_kept(s: Subject) -> None:
    """When the outputs of a call are gone, so is the graph of its gradients, though encoding and positions stay."""
    sequences = Sequences(s)
    encoding, positions = sequences._fresh(False), s.document(LENGTH)
    generator = torch.Generator().manual_seed(0)
    shapes = (DECODER.num_heads, DECODER.kv_heads, DECODER.kv_heads)
    q, k, v = (
        torch.randn(2, h, LENGTH, DECODER.width, dtype=torch.float64, generator=generator, requires_grad=True)
        for h in shapes
    )
    x = torch.randn(2, LENGTH, DECODER.dim, dtype=torch.float64, generator=generator, requires_grad=True)
    leaves = {"q": q, "k": k, "v": v, "x": x, **dict(encoding.named_parameters())}
    marks: dict[str, weakref.ref[_Mark]] = {}
    ends = []
    for name, leaf in leaves.items():
        mark = _Mark()
        graph = leaf.expand_as(leaf).grad_fn
        assert graph is not None
        end: Any = graph.next_functions[0][0]
        end.register_hook(lambda *gradients, mark=mark: None)  # the leaf knows it weakly, graphs own it
        ends.append(end)
        marks[name] = weakref.ref(mark)
    del mark, end, graph
    outs = [encoding.embed(x, positions), attention(q, k, v, encoding, positions, causal=True)]
    if not s.traits.causal_only:
        outs.append(attention(q, k, v, encoding, positions, causal=False))
    del outs, ends  # as after a step that was given up: nobody went back through the graph
    if any(mark() is not None for mark in marks.values()):
        gc.collect()  # which takes a second
    alive = [name for name, mark in marks.items() if mark() is not None]
    if alive:
        raise Fails(f"a graph is kept after its outputs are gone: it ends in {', '.join(alive)}")
