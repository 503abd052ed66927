"""What tests share: calls, small models, files, tokenizers, other programs. Formulas are in `posenc.testing.oracles`."""

PATIENCE = 1200
"""Seconds after which a process counts as hanging; a slow or busy machine must not come near."""
