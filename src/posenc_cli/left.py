# SPDX-License-Identifier: Apache-2.0
"""What left posenc in this version, and what to use instead. Imports nothing."""

LEFT: dict[str, str] = {
    # the name as it is typed -> what to use instead: an instruction with a verb, without a full stop
    "to_gguf": "convert the model with llama.cpp's convert_hf_to_gguf.py, and extend that file by posenc extend FILE.gguf --gguf NEW.gguf",
}
"""Commands, flags, methods, tasks, encodings and names of Python that left: each answers with its line for this version."""


def instead(name: str) -> str | None:
    """What to use instead of a name that left, as a sentence; None for any other name."""
    return f"{name} left posenc: {LEFT[name]}" if name in LEFT else None
