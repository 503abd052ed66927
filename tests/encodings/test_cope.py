"""CoPE: the paper's formula, and x-transformers' implementation."""

import pytest
import torch
from torch.testing import assert_close
from x_transformers.x_transformers import CoPE as TheirCoPE

import posenc
from posenc import CoPE, Positions
from posenc.testing.oracles import content
from references.calls import BACKENDS, CAUSAL, EXACT, check_against, dense, document_by_document, qkv, random, refusals


def cope_formula(encoding, positions, divisor=2.0):
    def of_document(q, k, row, keys, rows):
        return content.cope(q, k, encoding.embeddings[0], rows) / divisor

    return lambda q, k: document_by_document(positions, q, k, of_document)


@BACKENDS
@pytest.mark.parametrize("kv_heads", [3, 1])
@pytest.mark.parametrize("num_counts", [3, 64])
@pytest.mark.parametrize("positions", CAUSAL.values(), ids=CAUSAL.keys())
def test_cope_is_the_papers_formula(positions, num_counts, kv_heads, backend):
    encoding = random(CoPE(4, num_layers=2, num_counts=num_counts))
    check_against(cope_formula(encoding, positions), encoding, positions, backend, kv_heads)


def test_cope_without_division():
    encoding, positions = random(CoPE(4, scaled=False)), CAUSAL["causal"]
    check_against(cope_formula(encoding, positions, divisor=1.0), encoding, positions)


@pytest.mark.parametrize("num_counts", [4, 16])
@pytest.mark.parametrize(("new", "cached"), [(20, 0), (3, 17)])
def test_cope_is_that_of_x_transformers(new, cached, num_counts):
    # theirs adds an undivided term to scores already divided and masked, and can mix heads before the gates
    positions = Positions.arange(new, cached, causal=True)
    q, k, _ = qkv(positions, head_dim=8)
    ours, theirs = random(CoPE(8, num_counts=num_counts, scaled=False)), TheirCoPE(8, 3, num_counts)
    theirs.pos_emb.data = ours.embeddings.data[0].T
    seen = positions.mask()
    scores = (q @ k.mT * 8**-0.5).masked_fill(~seen, -torch.finfo(q.dtype).max)
    wanted, actual = theirs(q, scores), ours.bias(q, k, positions).dense(q.device)
    assert_close(torch.where(seen, actual, 0), torch.where(seen, wanted, 0), **EXACT)
    divided = random(CoPE(8, num_counts=num_counts)).bias(q, k, positions).dense(q.device)
    assert (torch.where(seen, divided - wanted, 0)).abs().max() > 0.1, "the other scale gives other values"


def test_cope_starts_as_no_position_at_all():
    q, k, v = qkv(CAUSAL["causal"])
    assert_close(
        posenc.attention(q, k, v, CoPE(4), CAUSAL["causal"]), posenc.attention(q, k, v, None, CAUSAL["causal"])
    )


REFUSED = {
    "width": (lambda: dense(CoPE(8), CAUSAL["causal"], 2), "head_dim 4.*head_dim=8"),
    "not causal": (lambda: posenc.attention(*torch.zeros(3, 1, 2, 4, 4), CoPE(4), Positions.arange(4)), "causal"),
}

test_refusals = refusals(REFUSED)
