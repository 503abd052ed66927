# SPDX-License-Identifier: Apache-2.0
"""The checks of every encoding, the library's or the user's:

from posenc.conformance import check
print(check(lambda config: MyEncoding(num_heads=config.num_heads)))
"""

import traceback
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

from posenc.conformance import fixtures
from posenc.conformance.checks import CHECKS, FAST, SLOW
from posenc.conformance.fixtures import DECODER, CheckFailed, EncodingUnderTest, Make, MakePositions, NotApplicable
from posenc.errors import described, on_one_line

WORDS = {True: "passed", False: "FAILED", None: "does not apply"}


@dataclass(frozen=True)
class Outcome:
    """Result of a check. passed: None if it does not apply; reason: the refusal, or what failed; where: of an error, the
    last lines that it came through, the innermost first."""

    check: str
    passed: bool | None
    reason: str = ""
    where: str = ""

    def __str__(self) -> str:
        details = "; ".join(filter(None, (self.reason, self.where)))
        return f"{self.check.replace('_', ' ')}: {WORDS[self.passed]}{f' ({details})' if self.reason else ''}"


@dataclass(frozen=True)
class Report:
    """Outcomes of all checks; prints as one line each, and checks that fail for the same reason as one."""

    outcomes: tuple[Outcome, ...]

    @property
    def passed(self) -> bool:
        return all(outcome.passed is not False for outcome in self.outcomes)

    def __str__(self) -> str:
        lines: dict[str, list[Outcome]] = {}
        for each in self.outcomes:
            lines.setdefault(each.reason if each.passed is False and each.reason else each.check, []).append(each)
        grouped = (replace(same[0], check=", ".join(each.check for each in same)) for same in lines.values())
        return "\n".join(map(str, grouped))


def check(make: Make, *, positions: MakePositions | None = None, slow: bool = True, fast: bool = False) -> Report:
    """Run every check on an encoding, in small models on the CPU. The caller's random state is preserved.

    make: given the config of the model that the encoding is put into (dim, num_heads, kv_heads, width, which is that of a
        head, num_layers), it returns the encoding. Give it arguments other than its defaults, which a spec that has lost
        them would bring back.
    positions: where tokens are, for an encoding of trees, grids or anything but text: from a number of tokens to the
        `Positions` of one document of so many. Checks that are about text alone are then skipped.
    slow: False leaves out compiling and exporting. fast: only the checks that find most mistakes, `checks.FAST`.

    Raises:
        InputError: make does not return an encoding, or positions not those of n tokens.
    """
    tested = EncodingUnderTest(make, positions)
    tested.make_encoding(DECODER)  # what cannot be made, or has no positions, is reported once
    tested.document(2)
    chosen = [name for name in CHECKS if (name in FAST if fast else slow or name not in SLOW)]
    return Report(tuple(run_check(name, tested) for name in chosen))


def run_check(name: str, tested: EncodingUnderTest) -> Outcome:
    """Run one check by name; an exception counts as its failure."""
    try:
        with fixtures.seeded(), nullcontext() if name in SLOW else fixtures.uncompiled():
            CHECKS[name](tested)
    except NotApplicable as reason:
        return Outcome(name, None, str(reason))
    except CheckFailed as failure:
        return Outcome(name, False, on_one_line(failure), _where(failure.__cause__) if failure.__cause__ else "")
    except Exception as error:
        notes = "; ".join(("", *getattr(error, "__notes__", ())))
        return Outcome(name, False, f"{described(error, 300)}{notes}", _where(error))
    return Outcome(name, True)


def _where(error: BaseException) -> str:
    """The last four lines that an error came through, the innermost first; of torch.compile, those that it was tracing."""
    frames = (getattr(error, "real_stack", None) or traceback.extract_tb(error.__traceback__))[-4:]
    return "at " + ", ".join(f"{Path(f.filename).name}:{f.lineno} in {f.name}" for f in reversed(frames))
