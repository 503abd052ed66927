# SPDX-License-Identifier: Apache-2.0
"""Pretrained models of Hugging Face transformers: load them, make them longer, measure and examine them.

    posenc.load(name) -> (model, tokenizer)                        load.py
    posenc.extend(model, "yarn", factor=4) -> Extension            extend.py     longer inputs, in place
    posenc.restore(model)                                                        undoes it
    posenc.to_hf(model, directory) -> Export                       export.py     what plain transformers, vLLM, llama.cpp load
    posenc.finetune(model, text, tokenizer) -> Finetuning          finetune.py   at the new length, resumable
    posenc.doctor(model) -> Diagnosis                              doctor.py     and findings.toml, their remedies
    posenc.nbce_generate(model, tokenizer, contexts, question)     nbce.py       many contexts in parallel
    multimodal(parts) -> Positions                                 multimodal_positions.py   text with images and videos
    posenc.hf.register()                                           hf.py         transformers' models with any encoding
    posenc.re_rotate, posenc.convert_layout                        convert.py    cached keys, weights
    loss_by_position(model, ids) -> losses                         inference.py  and verify.py, before and after
    model_structure(model) -> ModelStructure                       models.py     what is rotary, where

How `extend` works, in reading order: `models` (what a model is), `methods` (the table of methods), `extend` (the plan),
`attach` (what is exchanged in a model), `changes` (and exchanged back) and `masks` (who sees whom), `learned_table` (BERT's
kind), `rope_config` (the same as a configuration of transformers). `lm_eval` has our tasks for lm-evaluation-harness.
Importing these needs torch alone; using them needs transformers.
"""

from posenc.pretrained.inference import loss_by_position
from posenc.pretrained.load import load
from posenc.pretrained.models import ModelStructure, model_structure
from posenc.pretrained.multimodal_positions import multimodal
from posenc.pretrained.nbce import nbce_generate

__all__ = ["ModelStructure", "load", "loss_by_position", "model_structure", "multimodal", "nbce_generate"]
