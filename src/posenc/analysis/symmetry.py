"""The symmetry argument: attention does not see the order of its tokens, and what does. Every number is measured."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import conv1d

from posenc.analysis.body import Body, body_of
from posenc.analysis.finding import Finding
from posenc.encodings import ENCODINGS, create, lookup
from posenc.errors import InputError
from posenc.positions import Positions
from posenc.transformer import Transformer, TransformerConfig

ROUNDING = 1e-9
"""Differences below this, of representations of size one in float64, are rounding: hundreds of sums of terms of 1e-16."""
HOST = TransformerConfig(vocab_size=64, dim=32, num_layers=2, num_heads=4, causal=False)
"""The model around an encoding that is given by name."""
SHIFT = 3


@dataclass(frozen=True, eq=False)
class Equivariance(Finding):
    """What a model keeps when its tokens change places. Every number is the largest change of any channel over what is
    tried, in units of the root mean square of the representations: 0 up to rounding (`ROUNDING`) where a symmetry holds.

    Attributes:
        name: of the model. length, permutations: of the texts, and how many random orders of each were tried.
        order: f(Px) against P f(x), P a random order of the tokens: 0 is permutation equivariance.
        pooled: the mean over tokens of f(Px) against that of f(x): 0 is permutation invariance.
        last: the last token's representation, when those before it change places.
        mirror: f of the reversed text against f reversed.
        shift: f with every position moved on against f; None: the model is not told positions.
        sees_order: what its encoding claims (`Encoding.sees_order`); None: there is none to claim anything.
    """

    name: str
    length: int
    permutations: int
    order: float
    pooled: float
    last: float
    mirror: float
    shift: float | None = None
    sees_order: bool | None = None

    @property
    def blind(self) -> bool:
        """Whether it cannot tell one order of the tokens from another."""
        return self.order < ROUNDING

    def sentences(self) -> list[str]:
        tried = f"{self.permutations} random orders of {self.length} tokens"
        if self.blind:
            found = [
                f"{self.name} does not see order: over {tried}, f(Px) and P f(x) differ by at most {self.order:.1e}, and "
                f"the mean over tokens by {self.pooled:.1e}. A text is to it a bag of words."
            ]
        else:
            found = [f"{self.name} sees order: over {tried}, f(Px) and P f(x) differ by up to {self.order:.2g}."]
            if self.last < ROUNDING:
                found.append("The last token's representation is the same whatever the order of those before it.")
            if self.mirror < ROUNDING:
                found.append(f"It cannot tell a text from its mirror image: they differ by {self.mirror:.1e}.")
        if self.shift is not None:
            moved = "changes nothing" if self.shift < ROUNDING else f"changes it by up to {self.shift:.2g}"
            found.append(f"Moving every position by {SHIFT} {moved}.")
        return found


@torch.no_grad()
def equivariance(
    module: Any, *, length: int = 12, dim: int | None = None, permutations: int = 16, seed: int = 0, name: str | None = None
) -> Equivariance:
    """Hold a model against random orders of its tokens, in float64.

    Args:
        module: what `body_of` understands (posenc's and transformers' models, torch's attention modules, a function of
            (batch, n, dim) vectors), or the text of an encoding ("rope", "t5/none"), for a small random encoder with
            it, its learned parameters drawn as N(0, 0.5^2), since zeros would hide them.
        length: tokens. dim: width of a function's vectors, where the module does not say. permutations: orders tried.
        seed: of the vectors and orders. name: for people.

    Raises:
        InputError: a width that is neither known nor given, fewer than 3 tokens, or results that are not finite, that
            change between calls or that are not a vector per token.
    """
    if length < 3 or permutations < 1:
        raise InputError(f"length={length}, permutations={permutations}: needs at least 3 tokens and 1 permutation")
    claimed = None
    if isinstance(module, str):
        name, module = name or module, encoder(module, seed=seed)
    if isinstance(module, Transformer):
        claimed = module.encoding.sees_order
    body = body_of(module, name=name)
    width = body.dim if dim is None else dim
    if width is None:
        raise InputError(f"dim: {body.name} does not say how wide its vectors are; pass dim=")
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(1, length, width, dtype=torch.float64, generator=draw)
    at = torch.arange(length)
    base = called(body, x, at)
    size = float(base.square().mean().sqrt()) or 1.0

    def far(a: Tensor, b: Tensor) -> float:
        return float((a - b).abs().max()) / size

    order = pooled = last = 0.0
    for _ in range(permutations):
        p = torch.randperm(length, generator=draw)
        moved = called(body, x[:, p], at)
        order, pooled = max(order, far(moved, base[:, p])), max(pooled, far(moved.mean(1), base.mean(1)))
        p = torch.cat((torch.randperm(length - 1, generator=draw), at[-1:]))
        last = max(last, far(called(body, x[:, p], at)[:, -1], base[:, -1]))
    return Equivariance(
        body.name,
        length,
        permutations,
        order,
        pooled,
        last,
        mirror=far(called(body, x.flip(1), at), base.flip(1)),
        shift=far(called(body, x, at + SHIFT), base) if body.reads_positions else None,
        sees_order=claimed,
    )


def called(body: Body, x: Tensor, at: Tensor) -> Tensor:
    """The representations, (batch, n, width), once they have been found to be that, finite and the same every time."""
    found, again = body(x, at), body(x, at)
    if not isinstance(found, Tensor) or found.dim() != 3 or found.shape[:2] != x.shape[:2]:
        shape = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
        raise InputError(f"{body.name}: gave {shape} for vectors {tuple(x.shape)}; it must give (batch, n, width)")
    if not bool(found.isfinite().all()):
        raise InputError(f"{body.name}: its representations are not finite; mend the module")
    if not torch.equal(found, again):
        raise InputError(f"{body.name}: gave two different results for the same input; turn off its noise")
    return found


def encoder(
    encoding: str, *, config: TransformerConfig = HOST, max_positions: int = 64, draw: bool = True, seed: int = 0
) -> Transformer:
    """A small random model with an encoding, in float64: an encoder, or a decoder where the encoding allows no other.

    draw: give the encoding's learned parameters random values, as they have after training.
    """
    causal_only = any(lookup(part.split(":")[0]).causal_only for part in _names(encoding))
    config = replace(config, causal=config.causal or causal_only)
    torch.manual_seed(seed)
    made = create(
        encoding, dim=config.dim, num_heads=config.num_heads, num_layers=config.num_layers, causal=config.causal,
        max_positions=max_positions,
    )  # fmt: skip
    torch.manual_seed(seed)
    model = Transformer(config, made)
    for parameter in made.parameters() if draw else ():
        nn.init.normal_(parameter, std=0.5)
    return model.double().eval()
