# SPDX-License-Identifier: Apache-2.0
"""Second derivatives of a scalar function of vectors, by Hessian-vector products: the whole Hessian is never made."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from posenc.errors import InputError

Scalar = Callable[[Tensor], Tensor]
"""(batch, n, dim) vectors -> (batch,) numbers, each row's by itself."""

CHUNK = 64
"""Hessian-vector products that are computed together."""


def gradient(f: Scalar, x: Tensor) -> tuple[Tensor, Tensor]:
    """f and its gradient at x, (n, dim): a number and (n, dim).

    Raises:
        InputError: a value that does not depend on x as far as autograd can see.
    """
    with torch.enable_grad():
        at = x[None].clone().requires_grad_()
        value = f(at)
        if not value.requires_grad:
            raise InputError("model: autograd finds no way from its value to its input; compute it with torch alone")
        (found,) = torch.autograd.grad(value.sum(), at)
    return value.detach()[0], found[0]


def products(f: Scalar, x: Tensor, directions: Tensor, chunk: int = CHUNK) -> Tensor:
    """The Hessian of f at x, (n, dim), times each of (count, n, dim) directions: (count, n, dim).

    A function without curvature gives zeros.
    """
    found = []
    for v in directions.split(chunk):
        with torch.enable_grad():
            at = x.expand(len(v), -1, -1).clone().requires_grad_()
            (first,) = torch.autograd.grad(f(at).sum(), at, create_graph=True)
            if not first.requires_grad:
                found.append(torch.zeros_like(v))
                continue
            (second,) = torch.autograd.grad((first * v).sum(), at, allow_unused=True)
        found.append(torch.zeros_like(v) if second is None else second)
    return torch.cat(found)


def interactions(f: Scalar, x: Tensor, p: Tensor) -> Tensor:
    """p_m^T H_mn p_n for every pair, (n, n), with H_mn = d^2 f / dx_m dx_n at x; x, p: (n, dim). By n products."""
    return torch.einsum("ijd,jd->ij", products(f, x, torch.diag_embed(p.mT).permute(1, 2, 0)), p)


def column(f: Scalar, x: Tensor, n: int) -> Tensor:
    """The blocks H_mn of every m with one n, (len(x), dim, dim), by dim products."""
    size, dim = x.shape
    directions = x.new_zeros(dim, size, dim)
    directions[:, n] = torch.eye(dim, dtype=x.dtype)
    return products(f, x, directions).permute(1, 2, 0)


@dataclass(frozen=True)
class Shape:
    """How far a matrix is from two simpler ones: the Frobenius norm of what is missing over that of the matrix.

    identity: from the nearest multiple of the identity. diagonal: from its own diagonal.
    """

    identity: float
    diagonal: float

    @property
    def on_diagonal(self) -> float:
        """The share of the matrix's squares that its diagonal holds."""
        return 1 - self.diagonal**2


def shape_of(matrix: Tensor) -> Shape:
    """Of a square matrix that is not zero."""
    dim, whole = len(matrix), float(matrix.square().sum())
    trace, diagonal = float(matrix.diagonal().sum()), float(matrix.diagonal().square().sum())
    return Shape(math.sqrt(max(0.0, 1 - trace**2 / (dim * whole))), math.sqrt(max(0.0, 1 - diagonal / whole)))


def shape_of_noise(dim: int) -> Shape:
    """What a matrix of independent entries with mean 0 has, as a root of the expected squares."""
    return Shape(math.sqrt(1 - 1 / dim**2), math.sqrt(1 - 1 / dim))
