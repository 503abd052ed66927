# SPDX-License-Identifier: Apache-2.0
"""Attention under an encoding, by the fastest backend that computes it exactly."""

from posenc.attention.attend import Explanation, attention, explain
from posenc.attention.call import Call, prepare
from posenc.attention.linear import elu_plus_one, linear_attention

__all__ = ["Call", "Explanation", "attention", "elu_plus_one", "explain", "linear_attention", "prepare"]
