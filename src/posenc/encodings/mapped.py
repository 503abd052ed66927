# SPDX-License-Identifier: Apache-2.0
"""Rotations at mapped positions: ReRoPE, Self-Extend, dual chunks and others."""

from collections.abc import Hashable, Mapping, Sequence
from copy import deepcopy
from typing import Any, Self

import torch
from torch import Tensor

from posenc.encoding import Composite, Encoding, HeadRange, Rotation
from posenc.encodings.rotary import Rotary
from posenc.errors import InputError, check_arguments
from posenc.position_maps import PositionMap, create
from posenc.positions import Positions
from posenc.positions.visibility import Branch


class Mapped(Encoding):
    """A rotation by mapped positions, as in `Mapped(Rotary(64), rerope(window=512))`. For causal attention.

    encoding: rotates queries and keys by their positions. map: the positions that it sees instead, see
    `posenc.position_maps`; or its spec, a dict. Keys are cached unrotated. Biases added to it, as in
    `Mapped(...) + ALiBi(8)`, see true distances.
    Raises InputError for an encoding that does not rotate, or does more.
    """

    name = "mapped"
    causal_only = True

    def __init__(self, encoding: Encoding, map: PositionMap | Mapping[str, Any]) -> None:
        super().__init__()
        check_arguments(Mapped.__init__, locals())
        composite = isinstance(encoding, (Composite, Mapped))
        if composite or encoding.sites() != ("rotate",) or not encoding.sees_order:
            remedy = "add others outside, as in Mapped(Rotary(64), rerope(512)) + LogN(4096)"
            what = "a position map moves what one encoding rotates by its positions, such as rope"
            raise InputError(what, remedy, encoding=encoding.known_as)
        self.encoding = encoding
        self.map: PositionMap = map if isinstance(map, PositionMap) else create(map)
        self.shift_invariant = encoding.shift_invariant and self.map.shift_invariant
        self.centres_keys = encoding.centres_keys
        vars(self)["papers"] = (*encoding.papers, *self.map.papers)

    @property
    def isometric(self) -> bool:
        return self.encoding.isometric

    @property
    def planes(self) -> Hashable:
        return self.encoding.planes

    def extra_repr(self) -> str:
        return str(self.map)

    def _head_counts(self) -> tuple[set[int], set[int], set[int]]:
        return self.encoding._head_counts()

    def _check_part(self, q: Tensor, k: Tensor) -> None:
        self.encoding._check_part(q, k)

    def _of_process(self, of: HeadRange) -> Self:
        return type(self)(self.encoding._of_process(of), self.map)

    def reset_parameters(self) -> None:
        self.encoding.reset_parameters()

    def branches(self, layer: int = 0) -> Sequence[Branch]:
        return self.map.branches

    def rotate(self, q: Tensor, k: Tensor, positions: Positions, layer: int = 0) -> tuple[Tensor, Tensor]:
        moved = self._moved(positions)
        if self._leaves("k", positions):
            return self.rotate_queries(q, positions, layer), k
        return self.encoding.rotate(q, k, moved, layer)

    def rotate_queries(self, q: Tensor, positions: Positions, layer: int = 0) -> Tensor:
        return q if self._leaves("q", positions) else self.encoding.rotate_queries(q, self._moved(positions), layer)

    def shared_rotation(self, positions: Positions, q: Tensor | None, k: Tensor | None) -> Rotation | None:
        stays = self._leaves("q", positions), self._leaves("k", positions)
        given = [None if stay else x for stay, x in zip(stays, (q, k), strict=True)]
        if given[0] is given[1] is None:
            return lambda q, k: (q, k)
        found = self.encoding.shared_rotation(self._moved(positions), *given)
        if found is None:
            return None

        def rotate(q: Tensor | None, k: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
            of_q, of_k = found(None if stays[0] else q, None if stays[1] else k)
            return q if stays[0] else of_q, k if stays[1] else of_k

        return rotate

    def _leaves(self, side: str, positions: Positions) -> bool:
        """Whether queries, "q", or keys, "k", of a branch stay as they are."""
        return getattr(positions.branch, side, None) is torch.zeros_like and self.encoding.zero_is_identity

    def _moved(self, positions: Positions) -> Positions:
        """Where a branch has the tokens."""
        branch = positions.branch
        if branch is None:
            raise InputError(f"a position map ({self.map}) has no rotation for all pairs: it takes posenc.attention")
        return positions.shared(("moved", branch), lambda: _moved(positions, branch))


class Rerotated(Mapped):
    """The same for queries and keys that the model has rotated already, each at its position, as its cache has them: they are
    turned from there to where the map has them."""

    def __init__(self, rotation: Rotary, map: PositionMap | Mapping[str, Any]) -> None:
        rotation = deepcopy(rotation)
        rotation.attention_factor = 1.0  # they have been multiplied by it
        super().__init__(rotation, map)

    def branches(self, layer: int = 0) -> Sequence[Branch]:
        return self.map.rerotations


def _moved(positions: Positions, branch: Branch) -> Positions:
    positions.require_one_axis("a position map")
    if branch.q is None and branch.k is None:
        return positions.at(None)
    q = positions.q if branch.q is None else branch.q(positions.q)
    k = positions.k if branch.k is None else branch.k(positions.k)
    return positions.derived(q=q, k=k, of_keys=None, sharding=None, images=None)
