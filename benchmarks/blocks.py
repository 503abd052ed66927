# SPDX-License-Identifier: Apache-2.0
"""Time attention in which blocks of tokens see one another; write the table of benchmarks/blocks.md.

python benchmarks/blocks.py
"""

import platform
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

import posenc
from posenc import Positions

LENGTHS, SIZE, HEADS, WIDTH, RUNS = (2048, 8192), 64, 8, 64, 3


def patterns(blocks: int) -> dict[str, Tensor]:
    """Chunks of 512 tokens; and BigBird's neighbours, first block, and three random ones."""
    at, generator = torch.arange(blocks), torch.Generator().manual_seed(0)
    big_bird = (at[:, None] - at).abs() <= 1
    big_bird[:, 0] = True
    for _ in range(3):
        big_bird[at, torch.randint(blocks, (blocks,), generator=generator)] = True
    return {"chunks of 512": at[:, None] * SIZE // 512 == at * SIZE // 512, "neighbours, first, 3 random": big_bird}


def seconds(call: Callable[[], object]) -> float:
    """The least processor time of a few calls."""
    call()
    times = []
    for _ in range(RUNS):
        start = time.process_time()
        call()
        times.append(time.process_time() - start)
    return min(times)


def both(attend: Callable[..., Tensor], *inputs: Tensor) -> tuple[float, float]:
    """Seconds of the forward pass, and of forward and backward."""
    leaves = [x.clone().requires_grad_() for x in inputs]
    with torch.no_grad():
        forward = seconds(lambda: attend(*inputs))
    return forward, seconds(lambda: torch.autograd.grad(attend(*leaves).sum(), leaves))


def rows() -> list[str]:
    lines = []
    for length in LENGTHS:
        q, k, v = (torch.randn(1, HEADS, length, WIDTH) for _ in range(3))
        causal = Positions.arange(length, causal=True)
        plain = both(lambda *x: scaled_dot_product_attention(*x, is_causal=True), q, k, v)
        for name, table in patterns(length // SIZE).items():
            positions = causal.with_blocks(table, SIZE)
            mask = positions.mask()
            share = float(positions.visible_counts().sum()) / float(causal.visible_counts().sum())
            dense = both(lambda *x, mask=mask: scaled_dot_product_attention(*x, attn_mask=mask), q, k, v)
            cells = [f"{a / b:.2f} / {c / d:.2f}" for (a, c), (b, d) in [(dense, plain)]]
            for text in ("none", "alibi", "t5"):
                encoding = posenc.create(text, num_heads=HEADS).requires_grad_(False)
                ours = both(lambda *x, e=encoding, p=positions: posenc.attention(*x, e, p), q, k, v)
                cells.append(f"{ours[0] / plain[0]:.2f} / {ours[1] / plain[1]:.2f}")
            lines.append(f"| {length} | {name} | {share:.0%} | " + " | ".join(cells) + " |")
            print(lines[-1], flush=True)
    return lines


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    cpu = next(
        (x.split(":")[1].strip() for x in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in x), ""
    )
    page = [
        "# Blocks of tokens",
        "",
        f"`python benchmarks/blocks.py`: processor time over that of plain causal SDPA, forward / forward and backward, in the same "
        f"run. One thread, float32, {HEADS} heads of {WIDTH}, blocks of {SIZE} tokens. {cpu or platform.processor()}, "
        f"torch {torch.__version__}.",
        "",
        "| tokens | visible | share of the causal pairs | SDPA with a dense mask | no bias | ALiBi | T5 |",
        "|---|---|---|---|---|---|---|",
        *rows(),
        "",
    ]
    Path(__file__).with_suffix(".md").write_text("\n".join(page))


if __name__ == "__main__":
    main()
