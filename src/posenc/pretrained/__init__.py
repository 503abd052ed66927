# SPDX-License-Identifier: Apache-2.0
"""Pretrained models of Hugging Face transformers: load them, make them longer or wider, measure and examine them.

    posenc.load(name) -> (model, tokenizer)
    posenc.doctor(model, tokenizer=None) -> Diagnosis
    posenc.extend(model, method, *, factor=None, target_length=None, **options) -> Extension
    posenc.resize(model, image_size, *, window_size=None, method=None) -> Resizing
    posenc.restore(model)
    posenc.finetune(model, text, tokenizer) -> Finetuning
    posenc.to_hf(model, directory, tokenizer=None) -> Export
    posenc.nbce_generate(model, tokenizer, contexts, question) -> Answer
    loss_by_position(model, ids) -> losses
    anatomy(model) -> Anatomy

Vision models, of timm too, are in `vision`.
Read `anatomy` (what a model is), `methods` (the table of methods), `extend` (what it does), `attach` (how), `masks` (who
sees whom); `patient`, `symptoms` and `doctor`; `verify` (losses before and after). Importing these needs torch alone; using
them needs transformers.
"""

from posenc.pretrained.anatomy import Anatomy, anatomy
from posenc.pretrained.load import load
from posenc.pretrained.loss import loss_by_position
from posenc.pretrained.nbce import nbce_generate, nbce_steps

__all__ = ["Anatomy", "anatomy", "load", "loss_by_position", "nbce_generate", "nbce_steps"]
