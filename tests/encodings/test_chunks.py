# SPDX-License-Identifier: Apache-2.0
"""Chunks against a loop and transformers' mask of Llama 4; blocks themselves are tested in tests/positions/test_visible_blocks.py."""

import pytest
import torch
from transformers.masking_utils import chunked_overlay

from posenc import Chunks, InputError, Positions, attention


def seen(positions, size=4):
    """What each query sees, (rows, queries, keys), from attention itself."""
    q = torch.zeros(positions.batch, 1, positions.num_queries, 4)
    k, v = torch.zeros(positions.batch, 1, positions.num_keys, 4), torch.eye(positions.num_keys)[None, None]
    return attention(q, k, v.expand(positions.batch, -1, -1, -1), Chunks(size), positions)[:, 0] > 0


def test_a_loop():
    mask = seen(Positions.arange(11, causal=True))[0]
    for i in range(11):
        for j in range(11):
            assert mask[i, j] == (j <= i and i // 4 == j // 4)


def test_transformers():
    mask = torch.tensor([[0] * 3 + [1] * 12, [1] * 15])
    overlay = chunked_overlay(4, torch.tensor([3, 0]))
    result = seen(Positions.from_mask(mask, causal=True))
    for row in range(2):
        for i in range(15):
            for j in range(15):
                expected = bool(overlay(row, 0, torch.tensor(i), torch.tensor(j))) and j <= i
                assert result[row, i, j] == (expected and bool(mask[row, i] and mask[row, j]))


def test_bad_input():
    with pytest.raises(InputError, match="size=0"):
        Chunks(0)
