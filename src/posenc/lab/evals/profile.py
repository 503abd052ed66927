# SPDX-License-Identifier: Apache-2.0
"""What `attention_profile` finds: numbers per layer and head, as tensors, as JSON and as a table."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor


@dataclass(frozen=True)
class LayerKind:
    """One layer. window: keys a query may see, None all. rotates: whether position turns its queries and keys."""

    layer_type: str
    window: int | None
    rotates: bool


@dataclass(frozen=True, eq=False)
class NeedleMass:
    """What the needles of one depth get.

    depth: from 0 to 1. position: of the needles' middle token, on average. share: of the prompt's tokens that they are,
    what they would get of a head that looks everywhere alike. asked: (layers, heads), from the prompt's last token;
    answered: on average over that and the answer's tokens but the last, which predict the answer.
    """

    depth: float
    position: float
    texts: int
    share: float
    asked: Tensor
    answered: Tensor


@dataclass(frozen=True, eq=False)
class Turning:
    """The pairs of one layer type, fast to slow. reach: the longest distance between tokens in training, of the text or
    the window. trained, now: positions per turn, infinite for a pair that stands still."""

    reach: int
    trained: Tensor
    now: Tensor

    @property
    def unfinished(self) -> Tensor:
        """Which pairs never completed a turn in training, bool."""
        return self.trained > self.reach


class Retriever(NamedTuple):
    """A head that looks at what is asked for: its mass there from the prompt's last token, over the needle's share of
    the tokens, and by depth."""

    layer: int
    head: int
    mass: float
    ratio: float
    answered: float
    by_depth: tuple[float, ...]


@dataclass(frozen=True, eq=False)
class AttentionProfile:
    """Where attention goes, as means over texts and their queries from `first_row` on; tensors are float64 on the CPU,
    (layers, heads) where nothing else is said.

    rows: queries counted. longest: tokens of the longest text.
    first, sink: mass on position 0, and on the first `sinks` tokens. nowhere: mass on no token at all (sinks of gpt-oss,
    softmax_1). distance: mean distance of what is attended to; distance_after: of what is not among the first `sinks`.
    effective_keys: exp of the entropy. edges, by_distance: the distances at which bins begin and the mass in each,
    (layers, heads, bins), without the sinks', so that sink + nowhere + by_distance.sum(-1) = 1.
    needle: by depth of what is asked for; empty where no sample has a needle.
    turning: layer type -> wavelengths. bands: per layer, mean |q_i| |k_i| of each pair, times the scale: how many nats the
    pair can move a score, (pairs,), mean over heads; None where nothing rotates. still: the same of all channels that do
    not rotate, (layers,).
    """

    model_type: str
    texts: int
    longest: int
    rows: int
    first_row: int
    sinks: int
    layers: tuple[LayerKind, ...]
    first: Tensor
    sink: Tensor
    nowhere: Tensor
    distance: Tensor
    distance_after: Tensor
    effective_keys: Tensor
    edges: tuple[int, ...]
    by_distance: Tensor
    needle: tuple[NeedleMass, ...]
    turning: Mapping[str, Turning]
    bands: tuple[Tensor | None, ...]
    still: Tensor

    @property
    def unfinished_share(self) -> tuple[float, ...]:
        """Of each layer's score norms (bands and still), what lies in pairs that never completed a turn in training."""
        found = []
        for layer, band, still in zip(self.layers, self.bands, self.still.tolist(), strict=True):
            if band is None:
                found.append(0.0)
                continue
            slow = self.turning[layer.layer_type].unfinished
            found.append(float(band[slow].sum() / (band.sum() + still)))
        return tuple(found)

    def retrieving(self, count: int = 10) -> list[Retriever]:
        """The heads that give the most to what is asked for, on average over depths, from the prompt's last token."""
        if not self.needle:
            return []
        by_depth = torch.stack([row.asked for row in self.needle], -1)
        answered = torch.stack([row.answered for row in self.needle]).mean(0)
        mass, share = by_depth.mean(-1), sum(row.share for row in self.needle) / len(self.needle)
        heads, found = mass.shape[1], []
        for at in mass.flatten().argsort(descending=True)[:count].tolist():
            layer, head = divmod(at, heads)
            own = float(mass[layer, head])
            depths = tuple(by_depth[layer, head].tolist())
            found.append(Retriever(layer, head, own, own / share, float(answered[layer, head]), depths))
        return found

    def to_dict(self) -> dict[str, Any]:
        """Everything as lists and numbers for JSON, to five digits. Needles' masses are means over all heads and, for the
        heads that retrieve, their own; infinite wavelengths are None."""
        kinds = [vars(layer) for layer in self.layers]
        matrices = ("first", "sink", "nowhere", "distance", "distance_after", "effective_keys")
        mass = torch.stack([row.asked for row in self.needle]).mean(0) if self.needle else None
        return {
            "model_type": self.model_type,
            "texts": self.texts,
            "longest": self.longest,
            "rows": self.rows,
            "first_row": self.first_row,
            "sinks": self.sinks,
            "layers": kinds,
            **{name: _rounded(getattr(self, name)) for name in matrices},
            "edges": list(self.edges),
            "by_distance": _rounded(self.by_distance.mean(1)),
            "needle": None
            if mass is None
            else {
                "mass": _rounded(mass),
                "depths": [
                    {
                        "depth": row.depth,
                        "position": _digits(row.position),
                        "texts": row.texts,
                        "share": _digits(row.share),
                        "asked": _digits(float(row.asked.mean())),
                        "answered": _digits(float(row.answered.mean())),
                    }
                    for row in self.needle
                ],
                "heads": [
                    {
                        "layer": head.layer,
                        "head": head.head,
                        "mass": _digits(head.mass),
                        "ratio": _digits(head.ratio),
                        "answered": _digits(head.answered),
                        "by_depth": [_digits(mass) for mass in head.by_depth],
                    }
                    for head in self.retrieving()
                ],
            },
            "turning": {
                kind: {
                    "reach": turning.reach,
                    "trained": _rounded(turning.trained),
                    "now": _rounded(turning.now),
                    "unfinished": int(turning.unfinished.sum()),
                }
                for kind, turning in self.turning.items()
            },
            "bands": [None if band is None else _rounded(band) for band in self.bands],
            "still": _rounded(self.still),
            "unfinished_share": [_digits(share) for share in self.unfinished_share],
        }

    def __str__(self) -> str:
        head = f"attention of {self.texts} texts of up to {self.longest} tokens, queries from {self.first_row} on"
        titles = "layer", f"first {self.sinks}", "most in", "distance", "past sinks", "keys", "unfinished"
        lines = [head, "  ".join(f"{title:>10}" for title in titles)]
        for layer, share in enumerate(self.unfinished_share):
            most = int(self.sink[layer].argmax())
            cells = (
                str(layer),
                f"{self.sink[layer].mean():.1%}",
                f"{self.sink[layer, most]:.0%} ({most})",
                f"{self.distance[layer].mean():.1f}",
                f"{self.distance_after[layer].mean():.1f}",
                f"{self.effective_keys[layer].mean():.1f}",
                f"{share:.1%}",
            )
            lines.append("  ".join(f"{cell:>10}" for cell in cells))
        for kind, turning in self.turning.items():
            slow, pairs = int(turning.unfinished.sum()), len(turning.trained)
            lines.append(f"{slow} of {pairs} pairs never complete a turn in {turning.reach} tokens ({kind})")
        for found in self.retrieving(5):
            where = f"layer {found.layer}, head {found.head}"
            lines.append(f"{where}: {found.mass:.1%} on what is asked for, {found.ratio:.1f} times its share")
        return "\n".join(lines)


def _rounded(x: Tensor) -> Any:
    if x.ndim:
        return [_rounded(row) for row in x]
    return _digits(float(x))


def _digits(value: float) -> float | None:
    return float(f"{value:.5g}") if math.isfinite(value) else None
