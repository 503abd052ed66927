# SPDX-License-Identifier: Apache-2.0
"""Encodings with parts that posenc's have no option to take out, for benchmarks/ablations.py.

The runs of an encoding in a file are known by the content of the file: a change here trains them again.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from posenc import Encoding, Positions
from posenc.encodings import DeBERTa, TransformerXL
from posenc.errors import InputError


def without_content(q: Tensor) -> Tensor:
    """Queries whose product with every key is 0; biases are made of the queries before."""
    return torch.zeros_like(q)


class Uniform(Encoding):
    """None of the four terms: every visible key has the same weight."""

    def rotate(self, q: Tensor, k: Tensor, positions: Positions, layer: int = 0) -> tuple[Tensor, Tensor]:
        return without_content(q), k


@dataclass(eq=False, repr=False)
class FourTerms(DeBERTa):
    """DeBERTa's terms (c2p, p2c, p2p) with the content's, q . k, or without it; divided by the square root of head_dim times
    their number. Distances count up to 64, so that training at 128 tokens reaches every row of the table."""

    max_relative_positions: int = 64
    content: bool = True

    def scale(self, head_dim: int) -> float:
        return float((head_dim * (self.content + len(self.acting))) ** -0.5)

    def rotate(self, q: Tensor, k: Tensor, positions: Positions, layer: int = 0) -> tuple[Tensor, Tensor]:
        return q if self.content else without_content(q), k


@dataclass(eq=False, repr=False)
class XLBiases(TransformerXL):
    """Transformer-XL with u, v, both ("u|v") or "neither"; the others are 0 and not trained."""

    biases: str = "u|v"

    def setup(self) -> None:
        super().setup()
        wanted = {"u": {"u"}, "v": {"v"}, "u|v": {"u", "v"}, "neither": set()}
        if self.biases not in wanted:
            raise InputError(f"biases={self.biases!r}: write u, v, u|v or neither")
        for name in {"u", "v"} - wanted[self.biases]:
            zero = torch.zeros_like(getattr(self, name))
            delattr(self, name)
            self.register_buffer(name, zero, persistent=False)
