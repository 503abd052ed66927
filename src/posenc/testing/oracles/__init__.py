# SPDX-License-Identifier: Apache-2.0
"""The one independent definition of each formula, straight from the papers and the authors' code, in PyTorch alone.

A module of formulas for each subject; nothing here is shared with the rest of posenc, so an error there cannot hide here. The
golden vectors, the conformance checks, the tests and the truth of the benchmarks are computed by these. They compute in the
dtype of the tensors that they are given, numbers in float64, and can be differentiated. Positional arguments of formulas
with golden vectors are those of the calling conventions (`posenc list --kind kinds`). Keyword-only arguments describe variants of a
formula: another published form, or a common fault (`posenc.conformance.faults`).
"""
