# SPDX-License-Identifier: Apache-2.0
"""x in other dtypes: the values must be those of float32, up to the rounding of x's dtype, whichever dtype comes first."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from posenc.conformance.asking import NOT_OFFERED, Outcome, ask
from posenc.conformance.calling import Caller
from posenc.conformance.explain import Explanation, explain
from posenc.conformance.golden import Case, content
from posenc.conformance.invariants import word

HEAD_DIMS = {torch.bfloat16: 28, torch.float16: 12, torch.float64: 36}
"""A width of its own for each dtype, so that it is the first dtype that is asked for with it."""
RUNS = {torch.bfloat16: 300, torch.float16: 2100}
"""Texts from position 0 on that are longer than the dtype counts."""
POSITIONS = [0, 1, 3, 17, 100, 129, 250, 255, 256, 257, 300, 511, 700, 1023, 2047, 2049, 3001, 4095, 40000]


def other_dtypes(caller: Caller, computes: Explanation | None) -> tuple[list[str], list[str]]:
    """Findings and notes. computes: what the function computes in float32; None if that is not known."""
    findings: list[str] = []
    notes: list[str] = []
    if "x" not in caller.kind.arguments:
        return findings, notes
    for dtype, head_dim in HEAD_DIMS.items():
        questions = [(list(range(RUNS.get(dtype, 10))), 1e4), (POSITIONS, 1e4), (POSITIONS, 5e5)]
        cases = [_case(caller, computes, head_dim, *question) for question in questions]
        asked = [_rounded(ask(caller, case, x=dtype), dtype) for case in cases]
        afterwards = [ask(caller, case) for case in cases]
        found, left = _judged(f"with x in {word(dtype)}", asked, computes)
        findings += found
        notes += left
        if not left:
            findings += _kept(f"in float32, after calls with x in {word(dtype)}", afterwards, computes)
    return findings, notes


def _case(caller: Caller, computes: Explanation | None, head_dim: int, positions: list[int], base: float) -> Case:
    arguments: dict[str, Any] = {"x": content(1, 1, len(positions), head_dim), "positions": positions, "base": base}
    if "rotary_dim" in caller.kind.arguments:
        arguments["rotary_dim"] = head_dim // 2
    return Case(arguments, computes.values(arguments).tolist() if computes else [])


def _rounded(outcome: Outcome, dtype: torch.dtype) -> Outcome:
    """Judged by the tolerance of x's dtype; whether the result has it is looked at elsewhere."""
    return replace(outcome, answer=replace(outcome.answer, dtype=dtype)) if outcome.answer else outcome


def _judged(where: str, outcomes: Sequence[Outcome], computes: Explanation | None) -> tuple[list[str], list[str]]:
    offered = [outcome for outcome in outcomes if outcome.refusal != NOT_OFFERED]
    if not offered:
        return [], [f"not tried {where}: the function answers with NotImplementedError"]
    refused = [outcome for outcome in offered if outcome.answer is None]
    if refused:
        return [f"{where}: {refused[0].refusal}"], []
    wrong = [outcome for outcome in offered if computes and not outcome.right]
    if computes is None or not wrong:
        return [], []
    cause = explain(computes.kind, offered[::-1], computes.faults, together=1)
    says = "; ".join(fault.says for fault in cause.faults[len(computes.faults) :]) if cause else None
    return [f"{where}, {_extent(wrong[0])}{f': {says}' if says else ', in a way that is not known here'}"], []


def _kept(where: str, outcomes: Sequence[Outcome], computes: Explanation | None) -> list[str]:
    """What earlier calls have left behind; what it is differs from question to question, so no cause is looked for."""
    offered = [outcome for outcome in outcomes if outcome.refusal != NOT_OFFERED]
    refused = [outcome for outcome in offered if outcome.answer is None]
    if refused:
        return [f"{where}: {refused[0].refusal}"]
    wrong = [outcome for outcome in offered if computes and not outcome.right]
    return [f"{where}, {_extent(wrong[0])}"] if wrong else []


def _extent(outcome: Outcome) -> str:
    """From where on values are wrong, and by how much."""
    where = outcome.wrong(outcome.expected)
    assert outcome.answer is not None
    if where is None:
        return f"the result has the shape {tuple(outcome.answer.values.shape)}"
    error = (outcome.answer.values.reshape(where.shape) - outcome.expected).abs().max().item()
    positions = outcome.case.arguments["positions"]
    rows = where.flatten(0, -3).any(0).any(-1) if where.shape[-2] == len(positions) else None
    first = f" from position {positions[int(rows.nonzero()[0])]} on" if rows is not None else ""
    return f"values are wrong{first}, by up to {error:.2g}"
