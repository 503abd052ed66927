# SPDX-License-Identifier: Apache-2.0
"""What an encoding may add to the attention scores, as structures (structures.py) that reduce to a few kinds of terms (terms.py)."""

from posenc.bias import structures
from posenc.bias.structures import *  # noqa: F403

__all__ = structures.__all__
