"""diffusers: models.embeddings, get_1d_rotary_pos_embed and apply_rotary_emb."""

import torch
from diffusers.models.embeddings import apply_rotary_emb, get_1d_rotary_pos_embed
from diffusers.models.transformers.transformer_flux import FluxPosEmbed
from shared import from_angles

PACKAGE = "diffusers"


def interleaved(x, positions, base):
    tables = get_1d_rotary_pos_embed(x.shape[-1], positions, base, use_real=True)
    return apply_rotary_emb(x, tables)


def half(x, positions, base):
    tables = get_1d_rotary_pos_embed(x.shape[-1], positions, base, use_real=True, repeat_interleave_real=False)
    return apply_rotary_emb(x, tables, use_real_unbind_dim=-2)


def axial(x, positions, base, widths):
    return apply_rotary_emb(x, FluxPosEmbed(base, widths)(positions.T))


def _frequencies(head_dim, base, **options):
    cos, sin = get_1d_rotary_pos_embed(head_dim, torch.tensor([1]), base, use_real=True, **options)
    return from_angles(cos[0, ::2], sin[0, ::2])[0]


def linear(head_dim, base, factor):
    return _frequencies(head_dim, base, linear_factor=factor)


def ntk(head_dim, base, factor):
    return _frequencies(head_dim, base, ntk_factor=factor)


CHECKS = [
    ("get_1d_rotary_pos_embed, apply_rotary_emb", interleaved, "rotary_interleaved"),
    ("the same, repeat_interleave_real=False, use_real_unbind_dim=-2", half, "rotary"),
    ("FluxPosEmbed, apply_rotary_emb", axial, "rotary_axial"),
    ("get_1d_rotary_pos_embed(linear_factor)", linear, "linear"),
    ("get_1d_rotary_pos_embed(ntk_factor)", ntk, "ntk"),
]
