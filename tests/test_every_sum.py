"""Sums of any two encodings, and of any one with a position map: decoding from a cache is the full pass, or the sum is refused."""

import random
from dataclasses import replace

import pytest
import torch

import posenc
from posenc import InputError, Positions
from posenc.cache import KVCache
from posenc.conformance.fixtures import DECODER, EncodingUnderTest, named, tokens
from test_hidden import Case

CONFIG, N = replace(DECODER, num_layers=1), 11
MAPS = (
    "rerope:window=3", "leaky_rerope:window=3:factor=4", "inverse_leaky:window=3:factor=4", "self_extend:window=4:group=2",
    "jet_long:window=3:trained=6:groups=3", "streaming:sinks=1:recent=4", "lm_infinite:sinks=1:window=4",
    "string:shift=2:window=3", "lampe:window=3:used=6:length=12", "dual_chunk:chunk=4:local=2",
)  # fmt: skip
INTERLEAVED = "rope:layout=interleaved"
PAIRS = [f"{one}+{other}" for one in posenc.ENCODINGS for other in posenc.ENCODINGS if one != other]
MAPPED = [
    text
    for rotation in ("rope", "xpos", INTERLEAVED)
    for position_map in MAPS
    for other in (*posenc.ENCODINGS, INTERLEAVED)
    for text in (f"{rotation}@{position_map}+{other}", f"{other}+{rotation}@{position_map}")
]
KNOWN = (
    "xpos+swin_v2", "xpos+path", "xpos@rerope:window=3+swin_v2", "path+xpos", "swin_v2+xpos", "rope+swin_v2",
    *(f"rope@{position_map}+{INTERLEAVED}" for position_map in MAPS),
)  # fmt: skip


def decodes(text, config=CONFIG):
    """Whether the sum is made and has a cache. What it decodes is checked."""
    tested = EncodingUnderTest(named(text))
    try:
        model = tested.model(config)
        full = model(tokens(1, N))
    except InputError:
        return False
    if model.encoding.needs_length:
        return False
    cache = KVCache()
    runs = [(0, 4), *((i, i + 1) for i in range(4, N))]
    steps = [model(tokens(1, N)[:, first:end], cache=cache) for first, end in runs]
    assert torch.allclose(torch.cat(steps, 1), full, rtol=0, atol=1e-9), text
    return True


@torch.no_grad()
@pytest.mark.parametrize("texts", [PAIRS, MAPPED], ids=["pairs", "mapped"])
def test_some_sums_decode_as_they_compute(texts):
    drawn = random.Random(0).sample(texts, 30)
    assert sum(map(decodes, drawn)) > 15


@torch.no_grad()
@pytest.mark.parametrize("text", KNOWN)
def test_what_depends_on_more_than_distance_decodes_or_is_refused(text):
    assert decodes(text) == (not text.startswith("xpos") and text != "path+xpos")


@torch.no_grad()
@pytest.mark.parametrize("other", ["axial_table", "xpos", "rope"])
@pytest.mark.parametrize("position_map", MAPS)
def test_what_other_layers_have_changes_no_map(position_map, other):
    assert decodes(f"rope@{position_map}/{other}", DECODER)


@torch.no_grad()
@pytest.mark.parametrize("texts", [PAIRS, MAPPED], ids=["pairs", "mapped"])
@pytest.mark.parametrize("name", posenc.ENCODINGS)
def test_every_sum_decodes_as_it_computes(name, texts):
    for text in texts:
        if text.split("+")[1] == name or (texts is MAPPED and text.split("+")[0] == name):
            decodes(text)


@torch.no_grad()
@pytest.mark.parametrize("name", [*posenc.ENCODINGS, "swin_v2:cosine=false"])
def test_what_normalises_says_so(name):
    """`rotate` is linear where it treats every position alike, but for what it declares."""
    case, positions = Case(name, dtype=torch.float64), Positions.arange(7, causal=True)
    q, k, *_ = (x.double() for x in case.inputs(positions))
    if case.encoding.planes != () or "rotate" not in case.encoding.sites():
        return  # sums take it to turn what comes before it
    once, twice = (case.encoding.effects(positions).rotated(n * q, n * k) for n in (1, 2))
    linear = [torch.allclose(b, 2 * a) for a, b in zip(once, twice, strict=True)]
    assert linear == [not (case.encoding.normalises or case.encoding.shifts_queries), not case.encoding.normalises]
