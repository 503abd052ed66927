# SPDX-License-Identifier: Apache-2.0
"""Speed and memory against peers: same weights, same inputs, outputs checked before timing, ratios inside a round."""
