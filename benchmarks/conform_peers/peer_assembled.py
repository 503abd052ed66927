"""Relative shifts, index tables, codes of grids and chunk masks of packages for speech, vision, medicine and biology. Each
function is compiled from its file (`taken`), so that their many requirements are not needed."""

import collections.abc
from itertools import repeat
from types import SimpleNamespace

import torch
from shared import biased, taken

SPEECH = "espnet/nets/pytorch_backend/transformer/attention.py"
FUNASR = "funasr/models/transformer/attention.py"


def method(package, file, name, **options):
    """A method of an object with these attributes."""
    function = taken(package, file, name)
    return lambda x, *given, **named: function(SimpleNamespace(**options), x, *given, **named)


def cut(shift):
    """A shift whose caller cuts off the columns beyond the keys."""
    return lambda scores: shift(scores)[..., : scores.shape[-1] - scores.shape[-2] + 1]


def with_left_context(shift):
    return lambda scores: shift(scores, left_context=scores.shape[-1] - 2 * scores.shape[-2] + 1)


def legacy(shift):
    """A shift that an encoder uses with a table of distances to the past alone, up to the first token."""

    def relative(q, table, num_keys):
        far = len(table) // 2
        return shift(q @ table[(torch.arange(num_keys) - num_keys + 1).clamp(min=-far) + far].T)

    return relative


def seen(mask):
    """A chunk mask that is true where hidden, of (size, chunk_size, left chunks)."""
    return lambda size, chunk, left_chunks: ~mask(size, chunk, left_chunks)


speechbrain_mask = taken(
    "speechbrain", "speechbrain/lobes/models/transformer/TransformerASR.py", "make_transformer_src_mask"
)


def speechbrain_chunks(size, chunk, left_chunks):
    config = SimpleNamespace(chunk_size=chunk, left_context_size=left_chunks, is_infinite_left_context=lambda: False)
    return ~speechbrain_mask(torch.zeros(1, size), dynchunktrain_config=config)


def meshgrid(*axes):
    return torch.meshgrid(*axes, indexing="ij")


mmpretrain_grid = taken(
    "mmpretrain",
    "mmpretrain/models/utils/position_encoding.py",
    "build_2d_sincos_position_embedding",
    torch_meshgrid=meshgrid,
)
monai_grid = taken(
    "monai", "monai/networks/blocks/pos_embed_utils.py", "build_sincos_position_embedding",
    _ntuple=lambda n: lambda x: tuple(x) if isinstance(x, collections.abc.Iterable) else tuple(repeat(x, n)),
)  # fmt: skip
kornia_grid = taken("kornia", "kornia/models/rt_detr/architecture/hybrid_encoder.py", "AIFI.build_2d_sincos_pos_emb")
step_sequence = taken("mmpretrain", "mmpretrain/models/utils/attention.py", "WindowMSA.double_step_seq")
espnet_index = method("espnet", "espnet2/enh/layers/swin_transformer.py", "WindowAttention.get_relative_position_index")


def mmpretrain_index(height, width):
    """As WindowMSA.__init__ has it."""
    coordinates = step_sequence(2 * width - 1, height, 1, width)
    return (coordinates + coordinates.T).flip(1)


distances = taken("swin-transformer-pytorch", "swin_transformer_pytorch/swin_transformer.py", "get_relative_distances")


def two_axes_index(height, width):
    """As WindowAttention.__init__ has it: a table of two axes."""
    if height != width:
        raise NotImplementedError
    rows, columns = (distances(width) + width - 1).unbind(-1)
    return rows * (2 * width - 1) + columns


naive = taken(
    "fla-core", "fla/ops/forgetting_attn/naive.py", "naive_forgetting_attn", F=torch.nn.functional,
    rearrange=__import__("einops").rearrange, repeat=__import__("einops").repeat,
)  # fmt: skip


def forgetting(log_gates):
    batch, heads, seq = log_gates.shape
    zeros, gates = torch.zeros(batch, seq, heads, seq), log_gates.transpose(1, 2)
    values = torch.eye(seq)[None, :, None].expand(batch, -1, heads, -1)
    return biased(lambda eye: naive(zeros, zeros, values, gates).transpose(1, 2), seq)


PACKAGES = {
    "espnet": [
        ("RelPositionMultiHeadedAttention.rel_shift", method("espnet", SPEECH, "RelPositionMultiHeadedAttention.rel_shift", zero_triu=False), "relative_shift"),
        ("LegacyRelPositionMultiHeadedAttention.rel_shift", method("espnet", SPEECH, "LegacyRelPositionMultiHeadedAttention.rel_shift", zero_triu=False), "relative_shift_causal"),
        ("LegacyRelPositionMultiHeadedAttention.rel_shift in an encoder", legacy(method("espnet", SPEECH, "LegacyRelPositionMultiHeadedAttention.rel_shift", zero_triu=False)), "relative"),
        ("asr_transducer RelPositionMultiHeadedAttention.rel_shift(left_context)", with_left_context(method("espnet", "espnet2/asr_transducer/encoder/modules/attention.py", "RelPositionMultiHeadedAttention.rel_shift")), "relative_shift"),
        ("asr_transducer make_chunk_mask", seen(taken("espnet", "espnet2/asr_transducer/utils.py", "make_chunk_mask")), "mask_streaming"),
        ("WindowAttention.get_relative_position_index", espnet_index, "relative_index"),
    ],
    "speechbrain": [
        ("RelPosMHAXL.rel_shift", method("speechbrain", "speechbrain/nnet/attention.py", "RelPosMHAXL.rel_shift", mask_pos_future=False), "relative_shift"),
        ("make_transformer_src_mask(dynchunktrain_config)", speechbrain_chunks, "mask_streaming"),
    ],
    "funasr": [
        ("RelPositionMultiHeadedAttention.rel_shift", method("funasr", FUNASR, "RelPositionMultiHeadedAttention.rel_shift", zero_triu=False), "relative_shift"),
        ("LegacyRelPositionMultiHeadedAttention.rel_shift in an encoder", legacy(method("funasr", FUNASR, "LegacyRelPositionMultiHeadedAttention.rel_shift", zero_triu=False)), "relative"),
        ("make_chunk_mask", seen(taken("funasr", "funasr/models/transformer/utils/nets_utils.py", "make_chunk_mask")), "mask_streaming"),
    ],
    "nemo_toolkit": [
        ("RelPositionMultiHeadAttention.rel_shift, cut as its forward does", cut(method("nemo_toolkit", "nemo/collections/asr/parts/submodules/multi_head_attention.py", "RelPositionMultiHeadAttention.rel_shift")), "relative_shift"),
    ],
    "enformer-pytorch": [
        ("relative_shift", taken("enformer-pytorch", "enformer_pytorch/modeling_enformer.py", "relative_shift"), "relative_shift"),
    ],
    "vit-pytorch": [
        ("simple_vit posemb_sincos_2d", lambda height, width, dim, base: taken("vit-pytorch", "vit_pytorch/simple_vit.py", "posemb_sincos_2d")(height, width, dim, base), "sinusoidal_2d"),
    ],
    "kornia": [
        ("RT-DETR build_2d_sincos_pos_emb", lambda height, width, dim, base: kornia_grid(width, height, dim, base)[:, 0], "sinusoidal_2d"),
    ],
    "mmpretrain": [
        ("build_2d_sincos_position_embedding", lambda height, width, dim, base: mmpretrain_grid((height, width), dim, base)[0], "sinusoidal_2d"),
        ("WindowMSA's relative_position_index", mmpretrain_index, "relative_index"),
    ],
    "monai": [
        ("build_sincos_position_embedding(spatial_dims=2)", lambda height, width, dim, base: monai_grid((height, width), dim, 2, base)[0], "sinusoidal_2d"),
    ],
    "swin-transformer-pytorch": [("WindowAttention.relative_indices", two_axes_index, "relative_index")],
    "fla-core": [("naive_forgetting_attn", forgetting, "forget_gates")],
}  # fmt: skip
