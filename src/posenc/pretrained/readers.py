# SPDX-License-Identifier: Apache-2.0
"""What five programs compute from one configuration: a config.json or the header of a GGUF file, without weights."""

import math
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from posenc.errors import InputError, check_integers, listed, not_none, unknown
from posenc.pretrained.config_file import ConfigFile
from posenc.pretrained.families import FAMILIES, REFUSED, without_positions
from posenc.pretrained.findings import Evidence, ModelFinding, diagnosis
from posenc.pretrained.gguf_reader import read_config, unread
from posenc.pretrained.parameters import impossible_sentences, is_number, rope_parameters_by_type, unknown_type
from posenc.pretrained.programs import (
    ALL,
    LLAMA_CPP,
    PROGRAMS,
    TOLERANCE,
    TRANSFORMERS,
    NotKnown,
    ProgramFails,
    Reading,
    bounds,
)
from posenc.pretrained.stated import impossible_numbers, stated
from posenc_cli.arguments import aligned

__all__ = ["ConfigFile", "ProgramComparison", "ProgramRefusal", "Reading", "compare", "read_config"]


@dataclass(frozen=True)
class ProgramRefusal:
    """A program of which nothing is compared, and why."""

    program: str
    why: str


@dataclass(frozen=True, eq=False)
class ProgramComparison:
    """What each program makes of a configuration.

    length: tokens of the text for which frequencies are compared. refused: programs that do not run it. not_known: programs of
    which posenc does not know. layers: how many there are; None: it
    is not stated. findings: what `doctor` says of a configuration without weights.
    """

    name: str
    model_type: str
    length: int
    readings: tuple[Reading, ...]
    refused: tuple[ProgramRefusal, ...]
    not_known: tuple[ProgramRefusal, ...]
    layers: int | None
    findings: tuple[ModelFinding, ...]

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
    def wrong(self) -> bool:
        """Whether programs differ, or the configuration asks for other numbers than a model was made for."""
        return self.differ or any(finding.severity == "wrong" for finding in self.findings)

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
                sentences.append(f"{reading.program} differs{where}: {difference(reading, most[0], self.length)}")
        return sentences

    def agreement(self) -> str:
        """Who computes the same, where nobody differs: programs that were asked, and those of which rules alone say so."""
        programs = list(dict.fromkeys(reading.program for reading in self.readings))
        if not programs:
            return "No program is known to run it."
        if len(programs) == 1:
            return f"Nothing is compared: {programs[0]} alone is known to run it."
        ruled = [each for each in programs if each != TRANSFORMERS]
        run = f"{TRANSFORMERS} alone was run" if TRANSFORMERS in programs else "No program was run"
        return f"{run}; by posenc's rules, the same positions are computed by {listed(ruled)}."

    def to_dict(self) -> dict[str, Any]:
        rows = []
        for reading in self.readings:
            row = {name: value for name, value in asdict(reading).items() if name != "inv_freq"}
            rows.append(row | {"inv_freq": reading.inv_freq.tolist()})
        return {
            "name": self.name, "model_type": self.model_type, "length": self.length, "differ": self.differ,
            "readings": rows, "refused": [asdict(each) for each in self.refused],
            "not_known": [asdict(each) for each in self.not_known], "apart": self.apart(), "layers": self.layers,
            "findings": [asdict(each) for each in self.findings], "wrong": self.wrong,
        }  # fmt: skip

    def __str__(self) -> str:
        return self.text()

    def text(self, width: int | None = None) -> str:
        """The comparison in words. width: columns that the table may take."""
        still = self.readings[0].unrotated if self.readings else ()  # as the first program has them
        numbers = ", ".join(map(str, still[:8])) + (", ..." if len(still) > 8 else "")
        titles = ("program", "layers", "base", "schedule", "rotated", "attention factor", "known by", "as")
        letters = {
            id(reading): chr(ord("A") + number)
            for groups in self.groups().values()
            for number, group in enumerate(groups)
            for reading in group
        }
        rows = [titles] + [
            (
                r.program, r.layers, f"{r.base:.10g}", r.schedule, str(r.turning), f"{r.attention_factor:.6g}", r.known_by,
                letters[id(r)],
            )
            for r in self.readings
        ]  # fmt: skip
        table = aligned(rows, str.ljust, width)
        lines = [
            f"{self.name}: {self.model_type}, frequencies for a text of {self.length} tokens",
            *([f"{len(still)} of {self.layers} layers do not rotate: {numbers}"] if still else []),
            "",
            *(table if self.readings else []),
        ]
        lines += [f"{each.program}: does not run it: {each.why}" for each in self.refused]
        lines += [f"{each.program}: not known: {each.why}" for each in self.not_known]
        lines += ["", *(self.apart() or [self.agreement()])]
        lines += [f"{each.program}: {each.note}" for each in self.readings if each.note]
        own = [each for each in self.readings if each.program == self.readings[0].program]
        lines += ["", *(line for each in own for line in bounds(each, self.length, self.layers))] if own else []
        return "\n".join([*lines, *(f"\n{finding}" for finding in self.findings)])


def difference(reading: Reading, most: Reading, length: int) -> str:
    """How a reading differs from another, for a text of a length."""
    parts = []
    if reading.unrotated != most.unrotated:
        parts.append(f"{len(reading.unrotated)} layers do not rotate, not {len(most.unrotated)}, or others")
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
    """What each program computes from a configuration, and what is doubtful in it.

    length: tokens of the text for which frequencies that depend on it are compared; None: max_position_embeddings.

    Raises:
        InputError: a length below 1, fields that contradict each other, or a configuration that no program runs.
    """
    check_integers(1, **not_none(length=length))
    for contradiction in config.contradictions():
        raise InputError(f"{config.name}: {contradiction}")
    known = _is_known(config)
    if why := (without_positions(config.hf) if known else "") or REFUSED.get(config.model_type):
        raise InputError(f"{config.name}: model type {config.model_type!r}: {why}")
    rotates = config.model_type in FAMILIES or not known or any(rope_parameters_by_type(config.hf).values())
    if not rotates and not is_number(getattr(config.hf, "max_position_embeddings", None)):
        raise InputError(f"{config.name}: model type {config.model_type!r} has no rotary positions to compare")
    findings = diagnosis(None, _evidence(config)).findings
    impossible = [why for table in config.tables() for why, _ in impossible_sentences(table)]
    cannot = [each for each in findings if each.name == "parameter_impossible"]
    impossible += [each.evidence for each in cannot if each.measured is not None]
    readings: list[Reading] = []
    refused: list[ProgramRefusal] = []
    not_known: list[ProgramRefusal] = []
    try:
        length = length or config.length
    except InputError as error:  # transformers refuses it: because of a table beside the model, where it has one
        for why in config.beside():
            raise InputError(f"{config.name}: {why}: move it into that part ({error})") from error
        raise
    for program in PROGRAMS:
        if config.gguf is not None and program not in (LLAMA_CPP, TRANSFORMERS):
            continue
        try:
            if impossible and program != TRANSFORMERS:
                raise NotKnown(f"what it does with such a number was not tried: {impossible[0]}")
            found = list(PROGRAMS[program](config, length))
            if len(found) > 1 and all(found[0].same(each) and found[0].base == each.base for each in found):
                found = [replace(found[0], layers=ALL)]
            readings += [replace(each, program=program, unrotated=_still(config, program)) for each in found]
        except ProgramFails as error:
            refused.append(ProgramRefusal(program, str(error)))
        except NotKnown as error:
            not_known.append(ProgramRefusal(program, str(error)))
    if not (readings or findings):
        from transformers import CONFIG_MAPPING

        stated = [config.model_type, config.outer.get("model_type"), config.raw.get("model_type")]
        if config.model_type not in FAMILIES and not any(each in CONFIG_MAPPING for each in stated):
            raise unknown("model type", config.model_type, FAMILIES, 0.7)
        reasons = "; ".join(f"{each.program}: {each.why}" for each in refused + not_known)
        raise InputError(f"{config.name}: no program is known to run it: {reasons}")
    return ProgramComparison(
        config.name, config.model_type, length, tuple(readings), tuple(refused), tuple(not_known),
        getattr(config.hf, "num_hidden_layers", None) if known else None, findings,
    )  # fmt: skip


def _is_known(config: ConfigFile) -> bool:
    try:
        return config.hf is not None
    except InputError:
        return False


def _evidence(config: ConfigFile) -> Evidence:
    for text in config.beside():
        yield "scaling_beside_the_model", text, None
    for key in unread(config.gguf or {}):
        yield "parameter_ignored", f"{key}={(config.gguf or {})[key]} in the file's head", None
    if not _is_known(config):
        for table in config.tables():
            if sentence := unknown_type(table):
                yield "parameter_impossible", sentence, None
            yield from (("parameter_impossible", why, number) for why, number in impossible_sentences(table))
        return
    reads_text = hasattr(config.hf, "vocab_size")
    if config.gguf is not None or not reads_text or not any(rope_parameters_by_type(config.hf).values()):
        return
    cannot = list(impossible_numbers(config.hf))
    yield from cannot or stated(config.hf, config)


def _still(config: ConfigFile, program: str) -> tuple[int, ...]:
    """Layers that do not rotate; llama.cpp has a fixed interval for some types, EXAONE 4's for 64 layers alone, and a GGUF file
    states none."""
    if not _is_known(config):
        return ()
    if program == LLAMA_CPP and config.model_type in ("smollm3", "exaone4", "llama4_text"):
        count = int(config.hf.num_hidden_layers)
        return () if config.model_type == "exaone4" and count != 64 else tuple(range(3, count, 4))
    return config.unrotated()
