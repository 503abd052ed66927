"""What a caller may pass by mistake, by the type that an argument declares."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import NoneType, UnionType
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin

import numpy as np
import torch
from torch import Tensor

from posenc import Encoding, Positions
from posenc.position_maps import PositionMap

REFUSED, EITHER, SAME = "refused", "either", "same"


class Bad(NamedTuple):
    """A value, and what has to become of it: `refused`; `either` that or a finite result; the `same` as the good value."""

    what: str
    value: Any
    expected: str


class Subclass(Tensor):
    """A tensor of the caller's own class."""


class Thing:
    """An object that is none of ours."""


def kinds(hint: Any) -> tuple[Any, ...]:
    """The types that a hint allows, without their parameters."""
    union = get_origin(hint) in (UnionType, Union)
    return tuple(get_origin(kind) or kind for kind in (get_args(hint) if union else (hint,)))


def bad_values(hint: Any, good: Any) -> Iterator[Bad]:
    """Every hostile value for an argument of this type whose good value is known."""
    allowed = kinds(hint)
    if Any in allowed or object in allowed:
        yield from (Bad(repr(v), v, EITHER) for v in (None, 5, "nonsense", math.nan, [], {}))
        return
    yield from _of_another_type(allowed)
    if int in allowed:
        yield from (Bad(str(n), n, EITHER) for n in (0, -1, 1, 3, -(10**12), 10**12, 2**63, 10**30))
        yield Bad("numpy int", np.int64(7), EITHER)
    if float in allowed:
        yield Bad("nan", math.nan, REFUSED)
        yield from (Bad(str(x), x, EITHER) for x in (math.inf, -math.inf, 0.0, -1.0, 1e308, 1e-320, 10**400))
        yield Bad("numpy float", np.float64(0.5), EITHER)
    if str in allowed:
        yield from (Bad(repr(t[:9]), t, EITHER) for t in ("", "nonsense", "a\0b", "x" * 10_000, "rope:" * 500, "é"))
    if Literal in allowed:
        yield from (Bad(repr(t), t, REFUSED) for t in ("", "nonsense", 5, None, ["half"]))
    if Sequence in allowed or tuple in allowed or list in allowed:
        members: list[Any] = [[], [math.nan], ["x"], [[1, 2], [3]], [-1], [0], [None], [10**30], [1.5], [True], [1j]]
        yield from (Bad(repr(m), m if Sequence in allowed else tuple(m), EITHER) for m in members)
    if Mapping in allowed:
        options: list[Any] = [
            {},
            {"name": "nonsense"},
            {"name": 5},
            {5: 5},
            {"name": None, "factor": "x"},
            {"name": []},
        ]
        yield from (Bad(repr(o), o, EITHER) for o in options)
    if torch.dtype in allowed:
        yield from (Bad(str(d), d, EITHER) for d in (torch.int64, torch.bool, torch.complex64, torch.float16))
    if Tensor in allowed and isinstance(good, Tensor):
        yield from _tensors(good)
    if Positions in allowed:
        yield from (Bad(f"{n} positions", Positions.arange(n), EITHER) for n in (1, 3, 40))
        yield Bad("positions on meta", Positions.arange(6, device="meta"), REFUSED)
        yield Bad("positions on a grid", Positions.grid(2, 3), EITHER)
        far = [2.0**31 + i for i in range(6)]
        yield from (Bad(f"from {n}", Positions.from_ids([n + i for i in range(6)]), EITHER) for n in (-9, 2**24, 2**31))
        yield from (Bad(f"from {n}", Positions.from_ids([n + i for i in range(6)]), EITHER) for n in (2**53, -(2**53)))
        yield Bad("fractional", Positions.from_ids(torch.tensor(far, dtype=torch.float64) + 0.5), EITHER)


def _of_another_type(allowed: tuple[Any, ...]) -> Iterator[Bad]:
    """Values of types that the argument does not declare: never to be taken for one that it does."""
    numbers = {int, float} & set(allowed)
    several = {Sequence, Mapping, tuple, list} & set(allowed)
    for kind, value in {NoneType: None, bool: True, str: "many", complex: 1j, Thing: Thing(), type: Thing}.items():
        if (
            kind not in allowed
            and not (kind is str and Literal in allowed)
            and not (kind is type and Callable in allowed)
        ):
            yield Bad(f"a {kind.__name__}", value, REFUSED if not (kind is str and several) else EITHER)
    if not numbers and bool in allowed:
        yield from (Bad(repr(v), v, REFUSED) for v in (0, 2, 0.5, "false"))
    elif not numbers and Literal not in allowed:
        yield Bad("5", 5, EITHER if Tensor in allowed or several else REFUSED)
    if int in allowed and float not in allowed:
        yield from (Bad(repr(v), v, REFUSED) for v in (2.5, math.nan, math.inf, "8"))
    if not several and Tensor not in allowed:
        yield Bad("a list", [2, 4], REFUSED)
        yield Bad("an array", np.ones(3), REFUSED)
    if Tensor not in allowed and not several:
        yield Bad("a tensor", torch.ones(3), REFUSED)
        yield Bad("a meta tensor", torch.ones((), device="meta"), REFUSED)
    if Encoding in allowed or PositionMap in allowed:
        yield Bad("a module", torch.nn.Linear(2, 2), REFUSED)


def _tensors(good: Tensor) -> Iterator[Bad]:
    """The same tensor in other clothes, then others."""
    wide = torch.stack((good, good), -1)
    yield Bad("not contiguous", wide[..., 0], SAME)
    if good.dim() > 1:
        yield Bad("transposed twice", good.mT.contiguous().mT, SAME)
    yield Bad("subclass", good.detach().clone().as_subclass(Subclass), SAME)
    with torch.inference_mode():
        inference = good.clone()
    yield Bad("made in inference mode", inference, SAME)
    if good.is_floating_point():
        yield Bad("requires grad", good.detach().clone().requires_grad_(), SAME)
        for value in (math.nan, math.inf):
            spoilt = good.clone()
            spoilt.flatten()[:1] = value
            yield Bad(f"with {value}", spoilt, EITHER)
    one = good.flatten()[:1].view([1] * good.dim())
    yield Bad("expanded, zero strides", one.expand(good.shape), EITHER)
    for dtype in (torch.int64, torch.bool, torch.complex64, torch.float16, torch.float64, torch.uint8, torch.int8):
        if dtype != good.dtype:
            yield Bad(str(dtype), good.to(dtype), REFUSED if dtype.is_complex else EITHER)
    yield Bad("on meta", good.to("meta"), EITHER)
    yield Bad("one rank more", good[None], EITHER)
    if good.dim():
        yield Bad("one rank less", good[0], EITHER)
        yield from (Bad(f"empty along {d}", good.narrow(d, 0, 0), EITHER) for d in range(good.dim()))
        yield from (Bad(f"longer along {d}", torch.cat((good, good), d), EITHER) for d in range(good.dim()))
    if not good.is_floating_point() and good.dtype != torch.bool:
        yield from (Bad(f"all {n}", torch.full_like(good, n), EITHER) for n in (-1, 2**24, 2**31, 2**53, 2**63 - 1))
    yield Bad("sparse", good.to_sparse() if good.dim() else good, EITHER)
    yield Bad("an array", good.numpy(), EITHER)
    yield Bad("a list", good.tolist(), EITHER)
