"""TUPE against its formula and the facts of guolinke/TUPE (transformer_sentence_encoder.py), which has no port."""

import pytest
import torch
from torch.testing import assert_close

import posenc
from posenc import TUPE, TUPER, Positions
from posenc.bias import Factored, Relative
from posenc.testing.oracles import biases, content
from posenc.testing.oracles.attention import attend
from references.calls import qkv

EXACT = {"rtol": 1e-10, "atol": 1e-11}
WHERE = {
    "bidirectional": Positions.arange(8),
    "cached": Positions.arange(3, 6, causal=True),
    "first token cached": Positions.arange(2, 1, causal=True),
    "packed": Positions.packed([3, 5]),
    "without the first": Positions.from_ids(torch.arange(4, 9)),
    "per row": Positions.from_ids(torch.stack((torch.arange(8), torch.arange(8) * 5 % 8 + 1))),
}
EVERYWHERE = pytest.mark.parametrize("positions", WHERE.values(), ids=WHERE.keys())


def made(cls=TUPE, **options):
    encoding = cls(12, dim=10, num_heads=4, head_dim=6, **options).double()
    for parameter in encoding.parameters():
        torch.nn.init.normal_(parameter)
    return encoding


def by_formula(encoding, q, k, v, positions):
    """Ke et al. 2021, sections 3.1 and 3.2, with the rows that the authors' code takes."""
    e = {name: p.detach() for name, p in encoding.named_parameters()}
    table = torch.nn.functional.layer_norm(e["table"], (10,), e["norm.weight"], e["norm.bias"], 1e-5)
    queries, keys = (table @ e[f"{side}.weight"][0].mT + e[f"{side}.bias"][0][:, None] for side in ("query", "key"))
    shift = int(encoding.untie_cls)
    m, n = positions.q[:, :, None], positions.k[:, None]
    terms = content.tupe(queries, keys, positions.q + shift, positions.k + shift)
    both = not positions.causal if getattr(encoding, "bidirectional", None) is None else encoding.bidirectional
    buckets = biases.t5(n - m, both, 32, 128)
    if encoding.untie_cls:  # "[CLS] to others" is written last; 16 is what the buckets leave unused
        from_cls, to_cls = ((queries[:, row] * keys[:, row]).sum(-1)[:, None, None, None] for row in (0, 1))
        terms = torch.where(m == 0, from_cls, torch.where(n == 0, to_cls, terms))
        buckets = torch.where(m == 0, 16, torch.where(n == 0, 32, buckets))
    if isinstance(encoding, TUPER):  # T5's bias is not scaled
        terms = terms + e["distances"][:, buckets] * 12**0.5
    scale = (2 * 6) ** -0.5
    return attend(q, k, v, scale=scale, visible=positions.mask(), bias=terms.movedim(0, 1) * scale)


@EVERYWHERE
@pytest.mark.parametrize("untie_cls", [True, False])
@pytest.mark.parametrize(("cls", "options"), [(TUPE, {}), (TUPER, {}), (TUPER, {"bidirectional": False})])
def test_it_is_the_formula(cls, options, untie_cls, positions):
    encoding = made(cls, untie_cls=untie_cls, **options)
    q, k, v = qkv(positions, 4, 2, 6)
    want = by_formula(encoding, q, k, v, positions)
    for backend in ("sdpa", "reference"):
        assert_close(posenc.attention(q, k, v, encoding, positions, backend=backend), want, **EXACT)


def test_bucket_16_is_free_for_cls():
    distances = range(-300, 301)
    assert 16 not in biases.t5(distances, True, 32, 128)


def test_structures_and_tables():
    q, k, _ = qkv(WHERE["cached"], 4, 2, 6)
    absolute = made().bias(q, k, WHERE["cached"])
    assert isinstance(absolute, Factored)
    assert (absolute.left.shape, absolute.right.shape) == ((1, 4, 3, 8), (1, 4, 9, 8))  # two columns for the reset
    assert isinstance(made(TUPER).bias(q, k, WHERE["cached"])[1], Relative)
    assert isinstance(made(TUPER, untie_cls=False).bias(q, k, WHERE["cached"])[1], Relative)
    tables = [TUPE(5, dim=8, num_heads=2, head_dim=4, untie_cls=untie).table for untie in (True, False)]
    assert [*map(len, tables)] == [6, 5]
    assert TUPER(5, dim=8, num_heads=2, head_dim=4).distances.shape == (2, 33)


def test_past_the_table():
    q, k, v = qkv(Positions.arange(15), 4, 2, 6)
    with pytest.raises(posenc.InputError, match="position 14 is outside the table of 12"):
        posenc.attention(q, k, v, made(TUPER))
    with pytest.raises(posenc.InputError, match="position 12 is outside"):  # of a key
        posenc.attention(q[:, :, :1], k[:, :, :2], v[:, :, :2], made(), Positions.from_ids([1], [12, 1]))
    clamped = made(beyond="clamp")
    last = Positions.from_ids(torch.arange(15).clamp(max=11))
    assert_close(posenc.attention(q, k, v, clamped), posenc.attention(q, k, v, clamped, last), **EXACT)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_positions": 0}, "max_positions=0"),
        ({"dim": 0}, "dim=0"),
        ({"head_dim": 0}, "head_dim=0"),
        ({"beyond": "wrap"}, "unknown beyond 'wrap'"),
        ({"init_std": float("inf")}, "init_std=inf"),
    ],
)
def test_arguments_that_are_refused(options, message):
    for cls in (TUPE, TUPER):
        with pytest.raises(posenc.InputError, match=message):
            cls(**{"max_positions": 8, "dim": 8, "num_heads": 2, "head_dim": 4} | options)


def test_calls_that_are_refused():
    encoding, x = TUPE(8, dim=8, num_heads=2, head_dim=4), torch.randn(1, 2, 3, 4)
    with pytest.raises(posenc.InputError, match="num_buckets=2"):
        TUPER(8, dim=8, num_heads=2, head_dim=4, num_buckets=2)
    with pytest.raises(posenc.InputError, match="q with 1 heads"):
        posenc.attention(x[:, :1], x[:, :1], x[:, :1], encoding)
    for ids, message in (([0.5, 1, 2], "integer positions only"), ([0, -1, 2], "position -1 is negative")):
        with pytest.raises(posenc.InputError, match=message):
            posenc.attention(x, x, x, encoding, Positions.from_ids(torch.tensor(ids)))
