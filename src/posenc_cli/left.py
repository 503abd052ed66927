# SPDX-License-Identifier: Apache-2.0
"""What left posenc in this version, and what to use instead. Imports nothing."""

LEFT: dict[str, str] = {
    # the name as it is typed -> what to use instead: an instruction with a verb, without a full stop
    "fit": "extend by longrope with factors of your own; benchmarks/learned_stretch.py learns them on a text",
    "ms_poe": "run benchmarks/ms_poe.py, which extends a model by it",
    "band_scale": "run benchmarks/bands.py, which extends a model by it",
    "ape_generate": "call posenc.nbce_generate, or run benchmarks/ape.py",
    "nbce_steps": "call posenc.nbce_generate, whose answer has the context of each token",
    "resize": "read docs/vision-pretrained.md: timm and transformers interpolate position tables themselves",
    "--image-size": "read docs/vision-pretrained.md: timm and transformers interpolate position tables themselves",
    "--window-size": "build the model with timm.create_model(..., window_size=...), see docs/vision-pretrained.md",
}
"""Commands, flags, methods, tasks, encodings and names of Python that left: each answers with its line for this version."""


def instead(name: str) -> str | None:
    """What to use instead of a name that left, as a sentence; None for any other name."""
    return f"{name} left posenc: {LEFT[name]}" if name in LEFT else None
