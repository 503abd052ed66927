# SPDX-License-Identifier: Apache-2.0
"""Every case by name: what is measured, and the candidates."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from bench import transformers_peers as peers
from bench.attention import HEAD_DIM, HEADS, SCHEMES, AttentionInputs, dense, flex, ours, plain
from bench.case import TOLERANCES, Built, Candidate, Case, Tensors, Workload
from bench.frontier import FRONTIER_CASES
from bench.rotary import ROTARY, TABLES
from posenc import encodings
from posenc.attention import attention
from posenc.encoding import Encoding
from posenc.positions import Positions
from posenc.testing.oracles import biases, rotations
from posenc.testing.oracles.attention import attend

LAYERS = 32
"""Calls of a decoding step."""


class CallInputs:
    """A query, and the keys and values of all tokens, (1, 8, n, 64)."""

    def __init__(self, problem: Workload) -> None:
        generator = torch.Generator().manual_seed(0)
        sizes = (1, problem.length, problem.length)
        self.problem = problem
        self.q, self.k, self.v = (
            torch.randn(1, HEADS, n, HEAD_DIM, generator=generator).to(problem.device, problem.dtype) for n in sizes
        )

    def positions(self) -> Positions:
        last = self.problem.length - 1
        return Positions.arange(1, offset=last, causal=True, device=self.problem.device)

    def truth(self, encoding: Encoding | None) -> Tensors:
        """softmax(q . k / 8 + bias) v in float64."""
        q, k, v = (x.double() for x in (self.q, self.k, self.v))
        bias: Tensor | float = 0.0
        distances = torch.arange(self.problem.length - 1, -1, -1, device=q.device).double()
        if isinstance(encoding, encodings.ALiBi):
            bias = -torch.tensor(biases.alibi(HEADS)).to(q)[:, None, None] * distances
        elif isinstance(encoding, encodings.Rotary):
            k = rotations.turned(k, rotations.angles(-distances, HEAD_DIM))  # relative to the query, which stays
        every = torch.ones_like(distances, dtype=torch.bool)
        return (attend(q, k, v, scale=HEAD_DIM**-0.5, visible=every, bias=bias),)


def plain_calls(inputs: CallInputs) -> Built:
    def run() -> Tensor:
        with torch.inference_mode():
            for _ in range(LAYERS - 1):
                scaled_dot_product_attention(inputs.q, inputs.k, inputs.v)
            return scaled_dot_product_attention(inputs.q, inputs.k, inputs.v)

    return Built(run, lambda: (run(),))


def our_calls(make: Callable[[], Encoding | None], inputs: CallInputs) -> Built:
    """posenc.attention in every layer of a step, with positions that are made once; RoPE's keys are cached rotated."""
    encoding, k = make(), inputs.k
    if encoding is not None:
        encoding = encoding.to(inputs.problem.device)
    rotates = isinstance(encoding, encodings.Rotary)
    if encoding is not None and rotates:
        k = encoding.rotate_keys(k, Positions.arange(1, offset=k.shape[2] - 1, device=k.device))

    def run() -> Tensor:
        with torch.inference_mode():
            positions = inputs.positions()
            for _ in range(LAYERS - 1):
                attention(inputs.q, k, inputs.v, encoding, positions, keys_rotated=rotates)
            return attention(inputs.q, k, inputs.v, encoding, positions, keys_rotated=rotates)

    return Built(run, lambda: (run(),), lambda: inputs.truth(encoding), TOLERANCES[inputs.problem.dtype])


CALL = Case(
    "call",
    "call",
    f"posenc.attention alone, {LAYERS} calls for one token of a decoding step that share their positions",
    CallInputs,
    (
        Candidate("scaled_dot_product_attention", plain_calls),
        Candidate("posenc, no encoding", partial(our_calls, lambda: None)),
        Candidate("posenc, RoPE, rotated cache", partial(our_calls, lambda: encodings.Rotary(HEAD_DIM))),
        Candidate("posenc, ALiBi", partial(our_calls, lambda: encodings.ALiBi(HEADS))),
    ),
    modes=("decode",),
)


PASSES = ("forward", "train")
DECODES = (*PASSES, "decode")


def _attention(name: str, summary: str, naive_bytes: int, *others: Candidate) -> Case:
    """naive_bytes: per score and head, of the dense bias and what makes it; 0: there is none."""
    naive = "SDPA with a dense bias" if naive_bytes else "textbook rotation, then SDPA"
    theirs = Candidate(naive, dense, score_bytes=naive_bytes * HEADS), *others
    candidates = (Candidate("plain SDPA", plain), Candidate("posenc", ours), *theirs)
    return Case(name, "attention", summary, partial(AttentionInputs, SCHEMES[name]), candidates)


def _hf(name: str, build: Callable[[AttentionInputs], Built], bytes: int, modes: tuple[str, ...] = PASSES) -> Candidate:
    """A module of transformers. bytes: per score and head."""
    return Candidate(f"transformers {name}", build, "transformers", modes, bytes * HEADS)


FLEX = Candidate("flex_attention, compiled", flex, modes=PASSES)

CASES: dict[str, Case] = {
    case.name: case
    for case in (
        _attention(
            "t5", "T5's learned bias, bidirectional", 12,
            _hf("T5", peers.t5, 12), _hf("T5, bias given", partial(peers.t5, bias_given=True), 12, ("forward",)), FLEX,
        ),
        _attention("t5_causal", "T5's learned bias, causal", 12, _hf("T5", peers.t5, 12, DECODES)),
        _attention(
            "alibi", "ALiBi, causal", 12, _hf("BLOOM", peers.bloom, 20, DECODES), _hf("MPT", peers.mpt, 20, DECODES), FLEX,
        ),
        _attention(
            "shaw", "Shaw's vectors per distance on the keys, clipped at 64", 16,
            _hf("Wav2Vec2-BERT", peers.wav2vec2_bert, 44),
        ),
        _attention(
            "xlnet", "XLNet, Transformer-XL's four terms, bidirectional", 20, _hf("XLNet", peers.xlnet, 20),
        ),
        _attention("tupe", "TUPE-R: absolute positions compared apart, and T5's bias; [CLS] not untied", 16),
        _attention(
            "deberta", "DeBERTa v3: content to position and back, 256 logarithmic buckets up to 512", 24,
            _hf("DeBERTa-v2", peers.deberta, 28),
        ),
        _attention(
            "rope", "RoPE, applying included", 0,
            Candidate("posenc, half layout", partial(ours, half=True)),
            Candidate("posenc, rotated cache", partial(ours, rotated_cache=True), modes=("decode",)),
            _hf("RoFormer", peers.roformer, 16, DECODES),
        ),
        CALL,
        ROTARY,
        TABLES,
        *FRONTIER_CASES,
    )
}  # fmt: skip
