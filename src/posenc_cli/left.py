# SPDX-License-Identifier: Apache-2.0
"""What left posenc in this version, and what to use instead. Imports nothing."""

LEFT: dict[str, str] = {
    "accept": "verify drafts as examples/draft_tree.py does, and crop the cache",
    "compile_rotary": "call torch.compile(posenc.functional.rotary)",
    "frequencies.diff": "call posenc.analysis.diff",
    "multimodal": "call posenc.pretrained.multimodal",
    "ring": "shard the positions, and keys are gathered",
    "solver": "leave it out: FLOATER has rk4 alone, and more substeps are nearer to the exact flow",
    "with_tree": "make the positions as examples/draft_tree.py does",
    # the name as it is typed -> what to use instead: an instruction with a verb, without a full stop
}
"""Commands, flags, methods, tasks, encodings and names of Python that left: each answers with its line for this version."""


def instead(name: str) -> str | None:
    """What to use instead of a name that left, as a sentence; None for any other name."""
    return f"{name} left posenc: {LEFT[name]}" if name in LEFT else None
