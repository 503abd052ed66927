# SPDX-License-Identifier: Apache-2.0
"""The cases of other projects' test suites, on posenc: their parameters, as facts, with formulas written here or with the
project's function where it is installed; write benchmarks/foreign.json and the counts of docs/conform.md.

    python benchmarks/foreign.py [PROJECT ...]      (make foreign)

Where a suite's grid has thousands of cases, a fixed seed draws some of it. Formulas are in float64.
"""

import json
import math
import random
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from itertools import groupby
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor

import posenc
from posenc import Encoding, Positions, attention
from posenc.bias import Modifier
from posenc.pretrained import multimodal
from posenc.testing.oracles import rotations as oracles
from posenc.testing.oracles.attention import mix

ROOT = Path(__file__).parents[1]
PAGE, DATA = ROOT / "docs" / "conform.md", ROOT / "benchmarks" / "foreign.json"
BEGIN, END = "<!-- foreign: written by benchmarks/foreign.py -->", "<!-- end of foreign -->"


class Case(NamedTuple):
    """run: the largest difference from what the suite expects. bound: what counts as equal."""

    name: str
    run: Callable[[], float]
    bound: float = 1e-10


def drawn(count: int, seed: int, **choices: list[Any]) -> Iterator[dict[str, Any]]:
    """So many cases of a grid, each once."""
    pick, seen = random.Random(seed), set()
    while len(seen) < count:
        case = {name: pick.choice(values) for name, values in choices.items()}
        key = json.dumps(case)
        if key not in seen:
            seen.add(key)
            yield case


def off(ours: Tensor, wanted: Tensor) -> float:
    assert ours.shape == wanted.shape, (ours.shape, wanted.shape)
    return float((ours.double() - wanted.double()).detach().abs().max())


def named(case: dict[str, Any]) -> str:
    return " ".join(f"{key}={value}" for key, value in case.items())


def numbers(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def dense(q: Tensor, k: Tensor, v: Tensor, change: Callable[[Tensor], Tensor], visible: Tensor | None) -> Tensor:
    """softmax(change(q k^T / sqrt(d))) v with keys repeated for each query head; rows that see nothing are 0."""
    k = k.repeat_interleave(q.shape[1] // k.shape[1], 1)
    visible = torch.tensor(True) if visible is None else visible
    return mix(change(q @ k.mT / math.sqrt(q.shape[-1])), v, visible=visible)


# -------------------------------------------------------------------- Dao-AILab/flash-attention

SIZES = [(113, 203), (128, 217), (113, 211), (108, 256), (256, 512), (512, 256)]
LARGE = [(1023, 1024), (1024, 1023)]
WIDTHS = [32, 40, 59, 64, 96, 111, 128, 160, 192, 224, 256]


def _at_the_end(
    queries: int, keys: int, causal: bool, window: tuple[int | None, int | None]
) -> tuple[Tensor, Positions]:
    """Visibility and positions of queries that are the last of the keys, or begin before the first of them."""
    distance = torch.arange(queries)[:, None] + keys - queries - torch.arange(keys)
    visible = torch.ones_like(distance, dtype=torch.bool)
    before, after = window
    after = 0 if causal else after
    if before is not None:
        visible &= distance <= before
    if after is not None:
        visible &= -distance <= after
    where = torch.arange(keys - queries, keys)[None], torch.arange(keys)[None]
    causal = causal and queries <= keys  # else a window says it
    positions = _in_slots(*where, None).with_causal(causal)
    return visible, positions if before is None and (after is None or causal) else positions.with_window(before, after)


def flash_attention_output() -> Iterator[Case]:
    grid = {"d": WIDTHS, "heads": [(6, 6), (6, 1), (6, 3)], "causal": [False, True], "local": [False, True], "alibi": [False, True],
            "softcap": [0.0, 50.0]}  # fmt: skip
    for number, case in enumerate([*drawn(146, 0, size=SIZES, **grid), *drawn(4, 1, size=LARGE, **grid)]):

        def run(case: dict[str, Any] = case, number: int = number) -> float:
            (queries, keys), (heads, kv_heads), d = case["size"], case["heads"], case["d"]
            torch.manual_seed(number)
            leaves = numbers(2, heads, queries, d), numbers(2, kv_heads, keys, d), numbers(2, kv_heads, keys, d)
            slopes = 0.3 * torch.rand(2, heads, dtype=torch.float64) if case["alibi"] else None
            sides = (
                (int(torch.randint(0, keys, ())), int(torch.randint(0, keys, ()))) if case["local"] else (None, None)
            )
            visible, positions = _at_the_end(queries, keys, case["causal"], sides)
            distance = (torch.arange(queries)[:, None] + keys - queries - torch.arange(keys)).abs()

            def change(scores: Tensor) -> Tensor:
                scores = case["softcap"] * (scores / case["softcap"]).tanh() if case["softcap"] else scores
                return scores if slopes is None else scores - slopes[..., None, None] * distance

            trains = number % 3 == 0
            results = []
            for ours in (True, False):
                q, k, v = (x.clone().requires_grad_(trains) for x in leaves)
                encoding, cap = None if slopes is None else posenc.ALiBi(heads, slopes=slopes), case["softcap"] or None
                out = attention(q, k, v, encoding, positions, softcap=cap) if ours else dense(q, k, v, change, visible)
                results.append([out.detach(), *(torch.autograd.grad(out.square().sum(), (q, k, v)) if trains else ())])
            return max(off(a, b) for a, b in zip(*results, strict=True))

        yield Case(named(case), run, 1e-9)


CACHES = [(1, 128), (1, 339), (3, 1024), (64, 800), (64, 256), (3, 799), (64, 2048), (128, 128)]


def turned(x: Tensor, at: Tensor, width: int, interleaved: bool, base: float = 10000.0) -> Tensor:
    """The first `width` channels of x (batch, heads, n, d) rotated by the angles of positions (batch, n)."""
    layout = "interleaved" if interleaved else "half"
    return oracles.rotary(x, at[:, None, :, None], base, width, layout=layout) if width else x


def flash_attention_kvcache() -> Iterator[Case]:
    grid = {
        "size": CACHES, "d": [32, 59, 64, 80, 128, 256], "heads": [(6, 6), (6, 1), (6, 3)], "causal": [False, True],
        "local": [False, True], "alibi": [False, True], "new": [False, True], "leftpad": [False, True],
        "rotary": [0.0, 0.5, 1.0], "interleaved": [False, True],
    }  # fmt: skip
    for number, case in enumerate(drawn(400, 1, **grid)):

        def run(case: dict[str, Any] = case, number: int = number) -> float:
            (queries, slots), (heads, kv_heads), d = case["size"], case["heads"], case["d"]
            torch.manual_seed(number)
            q, k, v = numbers(2, heads, queries, d), numbers(2, kv_heads, slots, d), numbers(2, kv_heads, slots, d)
            filled = torch.randint(queries, slots + 1, (2,))  # the new keys among them
            pad = (
                torch.stack([torch.randint(0, int(n) - queries + 1, ()) for n in filled])
                if case["leftpad"]
                else 0 * filled
            )
            slopes = 0.3 * torch.rand(2, heads, dtype=torch.float64) if case["alibi"] else None
            width = int(case["rotary"] * d) // 16 * 16 if case["new"] else 0
            slot = torch.arange(slots)[None].expand(2, -1)
            valid = (slot >= pad[:, None]) & (slot < filled[:, None])
            last = filled[:, None] - queries + torch.arange(queries)  # of each query, its slot
            sides = (
                (int(torch.randint(0, slots, ())), int(torch.randint(0, slots, ()))) if case["local"] else (None, None)
            )
            distance = last[:, :, None] - slot[:, None]
            visible = valid[:, None].expand(-1, queries, -1)
            before, after = sides[0], 0 if case["causal"] else sides[1]
            visible = visible if before is None else visible & (distance <= before)
            visible = visible if after is None else visible & (-distance <= after)
            turn = (lambda x, at: turned(x, at, width, case["interleaved"])) if width else lambda x, at: x
            lower = 0.0 if slopes is None else slopes[..., None, None] * distance.abs()[:, None]
            wanted = dense(turn(q, last), turn(k, slot), v, lambda scores: scores - lower, visible[:, None])

            k, v = (
                x.masked_fill(~valid[:, None, :, None], torch.nan) for x in (k, v)
            )  # what is not filled is not read
            positions = _in_slots(last, slot, valid).with_causal(case["causal"])
            positions = positions if sides == (None, None) else positions.with_window(before, after)
            encoding: Encoding | None = None if slopes is None else posenc.ALiBi(heads, slopes=slopes)
            if width and d % 2:  # a head that no encoding rotates
                angles = [at[:, None, :, None] * posenc.frequencies.default(width).inv_freq for at in (last, slot)]
                layout = "interleaved" if case["interleaved"] else "half"
                q, k = (
                    posenc.functional.rotary(x, a.cos(), a.sin(), layout=layout)
                    for x, a in zip((q, k), angles, strict=True)
                )
            elif width:
                rotary = posenc.Rotary(d, rotary_dim=width, layout="interleaved" if case["interleaved"] else "half")
                encoding = rotary if encoding is None else rotary + encoding
            return off(attention(q, k, v, encoding, positions), wanted)

        yield Case(named(case), run, 1e-9)


def _in_slots(queries: Tensor, keys: Tensor, valid: Tensor | None) -> Positions:
    """Queries and keys at the slots of a cache, (batch or 1, n), some of which are filled."""
    return Positions(q=queries, k=keys, q_order=queries, k_order=keys, valid=valid)


def flash_attention_rotary() -> Iterator[Case]:
    grid = {"d": [32, 64, 128, 256], "fraction": [0.5, 1.0], "interleaved": [False, True], "offset": ["none", "int", "rows"],
            "inplace": [False, True], "dtype": ["float16", "bfloat16", "float64"]}  # fmt: skip
    # theirs also overwrite x, which ours does not: the cases are the same
    for number, case in enumerate(drawn(144, 2, **grid)):

        def run(case: dict[str, Any] = case, number: int = number) -> float:
            torch.manual_seed(number)
            d, width, dtype = case["d"], int(case["fraction"] * case["d"]), getattr(torch, case["dtype"])
            x = torch.randn(2, 4, 217, d, dtype=torch.float64).to(dtype)
            start = {"none": torch.zeros(2), "int": torch.full((2,), 17), "rows": torch.randint(0, 218, (2,))}[
                case["offset"]
            ]
            at = start.long()[:, None] + torch.arange(217)
            frequencies = posenc.frequencies.default(width).inv_freq
            angles = at[:, None, :, None] * frequencies
            layout = "interleaved" if case["interleaved"] else "half"
            wanted = turned(x.double(), at, width, case["interleaved"])
            precise = torch.float64 if dtype == torch.float64 else torch.float32
            ours = posenc.functional.rotary(x, angles.cos().to(precise), angles.sin().to(precise), layout=layout)
            return off(ours, wanted)

        unit = {
            "float64": 1e-12,
            "float16": 1.1 * 2.0**-9,
            "bfloat16": 1.1 * 2.0**-6,
        }  # half the step of numbers below 8
        yield Case(named(case), run, unit[case["dtype"]])


# -------------------------------------------------------------------- pytorch/pytorch, test_flex_attention.py


class Modified(Encoding):
    """A score function of FlexAttention's signature."""

    def __init__(self, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.function = function

    def modify(self, positions: Positions, layer: int = 0) -> Modifier:
        return Modifier(self.function)


def score_functions(heads: int) -> dict[str, Callable[..., Tensor]]:
    torch.manual_seed(0)
    offset, bias = torch.rand(heads, dtype=torch.float64), torch.rand(128, 128, dtype=torch.float64)
    hidden = -math.inf
    return {
        "identity": lambda s, b, h, i, j: s,
        "times two": lambda s, b, h, i, j: s * 2,
        "squared": lambda s, b, h, i, j: s * s,
        "causal": lambda s, b, h, i, j: torch.where(i >= j, s, hidden),
        "inverse causal": lambda s, b, h, i, j: torch.where(i <= j, s, hidden),
        "relative bias": lambda s, b, h, i, j: s + (i - j),
        "relative causal": lambda s, b, h, i, j: torch.where(i <= j, s + (i - j), hidden),
        "alibi": lambda s, b, h, i, j: s + (j - i) * torch.exp2(-(h + 1) * 8.0 / 8),
        "head offset": lambda s, b, h, i, j: s * offset[h],
        "captured bias": lambda s, b, h, i, j: s + bias[i, j],
        "trig": lambda s, b, h, i, j: s.cos().sin() + torch.tan(b.double()),
        "trig, two branches": lambda s, b, h, i, j: s.cos() * s.sin() + torch.tan(b.double()),
        "soft cap": lambda s, b, h, i, j: 20 * (s / 20).tanh(),
    }  # fmt: skip


def flex_attention() -> Iterator[Case]:
    for heads in ((8, 8), (8, 2), (8, 1)):
        for length in ((128, 128), (128, 64), (33, 77)):
            for name, function in score_functions(8).items():
                for backend in ("auto", "reference"):

                    def run(heads=heads, length=length, function=function, backend=backend) -> float:  # type: ignore[no-untyped-def]
                        torch.manual_seed(1)
                        q, k, v = numbers(2, heads[0], length[0], 64), *numbers(2, 2, heads[1], length[1], 64)
                        at = [torch.arange(n).view([-1 if axis == place else 1 for axis in range(4)])
                              for place, n in enumerate((2, heads[0], *length))]  # fmt: skip
                        wanted = dense(q, k, v, lambda scores: function(scores, *at), None)
                        p = Positions.cross(Positions.arange(length[0]), Positions.arange(length[1]))
                        return off(attention(q, k, v, Modified(function), p, backend=backend), wanted)

                    yield Case(f"{name} heads={heads} lengths={length} {backend}", run)


# -------------------------------------------------------------------- facebookresearch/xformers, test_rope_padded.py


def xformers_rope_padded() -> Iterator[Case]:
    grid = [(adjacents, dim, padding, groups, scale) for adjacents in (True, False) for dim in (100, 4098)
            for padding in (87, 18300) for groups in (1, 3) for scale in (1.0, 2.0)]  # fmt: skip
    for adjacents, dim, padding, groups, scale in grid:

        def run(adjacents=adjacents, dim=dim, padding=padding, groups=groups, scale=scale) -> float:  # type: ignore[no-untyped-def]
            torch.manual_seed(1)
            lengths = torch.tensor([27, padding - 5, padding // 2])
            layout = "interleaved" if adjacents else "half"
            schedule = {"name": "linear", "factor": scale} if scale > 1 else {"name": "default"}
            rotary, worst = posenc.Rotary(dim, layout=layout, schedule=schedule), 0.0
            for length, new in zip(lengths.tolist(), (2, 1, 1), strict=True):
                q, k = numbers(1, 10 * groups, new, dim), numbers(1, 2 * groups, new, dim)
                at = torch.arange(length - new, length)[None]
                out = rotary.rotate(q, k, Positions.from_ids(at))
                wanted = (turned(x, at / scale, dim, adjacents) for x in (q, k))
                worst = max(worst, *(off(a, b) for a, b in zip(out, wanted, strict=True)))
            return worst

        yield Case(f"adjacents={adjacents} dim={dim} padding={padding} groups={groups} scale={scale}", run)
    for length in (512, 2**16):

        def prefill(length: int = length) -> float:
            q, k, at = numbers(1, 2, length, 32), numbers(1, 1, length, 32), torch.arange(length)[None]
            out = posenc.Rotary(32, layout="interleaved").rotate(q, k, Positions.from_ids(at))
            return max(off(a, turned(x, at, 32, True)) for a, x in zip(out, (q, k), strict=True))

        yield Case(f"prefill {length}", prefill)


# -------------------------------------------------------------------- Liger-Kernel, vLLM and fla

HALF_STEP = {"float64": 1e-12, "bfloat16": 2.0**-6}
"""What counts as equal, of numbers below 8."""


def rotations(encoding: Encoding, heads: list[int], batch: int, tokens: int, width: int, dtype: str, positions: Positions, wanted: Callable[[Tensor], Tensor], *, gradients: bool = True) -> float:  # fmt: skip
    """The largest difference of queries and keys that an encoding rotates; of their gradients, too, which are rotated back."""
    worst = 0.0
    for count in heads:
        for first in range(0, count, 8):  # a few heads at a time, for memory
            shape = batch, min(8, count - first), tokens, width
            x = numbers(*shape).clamp(-4, 4).to(getattr(torch, dtype)).requires_grad_(gradients)
            out = encoding.rotate(x, x, positions)[0]
            exact = x.detach().double().requires_grad_(gradients)
            want = wanted(exact)
            worst = max(worst, off(out, want))
            if gradients:
                up = numbers(*shape).clamp(-4, 4).to(x.dtype)
                ours, theirs = torch.autograd.grad(out, x, up), torch.autograd.grad(want, exact, up.double())
                worst = max(worst, off(ours[0], theirs[0]))
    return worst


def liger_rope() -> Iterator[Case]:
    sizes = [(1, 128, 32, 32, 64), (2, 128, 32, 32, 64), (1, 128, 32, 8, 64), (2, 128, 32, 8, 64), (3, 423, 73, 213, 92), (3, 423, 73, 155, 92)]  # fmt: skip
    for batch, tokens, heads, kv_heads, width in sizes:
        for dtype in HALF_STEP:
            for expanded in (True, False):

                def run(batch=batch, tokens=tokens, heads=heads, kv_heads=kv_heads, width=width, dtype=dtype, expanded=expanded) -> float:  # type: ignore[no-untyped-def]  # fmt: skip
                    torch.manual_seed(1)
                    at = torch.arange(tokens)[None].expand(batch if expanded else 1, -1)
                    of_rows = at.expand(batch, -1)
                    return rotations(
                        posenc.Rotary(width), [heads, kv_heads], batch, tokens, width, dtype, Positions.from_ids(at),
                        lambda x: turned(x, of_rows, width, False),
                    )  # fmt: skip

                name = f"{(batch, tokens, heads, kv_heads, width)} {dtype} expanded={expanded}"
                yield Case(name, run, HALF_STEP[dtype])


def turned_by_axes(x: Tensor, at: Tensor, axes: Tensor, base: float) -> Tensor:
    """x (batch, heads, n, d) with pairs of halves, of which c turns by axis axes[c] of positions (batch, n, 3)."""
    return oracles.rotary(x, at[:, None][..., axes], base)


def liger_m_rope() -> Iterator[Case]:
    for batch in (1, 2):
        for tokens in (128, 131):
            for heads in ([64, 8], [28, 4], [12, 2]):
                for width, sections in ((128, (16, 24, 24)), (96, (16, 16, 16)), (64, (8, 12, 12))):
                    for dtype in HALF_STEP:

                        def run(batch=batch, tokens=tokens, heads=heads, width=width, sections=sections, dtype=dtype) -> float:  # type: ignore[no-untyped-def]  # fmt: skip
                            torch.manual_seed(1)
                            at = torch.arange(3 * batch * tokens).view(3, batch, tokens).movedim(0, -1)
                            axes = torch.arange(3).repeat_interleave(torch.tensor(sections))
                            return rotations(
                                posenc.MRotary(width, sections=sections), heads, batch, tokens, width, dtype,
                                Positions.from_ids(at), lambda x: turned_by_axes(x, at, axes, 1e6),
                            )  # fmt: skip

                        yield Case(
                            f"{batch} x {tokens} heads={heads} sections={sections} {dtype}", run, HALF_STEP[dtype]
                        )


VISION = {  # query heads, key heads, sections, interleaved, base, positions below
    "Qwen2-VL-7B": (28, 4, (16, 24, 24), False, 1e6, 8192), "Qwen2-VL-72B": (64, 8, (16, 24, 24), False, 1e6, 8192),
    "Qwen2.5-VL-72B": (64, 8, (16, 24, 24), False, 1e6, 32000), "Qwen3-VL-4B": (32, 8, (24, 20, 20), True, 5e6, 65536),
    "Qwen3-VL-30B-A3B": (32, 4, (24, 20, 20), True, 5e6, 65536),
}  # fmt: skip


def vllm_m_rope() -> Iterator[Case]:
    for model, (heads, kv_heads, sections, interleaved, base, last) in VISION.items():
        for parts in (1, 2):
            for tokens in (11, 8192):

                def run(heads=heads // parts, kv_heads=kv_heads // parts, sections=sections, interleaved=interleaved, base=base, last=last, tokens=tokens) -> float:  # type: ignore[no-untyped-def]  # fmt: skip
                    torch.manual_seed(42)
                    at = torch.randint(0, last, (1, tokens, 3))
                    axes = torch.arange(3).repeat_interleave(torch.tensor(sections))
                    if interleaved:  # h and w take turns with t as long as they have pairs
                        turn = torch.arange(64) % 3
                        axes = torch.where(torch.arange(64) < 3 * torch.tensor(sections)[turn], turn, 0)
                    encoding = posenc.MRotary(128, sections=sections, interleaved=interleaved, rope_theta=base)
                    return rotations(
                        encoding, [min(heads, 8), kv_heads], 1, tokens, 128, "bfloat16", Positions.from_ids(at),
                        lambda x: turned_by_axes(x, at, axes, base), gradients=False,
                    )  # fmt: skip

                yield Case(f"{model} tensor parallel={parts} tokens={tokens}", run, HALF_STEP["bfloat16"])


def fla_rotary() -> Iterator[Case]:
    for kind, lengths in {"offsets": (2048, 4096), "documents": (2048, 4096), "left padding": (2048, 4096), "partial": (256, 2048)}.items():  # fmt: skip
        for tokens in lengths:
            for groups in (1, 4) if kind in ("offsets", "documents") else (1,):
                for width in (128, 256):
                    for dtype in HALF_STEP:

                        def run(kind=kind, tokens=tokens, groups=groups, width=width, dtype=dtype) -> float:  # type: ignore[no-untyped-def]  # fmt: skip
                            torch.manual_seed(42)
                            batch = {"documents": 1, "left padding": 4}.get(kind, 2)
                            at, part = torch.arange(tokens)[None].expand(batch, -1), 64 if kind == "partial" else width
                            positions = Positions.arange(tokens)
                            if kind == "offsets":
                                at = at + torch.randint(0, tokens // 2, (batch, 1))
                                positions = Positions.from_ids(at)
                            elif kind == "documents":
                                cuts = torch.arange(1, tokens)[torch.randperm(tokens - 1)[:3]].sort()[0]
                                starts = torch.cat((torch.zeros(1, dtype=torch.long), cuts, torch.tensor([tokens])))
                                positions = Positions.packed(cu_seqlens=starts)
                                at = torch.cat([torch.arange(n) for n in starts.diff().tolist()])[None]
                            elif kind == "left padding":
                                pads = torch.arange(batch)[:, None] * (tokens // (2 * batch))
                                positions = Positions.from_mask((at >= pads).long())
                                at = (at - pads).clamp(min=0)
                            rotary = posenc.Rotary(width, rotary_dim=part)
                            turn = lambda x: turned(x, at, part, False)  # noqa: E731
                            return rotations(
                                rotary, [4, 4 // groups], batch, tokens, width, dtype, positions, turn, gradients=False
                            )

                        yield Case(
                            f"{kind} tokens={tokens} groups={groups} width={width} {dtype}", run, HALF_STEP[dtype]
                        )


def fla_forgetting() -> Iterator[Case]:
    cases = {
        "2 of 8 heads": (3, 2, 8, 60, [1000]), "2 heads": (3, 2, 2, 110, [211]), "documents": (1, 2, 2, 64, [15, 85, 200, 903, 797])
    }  # fmt: skip
    for name, (batch, kv_heads, heads, width, lengths) in cases.items():
        for backend in ("auto", "reference"):

            def run(batch=batch, kv_heads=kv_heads, heads=heads, width=width, lengths=lengths, backend=backend) -> float:  # type: ignore[no-untyped-def]  # fmt: skip
                torch.manual_seed(42)
                tokens = sum(lengths)
                leaves = [numbers(batch, n, tokens, width) for n in (heads, kv_heads, kv_heads)]
                leaves.append(torch.empty(batch, heads, tokens, dtype=torch.float64).uniform_(-0.1, -0.01))
                up = numbers(batch, heads, tokens, width)
                results = []
                for ours in (True, False):
                    q, k, v, g = (x.clone().requires_grad_() for x in leaves)
                    if ours:
                        positions = Positions.packed(lengths, causal=True)
                        encoding = posenc.FoX(heads, dim=8)
                        out = attention(q, k, v, encoding, positions, gates=g[..., None], backend=backend)
                    else:
                        parts = []
                        for a, b, c, log in zip(*(x.split(lengths, 2) for x in (q, k, v, g)), strict=True):
                            total, n = log.cumsum(-1), a.shape[2]
                            lower = total[..., :, None] - total[..., None, :]
                            parts.append(dense(a, b, c, lambda s, lower=lower: s + lower, torch.ones(n, n).tril().bool()))  # type: ignore[misc]  # fmt: skip
                        out = torch.cat(parts, 2)
                    results.append([out.detach(), *torch.autograd.grad(out, (q, k, v, g), up)])
                return max(off(a, b) for a, b in zip(*results, strict=True))

            yield Case(f"{name} {backend}", run, 1e-9)


def fla_wall() -> Iterator[Case]:
    """(batch, tokens, key heads, heads, width, width of values), and what else: a window, documents, a logit of a sink, a gate of
    each head, strong gates, or the last query alone, with a cache."""
    small, unlike, wide = (1, 48, 2, 4, 32, 16), (2, 31, 1, 1, 24, 8), (1, 31, 1, 2, 32, 320)
    cases = [(size, {"window": window}) for size in (small, unlike, wide) for window in (None, 8)]
    cases += [
        ((1, 40, 2, 8, 32, 24), {}),
        ((1, 40, 1, 2, 16, 12), {"documents": [17, 23]}),
        ((1, 29, 1, 2, 20, 10), {"sink": True}),
    ]
    cases += [((1, 512, 1, 1, 32, 32), {"strong": True}), (small, {"scalar": True}), (unlike, {"scalar": True})]
    cases += [((1, 24, 2, 4, 16, 12), {"gradients": True}), ((1, 64, 2, 2, 64, 128), {"gradients": True})]
    cached = [(1, 256, 4, 4, 64, 64), (1, 256, 2, 8, 64, 64), (2, 128, 1, 2, 32, 32), (1, 128, 1, 2, 32, 320)]
    cases += [(size, {"last": True}) for size in cached]
    for number, (size, also) in enumerate(cases):

        def run(size: tuple[int, ...] = size, also: dict[str, Any] = also, number: int = number) -> float:
            batch, tokens, kv_heads, heads, width, of_values = size
            torch.manual_seed(number)
            leaves = [
                numbers(batch, heads, tokens, width),
                numbers(batch, kv_heads, tokens, width),
                numbers(batch, kv_heads, tokens, of_values),
            ]
            gate = (
                torch.full_like(leaves[0], math.log2(0.9))
                if also.get("strong")
                else -0.05 * torch.randn_like(leaves[0]).abs()
            )
            leaves.append(gate)
            scalar = (
                -0.05 * torch.randn(batch, heads, tokens, dtype=torch.float64).abs() if also.get("scalar") else None
            )
            sink = 0.1 * torch.randn(heads, dtype=torch.float64) if also.get("sink") else None
            lengths = also.get("documents", [tokens])
            document = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
            order = torch.arange(tokens)
            visible = (document[:, None] == document) & (order[:, None] >= order)
            if also.get("window"):
                visible &= order[:, None] - order < also["window"]
            results = []
            for ours in (True, False):
                q, k, v, g = (x.clone().requires_grad_("gradients" in also) for x in leaves)
                if ours:
                    encoding: Encoding = posenc.create("wall", dim=8, num_heads=heads, head_dim=width)
                    gates = [g]
                    if scalar is not None:
                        encoding, gates = encoding + posenc.FoX(heads, dim=8), [g, scalar[..., None]]
                    positions = (
                        Positions.packed(lengths, causal=True)
                        if "documents" in also
                        else Positions.arange(tokens, causal=True)
                    )
                    positions = positions.with_window(also["window"] - 1) if also.get("window") else positions
                    if "last" in also:
                        q, positions = q[:, :, -1:], Positions.arange(1, tokens - 1, causal=True)
                    out = attention(q, k, v, encoding, positions, gates=gates, sink=sink)
                else:
                    of_keys, values = (x.repeat_interleave(heads // kv_heads, 1) for x in (k, v))
                    sums = g.cumsum(2)
                    decay = (sums[:, :, :, None] - sums[:, :, None]).masked_fill(~visible[..., None], 0.0).exp()
                    scores = torch.einsum("bhin,bhjn,bhijn->bhij", q, of_keys, decay) / math.sqrt(width)
                    if scalar is not None:
                        total = scalar.cumsum(-1)
                        scores = scores + total[..., :, None] - total[..., None, :]
                    scores = scores.masked_fill(~visible, -math.inf)
                    if sink is not None:
                        scores = torch.cat((scores, sink[:, None, None].expand(batch, -1, tokens, 1)), -1)
                    weights = scores.softmax(-1)[..., :tokens]
                    out = (weights @ values)[:, :, -1:] if "last" in also else weights @ values
                up = torch.linspace(-1, 1, out.shape[-1], dtype=torch.float64)
                results.append(
                    [
                        out.detach(),
                        *(torch.autograd.grad((out * up).sum(), (q, k, v, g)) if "gradients" in also else ()),
                    ]
                )
            return max(off(a, b) for a, b in zip(*results, strict=True))

        yield Case(f"{size} {named(also)}".strip(), run, 1e-9)


# -------------------------------------------------------------------- timm, keras-hub, attention-gym


def turned_at(x: Tensor, angles: Tensor, interleaved: bool) -> Tensor:
    """x (batch, heads, n, d) by the angle of each pair, (n, d / 2)."""
    cos, sin = angles.cos(), angles.sin()
    a, b = (x[..., 0::2], x[..., 1::2]) if interleaved else x.chunk(2, -1)
    pair = a * cos - b * sin, a * sin + b * cos
    return torch.stack(pair, -1).flatten(-2) if interleaved else torch.cat(pair, -1)


def timm_rotary() -> Iterator[Case]:
    """Grids of two and three axes at indices, stretched, moved and in both orders; DINOv3's centred coordinates."""
    grid = [(shape, stretched, offset, order, half) for shape in ((8, 8), (5, 9), (3, 4, 5)) for stretched in (False, True)
            for offset in (0.0, 0.5) for order in ("ij", "xy") for half in (False, True)]  # fmt: skip
    for shape, stretched, offset, order, half in grid:

        def run(shape=shape, stretched=stretched, offset=offset, order=order, half=half) -> float:  # type: ignore[no-untyped-def]
            at = torch.cartesian_prod(*(torch.arange(n, dtype=torch.float64) for n in shape)) + offset
            at = 2 * at if stretched else at  # the reference grid is twice as large
            axes = [1, 0, *range(2, len(shape))] if order == "xy" else list(range(len(shape)))
            at, bands = at[:, axes], oracles.frequencies(16, 100.0)
            encoding = posenc.AxialRotary(
                16 * len(shape),
                axes=len(shape),
                rope_theta=100.0,
                x_first=False,
                layout="half" if half else "interleaved",
            )
            x = numbers(1, 2, len(at), 16 * len(shape))
            angles = (at[..., None] * bands).flatten(1)
            return off(encoding.rotate(x, x, Positions.from_ids(at[None]))[0], turned_at(x, angles, not half))

        yield Case(f"{shape} stretched={stretched} offset={offset} {order} half={half}", run)
    for shape in ((8, 8), (6, 9)):
        for size in ("separate", "min", "max"):
            for offset in (0.0, 0.25):
                for half in (False, True):

                    def dinov3(shape=shape, size=size, offset=offset, half=half) -> float:  # type: ignore[no-untyped-def]
                        least = {"separate": shape, "min": (min(shape),) * 2, "max": (max(shape),) * 2}[size]
                        rows = [(torch.arange(n, dtype=torch.float64) + 0.5 + offset) / m for n, m in zip(shape, least, strict=True)]  # fmt: skip
                        at = 2 * math.pi * (2 * torch.cartesian_prod(*rows) - 1)
                        periods = 1 / oracles.frequencies(32, 100.0)
                        encoding = posenc.AxialRotary(64, x_first=False, layout="half" if half else "interleaved")
                        x = numbers(1, 2, len(at), 64)
                        angles = (at[..., None] / periods).flatten(1)
                        return off(
                            encoding.rotate(x, x, Positions.from_ids(at[None]))[0], turned_at(x, angles, not half)
                        )

                    yield Case(f"DINOv3 {shape} {size} offset={offset} half={half}", dinov3)


def bias_of(encoding: Encoding, heads: int, keys: int, queries: int | None = None) -> Tensor:
    """What an encoding adds to the scores of the last queries."""
    q = torch.zeros(1, heads, keys, 8)
    (term,) = encoding.effects(Positions.arange(keys)).terms(q, q)
    return term.blocks(q.device)(0, keys, slice(0, keys))[0][:, -(queries or keys) :]


def keras_hub() -> Iterator[Case]:
    """The numbers that its tests print, to their digits."""

    def rotary(position: int, dim: int, wanted: list[float], scale: float = 1.0) -> Callable[[], float]:
        def run() -> float:
            schedule = {"name": "linear", "factor": scale} if scale > 1 else {"name": "default"}
            x = torch.ones(1, 1, 1, dim, dtype=torch.float64)
            out = posenc.Rotary(dim, schedule=schedule).rotate_queries(x, Positions.arange(1, position))
            return off(out[0, 0, 0], torch.tensor(wanted, dtype=torch.float64))

        return run

    yield Case("rotary, position 0", rotary(0, 6, [1.0] * 6))
    yield Case("rotary, position 3", rotary(3, 6, [-1.1311, 0.8515, 0.9935, -0.8489, 1.1291, 1.0064]), 1e-4)
    scaled = [[0.398157001, 0.994987488, 1.3570081, 1.004987478], [-0.301168621, 0.98995018, 1.381773233, 1.009949803]]
    for position, wanted in enumerate(scaled, 1):
        yield Case(f"rotary, scale 2, position {position}", rotary(position, 4, wanted, 2.0), 1e-7)
    cached = [-1.412856817, 0.975714266, -0.061930716, 1.023709655]
    yield Case("rotary, scale 5, position 12", rotary(12, 4, cached, 5.0), 1e-6)
    root = 2**-0.5
    slopes = {
        (8, 8.0): [2.0**-n for n in range(1, 9)], (14, 8.0): [2.0**-n for n in range(1, 9)] + [root * 2.0**-n for n in range(6)],
        (2, 12.0): [2.0**-6, 2.0**-12], (3, 6.0): [2.0**-3, 2.0**-6, root / 2],
    }  # fmt: skip
    for (heads, most), wanted in slopes.items():

        def alibi(heads: int = heads, most: float = most, wanted: list[float] = wanted) -> float:
            bias = bias_of(posenc.ALiBi(heads, bias_max=most), heads, 3, 1)[:, 0]
            return off(bias, -torch.tensor(wanted)[:, None] * torch.tensor([2.0, 1.0, 0.0]))

        yield Case(f"ALiBi of {heads} heads, up to {most:g}", alibi, 1e-7)

    def sines() -> float:
        wanted = [[0.0, 1.0] * 3, [0.14112, -0.98999, 0.13879, 0.99032, 0.00646, 0.99997]]
        codes = posenc.Sinusoidal(6).codes(Positions.from_ids(torch.tensor([[0, 3]])))
        return off(codes.reshape(2, 6), torch.tensor(wanted))

    yield Case("sines of positions 0 and 3", sines, 1e-5)


def attention_gym_documents() -> Iterator[Case]:
    for lengths in ([3, 2, 5], [1, 4, 1, 7], [6]):

        def run(lengths: list[int] = lengths) -> float:
            document = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
            order = torch.arange(len(document))
            visible = (document[:, None] == document) & (order[:, None] >= order)
            q, k, v = numbers(3, 1, 2, len(document), 16).unbind()
            out = attention(q, k, v, positions=Positions.packed(lengths, causal=True))
            return off(out, dense(q, k, v, lambda scores: scores, visible))

        yield Case(f"documents of {lengths}", run)


# -------------------------------------------------------------------- installed: transformers, x-transformers

FAMILIES = {"qwen2_vl": "Qwen2VLModel", "qwen3_vl": "Qwen3VLModel", "glm4v": "Glm4vModel"}


def transformers_rope_index() -> Iterator[Case]:
    """Random prompts of text and images."""
    for family, cls in FAMILIES.items():
        for number in range(40):

            def run(family: str = family, cls: str = cls, number: int = number) -> float:
                pick = random.Random(number)
                model = getattr(import_module(f"transformers.models.{family}.modeling_{family}"), cls)
                functions = ("get_rope_index", "get_vision_position_ids", "compute_3d_position_ids")
                vision = SimpleNamespace(spatial_merge_size=2, tokens_per_second=2)
                body: dict[str, Any] = {name: getattr(model, name) for name in functions} | {"rope_deltas": None}
                theirs = type(family, (), body | {"config": SimpleNamespace(vision_config=vision)})()
                kinds, images = [0] * pick.randint(1, 4), []
                for _ in range(pick.randint(0, 3)):
                    height, width = pick.randint(1, 5), pick.randint(1, 5)
                    images.append([1, 2 * height, 2 * width])
                    kinds += [1] * (height * width) + [0] * pick.randint(1, 3)
                ids, table = torch.tensor([kinds]), torch.tensor(images) if images else None
                want, _ = theirs.get_rope_index(
                    torch.zeros_like(ids),
                    ids,
                    image_grid_thw=table,
                    video_grid_thw=None,
                    attention_mask=torch.ones_like(ids),
                )
                sizes = iter(images)
                parts: list[Any] = []
                for kind, run in groupby(kinds):
                    _, height, width = next(sizes) if kind else (1, 0, 0)
                    parts.append((height // 2, width // 2) if kind else len(list(run)))
                ours = multimodal(parts)
                return off(ours.q, want.permute(1, 2, 0))

            yield Case(f"{family} prompt {number}", run, 0.0)


def x_transformers_biases() -> Iterator[Case]:
    for heads in (1, 4, 6, 8, 12):

        def alibi(heads: int = heads) -> float:
            theirs = import_module("x_transformers.x_transformers").AlibiPositionalBias(heads=heads, total_heads=heads)
            return off(bias_of(posenc.ALiBi(heads), heads, 33), theirs(33, 33))

        yield Case(f"ALiBi of {heads} heads", alibi, 1e-5)
    for causal in (False, True):
        for buckets, farthest in ((32, 128), (16, 64), (32, 20)):

            def t5(causal: bool = causal, buckets: int = buckets, farthest: int = farthest) -> float:
                cls = import_module("x_transformers.x_transformers").RelativePositionBias
                theirs = cls(scale=1.0, causal=causal, num_buckets=buckets, max_distance=farthest, heads=4)
                ours = posenc.T5(4, num_buckets=buckets, max_distance=farthest, bidirectional=not causal)
                with torch.no_grad():
                    ours.table.copy_(theirs.relative_attention_bias.weight.T)
                    seen = (
                        torch.ones(77, 77, dtype=torch.bool).tril() if causal else torch.ones(77, 77, dtype=torch.bool)
                    )
                    return off(bias_of(ours, 4, 77) * seen, theirs(77, 77) * seen)

            yield Case(f"T5 causal={causal} buckets={buckets} max_distance={farthest}", t5, 1e-6)


# -------------------------------------------------------------------- all of them

SUITES: dict[str, tuple[str, str, Callable[[], Iterator[Case]]]] = {
    "flash-attention, output": ("tests/test_flash_attn.py", "head widths, grouped queries, causal, windows, slopes per row, soft cap; every third with gradients", flash_attention_output),
    "flash-attention, KV cache": ("tests/test_flash_attn.py", "ragged caches, left padding, new keys, rotary of a part, slopes, windows; unfilled slots hold NaN", flash_attention_kvcache),
    "flash-attention, rotary": ("tests/layers/test_rotary.py", "layouts, fractions, offsets of rows, in place, half precision", flash_attention_rotary),
    "PyTorch FlexAttention": ("test/inductor/test_flex_attention.py", "score functions, grouped queries, unlike lengths, on auto and reference", flex_attention),
    "xformers": ("tests/test_rope_padded.py", "rotated caches of widths 100 and 4098, positions to 18,299, linear scaling; prefill", xformers_rope_padded),
    "Liger-Kernel, RoPE": ("test/transformers/test_rope.py", "grouped heads, width 92, positions of a row or each, half precision; all with gradients", liger_rope),
    "Liger-Kernel, M-RoPE": ("test/transformers/test_qwen2vl_mrope.py", "sections, grouped heads, half precision; all with gradients", liger_m_rope),
    "vLLM, M-RoPE": ("tests/kernels/core/test_mrope.py", "sections in turn or interleaved, 8 query heads at most, random positions to 65,535, half precision", vllm_m_rope),
    "fla, rotary": ("tests/modules/test_rotary.py", "offsets of rows, documents, left padding, a part of the head, grouped heads, half precision", fla_rotary),
    "fla, forgetting attention": ("tests/ops/test_forgetting_attn.py", "grouped heads, documents, on auto and reference; all with gradients", fla_forgetting),
    "fla, Wall": ("tests/ops/test_wall_attn.py", "grouped heads, windows, documents, sinks, a gate of each head, strong gates, a cache; two with gradients", fla_wall),
    "timm, rotary": ("tests/test_layers_pos_embed.py", "grids of two and three axes, stretched and moved, both orders and layouts; DINOv3's coordinates", timm_rotary),
    "keras-hub": ("keras_hub/src/layers/modeling", "the numbers that its tests of RoPE, ALiBi and sines print", keras_hub),
    "attention-gym": ("test/test_document_mask.py", "packed causal documents", attention_gym_documents),
    "transformers, get_rope_index": ("tests/models", "M-RoPE of random prompts with images and videos, by its functions", transformers_rope_index),
    "x-transformers": ("tests/test_x_transformers.py", "ALiBi and T5's buckets, by its classes", x_transformers_biases),
}  # fmt: skip
"""Project -> its file, what varies, and the cases."""


def outcome(case: Case) -> tuple[bool, float | str]:
    """Whether posenc agrees, and the largest difference, or the error."""
    try:
        difference = case.run()
    except Exception as error:
        return False, f"{type(error).__name__}: {str(error).splitlines()[0]}"
    return difference <= case.bound, difference


def measure(project: str) -> dict[str, Any]:
    cases = list(SUITES[project][2]())
    outcomes = {case.name: outcome(case) for case in cases}
    agreed = {case: outcomes[case.name][1] for case in cases if outcomes[case.name][0]}
    exact = [value for case, value in agreed.items() if case.bound <= 1e-4]  # not rounded to half precision
    return {
        "cases": len(outcomes), "agree": sum(agrees for agrees, _ in outcomes.values()), "largest": max(exact or agreed.values(), default=0.0),
        "disagree": {name: value for name, (agrees, value) in outcomes.items() if not agrees},
    }  # fmt: skip


def table(rows: dict[str, dict[str, Any]]) -> str:
    """The counts by project, as Markdown."""
    cases, agree = (sum(row[key] for row in rows.values()) for key in ("cases", "agree"))
    lines = [
        f"{agree} of {cases} cases agree.",
        "",
        "| project | what varies | cases | agree | largest difference |",
        "|---|---|---|---|---|",
    ]
    for project, row in rows.items():
        path, what, _ = SUITES[project]
        lines.append(f"| {project} (`{path}`) | {what} | {row['cases']} | {row['agree']} | {row['largest']:.0e} |")
    return "\n".join(lines)


def main() -> None:
    torch.set_num_threads(1)
    rows = json.loads(DATA.read_text(encoding="utf-8")) if DATA.exists() else {}
    for project in sys.argv[1:] or SUITES:
        rows[project] = measure(project)
        print(project, {key: value for key, value in rows[project].items() if key != "disagree"}, flush=True)
        for name, value in rows[project]["disagree"].items():
            print("   ", name, value)
        rows = {project: rows[project] for project in SUITES if project in rows}
        DATA.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    before, rest = PAGE.read_text(encoding="utf-8").split(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n{table(rows)}\n{END}{rest.split(END)[1]}", encoding="utf-8")


if __name__ == "__main__":
    main()
