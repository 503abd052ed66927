"""Attention with each structure, forward and with backward, in bfloat16: PyTorch's attention without an encoding, with a dense
bias, FlexAttention and its FlashAttention kernel, and posenc's kernels; and other tiles of the latter."""

import itertools
import statistics
from collections.abc import Callable
from typing import Any

import torch

from gpu_stages.checks import is_right
from gpu_stages.stage import Case, Row, Stage
from gpu_stages.timing import Call, device, markdown, measure, relative_error
from posenc import Encoding, Positions, attention, create, explain
from posenc.backends import flex
from posenc.encoding import gates_of

ENCODINGS = {
    "alibi": "alibi", "t5": "t5", "shaw": "shaw:clip=64:terms=keys", "transformer_xl": "transformer_xl:clamp_len=1024",
    "tupe": "tupe", "deberta": "deberta:terms=c2p:max_relative_positions=512", "projected_relative": "projected_relative",
    "rope": "rope", "documents": "none",
}  # fmt: skip
"""Name -> the text for `create`. "documents": no encoding, and eight documents packed into the sequence."""
VECTOR, PRODUCTS = ("alibi", "t5"), ("shaw", "transformer_xl", "projected_relative")
"""By which input of our kernel they are served."""
PLAIN, FLASH = "plain SDPA", "flex, FLASH"
CHECKED_ROWS = 64


class Subject:
    """One encoding at one shape, and the calls that are timed."""

    def __init__(self, case: Case) -> None:
        name, length, self.training = case["encoding"], case["length"], case["pass"] == "training"
        batch, heads, width = map(int, case["shape"].split("x"))
        torch.manual_seed(0)
        encoding = create(
            ENCODINGS[name], dim=heads * width, num_heads=heads, head_dim=width, num_layers=1, causal=True,
            max_positions=length,
        )  # fmt: skip
        for parameter in encoding.parameters():
            torch.nn.init.normal_(parameter, std=0.05)
        self.encoding: Encoding = encoding.to(device()).requires_grad_(self.training)
        self.inputs = [
            torch.randn(batch, length, heads, width, device=device(), dtype=torch.bfloat16).transpose(1, 2)
            for _ in range(3)
        ]
        self.weights = torch.randn_like(self.inputs[0])
        self.x = torch.randn(
            batch, length, heads * width, device=device(), dtype=torch.bfloat16
        )  # what gates are made of
        for x in self.inputs:
            x.requires_grad_(self.training)
        if name == "documents":
            self.positions = Positions.packed([length // 8] * 8, causal=True, device=device())
        else:
            self.positions = Positions.arange(length, causal=True, device=device())

    def dense_bytes(self) -> int:
        """What SDPA takes for a mask or a bias, with the gradient's share."""
        with torch.no_grad():
            call = explain(*self.inputs, self.encoding, self.positions, backend="sdpa", gates=self._gates())
        return call.extra_bytes * (3 if self.training else 1)

    def _gates(self) -> list[torch.Tensor]:
        return [gate.to(torch.bfloat16) for gate in gates_of(self.encoding, self.x.float())]

    def call(self, name: str) -> Call:
        plain = name == PLAIN
        encoding = None if plain else self.encoding
        positions = (
            Positions.arange(self.positions.num_queries, causal=True, device=device()) if plain else self.positions
        )
        learned = [*self.inputs, *([] if plain else self.encoding.parameters())]
        backend = "sdpa" if plain else name.split(",")[0]

        def run() -> torch.Tensor:
            flex.KERNEL = "FLASH" if name == FLASH else None
            with torch.set_grad_enabled(self.training):
                gates = () if encoding is None else self._gates()
                out = attention(*self.inputs, encoding, positions, backend=backend, gates=gates)
                if self.training:
                    torch.autograd.grad(out, learned, self.weights, allow_unused=True)
            return out

        return run

    def error(self, name: str) -> float:
        """Of the last rows, where another backend in float32 has the reference."""
        q, k, v = (x.detach().float() for x in self.inputs)
        rows = min(CHECKED_ROWS, q.shape[2])
        with torch.no_grad():
            if self.positions.start is None:  # the last document alone
                tail, n = Positions.arange(q.shape[2] // 8, causal=True, device=q.device), q.shape[2] // 8
                want = attention(*(x[:, :, -n:] for x in (q, k, v)), self.encoding, tail, backend="reference")
            else:
                tail = Positions.arange(rows, q.shape[2] - rows, causal=True, device=q.device)
                gates = [gate.float() for gate in self._gates()]
                want = attention(q[:, :, -rows:], k, v, self.encoding, tail, backend="reference", gates=gates)
        rows = min(rows, want.shape[2])
        return relative_error(self.call(name)()[:, :, -rows:], want[:, :, -rows:])


def _gradient_error(case: Case) -> float:
    """Of our kernels' gradients at 512 tokens, where SDPA has the reference."""
    subject = Subject(case | {"length": 512, "pass": "training"})
    grads = []
    for backend in ("triton", "sdpa"):
        out = attention(*subject.inputs, subject.encoding, subject.positions, backend=backend)
        grads.append(torch.autograd.grad(out, subject.inputs, subject.weights))
    return max(map(relative_error, *grads))


class Attention(Stage):
    SHARE = 6.0

    def cases(self, dry: bool) -> list[Case]:
        lengths, shapes = ((64,), ("1x2x16",)) if dry else ((8192, 2048, 32768, 4096, 16384), ("1x32x128", "4x16x64"))
        names = ("alibi", "shaw") if dry else tuple(ENCODINGS)
        keys = ("shape", "length", "pass", "encoding")
        order = itertools.product(shapes, lengths, ("training", "forward"), names)
        return [dict(zip(keys, values, strict=True)) for values in order]

    def measure(self, case: Case, dry: bool) -> dict[str, Any]:
        cuda = torch.cuda.is_available()
        if cuda:
            torch.cuda.empty_cache()  # of the case before
        room = 0.8 * torch.cuda.mem_get_info()[0] if cuda else 2**30
        subject, calls, refused = Subject(case), {}, {}
        candidates = (PLAIN, "sdpa", "flex", FLASH, "triton") if cuda else (PLAIN, "sdpa")
        calls[PLAIN] = subject.call(PLAIN)
        for name in candidates[1:]:
            try:
                if name == "sdpa" and subject.dense_bytes() > room:
                    refused[name] = f"a dense bias takes {subject.dense_bytes() / 2**30:.0f} GiB"
                    continue
                error = subject.error(name)
                subject.call(name)()
            except Exception as why:  # one candidate's refusal, or failure to compile, is a result
                refused[name] = f"{type(why).__name__}: {why}".splitlines()[0][:200]
                if "CUDA error" in str(why) or "illegal memory access" in str(why):
                    raise
                continue
            if error < 0.03:
                calls[name] = subject.call(name)
            else:
                refused[name] = f"wrong by {error:.2e}"
        return {"candidates": measure(calls, PLAIN), "refused": refused}

    def table(self, rows: list[Row]) -> str:
        names = (PLAIN, "sdpa", "flex", FLASH, "triton")
        lines = []
        for row in rows:
            found, case = row["result"]["candidates"], row["case"]
            cells = [
                f"{found[n]['ms']:.3f} ms, {found[n]['ratio']:.2f}, {found[n]['peak_mib']:.0f} MiB" if n in found
                else row["result"]["refused"].get(n, "")[:60]
                for n in names
            ]  # fmt: skip
            lines.append([case["encoding"], case["pass"], case["shape"], case["length"], *cells])
        return markdown(["encoding", "pass", "batch x heads x width", "length", *names], lines)

    def verified(self, rows: Callable[[str], list[Row]]) -> list[str]:
        right = is_right(rows("checks"), "triton")
        return [
            kernel
            for kernel, names in (("vector", VECTOR), ("products", PRODUCTS))
            if right and _always_faster(rows("attention"), names)
        ]


def _always_faster(rows: list[Row], names: tuple[str, ...]) -> bool:
    """Whether our kernel beats every backend that "auto" could take instead, in every case of some encodings, of which those
    at 2048 and 8192 tokens, forward and training, have to be there."""
    of_them = [row for row in rows if row["case"]["encoding"] in names]
    there = {(row["case"]["encoding"], row["case"]["length"], row["case"]["pass"]) for row in of_them}
    needed = set(itertools.product(names, (2048, 8192), ("forward", "training")))
    found = [row["result"].get("candidates", {}) for row in of_them]
    return needed <= there and all(
        "triton" in each and all(each["triton"]["ms"] < each[name]["ms"] for name in ("sdpa", "flex") if name in each)
        for each in found
    )


DEFAULT = [128, 64, 64, 8, 8, 3]
"""The tiles of both widths that are timed, before any was."""


class Tiles(Stage):
    """Tiles of our kernels, by time."""

    SHARE = 3.0

    def cases(self, dry: bool) -> list[Case]:
        grid = itertools.product((128, 64), (64, 128, 32), (64, 32, 128), (8, 4), (3, 2))
        tiles = [DEFAULT, *(t for t in ([m, n, b, w, w, s] for m, n, b, w, s in grid) if t != DEFAULT)]
        shapes = ("1x2x16",) if dry else ("1x32x128", "4x16x64")
        return [
            {"shape": shape, "encoding": name, "tiles": each}
            for each in tiles[: 1 if dry else None]
            for shape in shapes
            for name in ("t5", "shaw")
        ]

    def measure(self, case: Case, dry: bool) -> dict[str, Any]:
        from posenc.backends.gpus import RECORD
        from posenc.backends.triton_kernels import TILES, Tiles

        RECORD.clear()  # its tiles would come before these
        width = int(case["shape"].split("x")[-1])
        limit = min(n for n in TILES if width <= n)
        before, TILES[limit] = TILES[limit], Tiles(*case["tiles"])
        try:
            subject = Subject(case | {"length": 32 if dry else 8192, "pass": "training"})
            if not torch.cuda.is_available():  # the interpreter takes float32 or has no use for time
                return {"ms": 0.0, "error": 0.0, "limit": limit}
            error = max(subject.error("triton"), _gradient_error(case))
            assert error < 0.03, f"wrong by {error:.2e}"
            return {
                "ms": measure({"triton": subject.call("triton")}, "triton", 3)["triton"]["ms"],
                "error": error,
                "limit": limit,
            }
        finally:
            TILES[limit] = before

    def best(self, rows: list[Row]) -> dict[str, list[int]]:
        """Limit of the width -> the tiles with the smallest mean time relative to each encoding's fastest."""
        found: dict[str, dict[tuple[int, ...], dict[str, float]]] = {}
        for row in rows:
            if "ms" in row["result"]:
                by_tiles = found.setdefault(str(row["result"]["limit"]), {})
                by_tiles.setdefault(tuple(row["case"]["tiles"]), {})[row["case"]["encoding"]] = row["result"]["ms"]
        best = {}
        for limit, by_tiles in found.items():
            complete = {tiles: times for tiles, times in by_tiles.items() if len(times) == 2}
            if tuple(DEFAULT) not in complete:
                continue  # nothing to compare with
            fastest = {n: min(times[n] for times in complete.values()) for n in ("t5", "shaw")}
            if all(fastest.values()):
                best[limit] = list(
                    min(complete, key=lambda t: statistics.mean(complete[t][n] / fastest[n] for n in fastest))
                )
        return best

    def table(self, rows: list[Row]) -> str:
        ordered = sorted(rows, key=lambda row: (row["case"]["shape"], row["case"]["encoding"], row["result"]["ms"]))
        lines = [[*row["case"].values(), f"{row['result']['ms']:.3f}"] for row in ordered]
        return markdown(["shape", "encoding", "block_m, block_n, block, warps, backward warps, stages", "ms"], lines)
