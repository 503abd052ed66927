# SPDX-License-Identifier: Apache-2.0
"""What rotation does to a head's scores, in two numbers, and queries scaled by bands of frequencies (Wu et al. 2026).

semantic, positional = head_scores(model, ids)            # (layers, heads) each
extend(model, BandScale(window=2048, high=0.5, heads=[..]))   # the fast pairs of these heads count half
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from ms_poe import read_through
from torch import Tensor

from posenc.encoding import Encoding
from posenc.errors import InputError, check_integers, check_positive
from posenc.functional import Layout
from posenc.positions import Positions
from posenc.pretrained.attach import Attachment, Design, attached, check_attention
from posenc.pretrained.inference import check_tokens
from posenc.pretrained.models import Layer, ModelStructure, model_structure, unwrap


@dataclass(frozen=True)
class BandScale:
    """Scores scaled by bands: pairs that turn by `threshold` radians or more within `window` tokens count `high` times, the
    others `low` times. heads: which query heads, counted through all layers (layer * num_heads + head); None: all. Chosen by
    `head_scores`.

    Source: Wu, Du, Peng 2026, arXiv 2609.39929; rope-profiler 0.1.0, whose examples have high=0.5, threshold=2.
    """

    window: int
    high: float = 0.5
    low: float = 1.0
    threshold: float = 2.0
    heads: Sequence[int] | None = None

    def __post_init__(self) -> None:
        check_integers(1, window=self.window)
        check_positive(high=self.high, low=self.low, threshold=self.threshold)
        for head in self.heads or ():
            check_integers(0, heads=head)

    def factors(self, structure: ModelStructure, number: int, inv_freq: Tensor) -> Tensor:
        """What multiplies the queries of a layer with these frequencies, (heads, head_dim) in float64."""
        total = structure.num_heads * len(structure.layers)
        if self.heads is not None and max(self.heads, default=0) >= total:
            raise InputError(f"the model has {total}, layer * {structure.num_heads} + head", heads=max(self.heads))
        fast = inv_freq * self.window >= self.threshold
        band = torch.where(fast, self.high, self.low).double()
        channels = torch.cat((band, band)) if structure.layout == "half" else band.repeat_interleave(2)
        rope = structure.ropes[structure.layers[number].layer_type]
        still = channels.new_ones(rope.head_dim)
        rest = still[len(channels) :]
        scaled = torch.cat((rest, channels) if rope.latent else (channels, rest))
        first = number * structure.num_heads
        chosen = range(total) if self.heads is None else set(self.heads)
        return torch.stack([scaled if first + head in chosen else still for head in range(structure.num_heads)])


class QueryChannels(Encoding):
    """Queries times (heads, head_dim) factors; those of a pair are equal, so that it may be rotated before or after."""

    shift_invariant = True
    sees_order = False

    def __init__(self, factors: Tensor) -> None:
        super().__init__()
        self.register_buffer("factors", factors, persistent=False)

    def rotate(self, q: Tensor, k: Tensor, positions: Positions, layer: int = 0) -> tuple[Tensor, Tensor]:
        factors: Any = self.factors
        return q * factors.to(q.device, q.dtype)[:, None], k


def extend(model: Any, bands: BandScale) -> None:
    """Scale the queries of a model in the layers that rotate and have no window; posenc.restore(model) undoes it."""
    structure = model_structure(unwrap(model))
    check_attention(structure)
    turned = {kind: rope.rotation(rope.at(structure.loaded_length)) for kind, rope in structure.ropes.items()}
    encodings = [
        QueryChannels(bands.factors(structure, number, turned[layer.layer_type].inv_freq))
        if layer.rotates and layer.window is None
        else None
        for number, layer in enumerate(structure.layers)
    ]
    Attachment(structure, Design(turned, frozenset(), tuple(encodings), {}), None).attach()


def scores(q: Tensor, k: Tensor, inv_freq: Tensor, window: int, layout: Layout) -> tuple[Tensor, Tensor]:
    """Semantic stability and positional sensitivity of each head, over virtual distances t in a window.

    The score of a query and a key at distance t is s(t) = Re sum_c q_c conj(k_c) e^(i t theta_c) over pairs c, without what
    does not rotate. Semantic stability is the mean probability that of two keys the one preferred at t = 0 is preferred,
    if the difference of their scores over t = 0 .. window - 1 is taken for normal with its mean and variance.
    Positional sensitivity is the mean of |s(t + 1) - s(t)| over t = 0 .. window - 2, divided by the norm of
    q_c conj(k_c). Keys that are equal at t = 0 are left out of the former.

    q: (heads, m, d), before rotation. k: (kv_heads, m, n, d), n keys for each query; the pairs of keys are neighbours
    among these. Returns (heads,) twice, float64. Source: as `BandScale`.
    """
    rotated = 2 * len(inv_freq)

    def pairs(x: Tensor) -> Tensor:
        x = x[..., :rotated].double()
        return torch.complex(*(x.chunk(2, -1) if layout == "half" else (x[..., 0::2], x[..., 1::2])))

    of_q = pairs(q).unflatten(0, (k.shape[0], -1))[:, :, :, None]
    product = of_q * pairs(k).conj()[:, None]  # (kv_heads, group, m, n, pairs)
    turns = torch.polar(torch.ones((), dtype=torch.float64), inv_freq[:, None] * torch.arange(window))
    at = (product @ turns).real
    sensitivity = at.diff(dim=-1).abs().mean(-1) / product.abs().square().sum(-1).sqrt()
    apart = at.diff(dim=3)
    mean, spread = apart.mean(-1), apart.std(-1, correction=0)
    stability = torch.special.ndtr(mean * apart[..., 0].sign() / spread)
    rounding = 64 * torch.finfo(torch.float64).eps * product.diff(dim=3).abs().sum(-1)
    stability = stability.masked_fill(apart[..., 0].abs() <= rounding, torch.nan)  # neither key is preferred
    return stability.nanmean((2, 3)).flatten(), sensitivity.nanmean((2, 3)).flatten()


@torch.no_grad()
def head_scores(
    model: Any, ids: Tensor, *, window: int | None = None, queries: int = 4, keys: int = 16
) -> tuple[Tensor, Tensor]:
    """Semantic stability and positional sensitivity of every head on a text, see `scores`; heads of little stability are
    those to scale (`BandScale`).

    Args:
        model: of a type that `extend` knows, not extended.
        ids: (batch, n) tokens; scores are means over the batch.
        window: distances that keys are moved over; None: the length that the model was trained for.
        queries: tokens of the later half that are scored, evenly spaced. keys: for each, as many from the start to itself.

    Returns:
        (layers, heads) twice, float64; NaN in layers that do not rotate.

    Raises:
        InputError: an extended model, or numbers and tokens that do not fit.
    """
    inner = unwrap(model)
    if attached(inner) is not None:
        raise InputError("model is extended: its scores are of the model as it was; call posenc.restore(model) first")
    check_integers(2, window=window, keys=keys)
    check_integers(1, queries=queries)
    if ids.dim() != 2 or ids.shape[1] < 2 * keys:
        raise InputError(f"pass tokens (batch, n) of at least {2 * keys}, twice keys={keys}", ids=ids)
    check_tokens(inner, ids)
    structure = model_structure(inner)
    size = structure.loaded_length if window is None else window
    found = torch.full((2, len(structure.layers), structure.num_heads), torch.nan, dtype=torch.float64)

    def rotated(number: int, layer: Layer, q: Tensor, k: Tensor) -> Encoding:
        rope = structure.ropes[layer.layer_type]
        rotation = rope.rotation(rope.at(structure.loaded_length))
        last = torch.linspace(q.shape[2] // 2, q.shape[2] - 1, queries).long()
        before = torch.stack([torch.linspace(0, int(query), keys).long() for query in last])
        rows = [
            scores(of_q[:, last].cpu(), of_k[:, before].cpu(), rotation.inv_freq.cpu(), size, rotation.layout)
            for of_q, of_k in zip(q, k, strict=True)
        ]
        for of_head, each in zip(found, zip(*rows, strict=True), strict=True):
            of_head[number] = torch.stack(each).mean(0)
        return rotation

    read_through(structure, rotated, ids)
    return found[0], found[1]
