# SPDX-License-Identifier: Apache-2.0
"""The page of all encodings in the docs: what the code declares about each, and what holds for it.

python -m posenc.conformance.matrix > docs/encodings.md
"""

from posenc.conformance import serves
from posenc.conformance.checks import CHECKS, Make, Subject
from posenc.conformance.suite import run
from posenc.encoding import Encoding
from posenc.encodings import ENCODINGS, create
from posenc.encodings.catalogue import rows
from posenc.transformer import TransformerConfig

MAX_POSITIONS = 40
CHECKED_AS = {
    "log_n": "log_n:train_length=4", "temperature": "temperature:beta=1.5", "step_temperature": "step_temperature:train_length=3",
}  # fmt: skip
"""What does nothing up to its training length is checked past it."""
COLUMNS = {
    "position_matters": "order as declared", "backends_agree": "backends agree", "calls_do_not_remember": "calls do not remember",
    "no_graph_is_kept": "no graph is kept", "cached_is_full": "cached = full",
    "ragged_cache": "ragged cache", "generates_alike": "generation", "padded_is_unpadded": "padded = unpadded",
    "packed_is_separate": "packed = separate", "images_are_separate": "images packed = separate", "rows_do_not_meet": "batch rows", "shards_are_whole": "shards = whole", "shift_invariant_as_declared": "shift as declared",
    "gradients_arrive": "gradients arrive", "gradients_are_right": "gradcheck", "inference_then_training": "inference, then training",
    "copies_are_equal": "copies", "state_and_spec_bring_it_back": "state and spec", "random_numbers_are_the_callers": "random numbers", "meta_is_normal": "meta device",
    "bfloat16_stays_near": "bfloat16", "compiled_is_eager": "compiled", "exported_is_eager": "exported",
}  # fmt: skip
"""Check -> the head of its column."""
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


def holds() -> list[str]:
    """Every check on every encoding, as lines of Markdown. Takes minutes."""
    lines = [_line(("", *COLUMNS.values())), "|---" * (len(COLUMNS) + 1) + "|"]
    for name in ENCODINGS:
        subject = Subject(named(name))
        lines.append(_line((f"`{name}`", *(MARKS[run(check, subject).holds] for check in COLUMNS))))
    return lines


def page() -> str:
    """The whole page."""
    checks = [f"- **{head}**: {' '.join((CHECKS[check].__doc__ or '').split())}" for check, head in COLUMNS.items()]
    return "\n".join(
        [
            "# The encodings",
            "",
            "Made by `python -m posenc.conformance.matrix` from what the code declares and from running every check. Every one is "
            "held against its formula, written as a loop over numbers in float64, and against what the column *equal to* names. "
            "What each does, and its arguments, stand in its class's docstring: `help(posenc.Rotary)`.",
            "",
            *declared(),
            "",
            "## What holds for each",
            "",
            "Each in a small decoder (with grouped-query heads) and encoder, in float64 unless the check is about another dtype. "
            "✓ holds · – does not apply, and is refused: codes that depend on the final length cannot be cached, and not every encoding has places in an image · ✗ fails. "
            "`posenc.conformance.check` runs the same on an encoding of yours.",
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
