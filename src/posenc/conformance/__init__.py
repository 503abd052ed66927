# SPDX-License-Identifier: Apache-2.0
"""Checks for every encoding, importable by others: `check` runs them on an encoding of yours."""

from posenc.conformance.checks import CHECKS
from posenc.conformance.suite import Outcome, Report, check

__all__ = ["CHECKS", "Outcome", "Report", "check"]
