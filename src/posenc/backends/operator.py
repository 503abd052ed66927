"""`fused` as an operator of PyTorch: what compilers and exporters see of it."""

from typing import Any

import torch
from torch import Tensor

from posenc.backends import fused
from posenc.backends.call import Call
from posenc.backends.tiles import TERMS, Term, ValuesTerm
from posenc.segments import Segments


def _call(
    q: Tensor, k: Tensor, v: Tensor, tensors: list[Tensor], kinds: str, table: list[int], causal: bool, scale: float,
    longest: int, dropout_p: float, seed: Tensor | None,
) -> Call:  # fmt: skip
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
    drawn = 0 if seed is None else int(seed)
    return Call(q, k, v, terms, values, Segments(list(table), True), causal, scale, longest, dropout_p, drawn)


@torch.library.custom_op("posenc::attend", mutates_args=())
def attend(
    q: Tensor, k: Tensor, v: Tensor, tensors: list[Tensor], kinds: str, table: list[int], causal: bool, scale: float,
    longest: int, dropout_p: float, seed: Tensor | None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Output (batch, heads, queries, value width) and log-sum-exp (batch, heads, queries) of one call.

    kinds: the terms by name, see `tiles.TERMS`, separated by blanks, "values" last; tensors: what they are made of.
    table: `Segments.table`. longest: the distance of the first entry of every vector of distances.
    """
    with torch.autocast(q.device.type, enabled=False):
        return fused.forward(_call(q, k, v, tensors, kinds, table, causal, scale, longest, dropout_p, seed))


@attend.register_fake
def _(
    q: Tensor, k: Tensor, v: Tensor, tensors: list[Tensor], kinds: str, table: list[int], causal: bool, scale: float,
    longest: int, dropout_p: float, seed: Tensor | None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    out = q.new_empty(q.shape[0], q.shape[2], q.shape[1], v.shape[3]).transpose(1, 2)
    return out, q.new_empty(q.shape[:3], dtype=torch.promote_types(q.dtype, torch.float32))


@torch.library.custom_op("posenc::attend_backward", mutates_args=())
def attend_backward(
    q: Tensor, k: Tensor, v: Tensor, tensors: list[Tensor], kinds: str, table: list[int], causal: bool, scale: float,
    longest: int, dropout_p: float, seed: Tensor | None, out: Tensor, lse: Tensor, grad: Tensor, of_lse: Tensor,
    needs: list[bool],
) -> list[Tensor]:  # fmt: skip
    """Gradients of q, k, v and of those tensors that need one, in order."""
    call = _call(q, k, v, tensors, kinds, table, causal, scale, longest, dropout_p, seed)
    terms = [*call.terms, *([] if call.values is None else [call.values])]
    at = 0
    for term in terms:
        term.wants(needs[at : at + term.size])
        at += term.size
    with torch.autocast(q.device.type, enabled=False):
        found = fused.backward(call, out, lse, grad, of_lse)
    return [*found, *(x for term in terms for x in term.grads if x is not None)]


@attend_backward.register_fake
def _(
    q: Tensor, k: Tensor, v: Tensor, tensors: list[Tensor], kinds: str, table: list[int], causal: bool, scale: float,
    longest: int, dropout_p: float, seed: Tensor | None, out: Tensor, lse: Tensor, grad: Tensor, of_lse: Tensor,
    needs: list[bool],
) -> list[Tensor]:  # fmt: skip
    wanted = [x for x, need in zip(tensors, needs, strict=True) if need]
    return [torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (q, k, v, *wanted)]


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    q, k, v, tensors, *settings, seed = inputs
    ctx.settings = settings
    ctx.count = len(tensors)
    ctx.save_for_backward(q, k, v, *tensors, *output, *(() if seed is None else (seed,)))


def _backward(ctx: Any, grad: Tensor, of_lse: Tensor) -> tuple[Any, ...]:
    q, k, v, *rest = ctx.saved_tensors
    tensors, (out, lse, *seed) = rest[: ctx.count], rest[ctx.count :]
    needs = list(ctx.needs_input_grad[3])
    found = attend_backward(
        q, k, v, tensors, *ctx.settings, seed[0] if seed else None, out, lse, grad, of_lse, needs
    )  # fmt: skip
    of_tensors = iter(found[3:])
    return *found[:3], [next(of_tensors) if need else None for need in needs], *([None] * 7)


attend.register_autograd(_backward, setup_context=_save)
