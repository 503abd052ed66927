# SPDX-License-Identifier: Apache-2.0
"""The papers behind the encodings, as BibTeX."""

import re
from importlib.resources import files

from posenc.checks import checked
from posenc.encoding import Encoding
from posenc.encodings import lookup, parts, read_map


class Bibtex(str):
    """Text that a Python prompt shows as it is."""

    def __repr__(self) -> str:
        return str(self)


@checked
def cite(encoding: Encoding | type[Encoding] | str) -> Bibtex:
    """BibTeX of an encoding's papers, entries separated by blank lines; empty for one without a paper.

    encoding: an encoding, its class, or its name ("rope", or several joined by "+").

    Raises:
        InputError: an unknown name.
    """
    if isinstance(encoding, str):
        named = [read_map(part[1:]) if part.startswith("@") else lookup(part.split(":")[0]) for part in parts(encoding)]
        keys = tuple(dict.fromkeys(key for each in named for key in each.papers))
    else:
        keys = encoding.papers
    known = entries()
    return Bibtex("\n\n".join(known[key] for key in keys))


def entries() -> dict[str, str]:
    """Every BibTeX entry of papers.bib by key."""
    text = files("posenc").joinpath("papers.bib").read_text(encoding="utf-8")
    found = (entry.strip() for entry in re.split(r"\n(?=@)", text))
    return {match[1]: entry for entry in found if (match := re.match(r"@\w+\{([^,]+),", entry))}
