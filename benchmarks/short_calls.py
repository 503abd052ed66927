# SPDX-License-Identifier: Apache-2.0
"""Time attention over few tokens, and one decoded token, against the same in a few lines of PyTorch; write
benchmarks/short_calls.json and .md.

python benchmarks/short_calls.py [--rounds 60]
"""

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable, Mapping
from datetime import date
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

import posenc
from posenc.lab.machine import cpu

HEADS, HEAD_DIM, LAYERS, CLIP = 8, 32, 12, 16
SIZES = {
    "64 x 4, 4 layers": (64, 4, 4),
    **{f"{n} x {b}": (n, b, LAYERS) for n, b in ((64, 4), (64, 32), (128, 4), (128, 16), (256, 4), (512, 4))},
}
"""Tokens, batch and layers."""
DECODED = (
    "none",
    "alibi",
    "rope",
    "log_n:train_length=128",
    "rope+alibi",
    "rope+log_n:train_length=128",
    "rope/rope/rope/none",
)
CACHES, LENGTHS = ("none", "rope", "alibi", "rope+alibi"), (128, 1024, 4096)
CACHED, STEP_DIM = 512, 64
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


def encodings() -> dict[str, posenc.Encoding]:
    shaw = {"head_dim": HEAD_DIM, "num_heads": HEADS, "clip": CLIP}
    return {
        "none": posenc.create("none"),
        "rope": posenc.create("rope", head_dim=HEAD_DIM),
        "alibi": posenc.create("alibi", num_heads=HEADS),
        "t5": posenc.create("t5", num_heads=HEADS),
        "shaw": posenc.create("shaw", **shaw),
    }


def learned(name: str) -> dict[str, Tensor]:
    """The parameters of the plain version."""
    if name == "t5":
        return {"table": torch.randn(HEADS, 32, requires_grad=True)}
    if name == "shaw":
        return {key: torch.randn(2 * CLIP + 1, HEAD_DIM, requires_grad=True) for key in ("keys", "values")}
    return {}


def plain(name: str, tokens: int, parameters: Mapping[str, Tensor]) -> Attend:
    """Causal attention as somebody writes it who makes masks and tables once for all layers of a pass."""
    places = torch.arange(tokens)
    distance = places[:, None] - places
    future = distance < 0
    if name == "rope":
        angles = places[:, None] * 10000 ** (-torch.arange(0, HEAD_DIM, 2) / HEAD_DIM)
        cos, sin = (torch.cat((table, table), -1) for table in (angles.cos(), angles.sin()))

        def turned(x: Tensor) -> Tensor:
            a, b = x.chunk(2, -1)
            return x * cos + torch.cat((-b, a), -1) * sin

        return lambda q, k, v: scaled_dot_product_attention(turned(q), turned(k), v, is_causal=True)
    if name == "shaw":
        rows = distance.clamp(-CLIP, CLIP) + CLIP

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            index = rows.expand(*q.shape[:3], -1)
            scores = q @ k.mT + (q @ parameters["keys"].T).gather(-1, index)
            weights = (scores * HEAD_DIM**-0.5).masked_fill(future, -math.inf).softmax(-1)
            binned = weights.new_zeros(*q.shape[:3], 2 * CLIP + 1).scatter_add_(-1, index, weights)
            return weights @ v + binned @ parameters["values"]

        return attend
    mask = None
    if name == "alibi":
        mask = -(2.0 ** (-8 / HEADS * torch.arange(1, HEADS + 1)))[:, None, None] * distance
    if name == "t5":
        near = distance.clamp(min=0)
        far = 16 + (near.clamp(min=1).float().div(16).log() / math.log(128 / 16) * 16).long()
        mask = parameters["table"][:, torch.where(near < 16, near, far.clamp(max=31))]
    if mask is None:
        return lambda q, k, v: scaled_dot_product_attention(q, k, v, is_causal=True)
    mask = mask.masked_fill(future, -math.inf)[None]
    return lambda q, k, v: scaled_dot_product_attention(q, k, v, attn_mask=mask)


def ratio(ours: Callable[[], None], theirs: Callable[[], None], rounds: int) -> tuple[float, float]:
    """The median processor time of the first over that of the second, which take turns; and that of the second, seconds."""
    times: tuple[list[float], list[float]] = [], []
    for turn in range(3 + rounds):
        for spent, call in zip(times, (ours, theirs), strict=True):
            start = time.process_time()
            call()
            if turn >= 3:
                spent.append(time.process_time() - start)
    mine, other = map(statistics.median, times)
    return mine / other, other


def forward(name: str, encoding: posenc.Encoding, size: tuple[int, int, int], trains: bool, rounds: int) -> float:
    """Of a call for each layer and, where it trains, their backward pass; positions and masks are made in each round."""
    tokens, batch, layers = size
    shape, parameters = (batch, tokens, HEADS, HEAD_DIM), learned(name)
    q, k, v = (torch.randn(shape).transpose(1, 2).requires_grad_(trains) for _ in range(3))

    def run(attend: Attend) -> None:
        x = q
        for _ in range(layers):
            x = attend(x, k, v)
        if trains:
            x.sum().backward()

    def ours() -> None:
        run(encoding.at(posenc.Positions.arange(tokens, causal=True)).attention)

    with torch.set_grad_enabled(trains):
        return ratio(ours, lambda: run(plain(name, tokens, parameters)), rounds)[0]


def step(text: str, rounds: int) -> float:
    """One token after CACHED - 1 cached ones, whose keys are rotated, in LAYERS layers with a cache each, over PyTorch's attention
    alone."""
    encoding = posenc.create(text, head_dim=STEP_DIM, num_heads=HEADS)
    q = torch.randn(1, HEADS, 1, STEP_DIM)
    caches = [torch.randn(2, 1, HEADS, CACHED, STEP_DIM).unbind() for _ in range(LAYERS)]

    def ours() -> None:
        here = encoding.at(posenc.Positions.arange(1, offset=CACHED - 1, causal=True))
        for layer, (k, v) in enumerate(caches):
            here.attention(q, k, v, layer=layer, keys_rotated=True)

    def theirs() -> None:
        for k, v in caches:
            scaled_dot_product_attention(q, k, v)

    with torch.no_grad():
        return ratio(ours, theirs, rounds)[0]


def cached(text: str, count: int, rounds: int) -> float:
    """One more token with a `KVCache` of `count` tokens in LAYERS layers, over the same with a preallocated cache of rotated
    keys, its rotation and its mask made once."""
    encoding = posenc.create(text, head_dim=STEP_DIM, num_heads=HEADS)
    q, k, v = (torch.randn(1, HEADS, 1, STEP_DIM) for _ in range(3))
    cache, prompt = posenc.KVCache(), torch.randn(3, 1, HEADS, count, STEP_DIM)
    inv_freq = 10000 ** (-torch.arange(0, STEP_DIM, 2) / STEP_DIM)
    slopes = 2.0 ** (-8 / HEADS * torch.arange(1, HEADS + 1))
    stored = [torch.randn(2, 1, HEADS, count + 1, STEP_DIM).unbind() for _ in range(LAYERS)]

    def ours() -> None:
        here = encoding.at(posenc.Positions.arange(1, offset=count, causal=True))
        for layer in range(LAYERS):
            here.attention(q, k, v, layer=layer, cache=cache)

    def theirs() -> None:
        angles = count * inv_freq
        cos, sin = (torch.cat((each, each)) for each in (angles.cos(), angles.sin()))

        def turned(x: Tensor) -> Tensor:
            a, b = x.chunk(2, -1)
            return x * cos + torch.cat((-b, a), -1) * sin

        mask = None
        if "alibi" in text:
            mask = (-slopes[:, None, None] * (count - torch.arange(count + 1)))[None]
        for keys, values in stored:
            query, key = (turned(q), turned(k)) if "rope" in text else (q, k)
            keys[:, :, count:], values[:, :, count:] = key, v
            scaled_dot_product_attention(query, keys, values, attn_mask=mask)

    with torch.no_grad():
        here = cache.at(encoding, count)
        for layer in range(LAYERS):
            here.attention(*prompt, layer=layer, cache=cache)
        return ratio(ours, theirs, rounds)[0]


def table(measured: Mapping[str, Mapping[str, object]], heads: list[str]) -> list[str]:
    rows = [f"| {name} | " + " | ".join(f"{row[head]:.2f}" for head in heads) + " |" for name, row in measured.items()]
    return ["| | " + " | ".join(heads) + " |", "|---" * (len(heads) + 1) + "|", *rows]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=60)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    torch.manual_seed(0)
    parts: dict[str, dict[str, dict[str, float]]] = {"forward": {}, "training": {}}
    for (part, of_part), trains in zip(parts.items(), (False, True), strict=True):
        for name, encoding in encodings().items():
            of_part[name] = {
                label: forward(name, encoding, size, trains, max(9, rounds * 64 // size[0]))
                for label, size in SIZES.items()
            }
            print(part, name, of_part[name], flush=True)
    steps = {text: {"a decoded token": step(text, rounds)} for text in DECODED}
    caches = {text: {str(n): cached(text, n, rounds) for n in LENGTHS} for text in CACHES}
    print(steps, caches, flush=True)
    here = Path(__file__).parent
    results = {
        "date": f"{date.today()}",
        "processor": cpu(),
        "torch": torch.__version__,
        **parts,
        "steps": steps,
        "caches": caches,
    }
    (here / "short_calls.json").write_text(json.dumps(results, indent=1) + "\n")
    sizes = list(SIZES)
    lines = [
        "# Few tokens, and one decoded token",
        "",
        f"`python benchmarks/short_calls.py`: processor time of `posenc.attention` over that of a few lines of PyTorch which "
        f"make their mask and tables once for {LAYERS} layers, or for 4. {HEADS} heads of {HEAD_DIM}, causal, float32, tokens x batch, "
        f"median of interleaved rounds, one thread, {results['processor']}, torch {results['torch']}, {results['date']}.",
        "",
        "Forward:", "", *table(parts["forward"], sizes), "",
        "Forward and backward:", "", *table(parts["training"], sizes), "",
        f"One token after {CACHED - 1} cached ones, whose keys are rotated: {LAYERS} layers with a cache each, {HEADS} heads of {STEP_DIM}, "
        "over PyTorch's attention without positions:", "", *table(steps, ["a decoded token"]), "",
        f"One token with a `KVCache`, by the tokens in it: {LAYERS} layers, over a preallocated cache of rotated keys in PyTorch:", "",
        *table(caches, list(map(str, LENGTHS))), "",
    ]  # fmt: skip
    (here / "short_calls.md").write_text("\n".join(lines))


if __name__ == "__main__":
    main()
