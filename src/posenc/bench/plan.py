# SPDX-License-Identifier: Apache-2.0
"""What a benchmark measures, as data: trials, the presets that list them, and ids by which finished ones are known."""

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Annotated

import torch

import posenc
from posenc.bench.case import DTYPES, MODES
from posenc.bench.cases import CASES
from posenc.bench.harness import CLOCKS, Effort
from posenc.errors import InputError, unknown
from posenc.measuring.machine import cores, cpu

TIME, MEMORY = "time", "memory"
LONGEST = 2**24
"""Tokens of a sequence."""


@dataclass(frozen=True)
class Trial:
    """One comparison of a case's candidates: what is measured, of which case, in which mode, dtype and length."""

    what: str
    case: str
    mode: str
    dtype: str
    length: int

    def __str__(self) -> str:
        memory = ", memory" if self.what == MEMORY else ""
        return f"{self.case} {self.mode} {self.dtype} n={self.length}{memory}"


@dataclass(frozen=True)
class Settings:
    """What all trials of a benchmark share. clock: a key of CLOCKS. peers: whether other packages take part."""

    device: str = "cpu"
    threads: Annotated[int, "threads of the measuring process (default: 1)"] = 1
    clock: str = "cpu"
    flush_denormal: Annotated[bool, "torch.set_flush_denormal(True) while measuring"] = False
    peers: Annotated[bool, "measure other packages too (default: True)"] = True
    effort: Effort = field(default_factory=Effort)

    def __post_init__(self) -> None:
        if not 1 <= self.threads <= 4 * cores():
            raise InputError(f"--threads {self.threads}: must lie between 1 and {4 * cores()}")
        if self.effort.rounds < 1:
            raise InputError(f"--rounds {self.effort.rounds}: must be at least 1")
        if not self.effort.patience > 0:
            raise InputError(f"--patience {self.effort.patience}: must be a number of seconds above 0")
        if self.clock not in CLOCKS:
            raise unknown("clock", self.clock, CLOCKS)


@dataclass(frozen=True)
class Series:
    """The trials of a family of cases in one mode and dtype, at several lengths."""

    family: str
    mode: str
    dtype: str
    lengths: tuple[int, ...]
    what: str = TIME


STANDARD = (
    Series("attention", "forward", "float32", (512, 2048, 4096, 8192)),
    Series("attention", "forward", "bfloat16", (2048,)),
    Series("attention", "train", "float32", (512, 2048)),
    Series("attention", "decode", "float32", (512, 4096, 16384)),
    Series("attention", "forward", "float32", (4096, 8192), MEMORY),
    Series("attention", "train", "float32", (2048,), MEMORY),
    *(Series("rotary", mode, dtype, (4096,)) for mode in MODES for dtype in DTYPES),
    Series("rotary", "forward", "float32", (16384,)),
    Series("call", "decode", "float32", (128, 1024, 4096)),
    Series("tables", "forward", "float32", (4096, 131072)),
)
QUICK = (
    Series("attention", "forward", "float32", (1024,)),
    Series("attention", "train", "float32", (512,)),
    Series("attention", "decode", "float32", (1024,)),
    Series("attention", "forward", "float32", (1024,), MEMORY),
    *(Series("rotary", mode, "float32", (1024,)) for mode in MODES),
    Series("call", "decode", "float32", (128,)),
    Series("tables", "forward", "float32", (4096,)),
)
QUICK_EFFORT = Effort(rounds=3, block=0.01, budget=3.0, patience=1.0)


def plan(
    cases: Sequence[str] = (),
    lengths: Sequence[int] = (),
    modes: Sequence[str] = (),
    dtypes: Sequence[str] = (),
    memory: bool = True,
    preset: Sequence[Series] = STANDARD,
) -> list[Trial]:
    """The trials, case by case, short ones first. What is not given is the preset's; modes or dtypes that are given are
    all combined.

    Raises:
        InputError: an unknown case, mode or dtype, a length below 2, or nothing to measure.
    """
    for what, given, known in (("case", cases, CASES), ("--mode", modes, MODES), ("--dtype", dtypes, DTYPES)):
        for name in given:
            if name not in known:
                raise unknown(what, name, known)
    for length in lengths:
        if length < 2:
            raise InputError(f"--n {length}: a sequence needs at least 2 tokens")
        if length > LONGEST:
            raise InputError(f"--n {length}: must be at most {LONGEST}")
    series = list(_combined(preset, modes, dtypes) if modes or dtypes else preset)
    found = []
    for name in dict.fromkeys(cases or CASES):
        case = CASES[name]
        for s in series:
            fits = s.family == case.family and s.mode in case.modes and s.dtype in case.dtypes
            if fits and (memory or s.what == TIME):
                found += [Trial(s.what, name, s.mode, s.dtype, length) for length in sorted(lengths or s.lengths)]
    if not found:
        raise InputError(f"nothing to measure: {', '.join(cases)} has no {' '.join([*modes, *dtypes])}")
    return list(dict.fromkeys(found))


def _combined(preset: Sequence[Series], modes: Sequence[str], dtypes: Sequence[str]) -> Iterable[Series]:
    """Every family in the given modes and dtypes, at the preset's lengths of that mode."""
    for s in preset:
        if modes and s.mode not in modes:
            continue
        for dtype in dtypes or [s.dtype]:
            longest = [o.lengths for o in preset if (o.family, o.mode, o.what) == (s.family, s.mode, s.what)]
            yield Series(s.family, s.mode, dtype, max(longest, key=len) if dtypes else s.lengths, s.what)


def versions() -> dict[str, str]:
    """Of posenc, torch and every peer that is installed."""
    peers = {c.peer for case in CASES.values() for c in case.candidates if c.peer is not None}
    found = {peer.package: peer.version for peer in sorted(peers, key=lambda p: p.package)}
    own = {"posenc": posenc.__version__, "torch": str(torch.__version__)}
    return own | {name: version for name, version in found.items() if version is not None}


def identity(trial: Trial, settings: Settings) -> str:
    """Hash of what a trial's numbers depend on: its content, the settings, the machine, the versions and our code."""
    content = [asdict(trial), asdict(settings), cpu(), versions(), _code()]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


@cache
def _code() -> str:
    """Of the files that a measurement runs through."""
    root, digest = Path(posenc.__file__).parent, hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        if path.relative_to(root).parts[0] not in ("lab", "report", "conformance", "cli"):
            digest.update(path.read_bytes())
    return digest.hexdigest()
