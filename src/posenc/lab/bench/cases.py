# SPDX-License-Identifier: Apache-2.0
"""Every case by name: what is measured, and who takes part."""

from collections.abc import Callable
from functools import partial

from posenc.lab.bench import attention, transformers_peers
from posenc.lab.bench.attention import MAKERS, Inputs, dense, flex, ours, plain, prepare
from posenc.lab.bench.call import CALL
from posenc.lab.bench.case import Built, Candidate, Case
from posenc.lab.bench.rotary import ROTARY
from posenc.lab.bench.schemes import HEADS
from posenc.lab.bench.tables import TABLES
from posenc.lab.bench.transformers_peers import TRANSFORMERS

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


def _hf(name: str, build: Callable[[Inputs], Built], cells: int, modes: tuple[str, ...] = PASSES) -> Candidate:
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
