"""The papers' formulas, entry by entry in float64: slow, obvious, and independent of the library."""
