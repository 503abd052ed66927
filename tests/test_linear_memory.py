"""Attention takes memory linear in the sequence length under every encoding, forward and backward."""

from functools import partial

import pytest
import torch

import posenc
from posenc import Positions
from posenc.backends import sdpa
from posenc.encodings import ENCODINGS, selective
from posenc.lab.machine import peak


def test_every_encoding_takes_linear_memory():
    """Measured: twice the tokens take less than three times the memory, where a square would take four times. Freed blocks that a C
    library uses again count once: of stick-breaking's rows one machine counts 450 MiB, another 230, and PyTorch's allocator 200."""
    few = 2**23

    def measured(name, times):
        """Peaks in bytes at two lengths: the largest of some measurements, since what was freed before and is used again does
        not count."""
        more = {"shared": False} if name == "deberta_v2" else {}
        encoding = posenc.create(name, head_dim=32, dim=64, num_heads=2, max_positions=4096, **more)
        for n in (1536, 3072):
            q, x, p = torch.zeros(1, 2, n, 32), torch.zeros(1, n, 64), Positions.arange(n, causal=True)
            with torch.no_grad():
                gates = q[:, :1] if name == "selective_attention" else posenc.encoding.gates_of(encoding, x)
                call = partial(posenc.attention, q, q, q, encoding, p, gates=gates)
                yield max(peak(call, q.device, collect=False) for _ in range(times))

    def is_square(name, times=1):
        short, long = measured(name, times)
        return long > 3 * short + few

    assert [name for name in ENCODINGS if is_square(name) and is_square(name, times=3)] == []


def stored_for_the_gradient(call):
    """Bytes that a call leaves behind for its backward pass."""
    sizes = {}

    def pack(x):
        sizes[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        out = call()
    assert out.requires_grad
    return sum(sizes.values())


@pytest.mark.parametrize("layout", ["a text", "two padded rows"])
def test_every_encoding_trains_in_linear_memory(layout, monkeypatch):
    """What is stored from the forward to the backward pass, of blocks and pairs at once as small as the texts are short."""
    monkeypatch.setattr(sdpa, "BLOCK_CELLS", 2**16)
    monkeypatch.setattr(selective, "CELLS", 2**16)
    quadratic = {}
    for name in ENCODINGS:
        more = {"shared": False} if name == "deberta_v2" else {}
        encoding = posenc.create(name, head_dim=32, dim=64, num_heads=2, max_positions=1024, **more)
        size = []
        for n in (384, 768):
            seen = torch.arange(n) < torch.tensor([[n - 5], [n]])
            p = Positions.from_mask(seen, causal=True) if layout != "a text" else Positions.arange(n, causal=True)
            x = torch.randn(2, n, 64)
            q, k, v = (torch.randn(2, 2, n, 32, requires_grad=True) for _ in range(3))
            gates = q[:, :1] if name == "selective_attention" else posenc.encoding.gates_of(encoding, x)
            size.append(stored_for_the_gradient(partial(posenc.attention, q, k, v, encoding, p, gates=gates)))
        if size[1] > 2.5 * size[0]:
            quadratic[name] = size
    assert quadratic == {}
