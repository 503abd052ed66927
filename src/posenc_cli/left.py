# SPDX-License-Identifier: Apache-2.0
"""What left posenc in this version, and what to use instead. Imports nothing."""

LEFT: dict[str, str] = {
    # the name as it is typed -> what to use instead: an instruction with a verb, without a full stop
    "auto": "call posenc.choose(model, tokenizer, factor=...), or run posenc extend MODEL --method auto",
    "--minutes": "give --samples, the documents of each task",
    "--plan": "give the same --out, where measured cells are used again",
    "--track": "read results.json, which has every number, into your tracker",
    "--checkpoint-every": "run the same command again, which trains anew only what had not finished",
    "checkpoint_minutes": "call it again, which trains anew only what had not finished",
}
"""Commands, flags, methods, tasks, encodings and names of Python that left: each answers with its line for this version."""


def instead(name: str) -> str | None:
    """What to use instead of a name that left, as a sentence; None for any other name."""
    return f"{name} left posenc: {LEFT[name]}" if name in LEFT else None
