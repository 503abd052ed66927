# SPDX-License-Identifier: Apache-2.0
"""From the structures of an encoding to the plain tensors that the fused operator takes."""

from dataclasses import dataclass

import torch
from torch import Tensor

from posenc.backends.problem import Problem
from posenc.bias import Dense, Factored, KeyRelative, Positional, QueryRelative, Relative, rows_at
from posenc.positions import Positions
from posenc.positions.segments import Segments, segments


@dataclass(frozen=True)
class Lowered:
    """Arguments of `operator.attend`."""

    kinds: str
    tensors: list[Tensor]
    segments: Segments
    longest: int
    """The distance that vectors of distances begin with."""


@dataclass(frozen=True)
class Refused:
    """Why a problem has no form that the operator takes, and what would be faster."""

    why: str
    faster: str = ""


def obstacle(problem: Problem) -> Refused | None:
    """Why a problem has no form that the operator takes; None if it has one. Computes no term."""
    positions = problem.positions
    found = segments(positions)
    if found is None:
        return Refused("what is visible is not made of rectangles", _in_rectangles(positions))
    if problem.branches and positions.window is not None:
        return Refused("a window beside a position map")
    if problem.branches and not found.regular:
        return Refused("positions are not contiguous", "contiguous positions")
    if any(isinstance(t, Relative | Positional) and t.positions.axes > 1 for t in problem.bias):
        return Refused("a bias of places with several coordinates")
    by_distance = [t for t in problem.bias if isinstance(t, Relative | QueryRelative | KeyRelative)]
    if (by_distance or problem.values is not None) and (positions.span is None or not found.regular):
        return Refused("positions are not contiguous", "contiguous positions")
    if any(term.positions is not positions for term in by_distance):
        return Refused("a term counts positions of its own")
    for term in problem.bias:
        if not isinstance(term, Relative | QueryRelative | KeyRelative | Factored | Dense):
            if isinstance(term, Positional):
                return Refused("a term is a function of both positions", "a bias of the distance alone")
            why = f"a term is a {type(term).__name__}, of whose form nothing is known"
            return Refused(why, "Relative, QueryRelative, KeyRelative or Factored terms")
    return None


def _in_rectangles(positions: Positions) -> str:
    """What would make rectangles of what is visible."""
    if positions.prefix is not None:
        return "a prefix without a window, outside torch.compile"
    if torch.compiler.is_compiling() or not positions.unmasked:
        return "padding and documents in one piece"
    return "causal order that follows the tokens; for a prefix that sees itself, one call for it and one for the rest"


def lower(problem: Problem) -> Lowered:
    """A problem without an `obstacle` as the operator's arguments."""
    positions, precise = problem.positions, torch.promote_types(problem.q.dtype, torch.float32)
    found = segments(positions)
    assert found is not None
    kinds, tensors = [], []
    vectors = [t.vector(problem.q.device) for t in problem.bias if isinstance(t, Relative)]
    if vectors:
        kinds.append("distance")
        tensors.append(sum(vectors[1:], vectors[0]).to(precise).expand(problem.q.shape[1], -1))
    for term in problem.bias:
        if isinstance(term, QueryRelative | KeyRelative):
            kinds.append("query" if isinstance(term, QueryRelative) else "key")
            content = term.content.to(precise).expand(*problem.q.shape[:2], -1, -1)
            tensors += [content, term.table.to(precise), term.index_vector()]
        elif isinstance(term, Factored):
            kinds.append("product")
            tensors += [term.left.to(precise), term.right.to(precise)]
        elif isinstance(term, Dense):
            kinds.append("full")
            tensors.append(term.tensor.to(precise))
    if problem.values is not None:
        distances = positions.distances()
        assert distances is not None
        kinds.append("values")
        tensors += [problem.values.table.to(precise), rows_at(problem.values.index, distances, problem.values.table)]
    return Lowered(" ".join(kinds), tensors, found, 0 if positions.span is None else positions.span[1])
