# SPDX-License-Identifier: Apache-2.0
"""Who sees whom."""

from collections.abc import Callable, Sequence

import torch


def _mask(queries: int, keys: int, sees: Callable[[int, int], bool]) -> list[list[int]]:
    return [[int(sees(i + keys - queries, j)) for j in range(keys)] for i in range(queries)]


def mask_document(document_ids: Sequence[int], *, causal: bool = True) -> list[list[int]]:
    """1 where query i sees key j of documents in a row, (seq, seq): of the same document, up to itself."""
    ids = torch.as_tensor(document_ids).tolist()
    return _mask(len(ids), len(ids), lambda i, j: ids[i] == ids[j] and (j <= i or not causal))


def mask_window(
    num_queries: int,
    num_keys: int,
    window: int,
    *,
    sees: Callable[[int, int, int], bool] = lambda i, j, w: 0 <= i - j < w,
) -> list[list[int]]:
    """1 where a query sees a key, (num_queries, num_keys): the last `window` tokens, itself among them (Mistral 7B, Jiang et al.
    2023, section 2; sliding_window in transformers). The queries are the last num_queries of num_keys tokens.

    Faults: sees says so of a query's and a key's position.
    """
    return _mask(num_queries, num_keys, lambda i, j: sees(i, j, window))


def mask_chunk(
    num_queries: int,
    num_keys: int,
    chunk: int,
    *,
    sees: Callable[[int, int, int], bool] = lambda i, j, c: i // c == j // c and j <= i,
) -> list[list[int]]:
    """1 where a query sees a key, (num_queries, num_keys): the tokens of its chunk up to itself; chunks begin at multiples of
    chunk (Llama 4's chunked attention in transformers).

    Faults: sees says so of a query's and a key's position.
    """
    return _mask(num_queries, num_keys, lambda i, j: sees(i, j, chunk))


def mask_streaming(
    size: int, chunk: int, left_chunks: int, *, sees: Callable[[int, int, int, int], bool] = lambda i, j, c, left: i // c - left <= j // c <= i // c,
) -> list[list[int]]:  # fmt: skip
    """1 where frame i sees frame j, (size, size): all of its chunk and of left_chunks before it (subsequent_chunk_mask in
    wenet-e2e/wenet, wenet/utils/mask.py).

    Faults: sees says so of two frames.
    """
    return _mask(size, size, lambda i, j: sees(i, j, chunk, left_chunks))
