# SPDX-License-Identifier: Apache-2.0
"""A pretrained vision model of transformers or timm, behind one interface: the image size that it is for, and what its own
library makes of another size."""

import copy
import inspect
import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from posenc.errors import InputError, unknown
from posenc.pretrained.vision.tables import Grid, pair


@dataclass(frozen=True)
class VisionFamily:
    """How a model type of transformers treats its table.

    method: of its interpolation. square: why its table must be that of a square image; "": it need not be.
    interpolates: it reads images of another size by itself.
    """

    method: str = "bicubic"
    square: str = ""
    interpolates: bool = True


_AT_EVERY_CALL = "it interpolates at every call, and takes its table for that of a square image"
_ROWS_FOR_COLUMNS = "it takes the rows of its tables of offsets for columns"
_ONE_NUMBER = "its configuration has one number for the height and the width"
FAMILIES: dict[str, VisionFamily] = {
    **dict.fromkeys(("deit", "dinov3_vit", "ijepa", "swin", "swinv2", "vit", "vit_msn"), VisionFamily()),
    "beit": VisionFamily("bilinear", _ROWS_FOR_COLUMNS),
    "clip_vision_model": VisionFamily(square=_ONE_NUMBER),
    "data2vec-vision": VisionFamily("bilinear", _ROWS_FOR_COLUMNS),
    "dinov2": VisionFamily(square=_AT_EVERY_CALL),
    "dinov2_with_registers": VisionFamily("bicubic_antialias", square=_AT_EVERY_CALL),
    "llama4_vision_model": VisionFamily(square=_ONE_NUMBER, interpolates=False),
    "pixtral": VisionFamily(square=_ONE_NUMBER),
    "siglip_vision_model": VisionFamily(square=_ONE_NUMBER),
    "vit_mae": VisionFamily(square="its configuration makes a square table only"),
}
"""Supported config.model_type of an image tower of transformers -> how it treats its table."""

PAIRED = ("clip", "siglip")
"""config.model_type of models with such a tower beside one that reads text."""


class VisionModel:
    """A vision model of one library.

    library: its name. model: as it was given, without a PEFT wrapper. tower: the part that reads images. root, root_name: the
    part that is made from the tower's configuration: the model, or in one of images and text the tower. image_size,
    patch_size: (height, width). channels: of an image.
    """

    library: str
    model: Any
    tower: Any
    root: Any
    root_name: str
    model_type: str
    image_size: Grid
    patch_size: Grid
    channels: int

    def default_method(self, kind: str) -> str:
        """How the model's authors make a table of a kind for another grid."""
        raise NotImplementedError

    def twins(self, image_size: Grid, window_size: int | None) -> tuple[nn.Module, nn.Module]:
        """The root as its library builds it for its own size, and for another one, with arbitrary weights.

        Raises:
            InputError: the library has none for that size.
        """
        raise NotImplementedError

    def settings(self, image_size: Grid, window_size: int | None) -> list[tuple[Any, str, Any]]:
        """(owner, name, value) of configuration values that depend on the size."""
        return []

    def interpolated(self, images: Tensor, after: nn.Module) -> Tensor | None:
        """The output for images of another size by the library's own interpolation; None: it has none."""
        raise NotImplementedError

    def read(self, images: Tensor) -> Tensor:
        """The output for images, (batch, tokens, dim). The modules stay as they are."""
        raise NotImplementedError

    def grid(self, image_size: Grid) -> Grid:
        """Patches of an image; a rest at its edges is not read."""
        return image_size[0] // self.patch_size[0], image_size[1] // self.patch_size[1]

    def pixels(self, grid: Grid) -> Grid:
        """The size of an image of so many patches."""
        return grid[0] * self.patch_size[0], grid[1] * self.patch_size[1]

    def check_size(self, image_size: Grid) -> None:
        """Raises:
        InputError: another size than the model's, which is not a multiple of the patch size."""
        (height, width), (rows, columns) = image_size, self.patch_size
        if (height % rows or width % columns) and image_size != self.image_size:
            near = self.pixels((max(round(height / rows), 1), max(round(width / columns), 1)))
            raise InputError(
                f"must be a multiple of the patches of {rows} x {columns}", f"pass {near}", image_size=image_size
            )

    def check_weights(self) -> None:
        """Raises:
        InputError: a model without weights."""
        if next(self.tower.parameters()).is_meta:
            raise InputError("it has no weights (they are on the device 'meta')", "load them first", argument="model")

    def images(self, image_size: Grid) -> Tensor:
        """Noise of a size, (1, channels, height, width), in the model's dtype."""
        weight = next(self.tower.parameters())
        noise = torch.randn(1, self.channels, *image_size, generator=torch.Generator().manual_seed(0))
        return noise.to(weight.device, weight.dtype)


class TransformersModel(VisionModel):
    """A model of transformers, with one image tower."""

    library = "transformers"

    def __init__(self, model: Any, name: str, tower: Any) -> None:
        self.model, self.tower = model, tower
        self.config: Any = tower.config
        alone = model.config is tower.config
        self.root, self.root_name = (model, "") if alone else (tower, name)
        self.model_type: str = str(self.config.model_type)
        self.family: VisionFamily = FAMILIES[self.model_type]
        self.image_size: Grid = pair(self.config.image_size)
        self.patch_size: Grid = pair(self.config.patch_size)
        self.channels: int = int(self.config.num_channels)

    def default_method(self, kind: str) -> str:
        return "bicubic" if self.family.method == "bilinear" and kind == "learned table" else self.family.method

    def settings(self, image_size: Grid, window_size: int | None) -> list[tuple[Any, str, Any]]:
        height, width = image_size
        number = height == width and isinstance(self.config.image_size, int)
        settings: dict[str, Any] = {"image_size": height if number else [height, width]}
        if window_size is not None and window_size != self.config.window_size:
            settings["window_size"] = window_size
            if hasattr(self.config, "pretrained_window_sizes") and not any(self.config.pretrained_window_sizes):
                # a stage smaller than the window has one of the stage's size
                stages = self.tower.encoder.layers
                settings["pretrained_window_sizes"] = [min(pair(stage.blocks[0].window_size)) for stage in stages]
        return [(self.config, name, value) for name, value in settings.items()]

    def twins(self, image_size: Grid, window_size: int | None) -> tuple[nn.Module, nn.Module]:
        from transformers.initialization import no_init_weights

        if self.family.square and image_size[0] != image_size[1]:
            remedy = "; the square one reads them already" if self.family.interpolates else ""
            raise InputError(
                f"transformers' {self.model_type} has no table for images that are not square "
                f"({self.family.square}){remedy}",
                image_size=image_size,
            )
        if window_size is not None and not hasattr(self.config, "window_size"):
            raise InputError(f"{self.model_type} has no windows", window_size=window_size)
        made = []
        for settings in ([], self.settings(image_size, window_size)):
            config = copy.deepcopy(self.config)
            for _, name, value in settings:
                setattr(config, name, value)
            with torch.random.fork_rng(devices=[]), no_init_weights():
                made.append(type(self.root)(config))
        return made[0], made[1]

    def interpolated(self, images: Tensor, after: nn.Module) -> Tensor | None:
        if not self.family.interpolates or self.image_size[0] != self.image_size[1]:
            return None
        return self.read(images, interpolate=True)

    @torch.no_grad()
    def read(self, images: Tensor, interpolate: bool = False) -> Tensor:
        parameters = inspect.signature(type(self.tower).forward).parameters
        tower = shared_copy(self.tower).eval()  # Swin's layers change their window with what they read
        extra: dict[str, Any] = {}
        if interpolate and "interpolate_pos_encoding" in parameters:
            extra["interpolate_pos_encoding"] = True
        if "noise" in parameters:  # of the patches that ViTMAE leaves out
            grid = self.grid((images.shape[2], images.shape[3]))
            extra["noise"] = torch.linspace(0, 1, grid[0] * grid[1], device=images.device)[None]
        output = tower(pixel_values=images, **extra)
        return output.last_hidden_state if hasattr(output, "last_hidden_state") else output.feature_maps[-1]


class TimmModel(VisionModel):
    """A model of timm that cuts images into patches, recognised by its attributes."""

    library = "timm"
    root_name = ""

    def __init__(self, model: Any) -> None:
        self.model = self.root = self.tower = model
        embed: Any = model.patch_embed
        self.patch_size: Grid = pair(embed.patch_size)
        self.model_type: str = type(model).__name__
        rows, columns = pair(embed.grid_size)
        self.image_size: Grid = pair(embed.img_size or (rows * self.patch_size[0], columns * self.patch_size[1]))
        self.channels: int = int(embed.proj.in_channels)

    def default_method(self, kind: str) -> str:
        return "geometric" if kind == "table of offsets" else "bicubic_antialias"

    def twins(self, image_size: Grid, window_size: int | None) -> tuple[nn.Module, nn.Module]:
        after = shared_copy(self.model)
        parameters = set(inspect.signature(after.set_input_size).parameters)
        extra: dict[str, Any] = {} if window_size is None else {"window_size": (window_size, window_size)}
        if not extra.keys() <= parameters:
            raise InputError(f"{self.model_type} has no windows", window_size=window_size)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # its interpolation indexes in ways that newer versions of PyTorch warn of
            after.set_input_size(img_size=image_size, **extra)
        return self.model, after

    def interpolated(self, images: Tensor, after: nn.Module) -> Tensor | None:
        return TimmModel(after).read(images)

    @torch.no_grad()
    def read(self, images: Tensor) -> Tensor:
        return shared_copy(self.model).eval().forward_features(images)


def find_vision_model(model: nn.Module) -> VisionModel | None:
    """A supported vision model; None: it is not, or has several image towers."""
    inner = _unwrapped(model)
    if hasattr(inner, "patch_embed") and hasattr(inner.patch_embed, "grid_size") and hasattr(inner, "set_input_size"):
        return TimmModel(inner)
    towers = _towers(inner)
    return TransformersModel(inner, *next(iter(towers.items()))) if len(towers) == 1 else None


def vision_model(model: nn.Module) -> VisionModel:
    """Raises:
    InputError: not a supported vision model, or one with several image towers."""
    vision, inner = find_vision_model(model), _unwrapped(model)
    if vision is not None:
        return vision
    if towers := _towers(inner):
        raise InputError(f"{type(inner).__name__} has several image towers ({', '.join(towers)}): pass one of them")
    kind = getattr(getattr(inner, "config", None), "model_type", None)
    if kind is not None:
        raise unknown("vision model type", kind, FAMILIES, 0.7)
    raise InputError(
        f"pass a vision model of transformers ({', '.join(sorted(FAMILIES))}), or one of timm that has patch_embed "
        "and set_input_size",
        model=model,
    )


def shared_copy(model: nn.Module) -> Any:
    """A copy with its own modules and buffers, and the same parameters."""
    return copy.deepcopy(model, {id(p): p for p in model.parameters()})


def _unwrapped(model: Any) -> Any:
    return model.get_base_model() if hasattr(model, "get_base_model") else model  # PEFT


def _towers(model: Any) -> dict[str, Any]:
    """Modules with a supported configuration that read images, by name; the innermost where a model wraps another."""
    modules = model.named_modules() if isinstance(model, nn.Module) else ()
    towers = {name: module for name, module in modules if _is_tower(module)}
    return {
        name: module
        for name, module in towers.items()
        if not any(other != name and (not name or other.startswith(f"{name}.")) for other in towers)
    }


def _is_tower(module: nn.Module) -> bool:
    known = getattr(getattr(module, "config", None), "model_type", None) in FAMILIES
    reads_images = "pixel_values" in inspect.signature(type(module).forward).parameters
    return known and reads_images and hasattr(module, "get_input_embeddings")
