"""torchtitan: torchtitan.models.common.rope. YaRN's temperature is left to the models, so none is returned here."""

from functools import cache
from types import SimpleNamespace

from shared import LONGEST, stand_in, without
from torchtitan.models.common import rope
from torchtitan.models.deepseek_v3.model import Attention
from torchtitan.models.qwen3_5.rope import MRoPE

IMAGES = stand_in(
    "torchvision",
    "torchvision.io",
    "torchvision.transforms",
    "torchvision.transforms.v2",
    "torchvision.transforms.v2.functional",
)
from torchtitan.hf_datasets.multimodal.mm_collator import MultiModalCollator  # noqa: E402

without(IMAGES)

PACKAGE = "torchtitan"


@cache
def _module(cls, dim, base):
    return cls(cls.Config(dim=dim, max_seq_len=LONGEST, theta=base))


def _turn(cls, x, positions, base):
    rows = x.transpose(1, 2)
    return _module(cls, x.shape[-1], base)(rows, rows, positions.expand(len(x), -1))[0].transpose(1, 2)


def complex_rotary(x, positions, base):
    return _turn(rope.ComplexRoPE, x, positions, base)


def cos_sin_rotary(x, positions, base):
    return _turn(rope.CosSinRoPE, x, positions, base)


def yarn(head_dim, base, factor, original_max_positions, beta_fast=32.0, beta_slow=1.0, truncate=True):
    config = rope.ComplexRoPE.Config(
        dim=head_dim, max_seq_len=2, theta=base, scaling="yarn", rope_factor=factor, beta_fast=beta_fast,
        beta_slow=beta_slow, original_seq_len=original_max_positions, truncate=truncate,
    )  # fmt: skip
    return rope.ComplexRoPE(config).cache[1].angle()


def llama3(head_dim, base, factor, original_max_positions, low_freq_factor=1.0, high_freq_factor=4.0):
    config = rope.ComplexRoPE.Config(
        dim=head_dim, max_seq_len=2, theta=base, scaling="llama", scaling_factor=factor, low_freq_factor=low_freq_factor,
        high_freq_factor=high_freq_factor, original_max_position_embeddings=original_max_positions,
    )  # fmt: skip
    return rope.ComplexRoPE(config).cache[1].angle()


@cache
def _m_rope(dim, base, sections):
    return MRoPE(MRoPE.Config(dim=dim, max_seq_len=LONGEST, theta=base, mrope_section=list(sections)))


def m_rope(x, positions, base, sections):
    rows = x.transpose(1, 2)
    places = positions.T.expand(len(x), -1, -1)
    return _m_rope(x.shape[-1], base, tuple(sections))(rows, rows, places)[0].transpose(1, 2)


def m_rope_ids(token_types, image_grids, video_grids, attention_mask, merge):
    """By the collator of Qwen3.5, whose frames are runs with text between them; it pads on the right."""
    if not attention_mask[:, 0].all():
        raise NotImplementedError
    collator = SimpleNamespace(spatial_merge_size=merge, patch_order="block")
    grids = [grid.clone() if len(grid) else None for grid in (image_grids, video_grids)]
    ids = MultiModalCollator._build_mrope_positions(
        collator, token_types, *grids, None, image_token_id=1, video_token_id=2
    )
    return ids.permute(2, 0, 1)


def softmax_scale(head_dim, factor, mscale, mscale_all_dim):
    built = SimpleNamespace(build=lambda: None)
    rope_config = SimpleNamespace(scaling="yarn", rope_factor=factor, build=lambda: None)
    shape = {
        "dim": 32,
        "n_heads": 2,
        "qk_nope_head_dim": head_dim // 2,
        "qk_rope_head_dim": head_dim // 2,
        "mscale": mscale_all_dim,
    }
    linears = dict.fromkeys(("wq", "wkv_a", "wkv_b", "wo", "kv_norm", "inner_attention"), built)
    return Attention(
        SimpleNamespace(**shape, **linears, rope=rope_config, q_lora_rank=0, kv_lora_rank=16, v_head_dim=16)
    ).softmax_scale


CHECKS = [
    ("MRoPE of Qwen3.5", m_rope, "m_rope_interleaved"),
    ("MultiModalCollator._build_mrope_positions", m_rope_ids, "m_rope_ids_frames"),
    ("Attention.softmax_scale of DeepSeek-V3", softmax_scale, "softmax_scale"),
    ("ComplexRoPE", complex_rotary, "rotary_interleaved"),
    ("CosSinRoPE", cos_sin_rotary, "rotary"),
    ("ComplexRoPE(scaling='yarn')", yarn, "yarn"),
    ("ComplexRoPE(scaling='llama')", llama3, "llama3"),
]
