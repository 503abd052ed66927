"""torchtune: its two rotary modules, each file by itself (the package around them needs an older torchao)."""

from functools import cache

from bench.case import single_file
from shared import LONGEST, from_angles

PACKAGE = "torchtune"
rope = single_file("torchtune", "modules/position_embeddings.py")
llama = single_file("torchtune", "models/llama3_1/_position_embeddings.py")


@cache
def _module(dim, base):
    return rope.RotaryPositionalEmbeddings(dim, max_seq_len=LONGEST, base=base)


def rotary(x, positions, base):
    rows = _module(x.shape[-1], base)(x.transpose(1, 2), input_pos=positions.expand(len(x), -1))
    return rows.transpose(1, 2)


def llama3(head_dim, base, factor, original_max_positions, low_freq_factor=1, high_freq_factor=4):
    module = llama.Llama3ScaledRoPE(
        head_dim, 2, base, factor, low_freq_factor, high_freq_factor, old_context_len=original_max_positions
    )
    return from_angles(module.cache[1, :, 0], module.cache[1, :, 1])


CHECKS = [
    ("RotaryPositionalEmbeddings(max_seq_len=131072)", rotary, "rotary_interleaved"),
    ("Llama3ScaledRoPE", llama3, "llama3"),
]
