"""From the structures of an encoding to the plain tensors that the fused operator takes."""

from dataclasses import dataclass

import torch
from torch import Tensor

from posenc.backends.problem import Problem
from posenc.bias import Dense, Factored, KeyRelative, QueryRelative, Relative, Score
from posenc.segments import Segments, segments


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


def lower(problem: Problem) -> Lowered | Refused:
    """A problem as the operator's arguments, or why it has no such form."""
    found = segments(problem.positions)
    if found is None:
        return Refused("what is visible is not made of rectangles", "padding and documents in one piece")
    by_distance = [t for t in problem.bias if isinstance(t, Relative | QueryRelative | KeyRelative)]
    span = problem.positions.span
    if (by_distance or problem.values is not None) and (span is None or not found.regular):
        return Refused("positions are not contiguous", "contiguous positions")
    if any(term.positions is not problem.positions for term in by_distance):
        return Refused("a term counts positions of its own")
    precise = torch.promote_types(problem.q.dtype, torch.float32)
    kinds, tensors = [], []
    vectors = [t.vector(problem.q.device) for t in problem.bias if isinstance(t, Relative)]
    if vectors:
        kinds.append("distance")
        tensors.append(sum(vectors[1:], vectors[0]).to(precise).expand(problem.q.shape[1], -1))
    for term in problem.bias:
        if isinstance(term, Relative):
            continue
        lowered = _lower(term, problem.q.shape[:2], precise)
        if lowered is None:
            why = f"a term of kind {type(term).__name__} is a function of both positions"
            return Refused(why, "a bias of the distance alone")
        kinds.append(lowered[0])
        tensors += lowered[1]
    if problem.values is not None:
        distances = problem.positions.distances()
        assert distances is not None
        kinds.append("values")
        tensors += [problem.values.table.to(precise), problem.values.index(distances).long()]
    return Lowered(" ".join(kinds), tensors, found, 0 if span is None else span[1])


def _lower(term: Score, heads: torch.Size, precise: torch.dtype) -> tuple[str, list[Tensor]] | None:
    if isinstance(term, QueryRelative | KeyRelative):
        kind = "query" if isinstance(term, QueryRelative) else "key"
        content = term.content.to(precise).expand(*heads, -1, -1)
        return kind, [content, term.table.to(precise), term.index_vector()]
    if isinstance(term, Factored):
        return "product", [term.left.to(precise), term.right.to(precise)]
    if isinstance(term, Dense):
        return "full", [term.tensor.to(precise)]
    return None
