# SPDX-License-Identifier: Apache-2.0
"""Speculative decoding verifies a tree of drafts in one call: each sees the cache, its ancestors and itself."""

import torch

import posenc
from posenc import Positions


def tree(cached: int, parents: list[int]) -> Positions:
    """Positions of drafts after `cached` tokens. parents: which draft is each one's parent, -1 for what follows the cache.
    Siblings share a position, and blocks of one token say who sees whom."""
    count = cached + len(parents)
    seen, ids = torch.ones(count, count, dtype=torch.bool), list(range(cached))
    seen[cached:, cached:] = torch.eye(len(parents), dtype=torch.bool)
    for draft, parent in enumerate(parents, cached):  # a parent's ancestors are known before its children's
        ids.append(cached if parent < 0 else ids[cached + parent] + 1)
        if parent >= 0:
            seen[draft] |= seen[cached + parent]
    drafts = Positions.from_ids(ids[cached:], ids, causal=True, packed=False)
    return drafts.with_blocks(1, seen)


def main() -> float:
    cached, parents, path = 100, [-1, 0, 0, 1, -1], [0, 2]  # two drafts follow the cache, two the first, one the second
    encoding, (q, k, v) = posenc.create("rope+alibi", head_dim=16, num_heads=4), torch.randn(3, 1, 4, 105, 16)
    verified = posenc.attention(q[:, :, cached:], k, v, encoding, tree(cached, parents))
    text = [*range(cached), *(cached + draft for draft in path)]  # what the tokens of the path are alone
    alone = posenc.attention(*(x[:, :, text] for x in (q, k, v)), encoding, causal=True)
    error = (verified[:, :, path] - alone[:, :, cached:]).abs().max().item()
    print(f"the drafts {path} in the tree and alone differ by {error:.0e}")
    return error


if __name__ == "__main__":
    main()
