"""Holding implementations, posenc's own and others, against the authors' formulas."""
