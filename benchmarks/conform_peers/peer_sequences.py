"""Rotations, codes and relative scores of packages for time series, biology, speech and text. Each class is compiled from its
file (`taken`), so that their many requirements are not needed."""

import math
from types import SimpleNamespace
from unittest import mock

import torch
from einops import einsum, rearrange, repeat
from shared import LONGEST, at_positions, taken
from torch import nn

BASE = 10000.0


def whole(x, positions, made):
    """x turned by a module that takes (batch, heads, seq, head_dim) from position 0 on."""
    return at_positions(made, x, positions)


def only_base(base):
    if base != BASE:
        raise NotImplementedError


# -------------------------------------------------------------------- time series

chronos = taken(
    "chronos-forecasting", "chronos/chronos2/layers.py", "Chronos2RotaryEmbedding",
    maybe_autocast=lambda device_type, enabled: torch.autocast(device_type, enabled=enabled),
)  # fmt: skip


def chronos_rotary(x, positions, base):
    rope = chronos(SimpleNamespace(rope_theta=base, d_kv=x.shape[-1]))
    return rope.apply_rotary_pos_emb(x, x, *rope(x, positions[None]))[0]


timesfm = taken("timesfm", "timesfm/torch/transformer.py", "RotaryPositionalEmbedding")


def timesfm_rotary(x, positions, base):
    rope = timesfm(x.shape[-1], max_timescale=base)
    return rope(x.transpose(1, 2), positions[None]).transpose(1, 2)


uni2ts = taken(
    "uni2ts", "uni2ts/module/position/attn_projection.py", "RotaryProjection", einsum=einsum, rearrange=rearrange, repeat=repeat,
    Projection=type("Projection", (nn.Module,), {"__init__": lambda self, width, heads, groups: (nn.Module.__init__(self), setattr(self, "proj_width", width))[0]}),
)  # fmt: skip


def uni2ts_rotary(x, positions, base):
    rope = uni2ts(proj_width=x.shape[-1], num_heads=1, num_groups=1, max_len=1, base=base)
    return rope(x, positions.expand(*x.shape[:2], -1))


uni2ts_codes = taken("uni2ts", "uni2ts/module/position/additive.py", "SinusoidalPositionEncoding", math=math)


def of_table(cls, **options):
    """Codes of positions from a module with a table `pe`, of base 10000."""

    def codes(positions, dim, base):
        only_base(base)
        return cls(width=dim, max_len=LONGEST, **options).pe.view(LONGEST, dim)[positions]

    return codes


# -------------------------------------------------------------------- biology

half = taken("fair-esm", "esm/rotary_embedding.py", "rotate_half")
apply = taken("fair-esm", "esm/rotary_embedding.py", "apply_rotary_pos_emb", rotate_half=half)
fair_esm = taken("fair-esm", "esm/rotary_embedding.py", "RotaryEmbedding", apply_rotary_pos_emb=apply)


def fair_esm_rotary(x, positions, base):
    """Cast with x, as a model is."""
    only_base(base)

    def turn(full):
        rope = fair_esm(full.shape[-1]).to(full.dtype)
        return rope(*[full.flatten(0, 1)] * 2)[0].unflatten(0, full.shape[:2])

    return at_positions(turn, x, positions)


fair_esm_codes = taken("fair-esm", "esm/modules.py", "SinusoidalPositionalEmbedding", math=math)


def fair_esm_sinusoidal(positions, dim, base):
    only_base(base)
    if dim % 2 or dim < 4:
        raise NotImplementedError
    return fair_esm_codes(dim, None).get_embedding(LONGEST)[positions]


pairs = taken("fair-esm", "esm/esmfold/v1/trunk.py", "RelativePosition")


def of_pairs(q, table, num_keys):
    """The embeddings of ESMFold's pairs, as relative scores of the last tokens."""
    module = pairs(len(table) // 2, table.shape[1])
    module.embedding = nn.Embedding.from_pretrained(torch.cat((torch.zeros_like(table[:1]), table)))
    state = module(torch.arange(num_keys)[None])[0, -q.shape[2] :]
    return torch.einsum("bhid,ijd->bhij", q, state)


esm_half = taken("esm", "esm/layers/rotary.py", "rotate_half", rearrange=rearrange)
esm_apply = taken("esm", "esm/layers/rotary.py", "apply_rotary_emb_torch", repeat=repeat, rotate_half=esm_half)
esm = taken("esm", "esm/layers/rotary.py", "RotaryEmbedding", apply_rotary_emb_torch=esm_apply)


def esm_rotary(**options):
    def rotary(x, positions, base):
        rope = esm(x.shape[-1], base=base, **options)
        return at_positions(lambda full: rope(*[full.transpose(1, 2)] * 2)[0].transpose(1, 2), x, positions)

    return rotary


# -------------------------------------------------------------------- speech and text

conformer = taken(
    "conformer", "conformer/conformer.py", "Attention", rearrange=rearrange, einsum=torch.einsum,
    exists=lambda x: x is not None, default=lambda x, other: other if x is None else x,
)  # fmt: skip


def conformer_relative(q, table, num_keys):
    """What a Conformer's attention adds to its scores, of keys from a context where there are more of them."""
    batch, heads, queries, width = q.shape
    module = conformer(heads * width, heads=heads, dim_head=width, max_pos_emb=len(table) // 2)
    module.rel_pos_emb = nn.Embedding.from_pretrained(table.flip(0))  # rows by query minus key
    module.to_q = module.to_out = nn.Identity()
    nn.init.zeros_(module.to_kv.weight)
    scores, context = [], torch.zeros(batch, num_keys, heads * width)
    with mock.patch.object(torch.Tensor, "softmax", lambda x, dim: (scores.append(x), x)[1]):
        module(q.transpose(1, 2).flatten(2), context=None if num_keys == queries else context)
    return scores[0] / module.scale


local_codes = taken("local-attention", "local_attention/rotary.py", "SinusoidalEmbeddings", Module=nn.Module, autocast=torch.amp.autocast, rearrange=rearrange, exists=lambda x: x is not None)  # fmt: skip
local_half = taken("local-attention", "local_attention/rotary.py", "rotate_half", rearrange=rearrange)
local_apply = taken("local-attention", "local_attention/rotary.py", "apply_rotary_pos_emb", autocast=torch.amp.autocast, rotate_half=local_half)  # fmt: skip


def local_rotary(x, positions, base):
    def turn(full):
        freqs, scale = local_codes(full.shape[-1], theta=base).to(full.dtype)(full)
        return local_apply(full, full, freqs, scale)[0]

    return at_positions(turn, x, positions)


performer_codes = taken("performer-pytorch", "performer_pytorch/performer_pytorch.py", "FixedPositionalEmbedding")
performer_pairs = taken("performer-pytorch", "performer_pytorch/performer_pytorch.py", "rotate_every_two", rearrange=rearrange)  # fmt: skip
performer_apply = taken("performer-pytorch", "performer_pytorch/performer_pytorch.py", "apply_rotary_pos_emb", rearrange=rearrange, repeat=repeat, rotate_every_two=performer_pairs)  # fmt: skip


def performer_sinusoidal(positions, dim, base):
    only_base(base)
    return performer_codes(dim, LONGEST).emb[positions]


def performer_rotary(x, positions, base):
    only_base(base)
    codes = performer_codes(x.shape[-1], int(positions.max()) + 1).emb[positions][None].to(x)
    return performer_apply(x, x, codes)[0]


curated = taken(
    "curated-transformers", "curated_transformers/layers/embeddings.py", "RotaryEmbeddings", Module=nn.Module
)


def curated_rotary(x, positions, base):
    return curated(x.shape[-1], base=base, seq_len=8)(x, positions=positions.repeat(len(x), 1))


curated_codes = taken("curated-transformers", "curated_transformers/layers/embeddings.py", "SinusoidalPositionalEmbedding", Module=nn.Module, math=math)  # fmt: skip
linear_biases = taken("curated-transformers", "curated_transformers/layers/attention.py", "AttentionLinearBiases", Module=nn.Module, math=math)  # fmt: skip


def curated_bias(num_heads, num_queries, num_keys):
    """For every query the bias of the last one, which the softmax takes for its own."""
    module = linear_biases(n_attention_heads=num_heads, is_causal=True, is_inverted=False)
    return module.calculate_biases(num_keys)[0].expand(-1, num_queries, -1)


ONMT = "onmt/modules/multi_headed_attn.py"
onmt_table = taken("OpenNMT-py", ONMT, "rotaryembeddings")
onmt_apply = taken("OpenNMT-py", ONMT, "apply_rotary_emb", rotate_half=taken("OpenNMT-py", ONMT, "rotate_half"))
onmt_codes = taken("OpenNMT-py", "onmt/modules/embeddings.py", "PositionalEncoding", math=math)
onmt_distances = taken("OpenNMT-py", ONMT, "gen_relative_positions")
onmt_product = taken("OpenNMT-py", ONMT, "relative_matmul", Tensor=torch.Tensor)
onmt_alibi = taken(
    "OpenNMT-py", "onmt/modules/alibi_position_bias.py", "AlibiPositionalBias", math=math,
    pad_at_dim=taken("OpenNMT-py", "onmt/modules/alibi_position_bias.py", "pad_at_dim", F=nn.functional),
)  # fmt: skip


def onmt_rotary(interleave):
    def rotary(x, positions, base):
        table, _, _ = onmt_table(x.shape[-1], int(positions.max()) + 1, base)
        return onmt_apply(x, x, table[positions], interleave)[0]

    return rotary


def onmt_sinusoidal(kind):
    def codes(positions, dim, base):
        only_base(base)
        if dim % 2 or dim < 4:
            raise NotImplementedError
        return onmt_codes(dim, kind, LONGEST).pe[positions, 0]

    return codes


def onmt_relative(q, table, num_keys):
    rows = onmt_distances(num_keys, len(table) // 2)[-q.shape[2] :]
    return onmt_product(q, table[rows], True)


def onmt_bias(modules):
    """modules: of a number of heads, or None for a new one in each call."""

    def bias(num_heads, num_queries, num_keys):
        module = onmt_alibi(num_heads) if modules is None else modules.setdefault(num_heads, onmt_alibi(num_heads))
        return module(torch.zeros(1, num_heads, num_queries, num_keys))[0]

    return bias


foundry_slopes = taken("llm-foundry", "llmfoundry/models/layers/attention.py", "gen_slopes", math=math)
foundry_alibi = taken("llm-foundry", "llmfoundry/models/layers/attention.py", "build_alibi_bias", gen_slopes=foundry_slopes)  # fmt: skip

allennlp_codes = taken(
    "allennlp", "allennlp/modules/transformer/positional_encoding.py", "SinusoidalPositionalEncoding", math=math,
    FromParams=object, get_device_of=lambda x: -1, get_range_vector=lambda size, device: torch.arange(size),
)  # fmt: skip


def allennlp_sinusoidal(positions, dim, base):
    """Codes of all positions up to the last."""
    if dim % 2 or dim < 4:
        raise NotImplementedError
    return allennlp_codes(max_timescale=base)(torch.zeros(1, int(positions.max()) + 1, dim))[0, positions]


palm_codes = taken("PaLM-rlhf-pytorch", "palm_rlhf_pytorch/palm.py", "RotaryEmbedding", Module=nn.Module, rearrange=rearrange)  # fmt: skip
palm_apply = taken(
    "PaLM-rlhf-pytorch",
    "palm_rlhf_pytorch/palm.py",
    "apply_rotary_pos_emb",
    rotate_half=taken("PaLM-rlhf-pytorch", "palm_rlhf_pytorch/palm.py", "rotate_half"),
)


def palm_rotary(x, positions, base):
    """Cast with x, as a model is."""
    only_base(base)

    def turn(full):
        return palm_apply(
            palm_codes(full.shape[-1], use_xpos=False).to(full.dtype)(full.shape[2], full.device)[0], full
        )

    return at_positions(turn, x, positions)


PACKAGES = {
    "chronos-forecasting": [("Chronos2RotaryEmbedding, apply_rotary_pos_emb", chronos_rotary, "rotary")],
    "timesfm": [("torch RotaryPositionalEmbedding", timesfm_rotary, "rotary")],
    "uni2ts": [
        ("RotaryProjection", uni2ts_rotary, "rotary_interleaved"),
        ("SinusoidalPositionEncoding(normalize=False)", of_table(uni2ts_codes, normalize=False), "sinusoidal"),
    ],
    "fair-esm": [
        ("RotaryEmbedding cast to x's dtype, as model.to does", fair_esm_rotary, "rotary"),
        ("SinusoidalPositionalEmbedding.get_embedding", fair_esm_sinusoidal, "sinusoidal_endpoint"),
        ("ESMFold's RelativePosition", of_pairs, "relative"),
    ],
    "esm": [
        ("RotaryEmbedding", esm_rotary(), "rotary"),
        ("RotaryEmbedding(interleaved=True)", esm_rotary(interleaved=True), "rotary_interleaved"),
    ],
    "conformer": [("Attention's relative scores", conformer_relative, "relative")],
    "local-attention": [("SinusoidalEmbeddings cast to x's dtype, apply_rotary_pos_emb", local_rotary, "rotary")],
    "performer-pytorch": [
        ("FixedPositionalEmbedding, apply_rotary_pos_emb", performer_rotary, "rotary_interleaved"),
        ("FixedPositionalEmbedding", performer_sinusoidal, "sinusoidal_concat"),
    ],
    "curated-transformers": [
        ("RotaryEmbeddings", curated_rotary, "rotary"),
        ("SinusoidalPositionalEmbedding(normalize=False)", of_table(curated_codes, normalize=False), "sinusoidal"),
        ("SinusoidalPositionalEmbedding", of_table(curated_codes), "sinusoidal"),
        ("AttentionLinearBiases", curated_bias, "alibi_bias"),
    ],
    "OpenNMT-py": [
        ("rotaryembeddings, apply_rotary_emb(interleave=False)", onmt_rotary(False), "rotary"),
        ("apply_rotary_emb(interleave=True)", onmt_rotary(True), "rotary_interleaved"),
        ("PositionalEncoding('SinusoidalInterleaved')", onmt_sinusoidal("SinusoidalInterleaved"), "sinusoidal"),
        ("PositionalEncoding('SinusoidalConcat')", onmt_sinusoidal("SinusoidalConcat"), "sinusoidal_endpoint"),
        ("gen_relative_positions, relative_matmul", onmt_relative, "relative"),
        ("_relative_position_bucket", taken("OpenNMT-py", ONMT, "_relative_position_bucket", log=math.log), "t5"),
        ("AlibiPositionalBias._get_slopes", taken("OpenNMT-py", "onmt/modules/alibi_position_bias.py", "AlibiPositionalBias._get_slopes", math=math), "alibi"),
        ("AlibiPositionalBias", onmt_bias(None), "alibi_bias"),
        ("AlibiPositionalBias, one module in all calls", onmt_bias({}), "alibi_bias"),
    ],
    "llm-foundry": [
        ("gen_slopes", lambda num_heads: foundry_slopes(num_heads, return_1d=True), "alibi"),
        ("build_alibi_bias(full=True)", lambda num_heads, num_queries, num_keys: foundry_alibi(num_heads, num_keys, full=True)[0, :, num_keys - num_queries :], "alibi_bias"),
    ],
    "allennlp": [
        ("SinusoidalPositionalEncoding", allennlp_sinusoidal, "sinusoidal_endpoint"),
        ("AttentionModule._relative_position_bucket", taken("allennlp", "allennlp/modules/transformer/attention_module.py", "AttentionModule._relative_position_bucket", math=math, IntT=torch.Tensor), "t5"),
    ],
    "mosaicml": [
        ("_get_alibi_head_slopes", taken("mosaicml", "composer/algorithms/alibi/attention_surgery_functions/utils.py", "_get_alibi_head_slopes", math=math), "alibi"),
    ],
    "PaLM-rlhf-pytorch": [("RotaryEmbedding(use_xpos=False) cast to x's dtype", palm_rotary, "rotary")],
}  # fmt: skip
