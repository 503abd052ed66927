# SPDX-License-Identifier: Apache-2.0
"""The page of all encodings in the docs: what the code declares about each, and which checks hold.

python -m posenc.conformance.matrix > docs/encodings.md
"""

from posenc.conformance import serves
from posenc.conformance.checks import CHECKS
from posenc.conformance.fixtures import EncodingUnderTest, Make
from posenc.conformance.suite import run
from posenc.encoding import Encoding
from posenc.encodings import ENCODINGS, create
from posenc.encodings.catalogue import rows
from posenc.transformer import TransformerConfig

MAX_POSITIONS = 40
CHECKED_AS = {
    "log_n": "log_n:train_length=4", "temperature": "temperature:beta=1.5", "step_temperature": "step_temperature:train_length=3",
    "window": "window:before=2",
}  # fmt: skip
"""What has no effect on short texts, such as a schedule up to its training length, is checked where it has."""
MARKS: dict[bool | None, str] = {True: "✓", False: "✗", None: "–"}


def named(name: str) -> Make:
    """How `create` makes the encoding of a name for a small model, with short tables."""

    def make(config: TransformerConfig) -> Encoding:
        return create(
            CHECKED_AS.get(name, name), dim=config.dim, num_heads=config.num_heads, head_dim=config.width,
            num_kv_heads=config.kv_heads, num_layers=config.num_layers, max_positions=MAX_POSITIONS, causal=config.causal,
        )  # fmt: skip

    return make


def declared() -> list[str]:
    """What each encoding is, as lines of Markdown."""
    lines = [
        "| name | class | acts on | options | learned | past the training length, its source says | equal to | source |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows():
        cells = (
            f"`{row['name']}`", f"`{row['class']}`", ", ".join(row["acts_on"]) or "nothing",
            " ".join(f"`{option}`" for option in row["options"]), "yes" if row["learned"] else "no",
            row["extrapolates"], row["equal_to"], "; ".join(row["papers"]) or "none",
        )  # fmt: skip
        lines.append(_line(cells))
    return lines


def header() -> list[str]:
    """The table's head, with the names of the checks."""
    return [_line(("", *(check.replace("_", " ") for check in CHECKS))), "|---" * (len(CHECKS) + 1) + "|"]


def holds() -> list[str]:
    """Every check on every encoding, as lines of Markdown. Takes minutes."""
    lines = header()
    for name in ENCODINGS:
        tested = EncodingUnderTest(named(name))
        lines.append(_line((f"`{name}`", *(MARKS[run(check, tested).holds] for check in CHECKS))))
    return lines


def page() -> str:
    """The complete page."""
    checks = [f"- **{name.replace('_', ' ')}**: {' '.join((f.__doc__ or '').split())}" for name, f in CHECKS.items()]
    return "\n".join(
        [
            "# The encodings",
            "",
            "Made by `python -m posenc.conformance.matrix` from what the code declares and from running every check. Every one is "
            "compared with its formula, written as a loop over numbers in float64, and with what the column *equal to* names. "
            "Its class's docstring says what each does, and describes its arguments: `help(posenc.Rotary)`.",
            "",
            *declared(),
            "",
            "## What holds for each",
            "",
            "Each in a small decoder (with grouped-query heads) and encoder, in float64 unless the check is about another dtype. "
            "✓ holds · – does not apply, and is refused: codes that depend on the final length cannot be cached, and not every encoding has positions in an image · ✗ fails. "
            "`posenc.conformance.check` runs the same on any other encoding.",
            "",
            *holds(),
            "",
            "The checks:",
            "",
            *checks,
            "",
            "## What each backend must serve",
            "",
            "On the CPU; a call that is made of nothing else may not be refused, and *backends agree* fails where it is. `sdpa` may "
            f"refuse `Values` together with one of: {', '.join(serves.NOT_WITH_VALUES)}. `triton` is tested in its interpreter.",
            "",
            *serves.table(),
            "",
        ]
    )


def _line(cells: tuple[str, ...]) -> str:
    return "| " + " | ".join(cells) + " |"


if __name__ == "__main__":
    print(page(), end="")
