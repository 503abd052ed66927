# SPDX-License-Identifier: Apache-2.0
"""What an encoding is analysed with: tokens of which sizes, and whether a query may see those after itself."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain

import torch

from posenc.attention import prepare
from posenc.encoding import Encoding
from posenc.errors import InputError
from posenc.positions import Positions

HEAD_DIM = 64
"""Width of a head where the encoding takes any."""


@dataclass(frozen=True)
class Sizes:
    """Of queries, keys and the input. dim: None where neither the encoding nor the caller gives it."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    dim: int | None


def size_of(encoding: Encoding, name: str) -> int | None:
    """The attribute of that name, of the encoding or of the first of its parts that has it."""
    parts = (part for part in encoding.modules() if isinstance(part, Encoding))
    return next((size for part in parts if (size := getattr(part, name, None)) is not None), None)


def sizes_of(encoding: Encoding, given: Mapping[str, int]) -> Sizes:
    """Its attributes num_heads, num_kv_heads, head_dim and dim. Those it lacks are as given by the caller; else there is a
    head for each of its key heads, of `HEAD_DIM`.

    Raises:
        InputError: a size that contradicts an attribute, or heads that are no multiple of the key heads.
    """
    found: dict[str, int | None] = {}
    for name in ("num_heads", "num_kv_heads", "head_dim", "dim"):
        own, other = size_of(encoding, name), given.get(name)
        if None not in (own, other) and own != other:
            raise InputError(f"{name}={other}: {encoding.known_as} was made with {name}={own}; leave it out")
        found[name] = other if own is None else own
    heads = found["num_heads"] or found["num_kv_heads"] or 1
    groups = found["num_kv_heads"] or heads
    if heads % groups:
        raise InputError(f"num_heads={heads}: must be a multiple of the num_kv_heads={groups} of {encoding.known_as}")
    return Sizes(heads, groups, found["head_dim"] or HEAD_DIM, found["dim"])


@torch.no_grad()
def needs_causal(encoding: Encoding, sizes: Sizes, layer: int = 0) -> bool:
    """Whether no query may see keys after itself: the encoding declares it, or takes a causal text and no other."""
    q = torch.ones(1, sizes.num_heads, 2, sizes.head_dim, dtype=torch.float64, device=device_of(encoding))
    k = q[:, : sizes.num_kv_heads]

    def takes(causal: bool) -> bool:
        try:
            prepare(q, k, k, encoding, Positions.arange(2, causal=causal), None, None, None, 0.0, layer)
        except Exception:  # code of users may refuse by any exception
            return False
        return True

    return encoding.causal_only or (not takes(False) and takes(True))


def device_of(encoding: Encoding) -> torch.device:
    tensor = next(chain(encoding.parameters(), encoding.buffers()), None)
    return torch.device("cpu") if tensor is None else tensor.device
