# SPDX-License-Identifier: Apache-2.0
"""Whether a call depends on earlier ones: sequences of calls at positions and at positions derived from these, each compared
with the same call alone, on fresh objects."""

import copy
import gc
import random
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from posenc.attention import attention
from posenc.conformance.fixtures import (
    DECODER,
    LENGTH,
    CheckFailed,
    EncodingUnderTest,
    attention_inputs,
    equal,
    random_inputs,
)
from posenc.encoding import Encoding
from posenc.errors import InputError
from posenc.positions import Positions
from posenc.transformer import Block


def _hide(index: int) -> Callable[[Positions], Positions]:
    def hide(positions: Positions) -> Positions:
        return replace(positions, valid=(torch.arange(positions.num_keys) != index)[None])

    return hide


def _cross(positions: Positions) -> Positions:
    """To more keys, of a longer text or a larger image."""
    if positions.images is not None:
        return Positions.cross(positions, Positions.grid(4, 4))
    return Positions.cross(positions, Positions.arange(LENGTH + 3) if positions.axes == 1 else positions)


BASES = ("contiguous", "ids", "packed", "padded", "cached", "grid")
DERIVED: dict[str, Callable[[Positions], Positions]] = {
    "with_causal(True)": lambda positions: positions.with_causal(True),
    "with_causal(False)": lambda positions: positions.with_causal(False),
    "with_window(2)": lambda positions: positions.with_window(2),
    "replace(valid=all but the first)": _hide(0),
    "replace(valid=all but the second)": _hide(1),
    "moved(to the next one's position)": lambda positions: positions.moved(lambda ids, order: ids.roll(-1, 1)),
    "cross(with more keys)": _cross,
    "take(the first three)": lambda positions: positions.take(torch.arange(3)),
    "deepcopy": copy.deepcopy,
}
ACTIONS = ("attention", "attention", "attention", "embed")
CAUSAL = (None, True, False)
LAYERS = (0, 1)
BACKENDS = ("auto", "auto", "auto", "reference", "sdpa")
DTYPES = (torch.float64, torch.float64, torch.float32)
MODES = ("no_grad", "backward", "inference_mode")


class EncodingCall(NamedTuple):
    """A call: "attention" or "embed"; "make" only makes the positions; "overwrite" changes the tensor of ids that positions
    were made from, which is the caller's."""

    positions: tuple[str, ...]
    """A base, and what is derived from it in turn. Positions of the same base share what they are derived from."""
    action: str = "attention"
    causal: bool | None = None
    layer: int = 0
    backend: str = "auto"
    dtype: torch.dtype = torch.float64
    mode: str = "no_grad"
    other_parameters: bool = False
    """Of a copy of the encoding, with other parameters."""


def in_turn(base: str) -> list[EncodingCall]:
    """Call at a base, at everything derived from it, and back, under either causality."""
    everywhere: list[tuple[str, ...]] = [(base,), *((base, derived) for derived in DERIVED)]
    causal = [index % 2 == 0 for index in range(len(everywhere))]
    calls = [EncodingCall(at, "make") for at in everywhere]
    calls += [EncodingCall(at, causal=one) for at, one in zip(everywhere, causal, strict=True)]
    calls += [EncodingCall(at, "embed") for at in reversed(everywhere)]
    return calls + [EncodingCall(at, causal=not one) for at, one in zip(everywhere, causal, strict=True)]


def at_random(source: random.Random, length: int) -> list[EncodingCall]:
    """So many calls in any dtype and mode, with gradients and without."""
    draw, derived = source.choice, list(DERIVED)
    return [
        EncodingCall(
            (draw(BASES), *source.choices(derived, k=draw((0, 0, 1, 2)))), draw(ACTIONS), draw(CAUSAL), draw(LAYERS),
            draw(BACKENDS), draw(DTYPES), draw(MODES), source.random() < 0.2,
        )
        for _ in range(length)
    ]  # fmt: skip


FROM_IDS = (("ids",), ("ids", "deepcopy"), ("ids", "with_causal(True)"))
PROGRAMS: dict[str, list[EncodingCall]] = {
    **{f"in turn at {base}": in_turn(base) for base in BASES},
    "at random": at_random(random.Random(0), 40),
    "ids that are overwritten": [
        *(EncodingCall(at, "make") for at in FROM_IDS),
        EncodingCall(("ids",), "overwrite"),
        *(EncodingCall(at, action, True) for at in FROM_IDS for action in ("embed", "attention")),
    ],
    "FlexAttention": [
        EncodingCall(at, causal=True, backend="flex")
        for at in (
            ("contiguous",),
            ("contiguous", "replace(valid=all but the second)"),
            ("contiguous", "cross(with more keys)"),
        )
    ],
}


class CallSequences:
    """Runs sequences of calls on an encoding."""

    def __init__(self, tested: EncodingUnderTest) -> None:
        self.tested = tested
        self.model = tested.model(DECODER)
        self.originals = self.model.encoding, copy.deepcopy(self.model.encoding)
        with torch.no_grad():
            for parameter in self.originals[1].parameters():
                parameter.mul_(0.7)
        self.alone: dict[EncodingCall, list[Tensor] | str] = {}

    def run(self, calls: Iterable[EncodingCall]) -> None:
        """Raise CheckFailed where a call's result is not the one it has alone."""
        encodings = [self.fresh(other) for other in (False, True)]
        ids, made = self.tested.ids(LENGTH)[None].clone(), dict[tuple[str, ...], Positions | None]()
        for call in calls:
            if call.action == "overwrite":
                if ("ids",) in made:
                    ids.copy_(ids.flip(1).clone())
                continue
            positions = self._positions(call.positions, ids, made)
            if positions is not None and call.action != "make":
                self._compare(call, positions, encodings[call.other_parameters])

    def shortest(self, calls: Sequence[EncodingCall]) -> list[EncodingCall]:
        """Of calls that fail, those without which they do not."""
        calls, size = list(calls), len(calls)
        while size:
            for first in reversed(range(0, len(calls), size)):
                fewer = calls[:first] + calls[first + size :]
                try:
                    self.run(fewer)
                except CheckFailed:
                    calls = fewer
            size //= 2
        return calls

    def fresh(self, other_parameters: bool = False) -> Encoding:
        """A copy that was not called before."""
        encoding = copy.deepcopy(self.originals[other_parameters])
        layers = [block.attention for block in self.model.blocks if isinstance(block, Block)]
        encoding.share([(layer.query, layer.key) for layer in layers])
        return encoding

    def _compare(self, call: EncodingCall, positions: Positions, encoding: Encoding) -> None:
        if call not in self.alone:
            fresh = self._positions(call.positions, self.tested.ids(LENGTH)[None].clone(), {})
            assert fresh is not None
            self.alone[call] = self._result(self.fresh(call.other_parameters), fresh, call)
        alone = self.alone[call]
        try:
            result = self._result(encoding, positions, call)
        except Exception as error:
            raise CheckFailed(f"{call} ends in {type(error).__name__} ({error}); alone it does not") from error
        if isinstance(result, str) or isinstance(alone, str):
            if isinstance(result, str) != isinstance(alone, str):
                now, before = (f"is refused ({x})" if isinstance(x, str) else "is served" for x in (result, alone))
                raise CheckFailed(f"{call} {now}; alone it {before}")
            return
        for a, b in zip(result, alone, strict=True):
            equal(a, b, f"{call}, after other calls and alone", 1e-9 if call.dtype == torch.float64 else 1e-3)

    def _positions(
        self, recipe: tuple[str, ...], ids: Tensor, made: dict[tuple[str, ...], Positions | None]
    ) -> Positions | None:
        """Positions made by a recipe, or before; None if what they are derived from refuses it."""
        if recipe not in made:
            try:
                if recipe[1:]:
                    before = self._positions(recipe[:-1], ids, made)
                    made[recipe] = None if before is None else DERIVED[recipe[-1]](before)
                elif recipe[0] == "ids":
                    made[recipe] = Positions.from_ids(ids)
                elif recipe[0] == "grid":
                    made[recipe] = Positions.grid(3, 3) if self.tested.takes_images else None
                else:
                    made[recipe] = self.tested.layout(recipe[0])
            except InputError:
                made[recipe] = None
        return made[recipe]

    def _result(self, encoding: Encoding, positions: Positions, call: EncodingCall) -> list[Tensor] | str:
        """The output of a call, with the gradients; or the message of its refusal."""
        trains = call.mode == "backward"
        options: dict[str, Any] = {"dtype": call.dtype, "trains": trains}
        if call.action == "embed":
            inputs = random_inputs((2, positions.num_queries, DECODER.dim), **options)
        else:
            inputs = attention_inputs(DECODER, positions, **options)
        try:
            with torch.inference_mode(call.mode == "inference_mode"), torch.set_grad_enabled(trains):
                if call.action == "embed":
                    out = encoding.embed(inputs[0], positions, call.layer)
                else:
                    q, k, v = inputs
                    out = attention(
                        q, k, v, encoding, positions, causal=call.causal, layer=call.layer, backend=call.backend
                    )
            if not trains or not out.requires_grad:
                return [out]
            gradients = torch.autograd.grad(out.square().sum(), [*inputs, *encoding.parameters()], allow_unused=True)
        except InputError as refusal:
            return str(refusal)
        return [out, *(torch.zeros(()) if g is None else g for g in gradients)]


# -------------------------------------------------------------------- the checks


def calls_are_independent(tested: EncodingUnderTest) -> None:
    """A call gives what it gives alone, on fresh objects, whatever was called before: attention and codes at the same
    positions, at positions derived from these (under another causality, in a window, with other keys hidden, moved, across,
    copied), under an encoder and a decoder, in other dtypes, with gradients and without; and positions do not change with the
    tensor that they were made from."""
    sequences = CallSequences(tested)
    for calls in PROGRAMS.values():
        try:
            sequences.run(calls)
        except CheckFailed as failure:
            raise CheckFailed(f"{failure}; the calls: {'; '.join(map(str, sequences.shortest(calls)))}") from None


class _Mark:
    """Alive as long as the graph whose leaves it hangs on."""


def graphs_are_freed(tested: EncodingUnderTest) -> None:
    """When the outputs of a call are gone, so is the graph of its gradients, though encoding and positions stay."""
    encoding, positions = CallSequences(tested).fresh(), tested.document(LENGTH)
    (x,) = random_inputs((2, LENGTH, DECODER.dim), trains=True)
    q, k, v = attention_inputs(DECODER, positions, trains=True)
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
    if not tested.encoding.causal_only:
        outs.append(attention(q, k, v, encoding, positions, causal=False))
    del outs, ends  # as after a step that was given up: nobody went back through the graph
    if any(mark() is not None for mark in marks.values()):
        gc.collect()  # which takes a second
    alive = [name for name, mark in marks.items() if mark() is not None]
    if alive:
        raise CheckFailed(f"a graph is alive after its outputs are gone: it ends in {', '.join(alive)}")
