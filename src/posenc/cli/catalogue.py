# SPDX-License-Identifier: Apache-2.0
"""posenc list, posenc cite."""

from dataclasses import dataclass
from typing import Annotated

from posenc.cli.command import How
from posenc.cli.common import WithOutput


@dataclass(kw_only=True)
class List(WithOutput):
    """List every encoding, schedule, method and task: what it is, its paper, its options."""

    def run(self) -> int:
        from posenc.cli.listing import catalogue, table

        return self.emit(catalogue(), table())


@dataclass(kw_only=True)
class Cite(WithOutput):
    """Print the BibTeX entries of an encoding's papers."""

    encoding: Annotated[str, "an encoding, or several joined by +", How("NAME", flag="name", positional=True)]

    def run(self) -> int:
        from posenc.encodings.catalogue import cite

        bibtex = cite(self.encoding)
        text = bibtex or f"{self.encoding} has no paper of its own"
        return self.emit({"name": self.encoding, "bibtex": bibtex}, text)
