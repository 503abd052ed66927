# SPDX-License-Identifier: Apache-2.0
"""Positions that live long keep no encoding, model or mask alive."""

import gc
import weakref

import pytest
import torch

import posenc
from posenc import Positions
from posenc.conformance.fixtures import DECODER, LENGTH, EncodingUnderTest, named, tokens
from posenc.encodings import create
from test_conformance import VARIANTS

NAMES = [*posenc.ENCODINGS, *VARIANTS, "rope/alibi"]


def parts_of(model: torch.nn.Module) -> list[weakref.ref]:
    tensors = [*model.parameters(), *model.buffers()]
    return [weakref.ref(part) for part in (*model.modules(), *tensors)]


def alive(parts: list[weakref.ref]) -> list[type]:
    """What is still there, at the latest after a search for garbage, which takes long."""
    if any(part() is not None for part in parts):
        gc.collect()
    return [type(part()) for part in parts if part() is not None]


def use(model: torch.nn.Module, full: Positions, last: Positions) -> None:
    """A pass for evaluation, one for training, and the attention of a decoding step."""
    x = tokens(1, LENGTH)
    with torch.no_grad():
        model(x, full)
    model(x, full).sum().backward()
    q = torch.randn(1, DECODER.num_heads, 1, DECODER.width)
    k = torch.randn(1, DECODER.kv_heads, LENGTH + 1, DECODER.width)
    try:
        for _ in range(2):
            with torch.no_grad():
                posenc.attention(q, k, k, model.encoding, last, keys_rotated=True)
    except posenc.InputError:
        pass  # keys that cannot be cached rotated, or gates, which were not made


@pytest.mark.parametrize("name", NAMES)
def test_positions_keep_no_model(name):
    tested = EncodingUnderTest(named(name))
    full, last = tested.document(LENGTH).with_causal(True), Positions.arange(1, LENGTH, causal=True)
    model = tested.model(DECODER, torch.float32)
    use(model, full, last)
    parts = parts_of(model)
    del model, tested
    assert not alive(parts)


@pytest.mark.parametrize(
    "name", ["axial_rope", "mixed_rope", "liere", "grid_alibi", "swin", "beit", "swin_v2", "grid_table"]
)
def test_positions_of_images_keep_no_encoding(name):
    grid = Positions.grid(3, 4)
    encoding = create(name, dim=32, num_heads=2, num_layers=1, grid=(3, 4))
    q = torch.randn(1, 2, 12, 16)
    posenc.attention(q, q, q, encoding, grid)
    encoding.embed(torch.randn(1, 12, 32), grid)
    parts = parts_of(encoding)
    del encoding
    assert not alive(parts)


class Masked(posenc.Encoding):
    """A mask of the user's."""

    bias_reads_keys = False

    def __init__(self, mask: torch.Tensor) -> None:
        super().__init__()
        self.mask = mask

    def bias(self, q, k, positions, layer=0):
        return posenc.bias.Dense(torch.zeros(self.mask.shape).masked_fill(~self.mask, -1e9))


def test_positions_keep_no_mask():
    positions, q = Positions.arange(8), torch.randn(1, 2, 8, 16)
    encoding = Masked(torch.ones(1, 1, 8, 8).tril().bool()) + posenc.Rotary(16)
    mask = weakref.ref(encoding[0].mask if hasattr(encoding, "__getitem__") else next(iter(encoding)).mask)
    posenc.attention(q, q, q, encoding, positions)
    del encoding
    assert not alive([mask])
