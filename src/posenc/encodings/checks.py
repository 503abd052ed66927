# SPDX-License-Identifier: Apache-2.0
"""What constructors and hooks refuse, in one place and in the same words."""

from torch import Tensor

from posenc.checks import check_word
from posenc.encoding import Encoding
from posenc.errors import InputError


def check_std(init_std: float) -> None:
    """Refuse a standard deviation that is none, or no parameter's."""
    if not 0 <= init_std <= 1e4:
        raise InputError(f"init_std={init_std}: must be a number from 0 to 10000")


def check_beyond(beyond: str) -> None:
    """Refuse an unknown answer to positions past a table."""
    check_word("beyond", beyond, ("error", "clamp"))


def check_terms(terms: str, known: tuple[str, ...]) -> frozenset[str]:
    """The words of a text like "c2p|p2c"; refuses unknown and repeated ones."""
    words = [word.strip() for word in terms.split("|")]
    for word in words:
        check_word("term", word, known)
    if len(set(words)) < len(words):
        raise InputError(f"terms={terms!r}: name each term once")
    return frozenset(words)


def check_heads(encoding: Encoding, q: Tensor, num_heads: int) -> None:
    """Refuse queries (batch, heads, n, head_dim) of another number of heads than the encoding was made for."""
    if q.shape[1] != num_heads:
        raise InputError(f"q with {q.shape[1]} heads: this {type(encoding).__name__} has num_heads={num_heads}")


def check_head_dim(encoding: Encoding, q: Tensor, head_dim: int) -> None:
    """Refuse queries of another width than the encoding was made for."""
    if q.shape[-1] != head_dim:
        raise InputError(
            f"q of head_dim {q.shape[-1]}: this {type(encoding).__name__} was made with head_dim={head_dim}"
        )
