# SPDX-License-Identifier: Apache-2.0
"""RoPE's frequency schedules: pure functions of numbers, float64, no configuration object and no hidden state.

A schedule is a function of head_dim, base and its own options, or the same as data, {"name": "yarn", "factor": 4.0,
"original_max_positions": 8192}, which encodings store and `create` computes.
"""

from posenc.frequencies import create_schedule, schedules
from posenc.frequencies.create_schedule import *  # noqa: F403
from posenc.frequencies.schedules import *  # noqa: F403 - its __all__ names every schedule, once

__all__ = create_schedule.__all__ + schedules.__all__
