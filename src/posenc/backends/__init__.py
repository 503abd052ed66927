# SPDX-License-Identifier: Apache-2.0
"""Ways to compute attention. All agree; each says what it cannot serve."""

from posenc.backends.choose import AUTO, BACKENDS, by_speed
from posenc.backends.problem import Backend, Plan, Problem

__all__ = ["AUTO", "BACKENDS", "Backend", "Plan", "Problem", "by_speed"]
