# SPDX-License-Identifier: Apache-2.0
"""The symmetry argument: attention does not see the order of its tokens, and what does. Every number is measured."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import conv1d

from posenc.analysis.body import Body, body_of
from posenc.analysis.finding import Finding
from posenc.analysis.reading import seeded, whole
from posenc.checks import checked
from posenc.encodings import ENCODINGS, create, lookup
from posenc.errors import InputError
from posenc.spec import parse
from posenc.transformer import Transformer, TransformerConfig

ROUNDING = 1e-9
"""Differences below this, of representations of size one in float64, are rounding: hundreds of sums of terms of 1e-16."""
HOST = TransformerConfig(vocab_size=64, dim=32, num_layers=2, num_heads=4, causal=False)
"""The model around an encoding that is given by name."""
SHIFT = 3
EVERY = tuple({"step_temperature": "step_temperature:train_length=4"}.get(name, name) for name in ENCODINGS)
"""Every encoding; one that acts past its training length only is given a short one."""


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
        causal: whether tokens see those before them, and none after.
        shift: f with every position moved on against f; None: the model takes no positions, or not those.
        sees_order: what the encoding of an encoder claims (`Encoding.sees_order`); None: there is none.
    """

    name: str
    length: int
    permutations: int
    order: float
    pooled: float
    last: float
    mirror: float
    causal: bool
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
            found = [
                f"{self.name} sees order: over {tried}, f(Px) and P f(x) differ by up to {self.order:.2g} times the root "
                "mean square of f."
            ]
            if self.causal:
                found.append("No token sees those after it, which tells order by itself, without any position.")
            if self.last < ROUNDING:
                found.append("The last token's representation is the same whatever the order of those before it.")
            if self.mirror < ROUNDING:
                found.append(f"It cannot tell a text from its mirror image: they differ by {self.mirror:.1e}.")
        if self.shift is not None:
            moved = (
                "changes nothing"
                if self.shift < ROUNDING
                else f"changes f by up to {self.shift:.2g} times its root mean square"
            )
            found.append(f"Moving every position by {SHIFT} {moved}.")
        return found


@checked
@torch.no_grad()
def equivariance(
    module: Any,
    *,
    length: int = 12,
    dim: int | None = None,
    permutations: int = 16,
    seed: int = 0,
    name: str | None = None,
) -> Equivariance:
    """Hold a model against random orders of its tokens, in float64.

    Args:
        module: what `body_of` understands (posenc's and transformers' models, torch's attention modules, a function of
            (batch, n, dim) vectors), or the text of an encoding ("rope", "t5/none"), for a small random encoder with
            it, its learned parameters random, since zeros would hide them.
        length: tokens. dim: width of a function's vectors, where the module does not say. permutations: orders tried.
        seed: of the vectors and orders. name: for people.

    Raises:
        InputError: a width that is neither known nor given, fewer than 3 tokens, or results that are not finite, not in
            float64, that change between calls or that are not a vector per token.
    """
    whole("length", length, 3)
    whole("permutations", permutations)
    claimed = None
    if isinstance(module, str):
        name, module = name or module, encoder(module, seed=seed)
    if isinstance(module, Transformer) and not module.config.causal:
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
        moved = body(x[:, p], at)
        order, pooled = max(order, far(moved, base[:, p])), max(pooled, far(moved.mean(1), base.mean(1)))
        p = torch.cat((torch.randperm(length - 1, generator=draw), at[-1:]))
        last = max(last, far(body(x[:, p], at)[:, -1], base[:, -1]))
    mirror = far(body(x.flip(1), at), base.flip(1))
    return Equivariance(
        body.name,
        length,
        permutations,
        max(order, mirror),  # the reverse is an order too
        pooled,
        last,
        mirror,
        is_causal(body, x, at),
        shift=None if (shifted := _shifted(body, x, at)) is None else far(shifted, base),
        sees_order=claimed,
    )


def _shifted(body: Body, x: Tensor, at: Tensor) -> Tensor | None:
    if not body.reads_positions:
        return None
    try:
        return body(x, at + SHIFT)
    except InputError:  # it has no such positions: past the end of its table, or defined from 0 on only
        return None


def is_causal(body: Body, x: Tensor, at: Tensor) -> bool:
    """Whether tokens see those before them, and none after: another last token changes nothing but itself, another first
    one does."""
    base, other = body(x, at), x.clone()
    other[:, -1] *= -1
    back = (body(other, at) - base)[:, :-1].abs().max()
    other = x.clone()
    other[:, 0] *= -1
    on = (body(other, at) - base)[:, 1:].abs().max()
    return float(back) <= ROUNDING * float(base.square().mean().sqrt()) < float(on)


def called(body: Body, x: Tensor, at: Tensor) -> Tensor:
    """The representations, (batch, n, width), once they have been found to be that, finite and the same every time."""
    found, again = body(x, at), body(x, at)
    if not isinstance(found, Tensor) or found.dim() != 3 or found.shape[:2] != x.shape[:2]:
        shape = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
        raise InputError(f"{body.name}: gave {shape} for vectors {tuple(x.shape)}; it must give (batch, n, width)")
    if found.dtype != x.dtype:
        raise InputError(f"{body.name}: gave {found.dtype} for {x.dtype}; let it compute in the dtype of its input")
    if not bool(found.isfinite().all()):
        raise InputError(f"{body.name}: its representations are not finite; mend the module")
    if not torch.equal(found, again):
        raise InputError(f"{body.name}: gave two different results for the same input; turn off its noise")
    return found


def encoder(encoding: str, *, config: TransformerConfig = HOST, max_positions: int = 64, seed: int = 0) -> Transformer:
    """A small random model with an encoding, in float64: an encoder, or a decoder where the encoding allows no other. Its
    host has the same weights under every encoding; the encoding's own are N(0, 0.5^2): zeros would hide it."""
    backwards = any(term.map or lookup(term.name).causal_only for term in parse(encoding).terms)
    config = replace(config, causal=config.causal or backwards)
    with seeded(seed):
        made = create(
            encoding, dim=config.dim, num_heads=config.num_heads, num_layers=config.num_layers, causal=config.causal,
            max_positions=max_positions,
        )  # fmt: skip
    with seeded(seed):
        model = Transformer(config, made)
        for parameter in made.parameters():
            nn.init.normal_(parameter, std=0.5)
    return model.double().eval()


@dataclass(frozen=True, eq=False)
class Breakers(Finding):
    """What breaks the symmetry of attention, one thing at a time. rows: the first is attention with nothing added."""

    rows: Sequence[Equivariance]

    def __getitem__(self, name: str) -> Equivariance:
        """The row of that name."""
        return next(row for row in self.rows if row.name == name)

    def sentences(self) -> list[str]:
        alone, others = self.rows[0], self.rows[1:]
        blind = [row.name for row in others if row.blind]
        least = min((row for row in others if not row.blind), key=lambda row: row.order, default=None)
        found = [f"{alone.name}: f(Px) and P f(x) differ by at most {alone.order:.1e}, which is rounding."]
        if least is not None:
            found.append(
                f"{len(others) - len(blind)} of {len(others)} additions break the symmetry, by {least.order:.2g} "
                f"({least.name}) or more."
            )
        if blind:
            found.append(f"Still blind to order: {', '.join(blind)}.")
        even = [row.name for row in others if row.mirror < ROUNDING <= row.order]
        if even:
            found.append(
                f"They see order but not its direction, a text is to them its mirror image: {', '.join(even)}."
            )
        wrong = [row.name for row in others if row.sees_order is not None and row.sees_order == row.blind]
        if wrong:
            found.append(f"Not as declared (sees_order): {', '.join(wrong)}.")
        return found


@checked
def breakers(encodings: Sequence[str] = EVERY, *, length: int = 12, permutations: int = 8, seed: int = 0) -> Breakers:
    """Attention alone, then with one thing added at a time: a causal mask, a padding mask that moves with its tokens or
    stays where it is, a convolution, each encoding.

    Args and errors: as `equivariance`; encodings: their texts. Those that are for decoders only have its mask as well.
    """
    tried: dict[str, Any] = {
        "attention alone": encoder("none", seed=seed),
        "a causal mask, one layer": encoder("none", config=replace(HOST, num_layers=1, causal=True), seed=seed),
        "a causal mask, two layers": encoder("none", config=replace(HOST, causal=True), seed=seed),
        **_around(seed),
        **{text: encoder(text, seed=seed) for text in encodings if text != "none"},
    }
    measured = [
        equivariance(model, length=length, dim=HOST.dim, permutations=permutations, seed=seed, name=name)
        for name, model in tried.items()
    ]
    return Breakers(measured)


def _around(seed: int) -> dict[str, Callable[[Tensor], Tensor]]:
    """What is not an encoding and may tell tokens apart by their place, around one layer of torch's own."""
    with seeded(seed):
        layer = nn.TransformerEncoderLayer(HOST.dim, HOST.num_heads, 2 * HOST.dim, batch_first=True).double().eval()
        kernel = torch.randn(HOST.dim, 1, 3, dtype=torch.float64)

    def moving(x: Tensor) -> Tensor:
        return layer(x, src_key_padding_mask=x[..., 0] > 0.5)  # a mark that the token carries

    def staying(x: Tensor) -> Tensor:
        return layer(x, src_key_padding_mask=(torch.arange(x.shape[1]) < 3).expand(x.shape[:2]))

    def convolved(x: Tensor) -> Tensor:
        return layer(x + conv1d(x.mT, kernel, padding=1, groups=HOST.dim).mT)

    return {
        "padding that moves with its tokens": moving,
        "padding that stays where it is": staying,
        "a convolution over three tokens": convolved,
    }
