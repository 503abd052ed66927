# SPDX-License-Identifier: Apache-2.0
"""Rotary alone: queries (1, 32, n, 128) and keys (1, 8, n, 128) in a model's strides, against a copy of the same bytes; and
building its tables of cos and sin, against a copy of the finished tables."""

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from bench.case import TOLERANCES, Built, Candidate, Case, Tensors, Workload, load, sampled
from posenc import encodings
from posenc.functional import Layout, rotary
from posenc.positions import Positions
from posenc.testing.oracles.rotations import angles, turned

QUERY_HEADS, KEY_HEADS, HEAD_DIM, THETA = 32, 8, 128, 10000.0

Rotate = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


def copies(*tensors: Tensor) -> Built:
    """The limit: read every byte once, write every byte once."""

    def run() -> Tensors:
        return tuple(x.clone() for x in tensors)

    return Built(run, run)


class RotaryInputs:
    """Queries, keys, their upstream gradients, and the positions that they are at."""

    def __init__(self, problem: Workload) -> None:
        generator = torch.Generator().manual_seed(0)
        count = 1 if problem.mode == "decode" else problem.length

        def normal(heads: int) -> Tensor:  # storage (batch, n, heads, head_dim), as projections leave it
            x = torch.randn(1, count, heads, HEAD_DIM, generator=generator)
            return x.to(problem.device, problem.dtype).transpose(1, 2)

        self.problem = problem
        self.q: Tensor = normal(QUERY_HEADS)
        self.k: Tensor = normal(KEY_HEADS)
        self.q_upstream: Tensor = normal(QUERY_HEADS)
        self.k_upstream: Tensor = normal(KEY_HEADS)
        self.positions: Tensor = torch.arange(problem.length - count, problem.length, device=problem.device)
        self.rows: Tensor = sampled(count, problem.device)

    def truth(self, layout: Layout) -> Tensors:
        """Sampled rows rotated in float64, and their gradients rotated back."""
        turns = angles(self.positions[self.rows], HEAD_DIM)
        each = [(self.q, turns), (self.k, turns)]
        if self.problem.mode == "train":
            each += [(self.q_upstream, -turns), (self.k_upstream, -turns)]
        return tuple(turned(x[:, :, self.rows].double(), by, layout) for x, by in each)


def measured(inputs: RotaryInputs, rotate: Rotate, layout: Layout) -> Built:
    """A pair of rotations as a candidate."""

    def once() -> Tensors:
        if inputs.problem.mode != "train":
            with torch.no_grad():
                return rotate(inputs.q, inputs.k)
        q, k = (x.detach().requires_grad_() for x in (inputs.q, inputs.k))
        rotated = rotate(q, k)
        return *rotated, *torch.autograd.grad(rotated, (q, k), (inputs.q_upstream, inputs.k_upstream))

    def results() -> Tensors:
        return tuple(x.detach()[:, :, inputs.rows] for x in once())

    # peers make angles in float32: the last position is off by this much
    tolerance = TOLERANCES[inputs.problem.dtype] + inputs.problem.length * 2.0**-24
    return Built(once, results, lambda: inputs.truth(layout), tolerance)


def copy_rotated(inputs: RotaryInputs) -> Built:
    upstream = (inputs.q_upstream, inputs.k_upstream) if inputs.problem.mode == "train" else ()
    return copies(inputs.q, inputs.k, *upstream)


def encoding(layout: Layout, inputs: RotaryInputs) -> Built:
    """encodings.Rotary alone, with the tables that the layers of a model share."""
    rope = encodings.Rotary(HEAD_DIM, rope_theta=THETA, layout=layout).to(inputs.problem.device)
    positions = Positions.from_ids(inputs.positions)
    return measured(inputs, lambda q, k: rope.rotate(q, k, positions), layout)


def function(layout: Layout, compiled: bool, inputs: RotaryInputs) -> Built:
    """posenc.functional.rotary with tables at hand."""
    wide = torch.promote_types(inputs.problem.dtype, torch.float32)
    turns = angles(inputs.positions, HEAD_DIM)
    cos, sin = turns.cos().to(wide), turns.sin().to(wide)

    def rotate(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return rotary(q, cos, sin, layout=layout), rotary(k, cos, sin, layout=layout)

    return measured(inputs, torch.compile(rotate, dynamic=False) if compiled else rotate, layout)


@cache
def llama_embedding() -> Any:
    """transformers' tables for the case's shape."""
    config = load("transformers").LlamaConfig(
        hidden_size=QUERY_HEADS * HEAD_DIM, num_attention_heads=QUERY_HEADS, num_key_value_heads=KEY_HEADS,
        head_dim=HEAD_DIM, rope_parameters={"rope_type": "default", "rope_theta": THETA},
    )  # fmt: skip
    return load("transformers", "transformers.models.llama.modeling_llama").LlamaRotaryEmbedding(config)


def transformers(compiled: bool, inputs: RotaryInputs) -> Built:
    apply = load("transformers", "transformers.models.llama.modeling_llama").apply_rotary_pos_emb
    cos, sin = llama_embedding().to(inputs.problem.device)(inputs.q, inputs.positions[None])
    apply = torch.compile(apply, dynamic=False) if compiled else apply
    return measured(inputs, lambda q, k: apply(q, k, cos, sin), "half")


def rotary_embedding_torch(inputs: RotaryInputs) -> Built:
    module = load("rotary-embedding-torch").RotaryEmbedding(HEAD_DIM, theta=THETA).to(inputs.problem.device)
    first = int(inputs.positions[0])
    one = partial(module.rotate_queries_or_keys, offset=first)
    return measured(inputs, lambda q, k: (one(q), one(k)), "interleaved")


def x_transformers(inputs: RotaryInputs) -> Built:
    package = load("x-transformers", "x_transformers.x_transformers")
    module = package.RotaryEmbedding(HEAD_DIM, base=THETA).to(inputs.problem.device)
    angles, scale = module(inputs.positions)
    one = partial(package.apply_rotary_pos_emb, freqs=angles, scale=scale)
    return measured(inputs, lambda q, k: (one(q), one(k)), "interleaved")


def torchtune_module(length: int, device: torch.device) -> Any:
    # importing the package needs an older torchao; this file needs torch alone
    module = load("torchtune", file="modules/position_embeddings.py")
    return module.RotaryPositionalEmbeddings(HEAD_DIM, max_seq_len=length, base=THETA).to(device)


def torchtune(inputs: RotaryInputs) -> Built:
    module = torchtune_module(inputs.problem.length, inputs.problem.device)
    at = inputs.positions[None] if inputs.problem.mode == "decode" else None

    def one(x: Tensor) -> Tensor:
        return module(x.transpose(1, 2), input_pos=at).transpose(1, 2)

    return measured(inputs, lambda q, k: (one(q), one(k)), "interleaved")


ROTARY = Case(
    "rotary",
    "rotary",
    "Rotary embedding alone, q (1, 32, n, 128) and k (1, 8, n, 128), over a copy of the same bytes",
    RotaryInputs,
    (
        Candidate("copy of the same bytes", copy_rotated),
        Candidate("posenc", partial(encoding, "half")),
        Candidate("posenc, interleaved", partial(encoding, "interleaved")),
        Candidate("posenc, functional", partial(function, "half", False)),
        Candidate("posenc, functional, compiled", partial(function, "half", True)),
        Candidate("transformers", partial(transformers, False), "transformers"),
        Candidate("transformers, compiled", partial(transformers, True), "transformers"),
        Candidate("torchtune", torchtune, "torchtune"),
        Candidate("x-transformers", x_transformers, "x-transformers"),
        Candidate("rotary-embedding-torch", rotary_embedding_torch, "rotary-embedding-torch"),
    ),
)


class TableInputs:
    """Positions, and which of them are compared."""

    def __init__(self, problem: Workload) -> None:
        self.problem = problem
        self.positions: Tensor = torch.arange(problem.length, device=problem.device)[None]
        self.rows: Tensor = sampled(problem.length, problem.device)

    def measured(self, run: Any) -> Built:
        """A builder as a candidate: `run` returns cos and sin, (..., n, at least head_dim / 2)."""

        def results() -> Tensors:
            return tuple(table.reshape(self.problem.length, -1)[self.rows, : HEAD_DIM // 2] for table in run())

        turns = angles(self.rows, HEAD_DIM)
        # an angle computed in float32 is rounded
        return Built(run, results, lambda: (turns.cos(), turns.sin()), 1e-4 + self.problem.length * 2.0**-24)


def copy_tables(inputs: TableInputs) -> Built:
    return copies(*torch.ones(2, inputs.problem.length, HEAD_DIM // 2, device=inputs.problem.device))


def ours_tables(inputs: TableInputs) -> Built:
    encoding = encodings.Rotary(HEAD_DIM, rope_theta=THETA).to(inputs.problem.device)
    return inputs.measured(partial(encoding.cos_sin, inputs.positions, torch.float32, 0))


def transformers_tables(inputs: TableInputs) -> Built:
    module = llama_embedding().to(inputs.problem.device)
    like = torch.empty(1, device=inputs.problem.device)
    return inputs.measured(lambda: module(like, inputs.positions))


def torchtune_tables(inputs: TableInputs) -> Built:
    module = torchtune_module(16, inputs.problem.device)

    def run() -> tuple[Tensor, Tensor]:
        module.build_rope_cache(inputs.problem.length)
        return module.cache[..., 0], module.cache[..., 1]

    return inputs.measured(run)


TABLES = Case(
    "tables",
    "tables",
    "Building the cos and sin tables of rotary embedding, over a copy of them",
    TableInputs,
    (
        Candidate("copy of the tables", copy_tables),
        Candidate("posenc", ours_tables),
        Candidate("transformers", transformers_tables, "transformers"),
        Candidate("torchtune", torchtune_tables, "torchtune"),
    ),
    modes=("forward",),
    dtypes=("float32",),
)
