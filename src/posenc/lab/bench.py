# SPDX-License-Identifier: Apache-2.0
"""What encodings cost in attention on this machine: `posenc.attention` and the dense bias against attention without position.

One call is softmax(q . k / sqrt(64) + bias) v of a causal sequence, q, k and v (1, 8, n, 64). Comparisons with other packages, and
memory, are in benchmarks/bench.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from posenc.attention import attention
from posenc.bias import dense_sum
from posenc.encoding import Encoding, gates_of
from posenc.encodings import create
from posenc.errors import InputError, check_word
from posenc.lab.engines import Tick
from posenc.lab.machine import check_present, cores, cpu, describe
from posenc.lab.study import Study, code, versions
from posenc.lab.table import Cell, Table
from posenc.lab.timing import CLOCKS, Effort, interleaved, ratios, spread
from posenc.positions import Positions

HEADS, HEAD_DIM = 8, 64
SDPA, POSENC, DENSE = "SDPA, no position", "posenc", "SDPA, dense bias"
"""The candidates: the first is what ratios are over; the last rotates, and passes the complete bias as SDPA's mask."""
CLOSE = {torch.float32: 1e-4, torch.bfloat16: 5e-2}
"""Largest difference of the dense bias from posenc, as a share of the norm, at which it is the same work."""
LONGEST = 2**20
MOST_DENSE = 2**14
"""Tokens: a dense bias of more takes gigabytes."""


@dataclass(frozen=True)
class Trial:
    """One encoding in one mode at one length: all candidates, in rounds."""

    encoding: str
    mode: str
    length: int

    def __str__(self) -> str:
        return f"{self.encoding}, {self.mode}, {self.length} tokens"


@dataclass(frozen=True)
class Times:
    """Seconds of each candidate's calls, round by round; those that are no candidates here are left out."""

    seconds: dict[str, list[float]]


@dataclass(frozen=True)
class BenchSettings:
    """What all trials share."""

    device: Annotated[str, "cpu or cuda (default: cpu)"] = "cpu"
    dtype: Annotated[Literal["float32", "bfloat16"], "of the tensors (default: float32)"] = "float32"
    threads: Annotated[int, "threads; with several, wall time is measured in place of processor time (default: 1)"] = 1
    rounds: Annotated[int, "rounds of each trial (default: 7)"] = 7

    def __post_init__(self) -> None:
        check_present(self.device)
        if not 1 <= self.threads <= cores():
            raise InputError(f"must lie between 1 and {cores()}", threads=self.threads)
        if self.rounds < 1:
            raise InputError("must be at least 1", rounds=self.rounds)

    @property
    def clock(self) -> str:
        """A key of `posenc.lab.timing.CLOCKS`."""
        return "cuda" if self.device != "cpu" else "cpu" if self.threads == 1 else "wall"


class BenchStudy(Study[Trial, Times]):
    """Every encoding in every mode, "forward" or "train", at every length.

    Raises:
        InputError: an unknown encoding or mode, one that needs more than a head's shape, or a length that is none.
    """

    name = "bench"
    unit = "trials"

    def __init__(
        self, encodings: Sequence[str], lengths: Sequence[int], modes: Sequence[str], settings: BenchSettings
    ) -> None:
        for length in lengths:
            if not 2 <= length <= LONGEST:
                raise InputError(f"must lie between 2 and {LONGEST} tokens", lengths=length)
        self.settings = settings
        self.trials = list(dict.fromkeys(Trial(e, m, n) for e in encodings for m in modes for n in sorted(lengths)))
        for trial in self.trials:
            self.made(trial)

    def made(self, trial: Trial) -> Encoding:
        """The encoding in the shape of the trial, with the weights that it starts with."""
        check_word("mode", trial.mode, ("forward", "train"))
        torch.manual_seed(0)
        encoding = create(
            trial.encoding, dim=HEADS * HEAD_DIM, num_heads=HEADS, num_kv_heads=HEADS, head_dim=HEAD_DIM, num_layers=1,
            max_positions=trial.length, causal=True,
        )  # fmt: skip
        return encoding.to(self.settings.device, getattr(torch, self.settings.dtype))

    def cells(self) -> list[Trial]:
        return self.trials

    def record(self, cell: Trial) -> type[Any]:
        return Times

    def facts(self, cell: Trial) -> Mapping[str, Any]:
        return {
            **asdict(cell),
            "settings": asdict(self.settings),
            "cpu": cpu(),
            "torch": versions()["torch"],
            "code": code(),
        }

    def measure(self, job: Sequence[Trial], tick: Tick) -> dict[Trial, Times]:
        (trial,) = job
        threads = torch.get_num_threads()
        torch.set_num_threads(self.settings.threads)
        try:
            found = Times(self.timed(self.candidates(trial)))
        finally:
            torch.set_num_threads(threads)
        tick(1, str(trial))
        return {trial: found}

    def candidates(self, trial: Trial) -> dict[str, Callable[[], Tensor]]:
        """The calls, by name. The dense bias is one where it computes what posenc does: of a rotation or a bias, not of an encoding
        that changes values or weights."""
        place, dtype = torch.device(self.settings.device), getattr(torch, self.settings.dtype)
        generator, encoding, n = torch.Generator().manual_seed(0), self.made(trial), trial.length
        q, k, v = torch.randn(3, 1, HEADS, n, HEAD_DIM, generator=generator).to(place, dtype).unbind()
        x = torch.randn(1, n, HEADS * HEAD_DIM, generator=generator).to(place, dtype)
        positions = Positions.arange(n, causal=True, device=place)
        train = trial.mode == "train"
        leaves = [x.requires_grad_(train) for x in (q, k, v)] + [p for p in encoding.parameters() if train]

        def sdpa() -> Tensor:
            return scaled_dot_product_attention(q, k, v, is_causal=True)

        def ours() -> Tensor:
            return attention(q, k, v, encoding, positions, gates=gates_of(encoding, x))

        def dense() -> Tensor:
            turned, keys = encoding.rotate(q, k, positions)
            terms = encoding.bias(turned, keys, positions)
            terms = [] if terms is None else list(terms) if isinstance(terms, Sequence) else [terms]
            scale = encoding.scale(HEAD_DIM)
            bias = dense_sum(terms, place)
            if bias is None:
                return scaled_dot_product_attention(turned, keys, v, is_causal=True, scale=scale)
            hidden = torch.ones(n, n, dtype=torch.bool, device=place).triu(1)
            mask = bias.to(dtype).expand(1, HEADS, n, n).masked_fill(hidden, -torch.inf)
            return scaled_dot_product_attention(turned, keys, v, attn_mask=mask, scale=scale)

        calls = {SDPA: sdpa, POSENC: ours}
        if n <= MOST_DENSE and _same(ours, dense, CLOSE[dtype]):
            calls[DENSE] = dense
        return {name: _stepped(call, leaves, train) for name, call in calls.items()}

    def timed(self, calls: Mapping[str, Callable[[], object]]) -> dict[str, list[float]]:
        """Seconds of each call in each round."""
        clock = CLOCKS[self.settings.clock]
        for call in calls.values():
            call()  # the first one fills caches
        expected = {name: clock(call, 1) for name, call in calls.items()}
        return interleaved(calls, expected, clock, Effort(rounds=self.settings.rounds))

    def results(self, done: Mapping[Trial, Times]) -> dict[str, Any]:
        rows = []
        for trial, times in done.items():
            limit = times.seconds[SDPA]
            over = {name: spread(ratios(seconds, limit)) for name, seconds in times.seconds.items()}
            rows.append({**asdict(trial), "seconds": spread(limit)["median"], "ratios": over})
        return {
            "settings": asdict(self.settings) | {"clock": self.settings.clock},
            "machine": describe(torch.device(self.settings.device)) | versions(),
            "rows": rows,
        }


def _same(ours: Callable[[], Tensor], dense: Callable[[], Tensor], tolerance: float) -> bool:
    """Whether two calls give the same; a call that cannot be made does not."""
    with torch.no_grad():
        try:
            expected, found = ours(), dense()
        except (InputError, NotImplementedError, RuntimeError, TypeError):
            return False
        return found.shape == expected.shape and bool((found - expected).norm() <= tolerance * expected.norm())


def _stepped(call: Callable[[], Tensor], leaves: Sequence[Tensor], train: bool) -> Callable[[], Tensor]:
    """The call without gradients; or with them, forward and backward."""

    def step() -> Tensor:
        if not train:
            with torch.no_grad():
                return call()
        for leaf in leaves:
            leaf.grad = None
        out = call()
        out.sum().backward()
        return out

    return step


def tables(results: Mapping[str, Any]) -> list[Table]:
    """One for each mode: the ratios of every encoding, posenc's and the dense bias's, by length."""
    found = []
    for mode in dict.fromkeys(row["mode"] for row in results["rows"]):
        rows = [row for row in results["rows"] if row["mode"] == mode]
        lengths = sorted({row["length"] for row in rows})
        at = {(row["encoding"], row["length"]): row["ratios"] for row in rows}
        cells: list[list[Cell]] = [
            [name, candidate, *(_ratio(at.get((name, n), {}).get(candidate)) for n in lengths)]
            for name in dict.fromkeys(row["encoding"] for row in rows)
            for candidate in (POSENC, DENSE)
        ]
        head = ["encoding", "", *(f"n = {n}" for n in lengths)]
        found.append(Table(f"Attention, {mode}", f"time over {SDPA}", head, cells, names=2))
    return found


def _ratio(ratio: Mapping[str, float] | None) -> Cell:
    """As ("1.05", "(1.02..1.09)"): the median, and the least and the greatest of the rounds."""
    return "–" if ratio is None else (f"{ratio['median']:.2f}", f"({ratio['low']:.2f}..{ratio['high']:.2f})")
