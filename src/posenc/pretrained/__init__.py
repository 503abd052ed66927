"""Pretrained models of Hugging Face transformers: load them, make them longer, measure and examine them.

    load(name) -> (model, tokenizer)
    anatomy(model) -> Anatomy
    extend(model, method, *, factor=None, target_length=None, **options) -> Extension
    restore(model) -> None
    hf_rope_parameters(anatomy, frequencies, length) -> dict
    loss_by_position(model, ids) -> losses
    doctor(model, tokenizer=None) -> Diagnosis
    nbce_generate(model, tokenizer, contexts, question) -> Answer
    to_hf(model, directory, tokenizer=None) -> Export

Read `anatomy` (what a model is), `methods` (the table of methods), `extend` (what it does), `attach` (how), `masks` (who
sees whom). Importing these needs torch alone; using them needs transformers.
"""

from posenc.pretrained.anatomy import Anatomy, anatomy
from posenc.pretrained.load import load
from posenc.pretrained.loss import loss_by_position
from posenc.pretrained.nbce import nbce_generate, nbce_steps

__all__ = ["Anatomy", "anatomy", "load", "loss_by_position", "nbce_generate", "nbce_steps"]
