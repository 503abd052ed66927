"""Relative scores, index tables, axial rotation, gates and masks as people write them: right ones conform, wrong ones are
named."""

import math

import pytest
import torch
from torch.nn.functional import pad
from transformers.models.t5.modeling_t5 import T5Attention

from posenc.conformance import conform
from posenc.testing.oracles import biases


def inv_freq(width, base):
    return base ** (-torch.arange(0, width, 2).double() / width)


# -------------------------------------------------------------------- relative scores


def shaw(q, table, num_keys, first=None, direction=1):
    queries, far = q.shape[-2], len(table) // 2
    i = torch.arange(queries) + (num_keys - queries if first is None else first)
    distance = direction * (torch.arange(num_keys)[None] - i[:, None])
    return torch.einsum("bhid,ijd->bhij", q, table[distance.clamp(-far, far) + far])


def conformer_shift(scores, keys=None):
    """ESPnet's: a column of zeros, another view, and the first keys."""
    b, h, queries, columns = scores.shape
    shifted = pad(scores, (1, 0)).view(b, h, columns + 1, queries)[:, :, 1:].reshape(b, h, queries, columns)
    return shifted[..., : columns - queries + 1 if keys is None else keys]


def assembled(q, table, num_keys):
    """The scores of a long table, shifted."""
    queries, far = q.shape[-2], len(table) // 2
    distances = torch.arange(-(num_keys - 1), queries).clamp(-far, far) + far
    return conformer_shift(q @ table[distances].T)


def skew(scores):
    """Music Transformer's, as wide as the queries are many, or wider (Transformer-XL's)."""
    b, h, queries, keys = scores.shape
    return pad(scores, (1, 0)).reshape(b, h, keys + 1, queries)[:, :, 1:].reshape(b, h, queries, keys)


# -------------------------------------------------------------------- grids


def swin(height, width):
    cells = torch.stack(torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")).flatten(1)
    relative = (cells[:, :, None] - cells[:, None]).permute(1, 2, 0)
    relative += torch.tensor([height - 1, width - 1])
    return relative[..., 0] * (2 * width - 1) + relative[..., 1]


def beit(height, width):
    rows = (2 * height - 1) * (2 * width - 1)
    index = torch.zeros(height * width + 1, height * width + 1, dtype=torch.long)
    index[1:, 1:] = swin(height, width)
    index[0, 0:], index[0:, 0], index[0, 0] = rows, rows + 1, rows + 2
    return index


def moco(height, width, dim, base, order=("x", "y")):
    y, x = (g.flatten().double() for g in torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij"))
    omega = base ** -(torch.arange(dim // 4).double() / (dim // 4))
    angles = [{"x": x, "y": y}[axis][:, None] * omega for axis in order]
    return torch.cat([f for a in angles for f in (a.sin(), a.cos())], -1)


def flux(x, positions, base, widths, layout="interleaved"):
    ladders = [inv_freq(width, base) for width in widths]
    angles = torch.cat([p.double()[:, None] * f for p, f in zip(positions, ladders, strict=True)], -1)
    if layout == "half":
        a, b = x.double().chunk(2, -1)
        turned = torch.cat((a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()), -1)
    else:
        z = torch.view_as_complex(x.double().unflatten(-1, (-1, 2)).contiguous())
        turned = torch.view_as_real(z * torch.polar(torch.ones_like(angles), angles)).flatten(-2)
    return turned.to(x.dtype)


# -------------------------------------------------------------------- biases of all pairs


def alibi(num_heads, num_queries, num_keys, last=None):
    first = num_keys - num_queries if last is None else last
    return torch.tensor(biases.alibi(num_heads))[:, None, None] * (
        torch.arange(num_keys) - torch.arange(num_queries)[:, None] - first
    )


def bloom(num_heads, num_queries, num_keys):
    """The slope times the key's number for every query, which the softmax takes for ALiBi's."""
    return (torch.tensor(biases.alibi(num_heads))[:, None, None] * torch.arange(num_keys)).expand(-1, num_queries, -1)


def t5(table, num_queries, num_keys, bidirectional, max_distance, first=None, direction=1):
    i = torch.arange(num_queries)[:, None] + (num_keys - num_queries if first is None else first)
    given = {"bidirectional": bidirectional, "num_buckets": len(table), "max_distance": max_distance}
    bucket = T5Attention._relative_position_bucket(direction * (torch.arange(num_keys) - i), **given)
    return table[bucket].permute(2, 0, 1)


def window_bias(table, height, width):
    return table[swin(height, width)].permute(2, 0, 1)


# -------------------------------------------------------------------- gates and masks


def fox(log_gates, own=0):
    total = log_gates.cumsum(-1)
    bias = total[..., :, None] - total[..., None, :] + own * log_gates[..., None, :]
    return bias.masked_fill(~torch.ones(bias.shape[-2:], dtype=torch.bool).tril(), -math.inf)


def window(num_queries, num_keys, window, wide=0, first=None):
    i = torch.arange(num_queries)[:, None] + (num_keys - num_queries if first is None else first)
    j = torch.arange(num_keys)
    return (j <= i) & (i - j < window + wide)


def chunks(num_queries, num_keys, chunk, causal=True):
    i, j = torch.arange(num_keys)[-num_queries:, None], torch.arange(num_keys)
    return (i // chunk == j // chunk) & ((j <= i) | (not causal))


def documents(document_ids, causal=True):
    same = document_ids[:, None] == document_ids
    return same.tril() if causal else same


def streaming(size, chunk, left_chunks):
    mask = torch.zeros(size, size, dtype=torch.bool)
    for i in range(size):
        begin = max((i // chunk - left_chunks) * chunk, 0)
        mask[i, begin : (i // chunk + 1) * chunk] = True
    return mask


RIGHT = {
    "relative, gathered": ("relative", shaw),
    "relative, shifted": ("relative", assembled),
    "a Conformer's shift": ("relative_shift", conformer_shift),
    "Transformer-XL's shift": ("relative_shift_causal", skew),
    "the same, masked": ("relative_shift_causal", lambda s: masked(skew(s))),
    "Swin": ("relative_index", swin),
    "BEiT": ("relative_index_class", beit),
    "ALiBi": ("alibi_bias", alibi),
    "BLOOM": ("alibi_bias", bloom),
    "T5": ("t5_bias", t5),
    "a window": ("swin_bias", window_bias),
    "MoCo v3": ("sinusoidal_2d", moco),
    "FLUX": ("rotary_axial", flux),
    "DINOv3": ("rotary_axial_half", lambda *given: flux(*given, layout="half")),
    "FoX": ("forget_gates", fox),
    "window": ("mask_window", window),
    "window in float": ("mask_window", lambda *given: window(*given).float()),
    "chunk": ("mask_chunk", chunks),
    "document": ("mask_document", documents),
    "streaming": ("mask_streaming", streaming),
}


def masked(scores):
    seen = torch.ones(scores.shape[-2:], dtype=torch.bool).tril(scores.shape[-1] - scores.shape[-2])
    return scores.masked_fill(~seen, -math.inf)


WRONG = [
    ("relative_shift", lambda s: conformer_shift(s, s.shape[-1] // 2 + 1), "(columns + 1) / 2 keys come back"),
    ("rotary_axial", lambda x, p, b, w: flux(x, p.flip(0), b, w), "axes come from the last to the first"),
    ("alibi_bias", lambda *given: -alibi(*given), "the sign is wrong: far keys gain"),
    ("relative", lambda q, t, n: shaw(q, t, n, first=0), "fewer queries than keys count from the first key"),
    ("relative", lambda q, t, n: shaw(q, t, n, direction=-1), "direction reversed: the table is read by query minus key"),
    ("relative_shift", lambda s: s[..., : s.shape[-1] - s.shape[-2] + 1], "nothing is shifted: column j is taken for key j"),
    ("relative_shift_causal", lambda s: s, "nothing is shifted: column j is taken for key j"),
    ("relative_index", lambda h, w: swin(h, w).T, "direction reversed: key minus query"),
    ("sinusoidal_2d", lambda *given: moco(*given, order=("y", "x")), "rows come first: sin y, cos y, sin x, cos x"),
    ("rotary_axial", lambda *given: flux(*given, layout="half"), "layout is half, expected interleaved"),
    ("alibi_bias", lambda h, q, k: alibi(h, q, k, last=0).abs().neg(), "fewer queries than keys count from the first key"),
    ("t5_bias", lambda *given: t5(*given, first=0), "fewer queries than keys count from the first key"),
    ("t5_bias", lambda *given: t5(*given, direction=-1), "direction reversed: query minus key"),
    ("t5_bias", lambda *given: t5(*given).movedim(0, -1), "heads come last"),
    ("swin_bias", lambda t, h, w: window_bias(t, h, w).mT, "direction reversed: key minus query"),
    ("forget_gates", lambda g: fox(-g), "the sign is wrong: far keys gain"),
    ("mask_window", lambda *given: window(*given, wide=1), "off by one: the window is one too wide"),
    ("mask_window", lambda *given: window(*given, first=0), "fewer queries than keys count from the first key"),
    ("mask_window", lambda *given: ~window(*given), "true where hidden, expected where seen"),
    ("mask_window", lambda *given: ~window(*given, wide=1), "off by one: the window is one too wide; true where hidden"),
    ("mask_chunk", lambda *given: chunks(*given, causal=False), "not causal: a chunk sees all of itself"),
    ("mask_document", lambda ids: documents(ids, causal=False), "not causal: a document sees all of itself"),
]  # fmt: skip


def zeroed(scores):
    return scores.tril(scores.shape[-1] - scores.shape[-2])


@pytest.mark.parametrize(("kind", "function"), RIGHT.values(), ids=RIGHT)
def test_right_ones_conform(kind, function):
    verdict = conform(function, kind)
    assert verdict.passed, str(verdict)
    assert math.isfinite(verdict.largest_error)


def test_a_case_of_tensors_alone_is_shown_by_their_shapes():
    assert conform(lambda s: s, "relative_shift_causal").example.startswith(
        "for scores of (2, 2, 5, 5): at [0, 0, 0, 0] "
    )


@pytest.mark.parametrize(("kind", "function", "words"), WRONG, ids=[f"{kind}: {words}" for kind, _, words in WRONG])
def test_wrong_ones_are_named(kind, function, words):
    verdict = conform(function, kind)
    assert verdict.passed is False
    for part in words.split("; "):
        assert any(part in finding for finding in verdict.findings), str(verdict)


def test_what_comes_after_the_query_does_not_count():
    garbage = lambda s: skew(s) + torch.full(s.shape[-2:], math.nan).triu(1 + s.shape[-1] - s.shape[-2])  # noqa: E731
    assert conform(lambda s: torch.where(garbage(s).isnan(), 7.0, skew(s)), "relative_shift_causal").passed
    assert not conform(lambda s: torch.where(garbage(s).isnan(), 7.0, skew(s)), "relative_shift").passed
