"""Attention with each structure in bfloat16, causal: PyTorch's attention without an encoding, with a dense bias, FlexAttention
and its FlashAttention kernel, and posenc's kernel. Forward, in decoding, and with backward; and other tiles of our kernel."""

import math
import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

import torch

from gpu_stages.checks import is_right
from gpu_stages.stage import LATE, Case, Row, Stage
from gpu_stages.timing import Call, device, markdown, measure, relative_error
from posenc import Encoding, Positions, attention, create
from posenc.backends import flex
from posenc.encoding import gates_of

ENCODINGS = {
    "alibi": "alibi", "t5": "t5", "shaw": "shaw:clip=64:terms=keys", "rope": "rope", "documents": "none",
    "transformer_xl": "transformer_xl:clamp_len=1024", "tupe": "tupe",
    "deberta": "deberta:terms=c2p:max_relative_positions=512", "projected_relative": "projected_relative",
    "kerple": "kerple",
}  # fmt: skip
"""Name -> the text for `create`. "documents": no encoding, and eight documents packed into the sequence."""
READ = {
    "vector": ("alibi", "t5", "kerple"), "products": ("shaw", "transformer_xl", "projected_relative"),
    "vector, one query": ("alibi", "t5"), "products, one query": ("shaw", "transformer_xl"),
}  # fmt: skip
"""Of RECORD: what our kernel reads of a bias -> the encodings that have to be timed."""
PLAIN, FLASH = "plain SDPA", "flex, FLASH"
CHECKED_ROWS = 64
MOST_DENSE = 2**34
"""Bytes of a dense bias beyond which SDPA is not timed: "auto" takes FlexAttention long before."""
LENGTHS = 2048, 8192, 512, 4096, 1024, 16384, 32768
CACHED = 8192, 2048, 32768
QUADRATIC, QUADRATIC_TO = ("projected_relative",), 4096
"""A row per distance for each query, whose products take gigabytes from there on, and FlexAttention another compilation."""
SIZES = [
    ("1x32x128", 2048), ("32x8x64", 128), ("1x32x128", 8192), ("32x8x64", 512), ("4x16x64", 2048), ("4x16x64", 8192),
    ("32x8x64", 1024), ("1x32x128", 32768), ("4x16x64", 4096), ("1x32x128", 16384),
]  # fmt: skip
"""(batch x heads x width, length), most valuable first. The short ones are what small models are trained with."""


class Subject:
    """One encoding at one shape, and the calls that are timed."""

    def __init__(self, case: Case) -> None:
        name, length, self.training = case["encoding"], case["length"], case["pass"] == "training"
        queries = 1 if case["pass"] == "decoding" else length
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
            torch.randn(batch, n, heads, width, device=device(), dtype=torch.bfloat16).transpose(1, 2)
            for n in (queries, length, length)
        ]
        self.weights = torch.randn_like(self.inputs[0])
        self.x = torch.randn(
            batch, queries, heads * width, device=device(), dtype=torch.bfloat16
        )  # what gates are made of
        for x in self.inputs:
            x.requires_grad_(self.training)
        if name == "documents":
            self.positions = Positions.packed([length // 8] * 8, causal=True, device=device())
        else:
            self.positions = Positions.arange(queries, length - queries, causal=True, device=device())

    def dense_bytes(self) -> int:
        """What SDPA takes at most for a mask or a bias of every head, with the gradient's share."""
        batch, heads, queries, _ = self.inputs[0].shape
        return batch * heads * queries * self.positions.num_keys * 4 * (3 if self.training else 1)

    def _gates(self) -> list[torch.Tensor]:
        return [gate.to(torch.bfloat16) for gate in gates_of(self.encoding, self.x.float())]

    def call(self, name: str) -> Call:
        plain = name == PLAIN
        encoding = None if plain else self.encoding
        positions = (
            Positions.arange(
                self.inputs[0].shape[2], self.inputs[1].shape[2] - self.inputs[0].shape[2], causal=True, device=device()
            )
            if plain
            else self.positions
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
                tail = Positions.arange(rows, k.shape[2] - rows, causal=True, device=q.device)
                gates = [gate.float() for gate in self._gates()]
                want = attention(q[:, :, -rows:], k, v, self.encoding, tail, backend="reference", gates=gates)
        rows = min(rows, want.shape[2])
        return relative_error(self.call(name)()[:, :, -rows:], want[:, :, -rows:])


def _error(case: Case) -> float:
    """Of our kernel's output at 512 tokens, where SDPA has the reference."""
    subject = Subject(case | {"length": 512, "pass": "forward"})
    return relative_error(subject.call("triton")(), subject.call("sdpa")())


class Attention(Stage):
    """Without gradients: what decides which kernel is the default."""

    SHARE = 8.0
    DECIDES = tuple(READ)

    def cases(self, dry: bool) -> list[Case]:
        if dry:
            return [_case(way, "1x2x16", 64, name) for way in ("forward", "decoding") for name in ("alibi", "shaw")]
        both = dict.fromkeys((*READ["vector"], *READ["products"]))
        decoding = READ["vector, one query"] + READ["products, one query"]
        found = [_case("forward", "1x32x128", length, name) for length in LENGTHS[:2] for name in both]
        found += [_case("decoding", "1x32x128", length, name) for length in CACHED[:1] for name in decoding]
        found += [_case("forward", "1x32x128", length, name) for length in LENGTHS[2:] for name in both]
        found += [_case("decoding", "1x32x128", length, name) for length in CACHED[1:] for name in decoding]
        found += [_case("decoding", "16x32x128", length, name) for length in CACHED[:2] for name in ("alibi", "shaw")]
        found += [
            _case("forward", "4x16x64", n, e) for n in LENGTHS[:3] for e in ("alibi", "t5", "shaw", "transformer_xl")
        ]
        return [case for case in found if case["encoding"] not in QUADRATIC or case["length"] <= QUADRATIC_TO]

    def prepared_by(self, case: Case) -> Case:
        """FlexAttention is compiled for any length, but for one shape and pass."""
        alike = (each for each in self.cases(False) if {**each, "length": case["length"]} == case)
        return next(alike, case)

    def measure(self, case: Case, dry: bool) -> dict[str, Any]:
        calls, refused = self.prepared(case, dry)
        return {"candidates": measure(calls, PLAIN, rounds=5, profiled=False), "refused": refused}

    def made(self, case: Case, dry: bool) -> tuple[dict[str, Call], dict[str, str]]:
        """What is timed, and why another candidate is not."""
        cuda = torch.cuda.is_available()
        if cuda:
            torch.cuda.empty_cache()  # of the case before
        room = 0.8 * torch.cuda.mem_get_info()[0] if cuda else 2**30
        subject, calls, refused = Subject(case), {}, {}
        candidates = [
            PLAIN,
            "sdpa",
            *["flex"] * cuda,
            *["triton"] * (cuda and case["pass"] != "training"),
            *[FLASH] * (cuda and find_spec("flash_attn") is not None),
        ]
        calls[PLAIN] = subject.call(PLAIN)
        for name in candidates[1:]:
            try:
                if name == "sdpa" and subject.dense_bytes() > min(room, MOST_DENSE):
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
        return calls, refused

    def table(self, rows: list[Row]) -> str:
        names = (PLAIN, "sdpa", "flex", FLASH, "triton")
        lines = []
        for row in rows:
            found, case = row["result"]["candidates"], row["case"]
            cells = [
                f"{found[n]['ms']:.3f} ms, {found[n]['ratio']:.2f}, {_part(found[n])} ms, {found[n]['peak_mib']:.0f} MiB"
                if n in found
                else row["result"]["refused"].get(n, "")[:60]
                for n in names
            ]  # fmt: skip
            lines.append([case["encoding"], case["pass"], case["shape"], case["length"], *cells])
        return markdown(["encoding", "pass", "batch x heads x width", "length", *names], lines)

    def verified(self, rows: Callable[[str], list[Row]]) -> dict[str, int]:
        right = is_right(rows("checks"), "triton")
        least = {kernel: _least(rows("attention"), names, "query" in kernel) for kernel, names in READ.items()}
        return {kernel: size for kernel, size in least.items() if right and size is not None}


class Backward(Attention):
    """With gradients, and the encodings that our kernel has no part in."""

    SHARE = 4.0
    DECIDES = ()

    def cases(self, dry: bool) -> list[Case]:
        sizes = [("1x2x16", 64)] if dry else SIZES
        names = ("alibi", "shaw") if dry else tuple(ENCODINGS)
        decisive = Attention.cases(self, dry)
        found = [_case(way, *size, name) for size in sizes for way in ("training", "forward") for name in names]
        return [case for case in found if case not in decisive]

    def verified(self, rows: Callable[[str], list[Row]]) -> dict[str, int]:
        return {}


def _case(way: str, shape: str, length: int, encoding: str) -> Case:
    return {"shape": shape, "length": length, "pass": way, "encoding": encoding}


def _part(found: dict[str, float]) -> str:
    """Of a candidate's time, what kernels take, or Python to issue them."""
    return f"Python {found['python_ms']:.3f}" if "python_ms" in found else f"kernels {found.get('kernels_ms', 0):.3f}"


def _least(rows: list[Row], names: tuple[str, ...], decoding: bool) -> int | None:
    """The least length from which our kernel beat every backend that "auto" could take instead, in each case of some encodings;
    two such lengths with all encodings have to be there. None: there is none."""
    way = "decoding" if decoding else "forward"
    cases = [row for row in rows if row["case"]["encoding"] in names and row["case"]["pass"] == way]
    timed: dict[int, set[str]] = {}
    slower = 0
    for row in cases:
        found, length = row["result"].get("candidates", {}), row["case"]["length"]
        ours = found.get("triton", {}).get("ms", math.inf)
        others = [found[name]["ms"] for name in ("sdpa", "flex") if name in found]
        if others and ours < min(others):
            timed.setdefault(length, set()).add(row["case"]["encoding"])
        elif others or row["result"].get("failed", LATE) != LATE:
            slower = max(slower, length)
    complete = [length for length, there in timed.items() if length > slower and there == set(names)]
    return min(complete) if len(complete) > 1 else None


GRID = [
    (64, 64, 4, 3), (128, 64, 8, 3), (64, 32, 4, 3), (64, 32, 4, 4), (64, 64, 4, 2), (128, 32, 8, 4), (128, 64, 8, 2),
    (64, 64, 8, 3),
]  # fmt: skip
"""Tiles that are timed: those for which ptxas spills no registers for sm_90, by size."""
TILED = "t5", "kerple", "shaw"
"""Whose bias is far for the most part, read for the most part, and read twice."""


class Tiles(Stage):
    """Tiles of our kernel, by time."""

    SHARE = 3.0

    def cases(self, dry: bool) -> list[Case]:
        from posenc.backends.triton_kernels import TILES, limit_of

        shapes = ("1x2x16",) if dry else ("1x32x128", "4x16x64")
        found = []
        for shape in shapes:
            default = TILES[limit_of(_width(shape))]
            tiles = [default, *(each for each in GRID if each != default)]
            found += [
                {"kernel": "forward", "shape": shape, "encoding": name, "tiles": list(each)}
                for each in tiles[: 1 if dry else None]
                for name in TILED
            ]
        return found

    def prepare(self, case: Case, dry: bool) -> dict[str, Any]:
        if torch.cuda.is_available():
            with _with_tiles(case):
                _error(case)
        return {}

    def measure(self, case: Case, dry: bool) -> dict[str, Any]:
        if not torch.cuda.is_available():  # the interpreter takes float32 or has no use for time
            return {"ms": 0.0, "error": 0.0}
        with _with_tiles(case):
            error = _error(case)
            assert error < 0.03, f"wrong by {error:.2e}"
            call = Subject(case | {"length": 8192, "pass": "forward"}).call("triton")
            return {"ms": measure({"triton": call}, "triton", 3, False)["triton"]["ms"], "error": error}

    def best(self, rows: list[Row]) -> dict[str, dict[str, list[int]]]:
        """Limit of the width -> "forward" -> the tiles with the smallest mean time relative to each encoding's fastest, where those
        of TILES were timed, too."""
        from posenc.backends.triton_kernels import TILES, limit_of

        found: dict[int, dict[tuple[int, ...], dict[str, float]]] = {}
        for row in rows:
            if "ms" in row["result"]:
                case = row["case"]
                by_tiles = found.setdefault(limit_of(_width(case["shape"])), {})
                by_tiles.setdefault(tuple(case["tiles"]), {})[case["encoding"]] = row["result"]["ms"]
        best: dict[str, dict[str, list[int]]] = {}
        for limit, by_tiles in found.items():
            complete = {tiles: times for tiles, times in by_tiles.items() if len(times) == len(TILED)}
            if TILES[limit] not in complete:
                continue  # nothing to compare with
            fastest = {n: min(times[n] for times in complete.values()) for n in TILED}
            if all(fastest.values()):
                means = {t: statistics.mean(complete[t][n] / fastest[n] for n in fastest) for t in complete}
                best[str(limit)] = {"forward": list(min(means, key=means.__getitem__))}
        return best

    def table(self, rows: list[Row]) -> str:
        ordered = sorted(rows, key=lambda row: (*list(row["case"].values())[:3], row["result"]["ms"]))
        lines = [[*row["case"].values(), f"{row['result']['ms']:.3f}"] for row in ordered]
        return markdown(["kernel", "shape", "encoding", "block(s), warps, stages", "ms"], lines)


def _width(shape: str) -> int:
    return int(shape.split("x")[-1])


@contextmanager
def _with_tiles(case: Case) -> Iterator[None]:
    """The kernel takes the tiles of the case."""
    from posenc.backends.gpus import RECORD
    from posenc.backends.triton_kernels import TILES, limit_of

    RECORD.clear()  # its tiles would come before these
    limit = limit_of(_width(case["shape"]))
    before = TILES[limit]
    TILES[limit] = tuple(case["tiles"])
    try:
        yield
    finally:
        TILES[limit] = before
