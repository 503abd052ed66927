"""Random vision models of transformers and timm, small enough for a test: images of 32 x 32, four patches a side unless a
model has windows. Their tables are of unit size, so that a wrong one shows."""

import copy
from typing import Any

import torch
from torch import nn

from references import timm_here

SIZE, PATCH = 32, 8
_SHAPE = {
    "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": SIZE,
    "patch_size": PATCH,
}  # fmt: skip
_WINDOWS = {
    "image_size": SIZE,
    "patch_size": 2,
    "embed_dim": 16,
    "depths": [2, 2],
    "num_heads": [2, 2],
    "window_size": 4,
}
_OWN: dict[str, dict[str, Any]] = {
    "beit": {"use_relative_position_bias": True, "use_absolute_position_embeddings": True},
    "data2vec-vision": {"use_shared_relative_position_bias": True},
    "dinov2_with_registers": {"num_register_tokens": 3},
    "pixtral": {"head_dim": 16},
    "llama4_vision_model": {
        "intermediate_size": 128, "projector_input_dim": 32, "projector_output_dim": 32, "vision_output_dim": 32,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    },
    "vit_mae": {
        "decoder_hidden_size": 16, "decoder_num_attention_heads": 2, "decoder_num_hidden_layers": 1,
        "decoder_intermediate_size": 16,
    },
}  # fmt: skip
_TIMM = {
    "vit": ("vision_transformer.VisionTransformer", {}),
    "registers": ("vision_transformer.VisionTransformer", {"reg_tokens": 3, "no_embed_class": True}),
    "dynamic": ("vision_transformer.VisionTransformer", {"reg_tokens": 3, "dynamic_img_size": True}),
    "deit": ("deit.VisionTransformerDistilled", {}),
    "beit": ("beit.Beit", {"use_rel_pos_bias": True, "use_abs_pos_emb": True, "init_values": None}),
    "beit_shared": ("beit.Beit", {"use_shared_rel_pos_bias": True, "use_abs_pos_emb": False, "init_values": None}),
    "eva": ("eva.Eva", {"use_rot_pos_emb": True, "ref_feat_shape": (4, 4), "init_values": None}),
    "dinov3": ("eva.Eva", {"use_rot_pos_emb": True, "rope_type": "dinov3", "use_abs_pos_emb": False, "init_values": None}),
    "mixed": ("eva.Eva", {"use_rot_pos_emb": True, "rope_type": "mixed", "init_values": None}),
    "relpos": ("vision_transformer_relpos.VisionTransformerRelPos", {"rel_pos_type": "bias", "init_values": None}),
    "relpos_mlp": ("vision_transformer_relpos.VisionTransformerRelPos", {"rel_pos_type": "mlp", "init_values": None}),
    "swin": ("swin_transformer.SwinTransformer", _WINDOWS),
    "swin_v2_cr": ("swin_transformer_v2_cr.SwinTransformerV2Cr", _WINDOWS),
    "swin_v2": ("swin_transformer_v2.SwinTransformerV2", _WINDOWS),
}  # fmt: skip
TIMM = tuple(_TIMM)


def of_transformers(model_type: str, seed: int = 0, **settings: Any) -> Any:
    """A model in evaluation mode; settings go to its configuration."""
    import transformers

    from posenc.pretrained.vision.tables import sinusoids

    shape = _WINDOWS if model_type.startswith("swin") else _SHAPE
    of_type = {} if model_type == "vit" else _OWN.get(model_type, {})
    config_of = transformers.CONFIG_MAPPING[model_type]
    torch.manual_seed(seed)
    config = config_of(**(shape | of_type | settings))
    name = {
        "llama4_vision_model": "Llama4VisionModel",
        "pixtral": "PixtralVisionModel",
        "vit_mae": "ViTMAEForPreTraining",
    }
    model = (
        getattr(transformers, name[model_type])(config)
        if model_type in name
        else transformers.AutoModel.from_config(config)
    )
    unit_tables(model)
    if model_type == "vit_mae":  # transformers 5.23 leaves the tables of a new model at zero
        for table in (model.vit.embeddings.position_embeddings, model.decoder.decoder_pos_embed):
            side = model.config.image_size // PATCH
            table.data[0, 1:] = sinusoids((side, side), table.shape[-1], x_first=True)
    return model.eval()


def of_timm(kind: str, seed: int = 0, **settings: Any) -> Any:
    """A model of timm in evaluation mode; settings go to its class. Skips where timm is missing."""
    timm_here.timm()
    from importlib import import_module

    where, of_kind = _TIMM[kind]
    module, _, name = where.rpartition(".")
    shape = (
        {} if "swin" in kind else {"img_size": SIZE, "patch_size": PATCH, "embed_dim": 32, "depth": 2, "num_heads": 2}
    )
    of_kind = {("img_size" if key == "image_size" else key): value for key, value in of_kind.items()}
    torch.manual_seed(seed)
    model = getattr(import_module(f"timm.models.{module}"), name)(**(shape | of_kind | {"num_classes": 5} | settings))
    unit_tables(model)
    return model.eval()


def unit_tables(model: nn.Module) -> None:
    """Fill what has to do with position and is learned."""
    for name, parameter in model.named_parameters():
        if "pos" in name and parameter.requires_grad and parameter.dim() > 1:
            nn.init.normal_(parameter)


def images(height: int, width: int, seed: int = 1) -> torch.Tensor:
    """Two images of noise."""
    return torch.randn(2, 3, height, width, generator=torch.Generator().manual_seed(seed))


def state(model: nn.Module) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any] | None]:
    """All that a call may change: tensors by name with the objects that hold them, and what the configuration says."""
    tensors = dict(model.named_parameters()) | dict(model.named_buffers())
    plain = {
        f"{path}.{name}": value
        for path, module in model.named_modules()
        for name, value in vars(module).items()
        if isinstance(value, int | float | str | tuple | list | type(None))
    }
    config = model.config.to_dict() if hasattr(model, "config") else None
    return {name: (id(t), t.detach().clone()) for name, t in tensors.items()}, plain, copy.deepcopy(config)


def assert_unchanged(model: nn.Module, before: tuple[Any, ...]) -> None:
    """`state` is what it was, and parameters are the very objects."""
    after = state(model)
    assert before[0].keys() == after[0].keys()
    parameters = dict(model.named_parameters())
    for name, (identity, value) in before[0].items():
        assert torch.equal(value, after[0][name][1]), name
        assert name not in parameters or identity == after[0][name][0], name
    assert before[1:] == after[1:]
