"""Pretrained models of Hugging Face transformers: load, extend, examine, measure."""

from posenc.pretrained.loss import loss_by_position

__all__ = ["loss_by_position"]
