# SPDX-License-Identifier: Apache-2.0
"""What must hold for every encoding, ours or yours:

from posenc.conformance import check
print(check(lambda config: MyEncoding(num_heads=config.num_heads)))
"""

from dataclasses import dataclass

from posenc.checks import checked
from posenc.conformance.checks import CHECKS, DECODER, SLOW, Fails, Inapplicable, Make, Subject
from posenc.encoding import Encoding
from posenc.errors import InputError


@dataclass(frozen=True)
class Outcome:
    """Of one check. holds: None when it does not apply; reason says why not, or what failed."""

    check: str
    holds: bool | None
    reason: str = ""

    def __str__(self) -> str:
        mark = {True: "holds", False: "FAILS", None: "does not apply"}[self.holds]
        return f"{self.check.replace('_', ' ')}: {mark}" + (f" ({self.reason})" if self.reason else "")


@dataclass(frozen=True)
class Report:
    """Outcomes of all checks; prints as one line each."""

    outcomes: tuple[Outcome, ...]

    @property
    def passed(self) -> bool:
        return all(outcome.holds is not False for outcome in self.outcomes)

    def __str__(self) -> str:
        return "\n".join(map(str, self.outcomes))


@checked
def check(make: Make, *, slow: bool = True) -> Report:
    """Run every check on an encoding. make is given the config of the small model it is put into (dim, num_heads,
    kv_heads, width, which is that of a head, num_layers) and returns the encoding; slow=False leaves out compiling and
    exporting."""
    if isinstance(make, type | Encoding):
        raise InputError(
            f"make={make!r}: pass a function from a model's config to an encoding, as in "
            "check(lambda config: posenc.Rotary(config.width))"
        )
    subject = Subject(make)
    subject.encoding(DECODER)  # what cannot be made is said once
    return Report(tuple(run(name, subject) for name in CHECKS if slow or name not in SLOW))


def run(name: str, subject: Subject) -> Outcome:
    """One check by name; whatever it raises is its failure."""
    try:
        CHECKS[name](subject)
    except Inapplicable as reason:
        return Outcome(name, None, str(reason))
    except Exception as error:
        text = " ".join(str(error).split())
        return Outcome(name, False, f"{type(error).__name__}: {text[:300]}" if not isinstance(error, Fails) else text)
    return Outcome(name, True)
