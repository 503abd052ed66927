# SPDX-License-Identifier: Apache-2.0
"""What must hold for every encoding, the library's or the user's:

from posenc.conformance import check
print(check(lambda config: MyEncoding(num_heads=config.num_heads)))
"""

import traceback
from dataclasses import dataclass
from pathlib import Path

from posenc.checks import check_flags
from posenc.conformance.checks import CHECKS, SLOW
from posenc.conformance.fixtures import DECODER, CheckFailed, EncodingUnderTest, Make, MakePositions, NotApplicable
from posenc.encoding import Encoding
from posenc.errors import InputError


@dataclass(frozen=True)
class Outcome:
    """Of one check. holds: None when it does not apply; reason: the refusal, or what failed; where: of an error, the last
    lines that it came through, the innermost first."""

    check: str
    holds: bool | None
    reason: str = ""
    where: str = ""

    def __str__(self) -> str:
        mark = {True: "holds", False: "FAILS", None: "does not apply"}[self.holds]
        return f"{self.check.replace('_', ' ')}: {mark}" + (
            f" ({'; '.join(filter(None, (self.reason, self.where)))})" if self.reason else ""
        )


@dataclass(frozen=True)
class Report:
    """Outcomes of all checks; prints as one line each."""

    outcomes: tuple[Outcome, ...]

    @property
    def passed(self) -> bool:
        return all(outcome.holds is not False for outcome in self.outcomes)

    def __str__(self) -> str:
        return "\n".join(map(str, self.outcomes))


def check(make: Make, *, positions: MakePositions | None = None, slow: bool = True) -> Report:
    """Run every check on an encoding, in small models on the CPU. The caller's random numbers stay as they are.

    make: given the config of the model that the encoding is put into (dim, num_heads, kv_heads, width, which is that of a
        head, num_layers), it returns the encoding. Give it arguments other than its defaults, which a spec that has lost
        them would bring back.
    positions: where tokens are, for an encoding of trees, grids or anything but text: from a number of tokens to the
        `Positions` of one document of so many. What is about text alone is then left out.
    slow: False leaves out compiling and exporting.

    Raises:
        InputError: make is no function, or does not return an encoding; positions that are not those of n tokens.
    """
    if isinstance(make, type | Encoding) or not callable(make):
        given = make.__name__ if isinstance(make, type) else f"a {type(make).__name__}"
        raise InputError(
            f"make={given}: pass a function from a model's config to an encoding, as in "
            "check(lambda config: posenc.Rotary(config.width))"
        )
    if positions is not None and not callable(positions):
        raise InputError(
            f"positions=a {type(positions).__name__}: pass a function from a number of tokens to their Positions, as in "
            "positions=lambda n: Positions.from_ids(my_ids(n))"
        )
    check_flags(slow=slow)
    tested = EncodingUnderTest(make, positions)
    tested.make_encoding(DECODER)  # what cannot be made, or has no positions, is reported once
    tested.document(2)
    return Report(tuple(run(name, tested) for name in CHECKS if slow or name not in SLOW))


def run(name: str, tested: EncodingUnderTest) -> Outcome:
    """One check by name; whatever it raises is its failure."""
    try:
        CHECKS[name](tested)
    except NotApplicable as reason:
        return Outcome(name, None, str(reason))
    except CheckFailed as failure:
        return Outcome(
            name, False, " ".join(str(failure).split()), "" if not failure.__cause__ else _where(failure.__cause__)
        )
    except Exception as error:
        notes = "; ".join(("", *getattr(error, "__notes__", ())))
        return Outcome(
            name, False, f"{type(error).__name__}: {' '.join(str(error).split())[:300]}{notes}", _where(error)
        )
    return Outcome(name, True)


FRAMES = 4


def _where(error: BaseException) -> str:
    """The last lines that an error came through, the innermost first."""
    frames = traceback.extract_tb(error.__traceback__)[-FRAMES:]
    return "at " + ", ".join(f"{Path(f.filename).name}:{f.lineno} in {f.name}" for f in reversed(frames))
