"""litgpt: build_rope_cache and apply_rope."""

from litgpt.model import apply_rope, build_rope_cache
from shared import from_angles

PACKAGE = "litgpt"


def rotary(x, positions, base):
    cos, sin = build_rope_cache(int(positions.max()) + 1, x.shape[-1], base=base)
    return apply_rope(x, cos[positions][None], sin[positions][None])


def _schedule(head_dim, base, **options):
    cos, sin = build_rope_cache(2, head_dim, base=base, extra_config=options)
    return from_angles(cos[1, : head_dim // 2], sin[1, : head_dim // 2])


def linear(head_dim, base, factor):
    return _schedule(head_dim, base, factor=factor)


def yarn(head_dim, base, factor, original_max_positions, beta_fast=32.0, beta_slow=1.0, truncate=True):
    options = {"beta_fast": beta_fast, "beta_slow": beta_slow, "truncate": truncate}
    return _schedule(head_dim, base, factor=factor, original_max_seq_len=original_max_positions, **options)


def yarn_mscale(head_dim, base, factor, original_max_positions):
    options = {"beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0}
    return _schedule(head_dim, base, factor=factor, original_max_seq_len=original_max_positions, **options)


def llama3(head_dim, base, factor, original_max_positions, low_freq_factor=1.0, high_freq_factor=4.0):
    options = {"low_freq_factor": low_freq_factor, "high_freq_factor": high_freq_factor}
    return _schedule(head_dim, base, factor=factor, original_max_seq_len=original_max_positions, **options)


CHECKS = [
    ("build_rope_cache, apply_rope", rotary, "rotary"),
    ("build_rope_cache(factor)", linear, "linear"),
    ("build_rope_cache(beta_fast, beta_slow)", yarn, "yarn"),
    ("build_rope_cache(beta_fast, beta_slow, mscale=1)", yarn_mscale, "yarn"),
    ("build_rope_cache(low_freq_factor, ...)", llama3, "llama3"),
]
