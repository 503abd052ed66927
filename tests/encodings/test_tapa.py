"""TAPA: equation 12 of its paper."""

import math

import pytest
import torch
from torch.testing import assert_close

from posenc import TAPA, InputError, Positions, attention
from posenc.testing.oracles import content
from posenc.testing.oracles.attention import attend
from references.calls import BACKENDS, EVERYWHERE, EXACT, distances, qkv


@BACKENDS
@EVERYWHERE
@pytest.mark.parametrize("fraction", [0.5, 0.3])
def test_it_is_the_formula(positions, backend, fraction):
    encoding, (q, k, v) = TAPA(4, fraction=fraction), qkv(positions, 4, 2)
    scores = content.tapa(q, k.repeat_interleave(2, 1), distances(positions).double(), encoding.amplitude, 0.1)
    want = attend(q, k, v, scale=0.0, visible=positions.mask(), bias=scores)
    assert_close(attention(q, k, v, encoding, positions, backend=backend), want, **EXACT)


def test_by_hand():
    q = torch.tensor([[[[0.0, 0.0], [2.0, 0.25]]]], dtype=torch.float64)
    scores = TAPA(2, alpha=1.0).scores(q, torch.ones_like(q), 2**-0.5, Positions.arange(2, causal=True)).dense(q.device)
    assert_close(scores[0, 0, 1], torch.tensor([2 * math.cos(2 * math.pi * 0.25), 2.0], dtype=torch.float64))


@pytest.mark.parametrize("fraction", [0.0, 1.0, 0.1])
def test_no_channel_left_is_refused(fraction):
    with pytest.raises(InputError, match="fraction"):
        TAPA(4, fraction=fraction)
