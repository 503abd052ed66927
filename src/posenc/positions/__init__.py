# SPDX-License-Identifier: Apache-2.0
"""Positions of tokens, and which keys each query sees: `Positions`, and the pure functions and small types behind it."""

from posenc.positions.positions import Positions
from posenc.positions.visibility import EVERYTHING, Branch, Region

__all__ = ["EVERYTHING", "Branch", "Positions", "Region"]
