# SPDX-License-Identifier: Apache-2.0
"""The contract: what position may do to attention, and how encodings compose."""

from posenc.encoding.composites import Composite, PerLayer, Sum
from posenc.encoding.declared import HeadRange, Size
from posenc.encoding.effects import (
    NOTHING,
    Acting,
    Effects,
    Gates,
    Rotation,
    augmented_by,
    checked_gates,
    gates_of,
    parameters_of,
    require_fit,
    require_positions,
    require_values,
    swapped,
)
from posenc.encoding.encoding import HOOKS, SITES, Encoding, Projections
from posenc.encoding.passes import Pass

__all__ = [
    "HOOKS", "NOTHING", "SITES", "Acting", "Composite", "Effects", "Encoding", "Gates", "HeadRange", "Pass", "PerLayer", "Projections", "Rotation",
    "Size", "Sum", "augmented_by", "checked_gates", "gates_of", "parameters_of", "require_fit", "require_positions", "require_values", "swapped",
]  # fmt: skip
