"""Every encoding as a row of a table, from what the classes declare."""

from typing import Any

from posenc.bibliography import entries
from posenc.encodings import ENCODINGS, create

SHAPE = {"dim": 64, "num_heads": 4, "max_positions": 512, "causal": True}
"""A model in which each encoding is made once, to see whether it learns anything."""


def rows() -> list[dict[str, Any]]:
    """name, class, where it acts, whether it learns, what its source claims past the training length, papers, summary."""
    papers = entries()
    found = []
    for name, cls in ENCODINGS.items():
        made = create(name, **SHAPE)  # type: ignore[arg-type]
        found.append(
            {
                "name": name,
                "class": cls.__name__,
                "acts_on": list(cls.sites()),
                "learned": any(True for _ in made.parameters()),
                "shift_invariant": bool(made.shift_invariant),
                "extrapolates": cls.extrapolates,
                "arguments": {n: None if p.default is p.empty else p.default for n, p in cls.arguments().items()},
                "papers": [_short(papers[key]) for key in cls.papers],
                "summary": " ".join((cls.__doc__ or "").split("\n\n")[0].split()),
            }
        )
    return found


def table() -> str:
    """The rows as text, one line each."""
    head = ("name", "acts on", "learned", "past the training length, its source says", "paper")
    body = [
        (
            row["name"],
            ", ".join(row["acts_on"]) or "nothing",
            "yes" if row["learned"] else "no",
            row["extrapolates"],
            "; ".join(row["papers"]) or "none",
        )
        for row in rows()
    ]
    widths = [max(len(line[i]) for line in (head, *body)) for i in range(len(head))]
    return "\n".join(
        "  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)).rstrip() for line in (head, *body)
    )


def _short(entry: str) -> str:
    """First author, year and arXiv number of a BibTeX entry."""
    fields = {
        key.strip(): value.strip().strip("{},") for key, _, value in (x.partition("=") for x in entry.splitlines())
    }
    return f"{fields['author'].split(',')[0].strip('{')} {fields['year']}, arXiv {fields['eprint']}"
