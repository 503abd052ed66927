"""Pretrained models made longer, in place and undoably.

    anatomy(model) -> Anatomy
    extend(model, method, *, factor=None, target_length=None, **options) -> Extension
    restore(model) -> None
    hf_rope_parameters(anatomy, frequencies, length) -> dict

`anatomy` needs torch alone; the others import transformers when called.
"""

from posenc.pretrained.anatomy import Anatomy, anatomy

__all__ = ["Anatomy", "anatomy"]
