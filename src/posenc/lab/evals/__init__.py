# SPDX-License-Identifier: Apache-2.0
"""What a model finds in a long text, by length, depth and method, and where it looks while it does. The way through:
config, study, reader, results."""
