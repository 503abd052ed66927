# SPDX-License-Identifier: Apache-2.0
"""Whether a call depends on earlier ones: sequences of calls at positions and at positions derived from these, each compared
with the same call alone, on fresh objects."""

import copy
import gc
import random
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from posenc.conformance import fixtures
from posenc.conformance.fixtures import DECODER, LENGTH, CheckFailed, EncodingUnderTest, attend, equal
from posenc.encoding import Encoding
from posenc.errors import InputError
from posenc.lab.transformer import Block
from posenc.positions import Positions


def _hide(positions: Positions, index: int) -> Positions:
    return positions.derived(valid=(torch.arange(positions.num_keys) != index)[None])


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
    "replace(valid=all but the first)": partial(_hide, index=0),
    "replace(valid=all but the second)": partial(_hide, index=1),
    "moved(to the next one's position)": lambda positions: positions.moved(lambda ids, order: ids.roll(-1, 1)),
    "cross(with more keys)": _cross,
    "take(the first three)": lambda positions: positions.take(torch.arange(3)),
    "deepcopy": copy.deepcopy,
}
BACKENDS = ("auto", "auto", "auto", "reference", "sdpa")
DTYPES = (torch.float64, torch.float64, torch.float32)
MODES = ("no_grad", "backward", "inference_mode")


Derivations = dict[tuple[str, ...], Positions | None]
"""How positions are derived from a base, in turn -> these positions; None: that is refused."""


class EncodingCall(NamedTuple):
    """A call of `attention`, or of `Encoding.embed`."""

    positions: tuple[str, ...]
    """How they are derived from a base, in turn; calls share what they are derived from."""
    embeds: bool = False
    causal: bool | None = None
    layer: int = 0
    backend: str = "auto"
    dtype: torch.dtype = torch.float64
    mode: str = "no_grad"
    other_parameters: bool = False
    """Of a copy of the encoding, with other parameters."""


def draw_calls(source: random.Random, base: str) -> list[EncodingCall]:
    """Calls at a base and everything derived from it, under either causality, in any dtype and mode, in a random order."""
    recipes: list[tuple[str, ...]] = [(), *((name,) for name in DERIVED), tuple(source.sample(list(DERIVED), 2))]
    calls = [EncodingCall(recipe, causal=causal) for recipe in recipes for causal in (True, False)]
    calls += [EncodingCall(recipe, embeds=True) for recipe in recipes[:: source.choice((2, 3))]]
    calls = [
        call._replace(
            layer=source.choice((0, 1)), backend=source.choice(BACKENDS), dtype=source.choice(DTYPES),
            mode=source.choice(MODES), other_parameters=source.random() < 0.2,
        )
        for call in calls
    ]  # fmt: skip
    if base == "contiguous":  # FlexAttention, run eagerly, takes as long as all the rest
        calls += [EncodingCall(at, causal=True, backend="flex") for at in ((), ("cross(with more keys)",))]
    source.shuffle(calls)
    return calls


class CallSequences:
    """Runs sequences of calls on an encoding, and each of their calls alone, on fresh objects."""

    def __init__(self, tested: EncodingUnderTest) -> None:
        self.tested = tested
        self.model = tested.model(DECODER)
        self.originals = self.model.encoding, copy.deepcopy(self.model.encoding)
        with torch.no_grad():
            for parameter in self.originals[1].parameters():
                parameter.mul_(0.7)

    def compare(self, seed: int, bases: Sequence[str] = BASES) -> None:
        """Raise CheckFailed where a call's result is not the one it has alone; seed: of the calls' order and options."""
        for base in bases if self.tested.takes_images else [base for base in bases if base != "grid"]:
            calls = draw_calls(random.Random(seed), base)
            if different := self._difference(base, calls):
                index, message = different
                pairs = ([earlier, calls[index]] for earlier in calls[:index])
                fewest = next((pair for pair in pairs if self._difference(base, pair)), calls[: index + 1])
                raise CheckFailed(f"{message}; the calls: {'; '.join(map(str, fewest))}")

    def fresh(self, other_parameters: bool = False) -> Encoding:
        """A copy that was not called before."""
        encoding = copy.deepcopy(self.originals[other_parameters])
        layers = [block.attention for block in self.model.blocks if isinstance(block, Block)]
        encoding.share([(layer.query, layer.key) for layer in layers])
        return encoding

    def _difference(self, base: str, calls: Sequence[EncodingCall]) -> tuple[int, str] | None:
        """The first call whose result is not the one it has alone: its index and how it differs."""
        encodings = [self.fresh(other) for other in (False, True)]
        ids = self.tested.ids(LENGTH)[None].clone()
        made: Derivations = {(): self._base(base, ids)}
        for index, call in enumerate(calls):
            positions = _derive(call.positions, made)
            if 2 * index >= len(calls):
                ids.zero_()  # the tensor that positions were made from is the caller's
            alone_at = _derive(call.positions, {(): self._base(base, self.tested.ids(LENGTH)[None])})
            if positions is None or alone_at is None:
                continue
            alone = self._result(self.fresh(call.other_parameters), alone_at, call)
            try:
                result = self._result(encodings[call.other_parameters], positions, call)
                _require_equal(result, alone, f"{call} at {base}, after other calls and alone", call.dtype)
            except CheckFailed as failure:
                return index, str(failure)
            except Exception as error:
                raise CheckFailed(f"{call} at {base} ends in {type(error).__name__}; alone it does not") from error
        return None

    def _base(self, name: str, ids: Tensor) -> Positions:
        if name == "ids":
            return Positions.from_ids(ids, packed=False)
        return Positions.grid(3, 3) if name == "grid" else self.tested.layout(name)

    def _result(self, encoding: Encoding, positions: Positions, call: EncodingCall) -> list[Tensor] | str:
        """The output of a call, with the gradients; or the message of its refusal."""
        trains = call.mode == "backward"
        options: dict[str, Any] = {"dtype": call.dtype, "trains": trains}
        try:
            with torch.inference_mode(call.mode == "inference_mode"), torch.set_grad_enabled(trains):
                if call.embeds:
                    inputs = fixtures.random_inputs((2, positions.num_queries, DECODER.dim), **options)
                    out = encoding.embed(inputs[0], positions, call.layer)
                else:
                    inputs = fixtures.attention_inputs(DECODER, positions, **options)
                    out = attend(
                        encoding, inputs, positions, causal=call.causal, layer=call.layer, backend=call.backend
                    )
            if not trains or not out.requires_grad:
                return [out]
            gradients = torch.autograd.grad(out.square().sum(), [*inputs, *encoding.parameters()], allow_unused=True)
        except InputError as refusal:
            return str(refusal)
        return [out, *(torch.zeros(()) if g is None else g for g in gradients)]


def _derive(recipe: tuple[str, ...], made: Derivations) -> Positions | None:
    """Positions made by a recipe, or before; None if what they are derived from refuses it."""
    if recipe not in made:
        before = _derive(recipe[:-1], made)
        try:
            made[recipe] = None if before is None else DERIVED[recipe[-1]](before)
        except InputError:
            made[recipe] = None
    return made[recipe]


def _require_equal(result: list[Tensor] | str, alone: list[Tensor] | str, what: str, dtype: torch.dtype) -> None:
    if isinstance(result, str) and isinstance(alone, str):
        return
    if isinstance(result, str) or isinstance(alone, str):
        now, before = (f"refused ({x})" if isinstance(x, str) else "served" for x in (result, alone))
        raise CheckFailed(f"{what}: {now} and {before}")
    for a, b in zip(result, alone, strict=True):
        equal(a, b, what, 1e-9 if dtype == torch.float64 else 1e-3)


def calls_are_independent(tested: EncodingUnderTest) -> None:
    """A call gives what it gives alone, on fresh objects, whatever was called before: attention and codes at the same
    positions, at positions derived from these (under another causality, in a window, with other keys hidden, moved, across,
    copied), under an encoder and a decoder, in other dtypes, in inference mode, then with gradients; and positions do not
    change with the tensor that they were made from."""
    CallSequences(tested).compare(seed=0)


class _Mark:
    """Alive as long as the graph of which a leaf's hook refers to it."""


def graphs_are_freed(tested: EncodingUnderTest) -> None:
    """When the outputs of a call are gone, so is the graph of its gradients, though encoding and positions stay."""
    encoding, positions = CallSequences(tested).fresh(), tested.document(LENGTH)
    (x,) = fixtures.random_inputs((2, LENGTH, DECODER.dim), trains=True)
    inputs = fixtures.attention_inputs(DECODER, positions, trains=True)
    leaves = {**dict(zip("qkv", inputs, strict=False)), "x": x, "input": inputs[3], **dict(encoding.named_parameters())}
    marks: dict[str, weakref.ref[_Mark]] = {}
    ends = []
    for name, leaf in leaves.items():
        mark = _Mark()
        graph = leaf.expand_as(leaf).grad_fn
        assert graph is not None
        end: Any = graph.next_functions[0][0]
        end.register_hook(lambda *gradients, mark=mark: None)  # the leaf refers to it weakly, graphs strongly
        ends.append(end)
        marks[name] = weakref.ref(mark)
    del mark, end, graph
    outs = [encoding.embed(x, positions), attend(encoding, inputs, positions, causal=True)]
    if not tested.encoding.causal_only:
        outs.append(attend(encoding, inputs, positions, causal=False))
    del outs, ends  # as after a step that was given up: nobody went back through the graph
    if any(mark() is not None for mark in marks.values()):
        gc.collect()  # which takes a second
    alive = [name for name, mark in marks.items() if mark() is not None]
    if alive:
        raise CheckFailed(f"a graph is alive after its outputs are gone: it ends in {', '.join(alive)}")
