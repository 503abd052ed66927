# SPDX-License-Identifier: Apache-2.0
"""Two public test suites: `check` tests an encoding, `conform` compares a function of any package with golden vectors and
reports its fault."""

from posenc.conformance.checks import CHECKS
from posenc.conformance.diagnosis import Verdict, conform
from posenc.conformance.suite import Outcome, Report, check

__all__ = ["CHECKS", "Outcome", "Report", "Verdict", "check", "conform"]
