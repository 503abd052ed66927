# SPDX-License-Identifier: Apache-2.0
"""`fused` as an operator of PyTorch: what compilers and exporters see of it."""

from typing import Any, NoReturn

import torch
from torch import Tensor

from posenc.backends import fused
from posenc.backends.call import Call
from posenc.backends.tiles import TERMS, Term, ValuesTerm
from posenc.errors import InputError
from posenc.positions.segments import Segments
from posenc.positions.visibility import EVERYTHING, Region

NUMBERS = len(EVERYTHING.numbers()) + 1
"""Per branch: those of its region, and `Rotated.first`."""


def _calls(
    q: list[Tensor], k: list[Tensor], v: Tensor, tensors: list[Tensor], kinds: str, table: list[int],
    regions: list[int], causal: bool, scale: float, longest: int, dropout_p: float, seed: Tensor | None,
) -> list[Call]:  # fmt: skip
    drawn = 0 if seed is None else int(seed)
    found = []
    q, k, v = [_packed(x) for x in q], [_packed(x) for x in k], _packed(v)
    for number, (of_q, of_k) in enumerate(zip(q, k, strict=True)):
        terms: list[Term] = []
        values: ValuesTerm | None = None
        at = 0
        for kind in kinds.split():
            make = TERMS[kind]
            term = make(*tensors[at : at + make.size])
            at += make.size
            if isinstance(term, ValuesTerm):
                values = term
            else:
                terms.append(term)
        *numbers, first = regions[NUMBERS * number : NUMBERS * (number + 1)]
        keys, segments, own = of_k.shape[2], Segments(list(table), True), drawn ^ (number << 40)
        of_v = v
        if keys < v.shape[2]:
            of_v, segments = v[:, :, first : first + keys], segments.keys(first, keys)
        region = Region.of(numbers)
        found.append(Call(of_q, of_k, of_v, terms, values, segments, causal, scale, longest, dropout_p, own, region))
    return found


def _packed(x: Tensor) -> Tensor:
    """With the channels next to one another, as PyTorch's flash kernel takes for granted: else it reads others."""
    return x if x.stride(-1) == 1 else x.contiguous()


@torch.library.custom_op("posenc::attend", mutates_args=())
def attend(
    q: list[Tensor], k: list[Tensor], v: Tensor, tensors: list[Tensor], kinds: str, table: list[int],
    regions: list[int], causal: bool, scale: float, longest: int, dropout_p: float, seed: Tensor | None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Output (batch, heads, queries, value width) and log-sum-exp (batch, heads, queries) of one softmax.

    q, k: rotated for each branch of a position map, or once. regions: NUMBERS of each branch, one after another.
    kinds: the terms by name, see `tiles.TERMS`, separated by blanks, "values" last; tensors: what they are made of.
    table: `Segments.table`. longest: the distance of the first entry of every vector of distances.
    """
    with torch.autocast(v.device.type, enabled=False):
        return fused.forward(_calls(q, k, v, tensors, kinds, table, regions, causal, scale, longest, dropout_p, seed))


@attend.register_fake
def _(
    q: list[Tensor], k: list[Tensor], v: Tensor, tensors: list[Tensor], kinds: str, table: list[int],
    regions: list[int], causal: bool, scale: float, longest: int, dropout_p: float, seed: Tensor | None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    batch, heads, queries, _ = q[0].shape
    out = v.new_empty(batch, queries, heads, v.shape[3]).transpose(1, 2)
    return out, v.new_empty(batch, heads, queries, dtype=torch.promote_types(v.dtype, torch.float32))


@torch.library.custom_op("posenc::attend_backward", mutates_args=())
def attend_backward(
    q: list[Tensor], k: list[Tensor], v: Tensor, tensors: list[Tensor], kinds: str, table: list[int],
    regions: list[int], causal: bool, scale: float, longest: int, dropout_p: float, seed: Tensor | None, out: Tensor,
    lse: Tensor, grad: Tensor, of_lse: Tensor, needs: list[bool],
) -> list[Tensor]:  # fmt: skip
    """Gradients of every q, every k, v, and of those tensors that need one, in order."""
    calls = _calls(q, k, v, tensors, kinds, table, regions, causal, scale, longest, dropout_p, seed)
    for call in calls:
        at = 0
        for term in call.every_term:
            term.wants(needs[at : at + term.size])
            at += term.size
    with torch.autocast(v.device.type, enabled=False):
        firsts = regions[NUMBERS - 1 :: NUMBERS]
        of_q, of_k, of_v = fused.backward(calls, list(firsts), v, out, lse, grad, of_lse)
    # a branch's terms are made of the same tensors
    shares = [[x for term in call.every_term for x in term.grads if x is not None] for call in calls]
    return [*of_q, *of_k, of_v, *(sum(parts[1:], parts[0]) for parts in zip(*shares, strict=True))]


@attend_backward.register_fake
def _(
    q: list[Tensor], k: list[Tensor], v: Tensor, tensors: list[Tensor], kinds: str, table: list[int],
    regions: list[int], causal: bool, scale: float, longest: int, dropout_p: float, seed: Tensor | None, out: Tensor,
    lse: Tensor, grad: Tensor, of_lse: Tensor, needs: list[bool],
) -> list[Tensor]:  # fmt: skip
    wanted = [x for x, need in zip(tensors, needs, strict=True) if need]
    return [torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (*q, *k, v, *wanted)]


def _refuse_second(ctx: Any, *grads: Any) -> NoReturn:
    raise InputError("second derivatives of posenc.attention: the fused operator has none; pass backend='reference'")


attend_backward.register_autograd(_refuse_second)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    q, k, v, tensors, *settings, seed = inputs
    ctx.settings = settings
    ctx.branches, ctx.count = len(q), len(tensors)
    ctx.save_for_backward(*q, *k, v, *tensors, *output, *(() if seed is None else (seed,)))


def _backward(ctx: Any, grad: Tensor, of_lse: Tensor) -> tuple[Any, ...]:
    n, saved = ctx.branches, ctx.saved_tensors
    q, k, v, rest = list(saved[:n]), list(saved[n : 2 * n]), saved[2 * n], saved[2 * n + 1 :]
    tensors, (out, lse, *seed) = list(rest[: ctx.count]), rest[ctx.count :]
    needs = list(ctx.needs_input_grad[3])
    found = attend_backward(q, k, v, tensors, *ctx.settings, seed[0] if seed else None, out, lse, grad, of_lse, needs)
    of_tensors = iter(found[2 * n + 1 :])
    of_inputs = found[:n], found[n : 2 * n], found[2 * n]
    return *of_inputs, [next(of_tensors) if need else None for need in needs], *([None] * 8)


attend.register_autograd(_backward, setup_context=_save)
