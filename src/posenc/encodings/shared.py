# SPDX-License-Identifier: Apache-2.0
"""Shared by several families: checks, initial parameters, projections and perceptrons per head, resized tables."""

from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate, linear

from posenc.encoding import Encoding, Size
from posenc.errors import InputError, check_numbers, check_word
from posenc.positions import Positions

EncodingT = TypeVar("EncodingT", bound=Encoding)
Beyond = Literal["error", "clamp"]
"""What a position past a table gets: a refusal, or the last row."""


def remade(encoding: EncodingT, learned: Mapping[str, Tensor] | None = None, **changes: Any) -> EncodingT:
    """The same encoding with other values for some of its arguments; what was learned is copied. learned: what parameters whose
    shape is another one have in place of theirs, by name."""
    arguments = {name: getattr(encoding, name) for name in encoding.arguments()}
    other, part = type(encoding)(**arguments | changes), encoding._part
    for buffer in encoding.buffers():
        other = other.to(buffer.device)
    for name, parameter in encoding.named_parameters():
        owner, _, last = name.rpartition(".")
        value = (learned or {}).get(name, parameter).detach().clone()
        setattr(other.get_submodule(owner), last, nn.Parameter(value, parameter.requires_grad))
    if part is not None:
        vars(other)["_part"] = part._replace(arguments=part.arguments | changes)
    return other.train(encoding.training)


def check_terms(terms: str, known: tuple[str, ...]) -> frozenset[str]:
    """The words of a text like "c2p|p2c"; refuses unknown and repeated ones."""
    words = [word.strip() for word in terms.split("|")]
    for word in words:
        check_word("term", word, known)
    if len(set(words)) < len(words):
        raise InputError("name each term once", terms=terms)
    return frozenset(words)


def check_heads(encoding: Encoding, q: Tensor, num_heads: int) -> None:
    """Refuse queries (batch, heads, n, head_dim) of another number of heads than the encoding was made for."""
    if q.shape[1] != num_heads:
        raise InputError(f"q with {q.shape[1]} heads: this {type(encoding).__name__} has num_heads={num_heads}")


def kv_heads_of(num_heads: int, num_kv_heads: int | None) -> int:
    """The number of key and value heads: as many as query heads where that is None."""
    if num_kv_heads is None:
        return num_heads
    if num_kv_heads < 1 or num_heads % num_kv_heads:
        raise InputError(f"must divide num_heads={num_heads}", num_kv_heads=num_kv_heads)
    return num_kv_heads


def by_key_head(encoding: Any, x: Tensor, key_heads: int) -> Tensor:
    """Queries or keys (batch, heads, n, width) -> (batch, key_heads, heads / key_heads, n, width), the heads that share a
    key head together."""
    check_head_dim(encoding, x, encoding.head_dim)
    if x.shape[1] % key_heads:
        raise InputError(f"q or k with {x.shape[1]} heads: this {type(encoding).__name__} has {key_heads} key heads")
    return x.unflatten(1, (key_heads, -1))


def key_angles(encoding: Encoding, positions: Positions, layer: int = 0) -> Tensor:
    """The angle by which each pair of each key is turned, float64: (batch or 1, kv_heads or 1, num_keys, pairs), of an encoding that
    has them in a method of this name."""
    turned: Callable[[Positions, int], Tensor] | None = getattr(encoding, "key_angles", None)
    if turned is None:
        raise InputError(f"{type(encoding).__name__} does not rotate keys by an angle: there is nothing to move")
    return turned(positions, layer)


def check_head_dim(encoding: Encoding, q: Tensor, head_dim: int) -> None:
    """Refuse queries of another width than the encoding was made for."""
    if q.shape[-1] != head_dim:
        raise InputError(f"head_dim {q.shape[-1]}: this {type(encoding).__name__} was made with head_dim={head_dim}")


def check_queries(encoding: Any, q: Tensor) -> None:
    """Refuse queries of another width than the encoding was made for, or another number of heads, where it has one."""
    heads, width = getattr(encoding, "num_heads", q.shape[1]), encoding.head_dim
    if q.shape[1] != heads or q.shape[-1] != width:
        check_heads(encoding, q, heads)
        check_head_dim(encoding, q, width)


def check_width(encoding: Encoding, x: Tensor, dim: int) -> None:
    """Refuse an input of another width than the encoding was made for."""
    if x.shape[-1] != dim:
        raise InputError(f"x of width {x.shape[-1]}: this {type(encoding).__name__} was made with dim={dim}")


def check_input(encoding: Encoding, x: Tensor, dim: int) -> Tensor:
    """A layer's input (batch, seq, dim) in float32 or better; refuses another width."""
    if x.dim() != 3 or x.shape[-1] != dim:
        raise InputError(f"this {type(encoding).__name__} makes gates of (batch, seq, dim={dim})", x=x)
    return x.to(torch.promote_types(x.dtype, torch.float32))


def normal_parameter(*shape: int, init_std: float) -> nn.Parameter:
    """A parameter drawn from N(0, init_std^2)."""
    check_numbers(0, 1e4, init_std=init_std)
    return nn.Parameter(nn.init.normal_(torch.empty(shape), std=init_std))


class ContentBias(Encoding):
    """Base of the encodings whose bias depends on a query or key as well as on their positions."""

    num_heads: Size
    head_dim: Size

    check_heads = check_queries

    def check_integers(self, positions: Positions) -> None:
        """Refuse positions that have no row in a table: on a grid, or fractional."""
        name = type(self).__name__
        positions.require_one_axis(name)
        positions.require_integers(name, "round the positions, or use Rotary or ALiBi")


def projected_by(project: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """x by a projection of the model, computed in the model's own dtype, whatever x has been cast to. The weight of one that is
    quantized has no such dtype."""
    weight = getattr(project, "weight", None)
    own = weight.dtype if isinstance(weight, Tensor) and weight.is_floating_point() else x.dtype
    return project(x.to(own)).to(x.dtype)


class HeadProjection(nn.Module):
    """A linear map of position vectors to every head, one per layer, starting normal with a bias of zero.

    weight is (num_layers, num_heads, head_dim, dim); bias, if there is one, (num_layers, num_heads, head_dim).
    """

    def __init__(
        self, dim: int, num_heads: int, head_dim: int, num_layers: int, init_std: float, bias: bool = True
    ) -> None:
        super().__init__()
        self.weight: nn.Parameter = normal_parameter(num_layers, num_heads, head_dim, dim, init_std=init_std)
        self.bias: nn.Parameter | None = nn.Parameter(torch.zeros(num_layers, num_heads, head_dim)) if bias else None

    def forward(self, x: Tensor, layer: int = 0) -> Tensor:
        """(..., n, dim) -> (..., num_heads, n, head_dim)"""
        y, bias = x.unsqueeze(-3) @ self.weight[layer].to(x.dtype).mT, self.bias
        return y if bias is None else y + bias[layer, :, None].to(x.dtype)


class Affine(nn.Module):
    """A linear map, computed in the dtype of its input. It starts as torch.nn.Linear does, and quantization and adapters, which
    replace each nn.Linear, leave it: an encoding reads its numbers.

    weight is (width, inputs); bias, if there is one, (width,).
    """

    def __init__(self, inputs: int, width: int, bias: bool = True) -> None:
        super().__init__()
        self.weight: nn.Parameter = uniform(width, inputs, fan_in=inputs)
        self.bias: Any = uniform(width, fan_in=inputs) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """(..., inputs) -> (..., width)"""
        return linear(x, self.weight.to(x.dtype), None if self.bias is None else self.bias.to(x.dtype))


class HeadPerceptron(nn.Module):
    """linear -> ReLU -> linear to one number per head, with separate parameters for each of num_layers layers.

    inputs, hidden: widths. last_bias: whether the second linear map has a bias; the first has. Both start as
    torch.nn.Linear does.
    """

    def __init__(self, inputs: int, hidden: int, num_heads: int, num_layers: int, last_bias: bool) -> None:
        super().__init__()
        self.weight_in: nn.Parameter = uniform(num_layers, hidden, inputs, fan_in=inputs)
        self.bias_in: nn.Parameter = uniform(num_layers, hidden, fan_in=inputs)
        self.weight_out: nn.Parameter = uniform(num_layers, num_heads, hidden, fan_in=hidden)
        self.bias_out: nn.Parameter | None = uniform(num_layers, num_heads, fan_in=hidden) if last_bias else None

    def forward(self, x: Tensor, head: Tensor, layer: int) -> Tensor:
        """The numbers of broadcastable (..., inputs) x and (...) heads, in x's dtype."""
        hidden = linear(x, self.weight_in[layer].to(x), self.bias_in[layer].to(x)).relu_()  # one buffer, not three
        weight = self.weight_out[layer].to(x)[head]
        # hidden units of a grid are not repeated for every head
        if head.dim() == 4:  # of (1, heads, 1, 1); torch.export takes einsum's program for two rows or more
            out = weight[0, :, 0, 0] @ hidden.flatten(0, -2).mT
            out = out.unflatten(1, hidden[:, 0].shape[:-1]).movedim(0, 1)
        else:
            out = torch.einsum("...w,...w->...", hidden, weight)
        return out if self.bias_out is None else out + self.bias_out[layer].to(x)[head]


def uniform(*shape: int, fan_in: int) -> nn.Parameter:
    """A parameter as torch.nn.Linear's start, uniform within 1 / sqrt(fan_in)."""
    bound = fan_in**-0.5
    return nn.Parameter(torch.empty(shape).uniform_(-bound, bound))


def bicubic(planes: Tensor, height: int, width: int) -> Tensor:
    """(planes, h, w) -> (planes, height, width), as ViT, DINOv2 and Swin do it: corners not aligned, no smoothing, in float32
    or better. The same size is returned unchanged."""
    if planes.shape[-2:] == (height, width):
        return planes
    precise = planes.to(torch.promote_types(planes.dtype, torch.float32))
    return interpolate(precise[None], (height, width), mode="bicubic", align_corners=False)[0].to(planes.dtype)


def make_orthogonal(matrix: Tensor) -> None:
    """Fill a matrix, which needs no gradient, with a random orthogonal one; half precision has no decomposition."""
    matrix.copy_(nn.init.orthogonal_(torch.empty(matrix.shape, dtype=torch.float32, device=matrix.device)))
