"""labml-nn: the annotated rotary embeddings and ALiBi."""

from functools import cache

from labml_nn.transformers.alibi import get_slopes
from labml_nn.transformers.positional_encoding import get_positional_encoding
from labml_nn.transformers.rope import RotaryPositionalEmbeddings
from shared import at_positions

PACKAGE = "labml-nn"


_module = cache(RotaryPositionalEmbeddings)


def rotary(x, positions, base):
    module = _module(x.shape[-1], base)
    return at_positions(lambda full: module(full.permute(2, 0, 1, 3)).permute(1, 2, 0, 3), x, positions)


def rotary_partial(x, positions, base, rotary_dim):
    module = _module(rotary_dim, base)
    return at_positions(lambda full: module(full.permute(2, 0, 1, 3)).permute(1, 2, 0, 3), x, positions)


def sinusoidal(positions, dim, base):
    if base != 10000:
        raise NotImplementedError
    return get_positional_encoding(dim, int(positions.max()) + 1)[positions, 0]


CHECKS = [
    ("RotaryPositionalEmbeddings", rotary, "rotary"),
    ("RotaryPositionalEmbeddings(rotary_dim)", rotary_partial, "rotary_partial"),
    ("get_positional_encoding", sinusoidal, "sinusoidal"),
    ("get_slopes", get_slopes, "alibi"),
]
