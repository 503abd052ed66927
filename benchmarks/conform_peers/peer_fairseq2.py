"""fairseq2: ALiBiAttentionBias. Its native extension needs a CUDA build of torch, so an empty module replaces it;
only the Python code is tested."""

import importlib

import torch
from shared import stand_in

stand_in("fairseq2n", "fairseq2n.bindings", "fairseq2n.bindings.data", "fairseq2n.bindings.data.string")
ALiBiAttentionBias = importlib.import_module("fairseq2.models.transformer").ALiBiAttentionBias

PACKAGE = "fairseq2"


def slopes(num_heads):
    return ALiBiAttentionBias(num_heads).create_bias_tensor(1, 2, torch.device("cpu"), torch.float32)[:, 0, 1]


CHECKS = [("ALiBiAttentionBias", slopes, "alibi")]
