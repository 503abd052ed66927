# SPDX-License-Identifier: Apache-2.0
"""The lab: train the same small Transformer under each encoding, test it past its training length, and say how sure
one can be. The way through: config -> data -> train -> evaluate -> measure -> sweep ->
store -> results."""
