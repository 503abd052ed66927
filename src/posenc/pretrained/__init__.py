"""Pretrained models made longer, in place and undoably.

    posenc.extend(model, method, *, factor=None, target_length=None, **options) -> Extension
    posenc.restore(model)
    anatomy(model) -> Anatomy

Read `anatomy` (what a model is), `methods` (the table of methods), `extend` (what it does), `attach` (how), `masks` (who
sees whom). Importing these needs torch alone; using them needs transformers.
"""

from posenc.pretrained.anatomy import Anatomy, anatomy

__all__ = ["Anatomy", "anatomy"]
