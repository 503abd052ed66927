# SPDX-License-Identifier: Apache-2.0
"""Which programs compute from a configuration what a model computes, asked before the configuration is written."""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from posenc.errors import InputError, listed
from posenc.frequencies import Frequencies
from posenc.pretrained.config_file import ConfigFile
from posenc.pretrained.parameters import rope_parameters_by_type
from posenc.pretrained.programs import ALL, PROGRAMS, Reading
from posenc.pretrained.readers import compare, difference


@dataclass(frozen=True)
class ProgramAnswer:
    """Whether a program computes what a model does.

    agrees: None where that is not known. why: what it does instead or does not read, or why it does not run it; empty: nothing to
    tell. known_by: "run", or posenc's "rules" of it.
    runs: whether it takes the configuration at all.
    """

    program: str
    agrees: bool | None
    why: str = ""
    known_by: str = "rules"
    runs: bool = True

    def __str__(self) -> str:
        return f"{self.program}: {'' if self.runs else 'does not run it: '}{self.why or 'the same'}"


def agreement(file: ConfigFile, wanted: Mapping[str, Frequencies], length: int) -> tuple[ProgramAnswer, ...]:
    """Each program's answer for a configuration.

    wanted: by layer type, what the model computes for a text of `length` tokens.
    """
    # without transformers' warning of keys that it does not read, for other programs do
    logger, none = logging.getLogger("transformers.modeling_rope_utils"), lambda _: False
    logger.addFilter(none)
    try:
        found = compare(file, length)
    except InputError as error:
        return tuple(ProgramAnswer(program, None, str(error)) for program in PROGRAMS)
    finally:
        logger.removeFilter(none)
    answers = {each.program: ProgramAnswer(each.program, False, each.why, runs=False) for each in found.refused}
    answers |= {each.program: ProgramAnswer(each.program, None, each.why) for each in found.not_known}
    by_type, still = rope_parameters_by_type(file.hf), file.unrotated()
    for reading in found.readings:
        earlier = answers.get(reading.program)
        if earlier is None or earlier.agrees:
            kinds = wanted if reading.layers == ALL else wanted.keys() & {reading.layers}
            expected = []
            for kind in kinds:
                parameters = by_type.get(kind) or by_type.get(None) or next(iter(by_type.values()))
                base, schedule = float(parameters["rope_theta"]), str(parameters.get("rope_type", "default"))
                numbers, factor = wanted[kind].inv_freq, float(wanted[kind].attention_factor)
                of = ALL, base, schedule, 2 * numbers.numel(), factor, numbers
                expected.append(Reading("", *of, unrotated=still))
            apart = [each for each in expected if not each.same(reading)]
            texts = [difference(reading, apart[0], length)] if apart else []
            texts += [reading.note] if reading.note else []
            texts += [earlier.why] if earlier is not None and earlier.why and earlier.why not in texts else []
            answers[reading.program] = ProgramAnswer(reading.program, not apart, "; ".join(texts), reading.known_by)
    return tuple(answers[program] for program in PROGRAMS if program in answers)


def as_text(answers: Iterable[ProgramAnswer]) -> list[str]:
    """Lines for a report: who computes the same, who does not, and of whom it is not known."""
    answers = list(answers)
    asked = [f"{each.program} ({each.known_by})" for each in answers if each.agrees and each.known_by != "rules"]
    ruled = [each.program for each in answers if each.agrees and each.known_by == "rules"]
    lines = [f"the same positions in {listed(asked)}"] if asked else []
    lines += [f"by posenc's rules of them the same positions in {listed(ruled)}"] if ruled else []
    for each in (each for each in answers if each.agrees is False):
        lines.append(f"{each.program} {'differs' if each.runs else 'does not run it'}: {each.why}")
    lines += [f"not known for {each.program}: {each.why}" for each in answers if each.agrees is None]
    return lines
