"""Pretrained models of Hugging Face transformers: load, extend, examine, measure."""

from posenc.pretrained.load import load
from posenc.pretrained.loss import loss_by_position
from posenc.pretrained.nbce import nbce_generate, nbce_steps

__all__ = ["load", "loss_by_position", "nbce_generate", "nbce_steps"]
