# SPDX-License-Identifier: Apache-2.0
"""The kinds of functions that have golden vectors: their arguments, results, formulas and tolerances."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from posenc.testing.oracles import biases, codes, content, gates, masks, places, rotations, schedules

INTEGERS = ("positions", "document_ids", "relative_position", "offsets", "cu_seqlens", "token_types", "image_grids", "video_grids",
            "attention_mask")  # fmt: skip
TENSORS = dict.fromkeys(("x", "cosines", "sines", "q", "table", "scores", "log_gates"), torch.float32)
TENSORS |= dict.fromkeys(INTEGERS, torch.int64)
"""Arguments that are passed as tensors, and their dtype."""
FLAGS = {"bidirectional", "truncate"}
"""Arguments that are True or False."""
FLOAT32 = torch.finfo(torch.float32).eps
Tolerance = Callable[[Tensor, Mapping[str, Any], float], Tensor]
"""Expected values, arguments and the result dtype's eps -> the largest allowed difference of each value."""


def angle_tolerance(expected: Tensor, arguments: Mapping[str, Any], eps: float) -> Tensor:
    """Eight roundings of the result's dtype (at least float32), and position * 2^-22 for angles from frequencies in
    float32; times the largest |x| and the largest sum of weights. Padding, at negative offsets, must be finite."""
    size = float(torch.as_tensor(arguments["x"]).abs().max()) if "x" in arguments else 1.0
    sums = [torch.tensor(arguments[name]).abs().sum(-2).max() for name in ("cosines", "sines") if name in arguments]
    positions = rotations.positions_of(arguments)
    angles = (8 * eps + positions.abs() * 2.0**-22) * size * max(1.0, *map(float, sums), 1.0)
    if "offsets" in arguments:
        angles = angles.masked_fill(positions < 0, torch.finfo(torch.float64).max)
    if expected.ndim == 2:
        angles = angles[0, 0]
    elif expected.shape[-2] != angles.shape[-2]:  # the fault (batch, seq, heads, head_dim)
        angles = angles.transpose(1, 2)
    return angles.expand(expected.shape)


def relative_tolerance(expected: Tensor, arguments: Mapping[str, Any], eps: float) -> Tensor:
    """A relative error of 32 roundings of float32, or two of a shorter dtype."""
    return expected.abs() * (32 * eps if eps <= FLOAT32 else 2 * eps)


def power_tolerance(expected: Tensor, arguments: Mapping[str, Any], eps: float) -> Tensor:
    """As `relative_tolerance`, growing with the exponent position / scale_base."""
    powers = torch.tensor(arguments["positions"], dtype=torch.float64).abs()[:, None] / arguments["scale_base"]
    return relative_tolerance(expected, arguments, eps) * (1 + powers)


RELATIVE = relative_tolerance, power_tolerance
"""Tolerances of errors that are relative to the values."""


def no_tolerance(expected: Tensor, arguments: Mapping[str, Any], eps: float) -> Tensor:
    """Integers, equal; any where attention_mask is 0."""
    hidden = torch.tensor(arguments.get("attention_mask", 1)) == 0
    return torch.zeros_like(expected).masked_fill(hidden, torch.finfo(expected.dtype).max)


def sum_tolerance(expected: Tensor, arguments: Mapping[str, Any], eps: float) -> Tensor:
    """Of sums: 16 roundings of the largest one."""
    return torch.full_like(expected, 16 * eps * float(expected.abs().max()))


@dataclass(frozen=True)
class Convention:
    """How a kind's functions are called.

    arguments are always given, options only to a function that names them. failing says which cases are wrong, from
    their count or from the values of an argument. past: keys after the query do not count, whatever they have.
    anchored: what is added to all keys of a query does not count, as in a softmax.
    """

    what: str
    arguments: tuple[str, ...]
    returns: str
    tolerance: Tolerance
    formula: Callable[..., Any]
    options: tuple[str, ...] = ()
    failing: str = "{count} of {cases} cases differ"
    shifts: tuple[str, ...] = ("positions", "offsets")
    past: bool = False
    anchored: bool = False

    @property
    def call(self) -> str:
        """The call in Python."""
        return f"f({', '.join(self.arguments)})"

    def counted(self, values: Tensor) -> Tensor:
        """The values, with 0 where they do not count."""
        if self.anchored and values.ndim > 1 and values.shape[-2] <= values.shape[-1]:
            values = values - values.diagonal(values.shape[-1] - values.shape[-2], -2, -1)[..., None]
        return values.tril(values.shape[-1] - values.shape[-2]) if self.past and values.ndim > 1 else values


FREQUENCIES = "(head_dim/2,) inv_freq, or (inv_freq, attention_factor)"


def _rotary(what: str, arguments: str, formula: Callable[..., Any] = rotations.rotary, **options: Any) -> Convention:
    names, returns = ("x", *arguments.split()), "x rotated, (batch, heads, seq, head_dim)"
    return Convention(what, names, returns, angle_tolerance, partial(formula, **options))


def _sinusoidal(what: str, **options: Any) -> Convention:
    formula = partial(codes.sinusoidal, **options)
    return Convention(what, ("positions", "dim", "base"), "(seq, dim)", angle_tolerance, formula)


def _schedule(what: str, formula: Callable[..., Any], arguments: str, *options: str) -> Convention:
    names = ("head_dim", "base", *arguments.split())
    return Convention(what, names, FREQUENCIES, relative_tolerance, formula, options)


PLACED = "positions base"
IDS = ("token_types", "image_grids", "video_grids", "attention_mask", "merge")
GRID = ("height", "width")
SCORES = "(batch, heads, queries, keys)"
BIAS = "(heads, num_queries, num_keys)"
MASK = "(num_queries, num_keys), true where seen"
SCALED = "factor original_max_positions"
KINDS: dict[str, Convention] = {
    "rotary": _rotary("RoPE in the half layout: pairs (c, c + head_dim/2)", PLACED),
    "rotary_interleaved": _rotary("RoPE in the interleaved layout: pairs (2c, 2c + 1)", PLACED, layout="interleaved"),
    "rotary_partial": _rotary("RoPE, half layout, on the first rotary_dim channels", f"{PLACED} rotary_dim"),
    "rotary_trailing": _rotary(
        "RoPE, interleaved, on the last rotary_dim channels (DeepSeek-V4)", f"{PLACED} rotary_dim", layout="interleaved", trailing=True
    ),
    "rotary_proportional": _rotary(
        "RoPE, half layout, pairs of the complete head, of which the first share rotates (Gemma 4)",
        f"{PLACED} fraction", rotations.rotary_proportional,
    ),
    "rotary_ragged": _rotary(
        "RoPE, half layout; row b is at offsets[b] and on, tokens below 0 are padding", "offsets base", rotations.rotary_ragged
    ),
    "rotary_packed": replace(
        _rotary("RoPE, half layout; documents begin at cu_seqlens, each at position 0", "cu_seqlens base", rotations.rotary_packed),
        options=("starts", "ranks", "rank"),
    ),
    "m_rope": _rotary(
        "M-RoPE, positions (3, seq); blocks of pairs for time, height, width (Qwen2-VL)", f"{PLACED} sections", rotations.m_rope
    ),
    "m_rope_interleaved": _rotary(
        "M-RoPE, positions (3, seq); pairs dealt in turn (Qwen3-VL)", f"{PLACED} sections", rotations.m_rope, interleaved=True
    ),
    "m_rope_ids": Convention(
        "M-RoPE's positions: text 0, image 1, video 2; grids (t, h, w) in patches (Qwen2-VL, Qwen2.5-VL)", IDS,
        "(3, batch, seq) integers, any at padding", no_tolerance, places.m_rope_ids, ("seconds_per_grid", "tokens_per_second"),
    ),
    "m_rope_ids_frames": Convention(
        "the same, with text between the frames of a video (Qwen3-VL)", IDS,
        "(3, batch, seq) integers, any at padding", no_tolerance, partial(places.m_rope_ids, frames=True),
    ),
    "fope": replace(
        _rotary("FoPE, half layout; weights (heads, frequencies, pairs)", f"{PLACED} cosines sines", rotations.fope), shifts=()
    ),
    "rotary_axial": replace(
        _rotary("RoPE of several axes, positions (axes, seq); pairs (2c, 2c + 1), widths[a] channels of axis a (FLUX, Wan)",
                f"{PLACED} widths", rotations.rotary_axial), shifts=()
    ),
    "rotary_axial_half": replace(
        _rotary("the same with pairs (c, c + head_dim/2) (DINOv3)", f"{PLACED} widths", rotations.rotary_axial, layout="half"), shifts=()
    ),
    "softmax_scale": Convention(
        "the factor of the scores in latent attention under YaRN (DeepSeek-V2, V3)",
        ("head_dim", "factor", "mscale", "mscale_all_dim"), "a number", relative_tolerance, schedules.softmax_scale,
    ),
    "sinusoidal": _sinusoidal("sin and cos alternating"),
    "sinusoidal_concat": _sinusoidal("all sines, then all cosines", layout="concat"),
    "sinusoidal_endpoint": _sinusoidal("all sines, then all cosines, slowest frequency 1/base", layout="concat", endpoint=True),
    "sinusoidal_2d": Convention(
        "codes of a grid, row by row: sin x, cos x, sin y, cos y (MAE)", ("height", "width", "dim", "base"),
        "(height * width, dim)", sum_tolerance, codes.sinusoidal_2d,
    ),
    "relative": Convention(
        "the assembled relative score; table rows from far before the query to far after it, clipped", ("q", "table", "num_keys"),
        SCORES, sum_tolerance, content.relative,
    ),
    "relative_shift": Convention(
        "a Conformer's shift; columns, queries + keys - 1, from far before the query to far after it", ("scores",), SCORES,
        sum_tolerance, content.relative_shift,
    ),
    "relative_shift_causal": Convention(
        "Transformer-XL's shift, Music Transformer's skew; columns from the farthest key to the query itself", ("scores",),
        f"{SCORES}, any after the query", sum_tolerance, content.relative_shift_causal, past=True,
    ),
    "relative_index": Convention(
        "Swin's index of a window's table", GRID, "(height * width, height * width) integers", no_tolerance, biases.relative_index
    ),
    "relative_index_class": Convention(
        "BEiT's, with a class token first", GRID, "(1 + height * width, 1 + height * width) integers", no_tolerance,
        biases.relative_index_class,
    ),
    "alibi_bias": Convention(
        "ALiBi's bias of all pairs; the queries are the last of the keys", ("num_heads", "num_queries", "num_keys"),
        f"{BIAS}, any after the query", sum_tolerance, biases.alibi_bias, past=True, anchored=True,
    ),
    "t5_bias": Convention(
        "T5's bias of all pairs, of a table (num_buckets, heads); the queries are the last of the keys",
        ("table", "num_queries", "num_keys", "bidirectional", "max_distance"), BIAS, sum_tolerance, biases.t5_bias,
    ),
    "swin_bias": Convention(
        "Swin's bias of a window, of a table ((2 height - 1)(2 width - 1), heads)", ("table", *GRID),
        "(heads, height * width, height * width)", sum_tolerance, biases.swin_bias,
    ),
    "forget_gates": Convention(
        "FoX's bias of log forget gates (batch, heads, seq)", ("log_gates",), "(batch, heads, seq, seq), any after the query",
        sum_tolerance, gates.forget_gates, past=True,
    ),
    "mask_document": Convention(
        "who sees whom in packed documents, causal", ("document_ids",), "(seq, seq), true where seen", no_tolerance, masks.mask_document
    ),
    "mask_window": Convention(
        "a sliding window of so many tokens, the query among them", ("num_queries", "num_keys", "window"), MASK, no_tolerance,
        masks.mask_window,
    ),
    "mask_chunk": Convention(
        "causal within chunks (Llama 4)", ("num_queries", "num_keys", "chunk"), MASK, no_tolerance, masks.mask_chunk
    ),
    "mask_streaming": Convention(
        "all of a frame's chunk and of the chunks before it (streaming speech)", ("size", "chunk", "left_chunks"),
        "(size, size), true where seen", no_tolerance, masks.mask_streaming,
    ),
    "default": _schedule("RoPE's frequencies", schedules.default, ""),
    "linear": _schedule("position interpolation", schedules.linear, "factor"),
    "ntk": _schedule("NTK-aware scaling, static", schedules.ntk, "factor"),
    "ntk_mixed": _schedule("NTK mixed with interpolation, static", schedules.ntk_mixed, "factor", "exponent"),
    "dynamic": _schedule("dynamic NTK for a sequence length", schedules.dynamic, f"{SCALED} length"),
    "longrope": _schedule(
        "LongRoPE for a sequence length", schedules.longrope, "short_factor long_factor original_max_positions length factor"
    ),
    "yarn": _schedule("YaRN as its authors' code computes it", schedules.yarn, SCALED, "beta_fast", "beta_slow", "truncate"),
    "yarn_revised": _schedule(
        "YaRN with blended wavelengths", partial(schedules.yarn, wavelengths=True), SCALED, "beta_fast", "beta_slow", "truncate"
    ),
    "yarn_paper": _schedule("YaRN as its paper states it", schedules.yarn_paper, SCALED, "beta_fast", "beta_slow"),
    "llama3": _schedule("Llama 3.1's scaling", schedules.llama3, SCALED, "low_freq_factor", "high_freq_factor"),
    "proportional": _schedule("the first share of the frequencies, the rest 0", schedules.proportional, "fraction"),
    "alibi": Convention(
        "ALiBi's slopes", ("num_heads",), "(num_heads,) positive slopes", relative_tolerance, biases.alibi,
        failing="slopes wrong for {num_heads} heads",
    ),
    "t5": Convention(
        "T5's buckets; relative_position is key minus query",
        ("relative_position", "bidirectional", "num_buckets", "max_distance"), "(n,) integers", no_tolerance, biases.t5,
    ),
    "deberta": Convention(
        "DeBERTa-v2's log buckets; relative_position is query minus key, below max_position",
        ("relative_position", "buckets", "max_position"), "(n,) integers", no_tolerance, biases.deberta,
    ),
    "xpos": Convention(
        "xPos's scale of queries, not centred, gamma 0.4", ("positions", "head_dim", "scale_base"), "(seq, head_dim/2)",
        power_tolerance, schedules.xpos,
    ),
}  # fmt: skip
