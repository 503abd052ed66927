"""attention-gym: generate_alibi_bias, a score_mod; the slope is what one position of distance takes off."""

import torch
from attn_gym.mods import generate_alibi_bias

PACKAGE = "attn-gym"


def slopes(num_heads):
    mod = generate_alibi_bias(num_heads)
    return [-float(mod(0.0, 0, torch.tensor(head), 1, 0)) for head in range(num_heads)]


CHECKS = [("generate_alibi_bias", slopes, "alibi")]
