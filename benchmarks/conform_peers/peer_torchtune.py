"""torchtune: its two rotary modules, each file by itself (the package around them needs an older torchao)."""

from shared import from_angles, single_file

PACKAGE = "torchtune"
rope = single_file("torchtune", "modules/position_embeddings.py")
llama = single_file("torchtune", "models/llama3_1/_position_embeddings.py")


def rotary(x, positions, base):
    module = rope.RotaryPositionalEmbeddings(x.shape[-1], max_seq_len=131072, base=base)
    return module(x.transpose(1, 2), input_pos=positions[None]).transpose(1, 2)


def rotary_default_length(x, positions, base):
    module = rope.RotaryPositionalEmbeddings(x.shape[-1], base=base)
    return module(x.transpose(1, 2), input_pos=positions[None]).transpose(1, 2)


def llama3(head_dim, base, factor, original_max_positions, low_freq_factor=1, high_freq_factor=4):
    module = llama.Llama3ScaledRoPE(
        head_dim, 2, base, factor, low_freq_factor, high_freq_factor, old_context_len=original_max_positions
    )
    return from_angles(module.cache[1, :, 0], module.cache[1, :, 1])


CHECKS = [
    ("RotaryPositionalEmbeddings(max_seq_len=131072)", rotary, "rotary_interleaved"),
    ("RotaryPositionalEmbeddings, default max_seq_len", rotary_default_length, "rotary_interleaved"),
    ("Llama3ScaledRoPE", llama3, "llama3"),
]
