# SPDX-License-Identifier: Apache-2.0
"""Compare every encoding that acts in attention, with its heads divided over two processes (tensor parallelism), with one
process; write the table of benchmarks/tensor_parallel.md.

    python benchmarks/tensor_parallel.py
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from sequence_shards import in_processes
from torch import Tensor
from torch import distributed as dist

from posenc import Encoding, InputError, Positions, attention
from posenc.conformance.fixtures import DECODER, EncodingUnderTest, named
from posenc.encoding import gates_of
from posenc.encodings import ENCODINGS

BEGIN, END = "<!-- parts: written by benchmarks/tensor_parallel.py -->", "<!-- end of parts -->"
COLUMNS = ("output", "input's gradient", "parameters' gradients")
COMPOSITIONS = ("rope+alibi", "rope/alibi", "rope@rerope:window=3+alibi", "fox+rope", "window:before=2+t5")
HEADS, KV, WIDTH, LENGTH = DECODER.num_heads, DECODER.kv_heads, DECODER.width, 7


def subjects() -> dict[str, str]:
    """The rows: encodings that act in attention and do not mix heads, and a few compositions."""
    return {
        name: name
        for name in (*ENCODINGS, *COMPOSITIONS)
        if not (set(named(name)(DECODER).sites()) <= {"augment", "embed"} or mixes(name))
    }


def mixes(name: str) -> bool:
    return any(getattr(each, "mixes_heads", False) for each in named(name)(DECODER).modules())


class Copied(torch.autograd.Function):
    """The same in every process; its gradient is the sum."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        total = grads[0].contiguous()
        dist.all_reduce(total)
        return total


def layer(encoding: Encoding, x: Tensor, weights: tuple[Tensor, ...], first: int, end: int) -> Tensor:
    """Attention of heads first .. end - 1 and their part of the output projection. weights: of queries, keys, values and the
    output, (heads, dim, width)."""
    group = HEADS // KV
    of_keys = slice(first // group, end // group)
    wq, wk, wv, wo = weights[0][first:end], weights[1][of_keys], weights[2][of_keys], weights[3][first:end]

    def projection(w: Tensor) -> Callable[[Tensor], Tensor]:
        return lambda y: torch.einsum("...d,hdw->...hw", y, w).flatten(-2)

    encoding.share([(projection(wq), projection(wk))] * DECODER.num_layers)
    q, k, v = (torch.einsum("bnd,hdw->bhnw", x, w) for w in (wq, wk, wv))
    gates = gates_of(encoding, x) or None
    out = attention(q, k, v, encoding, Positions.arange(LENGTH, causal=True), gates=gates)
    return torch.einsum("bhnw,hdw->bnd", out, wo)


def relative(ours: Tensor, wanted: Tensor) -> Tensor:
    """The largest difference, by the largest number."""
    return ((ours - wanted).abs().max() / wanted.abs().max().clamp(min=1e-30)).detach()


def differences(world_size: int, rank: int, names: dict[str, str]) -> dict[str, dict[str, float]]:
    """By row and column the largest difference in any process, in float64."""
    results = {}
    first, end = rank * HEADS // world_size, (rank + 1) * HEADS // world_size
    for name in names.values():
        torch.manual_seed(0)
        full = EncodingUnderTest(named(name)).model(DECODER).encoding
        x = torch.randn(2, LENGTH, DECODER.dim, dtype=torch.float64, requires_grad=True)
        weights = tuple(torch.randn(n, DECODER.dim, WIDTH, dtype=torch.float64) for n in (HEADS, KV, KV, HEADS))
        want = layer(full, x, weights, 0, HEADS)
        want.square().sum().backward()
        assert x.grad is not None
        of_x, of_full = x.grad.clone(), {key: p.grad for key, p in full.named_parameters()}
        full.zero_grad()
        x.grad.zero_()

        part = full.heads(slice(first, end), num_heads=HEADS, num_kv_heads=KV)
        out = layer(part, Copied.apply(x), weights, first, end)
        total = out.detach().clone()
        dist.all_reduce(total)
        (2 * total * out).sum().backward()
        of_parameters = [torch.zeros((), dtype=torch.float64)]
        scale = max((float(each.abs().max()) for each in of_full.values() if each is not None), default=1.0)
        for key, p in part.named_parameters():
            if (wanted := of_full[key]) is None or p.grad is None:
                continue
            if p.shape == wanted.shape:  # shared by all heads
                dist.all_reduce(p.grad)
            else:
                axis = next(at for at, (n, m) in enumerate(zip(p.shape, wanted.shape, strict=True)) if n != m)
                wanted = wanted.chunk(world_size, axis)[rank]
            of_parameters.append((p.grad - wanted).abs().max() / scale)
        largest = torch.stack([relative(total, want), relative(x.grad, of_x), torch.stack(of_parameters).max()])
        dist.all_reduce(largest, dist.ReduceOp.MAX)
        results[name] = dict(zip(COLUMNS, largest.tolist(), strict=True))
    return results


def refused() -> list[str]:
    """The encodings that have no part, each with its sentence."""
    sentences = []
    for name in ENCODINGS:
        try:
            named(name)(DECODER).heads(slice(0, HEADS // 2), num_heads=HEADS, num_kv_heads=KV)
        except InputError as refusal:
            sentences.append(f"- `{name}`: {refusal}")
    return sentences


def table(results: dict[str, dict[str, float]]) -> str:
    """Differences by row and column, and what is refused, as Markdown."""
    lines = [f"| encoding | {' | '.join(COLUMNS)} |", "|---" * (len(COLUMNS) + 1) + "|"]
    lines += [f"| `{name}` | {' | '.join(f'{row[c]:.1e}' for c in COLUMNS)} |" for name, row in results.items()]
    return "\n".join([*lines, "", "Refused:", "", *refused()])


def main() -> None:
    page = Path(__file__).with_suffix(".md")
    before, rest = page.read_text(encoding="utf-8").split(BEGIN)
    page.write_text(
        f"{before}{BEGIN}\n{table(in_processes(2, subjects(), differences))}\n{END}{rest.split(END)[1]}",
        encoding="utf-8",
    )


if __name__ == "__main__":
    main()
