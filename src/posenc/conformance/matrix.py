"""The conformance table of the docs, made by running every check on every encoding:

python -m posenc.conformance.matrix > docs/encodings.md
"""

from posenc.conformance.suite import CHECKS, Make, Outcome, Subject, run
from posenc.encoding import Encoding
from posenc.encodings import ENCODINGS, create
from posenc.listing import rows
from posenc.transformer import TransformerConfig

MAX_POSITIONS = 40
CHECKED_AS = {"log_n": "log_n:train_length=4"}
"""What does nothing up to its training length is checked past it."""
COLUMNS = {
    "position_matters": "order is seen", "backends_agree": "backends agree", "cached_is_full": "cached = full",
    "ragged_cache": "ragged cache", "generates_alike": "generation", "padded_is_unpadded": "padded = unpadded",
    "packed_is_separate": "packed = separate", "rows_do_not_meet": "batch rows", "shift_invariant_as_declared": "shift as declared",
    "gradients_arrive": "gradients arrive", "gradients_are_right": "gradcheck", "inference_then_training": "inference, then training",
    "copies_are_equal": "copies", "state_and_spec_bring_it_back": "state and spec", "meta_is_normal": "meta device",
    "bfloat16_stays_near": "bfloat16", "compiled_is_eager": "compiled", "exported_is_eager": "exported",
}  # fmt: skip
"""Check -> the head of its column."""


def named(name: str) -> Make:
    """How `create` makes the encoding of a name for a small model, with short tables."""

    def make(config: TransformerConfig) -> Encoding:
        return create(
            CHECKED_AS.get(name, name), dim=config.dim, num_heads=config.num_heads, head_dim=config.width,
            num_kv_heads=config.kv_heads, num_layers=config.num_layers, max_positions=MAX_POSITIONS, causal=config.causal,
        )  # fmt: skip

    return make


def outcomes(name: str) -> list[Outcome]:
    """Every check on one encoding, in the order of COLUMNS."""
    subject = Subject(named(name))
    return [run(check, subject) for check in COLUMNS]


def page() -> str:
    """The whole page, in Markdown. Takes minutes: every check runs."""
    found = rows()
    marks = {True: "✓", False: "✗", None: "–"}
    lines = [
        "# The encodings",
        "",
        "Made by `python -m posenc.conformance.matrix` from what the code declares and from running every check.",
        "",
        "| name | class | acts on | options | learned | past the training length, its source says | equal to | paper |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in found:
        cells = [
            f"`{row['name']}`", f"`{row['class']}`", ", ".join(row["acts_on"]) or "nothing",
            ", ".join(f"`{option}`" for option in row["options"]), "yes" if row["learned"] else "no",
            row["extrapolates"], row["equal_to"], "; ".join(row["papers"]),
        ]  # fmt: skip
        lines.append("| " + " | ".join(cells) + " |")
    lines += [
        "",
        "## What holds for each",
        "",
        "Each encoding in a small decoder and encoder with grouped-query heads, in float64 unless the check is about another "
        "dtype; `posenc.conformance.check` runs the same on an encoding of yours. "
        "✓ holds · – does not apply, and is refused (codes that depend on the final length cannot be cached) · ✗ fails.",
        "",
        "| | " + " | ".join(COLUMNS.values()) + " |",
        "|---" * (len(COLUMNS) + 1) + "|",
    ]
    for name in ENCODINGS:
        lines.append(f"| `{name}` | " + " | ".join(marks[outcome.holds] for outcome in outcomes(name)) + " |")
    lines += ["", "The checks:", ""]
    for check, head in COLUMNS.items():
        lines.append(f"- **{head}**: {' '.join((CHECKS[check].__doc__ or '').split())}")
    return "\n".join(lines)


if __name__ == "__main__":
    print(page())
