# SPDX-License-Identifier: Apache-2.0
"""Two test suites that others can import: `check` runs the checks of every encoding on one; `conform` compares a function
of a package with golden vectors, and names its fault."""

from posenc.conformance.checks import CHECKS
from posenc.conformance.diagnosis import Verdict, conform
from posenc.conformance.suite import Outcome, Report, check

__all__ = ["CHECKS", "Outcome", "Report", "Verdict", "check", "conform"]
