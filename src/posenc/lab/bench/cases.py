# SPDX-License-Identifier: Apache-2.0
"""Every case by name: what is measured, and who takes part."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

import posenc
from posenc.encoding import Encoding
from posenc.lab.bench import attention, transformers_peers
from posenc.lab.bench.attention import HEAD_DIM, HEADS, MAKERS, AttentionInputs, dense, flex, ours, plain, prepare
from posenc.lab.bench.case import TOLERANCES, Built, Candidate, Case, Tensors, Workload
from posenc.lab.bench.rotary import ROTARY, TABLES
from posenc.lab.bench.transformers_peers import TRANSFORMERS

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


def plain_calls(inputs: CallInputs) -> Built:
    def run() -> Tensor:
        with torch.inference_mode():
            for _ in range(LAYERS - 1):
                scaled_dot_product_attention(inputs.q, inputs.k, inputs.v)
            return scaled_dot_product_attention(inputs.q, inputs.k, inputs.v)

    return Built(run, lambda: (run(),))


def our_calls(encoding: Encoding | None, inputs: CallInputs) -> Built:
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
    CallInputs,
    (
        Candidate("scaled_dot_product_attention", plain_calls),
        Candidate("posenc, no encoding", partial(our_calls, None)),
        Candidate("posenc, RoPE, rotated cache", lambda inputs: our_calls(posenc.Rotary(HEAD_DIM), inputs)),
        Candidate("posenc, ALiBi", lambda inputs: our_calls(posenc.ALiBi(HEADS), inputs)),
    ),
    modes=("decode",),
)


PASSES = ("forward", "train")
FLEX = Candidate(
    "flex_attention, compiled", flex, modes=PASSES, most=2048, why="compiled anew for each length, seconds a time"
)


def _attention(
    name: str,
    summary: str,
    *peers: Candidate,
    naive: int,
    ours_too: tuple[Candidate, ...] = (),
) -> Case:
    """naive: bytes per score and head that the dense bias and what makes it take."""
    candidates = (
        Candidate("plain SDPA", plain),
        Candidate("posenc", partial(ours, MAKERS[name])),
        *ours_too,
        Candidate("SDPA with a dense bias" if naive else "textbook rotation, then SDPA", dense, cells=naive),
        *peers,
    )
    return Case(name, "attention", summary, partial(prepare, name), candidates, growth=2, heads=HEADS)


def _hf(name: str, build: Callable[[AttentionInputs], Built], cells: int, modes: tuple[str, ...] = PASSES) -> Candidate:
    return Candidate(f"transformers {name}", build, TRANSFORMERS, modes, cells)


DECODES = (*PASSES, "decode")
_t5, _t5_given = (partial(transformers_peers.t5, given) for given in (False, True))

CASES: dict[str, Case] = {
    case.name: case
    for case in (
        _attention(
            "t5", "T5's learned bias, bidirectional",
            _hf("T5", _t5, 12), _hf("T5, bias given", _t5_given, 12, ("forward",)), FLEX, naive=12,
        ),
        _attention(
            "t5_causal", "T5's learned bias, causal",
            _hf("T5", _t5, 12, DECODES), naive=12,
        ),
        _attention(
            "alibi", "ALiBi, causal",
            _hf("BLOOM", transformers_peers.bloom, 20, DECODES), _hf("MPT", transformers_peers.mpt, 20, DECODES), FLEX,
            naive=12,
        ),
        _attention(
            "shaw", "Shaw's vectors per distance on the keys, clipped at 64",
            _hf("Wav2Vec2-BERT", transformers_peers.wav2vec2_bert, 44), naive=16,
        ),
        _attention(
            "xlnet", "XLNet, Transformer-XL's four terms, bidirectional", _hf("XLNet", transformers_peers.xlnet, 20), naive=20
        ),
        _attention("tupe", "TUPE-R: absolute positions compared apart, and T5's bias; [CLS] not untied", naive=16),
        _attention(
            "deberta", "DeBERTa v3: content to position and back, 256 logarithmic buckets up to 512",
            _hf("DeBERTa-v2", transformers_peers.deberta, 28), naive=24,
        ),
        _attention(
            "rope", "RoPE, applying included",
            _hf("RoFormer", transformers_peers.roformer, 16, DECODES),
            naive=0,
            ours_too=(
                Candidate("posenc, half layout", partial(ours, partial(attention.rope, "half"))),
                Candidate("posenc, rotated cache", attention.rotated_cache, modes=("decode",)),
            ),
        ),
        CALL,
        ROTARY,
        TABLES,
    )
}  # fmt: skip
