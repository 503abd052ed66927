# SPDX-License-Identifier: Apache-2.0
"""The calls of attention alone: one new token against n - 1 cached ones, as every layer of a model asks for it in a step.

Positions are made once a step and serve all layers; keys and values are the same tensors in each, so that what a call
costs besides reading them shows.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

import posenc
from posenc.encoding import Encoding
from posenc.lab.bench.case import TOLERANCES, Built, Candidate, Case, Problem, Tensors

LAYERS, HEADS, HEAD_DIM = 32, 8, 64


class Inputs:
    """A query, and the keys and values of all tokens, (1, 8, n, 64)."""

    def __init__(self, problem: Problem) -> None:
        generator = torch.Generator().manual_seed(0)
        sizes = (1, problem.length, problem.length)
        self.problem = problem
        self.q, self.k, self.v = (
            torch.randn(1, HEADS, n, HEAD_DIM, generator=generator).to(problem.device, problem.dtype) for n in sizes
        )

    def step(self, layer: Callable[[posenc.Positions], Tensor]) -> Callable[[], Tensor]:
        """A layer's call, in every layer of a step."""

        def run() -> Tensor:
            with torch.inference_mode():
                positions = posenc.Positions.arange(
                    1, offset=self.problem.length - 1, causal=True, device=self.problem.device
                )
                for _ in range(LAYERS - 1):
                    layer(positions)
                return layer(positions)

        return run

    def measured(self, run: Callable[[], Tensor], bias: Tensor | float = 0.0, turns: bool = False) -> Built:
        """A candidate, and the formula that it must equal: softmax(q . k / 8 + bias) v in float64."""

        def truth() -> Tensors:
            q, k, v = (x.double() for x in (self.q, self.k, self.v))
            if turns:
                angles = torch.arange(self.problem.length)[:, None] * posenc.frequencies.default(HEAD_DIM).inv_freq
                k = posenc.functional.rotary(k, angles.cos().to(k), angles.sin().to(k))
                q = posenc.functional.rotary(q, angles[-1:].cos().to(q), angles[-1:].sin().to(q))
            return (((q @ k.mT) * HEAD_DIM**-0.5 + bias).softmax(-1) @ v,)

        return Built(run, lambda: (run(),), truth, TOLERANCES[self.problem.dtype])


def plain(inputs: Inputs) -> Built:
    def run() -> Tensor:
        with torch.inference_mode():
            for _ in range(LAYERS - 1):
                scaled_dot_product_attention(inputs.q, inputs.k, inputs.v)
            return scaled_dot_product_attention(inputs.q, inputs.k, inputs.v)

    return Built(run, lambda: (run(),))


def ours(encoding: Encoding | None, inputs: Inputs) -> Built:
    """posenc.attention as it is called; RoPE's keys are in the cache as rotated."""
    if encoding is not None:
        encoding = encoding.to(inputs.problem.device)
    positions = posenc.Positions.arange(1, offset=inputs.problem.length - 1, device=inputs.problem.device)
    turns = encoding is not None and "rotate" in encoding.sites()
    bias: Tensor | float = 0.0
    if isinstance(encoding, posenc.ALiBi):
        distance = (positions.q[:, :, None] - positions.k[:, None]).double()
        bias = -posenc.functional.alibi_slopes(HEADS).to(distance)[:, None, None] * distance
    k = encoding.rotate_keys(inputs.k, positions) if encoding is not None and turns else inputs.k

    def layer(at: posenc.Positions) -> Tensor:
        return posenc.attention(inputs.q, k, inputs.v, encoding, at, keys_rotated=turns)

    return inputs.measured(inputs.step(layer), bias, turns)


CALL = Case(
    "call",
    "call",
    f"posenc.attention alone, {LAYERS} calls for one token of a decoding step that share their positions",
    Inputs,
    (
        Candidate("scaled_dot_product_attention", plain),
        Candidate("posenc, no encoding", partial(ours, None)),
        Candidate("posenc, RoPE, rotated cache", lambda inputs: ours(posenc.Rotary(HEAD_DIM), inputs)),
        Candidate("posenc, ALiBi", lambda inputs: ours(posenc.ALiBi(HEADS), inputs)),
    ),
    modes=("decode",),
)
