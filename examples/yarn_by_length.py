# SPDX-License-Identifier: Apache-2.0
"""YaRN by the length in use ("dynamic YaRN", Peng et al. 2023, section 3.4): short inputs are the unextended model's to the bit.

    python examples/yarn_by_length.py MODEL [TEXT_FILE]

A factor that is fixed for the longest input costs the short ones. `for_length` extends the model for one sequence, its prompt and what
may be generated after it, so that one factor rotates all of its cached keys. Printed: the loss of the last quarter of inputs, in nats.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from pydoc_data.topics import topics

import torch
from torch import Tensor

import posenc
from posenc.pretrained import loss_by_position


@contextmanager
def for_length(model, length: int, method: str = "yarn") -> Iterator[None]:
    """The model for sequences of `length` tokens: a prompt and what may be generated after it. Up to the context length it is
    unextended, beyond it `method` has the factor that the length needs. Afterwards the model is what it was."""
    if length > model.config.get_text_config().max_position_embeddings:
        posenc.extend(model, method, target_length=length)
    try:
        yield
    finally:
        posenc.restore(model)


@torch.no_grad()
def last_quarter(model, texts: Tensor, length: int) -> float:
    """Mean loss of the tokens in the last quarter of the first `length`. texts: (batch, tokens)."""
    losses = torch.cat([loss_by_position(model, text[None, :length]) for text in texts])
    return losses[:, length * 3 // 4 :].mean().item()


def table(model, texts: Tensor, lengths: list[int], method: str = "yarn") -> list[str]:
    """Markdown, a row for each length: the loss of the model as it is, with the factor of the longest length, and by length."""
    rows = ["| tokens | unextended | factor of the longest | by length |", "|---:|---:|---:|---:|"]
    for length in lengths:
        plain = last_quarter(model, texts, length)
        with for_length(model, lengths[-1], method):
            fixed = last_quarter(model, texts, length)
        with for_length(model, length, method):
            rows.append(f"| {length} | {plain:.3f} | {fixed:.3f} | {last_quarter(model, texts, length):.3f} |")
    return rows


def main(name: str, file: str | None = None) -> None:
    model, tokenizer = posenc.load(name)
    text = "\n".join(topics.values()) if file is None else Path(file).read_text(encoding="utf-8")
    trained = model.config.get_text_config().max_position_embeddings
    lengths = [trained // 4, trained // 2, trained, 2 * trained, 4 * trained]
    ids = tokenizer(text, return_tensors="pt").input_ids[0, : lengths[-1]]
    print("\n".join(table(model, ids[None], [length for length in lengths if length <= len(ids)])))


if __name__ == "__main__":
    main(*sys.argv[1:])
