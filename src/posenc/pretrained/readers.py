# SPDX-License-Identifier: Apache-2.0
"""What six programs compute from one configuration: a config.json or the header of a GGUF file, without weights."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from posenc.errors import InputError, check_integers, described, unknown
from posenc.pretrained.config_file import ConfigFile, read_config
from posenc.pretrained.families import FAMILIES
from posenc.pretrained.programs import ALL, LLAMA_CPP, PROGRAMS, TOLERANCE, TRANSFORMERS, Reading

__all__ = ["ConfigFile", "ProgramComparison", "ProgramRefusal", "Reading", "compare", "read_config"]


@dataclass(frozen=True)
class ProgramRefusal:
    """A program that does not run the configuration, and why."""

    program: str
    why: str


@dataclass(frozen=True, eq=False)
class ProgramComparison:
    """What each program makes of a configuration. length: tokens of the text for which frequencies are compared. windows:
    keys that a query sees, by layer type, None: all."""

    name: str
    model_type: str
    length: int
    readings: tuple[Reading, ...]
    refused: tuple[ProgramRefusal, ...]
    windows: Mapping[str, int | None]

    def groups(self) -> dict[str, list[list[Reading]]]:
        """By layer type: programs that compute the same frequencies and attention factor, the largest group first."""
        found: dict[str, list[list[Reading]]] = {}
        types = [kind for kind in dict.fromkeys(reading.layers for reading in self.readings) if kind != ALL]
        for reading in self.readings:
            for kind in types if reading.layers == ALL and types else [reading.layers]:
                groups = found.setdefault(kind, [])
                for group in groups:
                    if group[0].same(reading):
                        group.append(reading)
                        break
                else:
                    groups.append([reading])
        return {kind: sorted(groups, key=len, reverse=True) for kind, groups in found.items()}

    @property
    def differ(self) -> bool:
        """Whether two programs compute different positions."""
        return any(len(groups) > 1 for groups in self.groups().values())

    def apart(self) -> list[str]:
        """A sentence for each program that differs from the largest group."""
        sentences = []
        for kind, (most, *others) in self.groups().items():
            where = "" if kind == ALL else f" in {kind}"
            for reading in (reading for group in others for reading in group):
                sentences.append(f"{reading.program} differs{where}: {_difference(reading, most[0], self.length)}")
        return sentences

    def to_dict(self) -> dict[str, Any]:
        rows = []
        for reading in self.readings:
            row = {name: value for name, value in asdict(reading).items() if name != "inv_freq"}
            rows.append(row | {"inv_freq": reading.inv_freq.tolist()})
        return {
            "name": self.name, "model_type": self.model_type, "length": self.length, "differ": self.differ,
            "windows": dict(self.windows), "readings": rows, "refused": [asdict(each) for each in self.refused],
            "apart": self.apart(),
        }  # fmt: skip

    def __str__(self) -> str:
        titles = ("program", "layers", "base", "schedule", "rotated", "attention factor", "as")
        letters = {
            id(reading): chr(ord("A") + number)
            for groups in self.groups().values()
            for number, group in enumerate(groups)
            for reading in group
        }
        rows = [titles] + [
            (
                r.program,
                r.layers,
                f"{r.base:.10g}",
                r.schedule,
                str(r.rotary_dim),
                f"{r.attention_factor:.6g}",
                letters[id(r)],
            )
            for r in self.readings
        ]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        windows = ", ".join(
            f"{kind} {'all keys' if size is None else f'{size} keys'}" for kind, size in self.windows.items()
        )
        lines = [
            f"{self.name}: {self.model_type}, frequencies for a text of {self.length} tokens; a query sees: {windows}",
            "",
            *lines,
        ]
        lines += [f"{each.program}: does not run it: {each.why}" for each in self.refused]
        lines += [""] + (self.apart() or ["All programs that run it compute the same positions."])
        lines += [f"{each.program}: {each.note}" for each in self.readings if each.note]
        return "\n".join(lines)


def _difference(reading: Reading, most: Reading, length: int) -> str:
    parts = []
    if reading.base != most.base:
        parts.append(f"base {reading.base:.10g}, not {most.base:.10g}")
    if reading.schedule != most.schedule:
        parts.append(f"schedule {reading.schedule}, not {most.schedule}")
    if reading.rotary_dim != most.rotary_dim:
        parts.append(f"{reading.rotary_dim} rotated channels, not {most.rotary_dim}")
    elif not torch.allclose(reading.inv_freq, most.inv_freq, rtol=TOLERANCE, atol=0):
        phase = float((reading.inv_freq - most.inv_freq).abs().max()) * (length - 1)
        parts.append(f"angles off by up to {phase:.3g} rad at position {length - 1}")
    if not math.isclose(reading.attention_factor, most.attention_factor, rel_tol=TOLERANCE):
        parts.append(f"attention factor {reading.attention_factor:.4g}, not {most.attention_factor:.4g}")
    return "; ".join(parts)


def compare(config: ConfigFile, length: int | None = None) -> ProgramComparison:
    """What each program computes from a configuration.

    length: tokens of the text for which frequencies that depend on it are compared; None: max_position_embeddings.

    Raises:
        InputError: a length below 1, or a configuration that no program runs.
    """
    check_integers(1, length=length)
    length = length or config.length
    readings: list[Reading] = []
    refused: list[ProgramRefusal] = []
    for program, read in PROGRAMS.items():
        if config.gguf is not None and program not in (LLAMA_CPP, TRANSFORMERS):
            continue
        try:
            readings += [replace(reading, program=program) for reading in _collapsed(list(read(config, length)))]
        except InputError as error:
            refused.append(ProgramRefusal(program, str(error).removeprefix(f"{config.name}: ")))
        except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
            refused.append(ProgramRefusal(program, f"it fails: {described(error)}"))
    if not readings:
        if config.model_type not in FAMILIES:
            raise unknown("model type", config.model_type, FAMILIES, 0.7)
        raise InputError(
            f"{config.name}: no program runs it: {'; '.join(f'{each.program}: {each.why}' for each in refused)}"
        )
    try:
        windows = config.windows()
    except InputError:
        windows = {}
    return ProgramComparison(config.name, config.model_type, length, tuple(readings), tuple(refused), windows)


def _collapsed(readings: list[Reading]) -> list[Reading]:
    """One reading where all layer types rotate alike."""
    first, *others = readings
    alike = others and all(first.same(other) and first.base == other.base for other in others)
    return [replace(first, layers=ALL)] if alike else readings
