# SPDX-License-Identifier: Apache-2.0
"""posenc list: what the table of the program does not answer by itself."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from posenc.cli.common import WithOutput
from posenc.errors import InputError
from posenc_cli.arguments import How


@dataclass(kw_only=True)
class List(WithOutput):
    """List encodings, RoPE scaling, position maps, methods and tasks, or show all about some of them."""

    examples: ClassVar = (
        "posenc list",
        "posenc list rope yarn",
        "posenc list --search 2d rope",
        "posenc list --acts-on bias",
        "posenc list --cite rope+alibi",
    )

    names: Annotated[
        tuple[str, ...], "show everything about these", How("NAME", flag="name", positional=True, names="name")
    ] = ()
    explain: Annotated[tuple[str, ...], "the same", How("NAME", names="name")] = ()
    cite: Annotated[
        str | None,
        "print the BibTeX of an encoding, or of several joined by +",
        How("NAME", code=True, names="encoding"),
    ] = None
    search: Annotated[
        tuple[str, ...], "only what has these words, or words that begin so, in its name, description, options or papers", How("WORD")
    ] = ()  # fmt: skip
    kind: Annotated[
        Literal["encodings", "patterns", "schedules", "position_maps", "methods", "tasks", "findings", "kinds"] | None,
        "only these",
    ] = None
    acts_on: Annotated[
        Literal["embed", "rotate", "rotate_values", "bias", "scores", "scale", "values", "gates", "modify", "augment", "sink", "restrict", "prefix_kv"]
        | None, "only encodings that change this part of attention", How("PART")
    ] = None  # fmt: skip

    def run(self) -> int:
        from posenc.encodings.catalogue import cite
        from posenc_cli.cached import table
        from posenc_cli.listing import listed

        if self.cite is not None:
            try:
                bibtex = cite(self.cite)
            except InputError as error:
                raise error.about(cite=self.cite) from None
            return self.emit({"name": self.cite, "bibtex": bibtex}, bibtex or f"{self.cite} has no paper")
        return self.emit(*listed(table(), self.names, self.search, self.kind, self.acts_on, self.explain))
