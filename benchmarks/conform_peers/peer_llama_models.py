"""llama-models: llama3.model, whose base and scaling are arguments of the table."""

from llama_models.llama3.model import apply_rotary_emb, precompute_freqs_cis

PACKAGE = "llama-models"


def rotary(x, positions, base):
    table = precompute_freqs_cis(x.shape[-1], int(positions.max()) + 1, base)[positions]
    rows = x.transpose(1, 2)
    return apply_rotary_emb(rows, rows, table)[0].transpose(1, 2)


CHECKS = [("precompute_freqs_cis, apply_rotary_emb", rotary, "rotary_interleaved")]
