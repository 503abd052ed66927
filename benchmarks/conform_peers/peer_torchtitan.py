"""torchtitan: torchtitan.models.common.rope. YaRN's temperature is left to the models, so none is returned here."""

from functools import cache

from shared import LONGEST
from torchtitan.models.common import rope

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


CHECKS = [
    ("ComplexRoPE", complex_rotary, "rotary_interleaved"),
    ("CosSinRoPE", cos_sin_rotary, "rotary"),
    ("ComplexRoPE(scaling='yarn')", yarn, "yarn"),
    ("ComplexRoPE(scaling='llama')", llama3, "llama3"),
]
