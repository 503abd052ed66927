# SPDX-License-Identifier: Apache-2.0
"""The part of an encoding that belongs to some heads, as a process of tensor parallelism has them."""

import math
from copy import deepcopy
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from posenc.encoding.declared import Declared, HeadRange, written
from posenc.errors import InputError, check_integers, check_sizes, not_none


class Sliced(Declared):
    """A module whose arguments and tensors are of all heads, and which can be cut to some of them."""

    mixes_heads: ClassVar[bool] = False
    """What happens in one head depends on others, so that no process can have but some of them."""
    heads_together: ClassVar[int] = 1
    """Consecutive query heads that belong together, whatever the model."""

    def heads(self, part: slice, *, num_heads: int | None = None, num_kv_heads: int | None = None) -> Self:
        """The encoding of some query heads and of the key heads that they share, with copies of what belongs to them: what a
        process of tensor parallelism has. `ALiBi(8).heads(slice(4, 8))` has the slopes of heads 4 to 7 of 8.

        part: of the query heads, such as slice(4, 8); it begins and ends where a key head does. num_heads: the model's query
        heads, for an encoding that treats all alike, and so does not know how many there are. num_kv_heads: the model's key
        heads; None: as many as the encoding was made for, else as many as query heads. `attention` refuses queries and keys of
        other numbers of heads than the part has. Parameters that all heads share stay as they are: the gradient that a process
        gets of those that act in attention is its heads' part, so sum it over the processes.

        Raises:
            InputError: no range of heads, one that cuts heads which share a key head, or an encoding that mixes heads.
        """
        if not isinstance(part, slice) or part.step not in (None, 1):
            raise InputError("pass a range of query heads, such as slice(4, 8)", heads=part)
        for bound in (part.start, part.stop):
            check_integers(**not_none(heads=bound))
        check_sizes(**not_none(num_heads=num_heads, num_kv_heads=num_kv_heads))
        return self._of_process(_range_of(self, part, num_heads, num_kv_heads))

    def _head_counts(self) -> tuple[set[int], set[int], set[int]]:
        """The numbers of query heads, and of query heads that share a key head, that it was made for; and of those that belong
        together whatever the model."""
        part, heads = self._part, _count(self, "num_heads")
        if part is not None:
            return {part.end - part.first}, {part.sharing}, {self.heads_together}
        if heads is None:
            return set(), set(), {self.heads_together}
        of_keys = heads if "num_kv_heads" in self.arguments() else None
        of_keys = _count(self, "num_kv_heads") or of_keys
        return {heads}, set() if of_keys is None else {heads // of_keys}, {self.heads_together}

    def _of_process(self, of: HeadRange) -> Self:
        """`heads`, of a range that has been checked."""
        if self.mixes_heads:
            what = "mixes the scores of all heads, so that no process can compute but some"
            raise InputError(f"{self.known_as} {what}: leave it out")
        made = deepcopy(self) if _count(self, "num_heads") is None else self._cut(of)
        before = self._part or HeadRange(self._given(), 0, of.end, of.heads, of.sharing)
        first, end = before.first + of.first, before.first + of.end
        vars(made)["_part"] = before._replace(first=first, end=end, sharing=of.sharing)
        return made

    def _cut(self, of: HeadRange) -> Self:
        """What belongs to a range of heads, copied."""
        with torch.device("meta"):
            made = written(type(self))(**self._given() | self._of_heads(of.first, of.end))
        for name, x in (*self.named_parameters(), *self.named_buffers()):
            owner, _, leaf = name.rpartition(".")
            module = made.get_submodule(owner)
            like = getattr(module, leaf)
            value = of.cut(x.detach(), like.shape).clone()
            if isinstance(x, nn.Parameter):
                module._parameters[leaf] = nn.Parameter(value, x.requires_grad)
            else:
                module._buffers[leaf] = value
        return made.train(self.training)

    def _check_part(self, q: Tensor, k: Tensor) -> None:
        """Refuse queries and keys (batch, heads, n, head_dim) that are not of this part's heads."""
        if self._part is not None:
            self._part.check(self.known_as, q.shape[1], k.shape[1])

    def _of_heads(self, first: int, end: int) -> dict[str, Any]:
        """The arguments in which an encoding of heads first .. end - 1 differs."""
        heads, of_keys = _count(self, "num_heads"), _count(self, "num_kv_heads")
        changed = {"num_heads": end - first}
        if heads is not None and of_keys is not None:
            changed["num_kv_heads"] = of_keys * (end - first) // heads
        return {name: value for name, value in changed.items() if name in self.arguments()}


def _count(encoding: Declared, name: str) -> int | None:
    count: int | None = getattr(encoding, name, None)
    return count


def _range_of(encoding: "Sliced", part: slice, heads: int | None, of_keys: int | None) -> HeadRange:
    """The range of heads of a slice, of a model with so many query and key heads."""
    counts, shares, together = encoding._head_counts()
    made = " and ".join(map(str, sorted(counts)))
    if len(counts) > 1:
        raise InputError(f"the parts of {encoding.known_as} were made for {made} query heads", heads=part)
    if heads is not None and counts - {heads}:
        raise InputError(f"{encoding.known_as} was made for {made}", num_heads=heads)
    heads = next(iter(counts), heads)
    if heads is None and (of_keys is not None or part.stop is None or min(part.start or 0, part.stop) < 0):
        given = {"heads": part} if of_keys is None else {"num_kv_heads": of_keys}
        what = f"{encoding.known_as} does not know the number of query heads"
        raise InputError(what, "pass num_heads= as well", **given)
    first, end, _ = (part.start or 0, part.stop, 1) if heads is None else part.indices(heads)
    of = "" if heads is None else f" of {heads}"
    if not first < end or part.stop not in (None, end):
        raise InputError(f"name some{of}, such as slice(0, {max((heads or 8) // 2, 1)})", heads=part)
    if heads is not None and of_keys is not None:
        if heads % of_keys:
            raise InputError(f"must divide the {heads} query heads", num_kv_heads=of_keys)
        if shares - {heads // of_keys}:
            made = " and ".join(str(heads // each) for each in sorted(shares))
            raise InputError(f"{encoding.known_as} was made for {made}", num_kv_heads=of_keys)
        shares = {heads // of_keys}
    if len(shares) > 1:
        raise InputError(f"the parts of {encoding.known_as} were made for unlike numbers of key heads", heads=part)
    sharing = next(iter(shares), 1)
    unit = math.lcm(sharing, *together)
    if first % unit or end % unit:
        what = f"cuts query heads{of} that belong together, {unit} by {unit}"
        raise InputError(what, f"begin and end at multiples of {unit}", heads=part)
    return HeadRange({}, first, end, heads, sharing)
