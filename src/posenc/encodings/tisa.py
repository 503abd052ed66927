# SPDX-License-Identifier: Apache-2.0
"""TISA: a learned sum of Gaussians of the distance."""

from dataclasses import KW_ONLY, dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from posenc.encoding import Size
from posenc.encodings.distance import DistanceBias


@dataclass(eq=False, repr=False)
class TISA(DistanceBias):
    """Translation-invariant self-attention: the bias is a sum of a exp(-|b| (distance - c)^2), with distance = key position minus
    query position, and a, b and c learned for each head and kernel.

    num_heads: heads of the model. num_layers: layers with separate kernels (the authors: all of them); 1: shared by all.
    kernels: Gaussians of a head. The centres c start normal, 5 tokens wide, a and b near 0.1, as in the authors' code.
    Source: Wennberg and Henter 2021, section 4.1.
    """

    name = "tisa"
    title = "TISA, Gaussians of the distance"
    papers: ClassVar[tuple[str, ...]] = ("wennberg2021case",)
    bibtex = """\
@inproceedings{wennberg2021case,
  title     = {The Case for Translation-Invariant Self-Attention in {Transformer}-Based Language Models},
  author    = {Wennberg, Ulme and Henter, Gustav Eje},
  booktitle = {Annual Meeting of the Association for Computational Linguistics},
  year      = {2021},
  eprint    = {2106.01950},
}"""
    formula: ClassVar[tuple[str, ...]] = (
        r"s_{ij} = \frac{q_i \cdot k_j}{\sqrt{d}} + \sum_m a_{h,m} \exp\left( -|b_{h,m}| (j - i - c_{h,m})^2 \right)",
    )
    extrapolates = "partly: far from every centre the bias vanishes"
    use_when = "Take it in encoders whose bias is to be smooth and small to store; `t5` has a number for each bucket."
    constant = True

    num_heads: Size
    _: KW_ONLY
    num_layers: Size = 1
    kernels: Size = 5

    def setup(self) -> None:
        shape = self.num_layers, self.num_heads, self.kernels
        self.amplitude: nn.Parameter = nn.Parameter(torch.empty(shape).normal_(0.1, 0.01))
        self.sharpness: nn.Parameter = nn.Parameter(torch.empty(shape).normal_(0.1, 0.01))
        self.centre: nn.Parameter = nn.Parameter(torch.empty(shape).normal_(0.0, 5.0))

    def of_distance(self, head: Tensor, distance: Tensor, layer: int, dtype: torch.dtype) -> Tensor:
        a, b, c = (x[layer, head].to(dtype) for x in (self.amplitude, self.sharpness, self.centre))
        return (a * torch.exp(-b.abs() * (-distance[..., None].to(dtype) - c).square())).sum(-1)
