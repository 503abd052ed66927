"""The papers' formulas, entry by entry in float64: slow, obvious, and independent of the library."""

PATIENCE = 1200
"""Seconds after which a process counts as hanging; a slow or busy machine must not come near."""
