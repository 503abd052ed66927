# SPDX-License-Identifier: Apache-2.0
"""posenc conform."""

import os
from dataclasses import dataclass
from typing import Annotated

from posenc.cli.command import How
from posenc.cli.common import DONE, FAILED, NOT_RUN, WithOutput


@dataclass(kw_only=True)
class Conform(WithOutput):
    """Check your implementation against the authors' formulas, and say what is wrong with it."""

    function: Annotated[
        str,
        "the function to test; MODULE may be a path to a .py file",
        How("MODULE:FUNCTION", positional=True, code=True),
    ]
    kind: Annotated[str, "what it implements (below)", How("KIND", flag="as")]

    @classmethod
    def epilog(cls) -> str:
        from posenc.conformance.kinds import conventions

        return (
            f"{conventions()}\n\nArguments are passed by name where the function has these names, the rest in order to the"
            "\nremaining parameters. Arrays are passed as torch tensors; tensors, numpy arrays and lists may be returned."
            "\nExit code 0: it conforms, 1: it does not, 3: it could not be run."
        )

    def run(self) -> int:
        from posenc.conformance.diagnosis import conform
        from posenc.conformance.kinds import get_kind
        from posenc.spec import load_function, printing_to_stderr

        get_kind(self.kind)
        if self.out:
            self.out = os.path.abspath(self.out)  # the tested code may change the folder
        with printing_to_stderr():  # what the tested code prints goes to stderr
            verdict = conform(load_function(self.function, may_import=True), self.kind)
        self.emit({"function": self.function, **verdict.to_dict()}, f"{self.function} as {verdict}")
        return NOT_RUN if verdict.passed is None else DONE if verdict.passed else FAILED
