# SPDX-License-Identifier: Apache-2.0
"""What differs between transformers and timm: where a model says for which images it is, and what its own library makes of
another size."""

import copy
import inspect
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from posenc.errors import InputError, unknown
from posenc.pretrained.vision.tables import Grid, pair


@dataclass(frozen=True)
class Family:
    """How a model type of transformers treats its table.

    method: of its own interpolation. square: why its table must be that of a square image; "": it need not be. own: it can
    read images of another size by itself.
    """

    method: str = "bicubic"
    square: str = ""
    own: bool = True


_AT_EVERY_CALL = "it interpolates at every call, and takes its table for that of a square image"
_ONE_NUMBER = "its configuration has one number for the height and the width"
FAMILIES: dict[str, Family] = {
    "beit": Family("bilinear", "it takes the rows of its tables of offsets for columns"),
    "clip_vision_model": Family(square=_ONE_NUMBER),
    "data2vec-vision": Family("bilinear", "it takes the rows of its tables of offsets for columns"),
    "deit": Family(),
    "dinov2": Family(square=_AT_EVERY_CALL),
    "dinov2_with_registers": Family("bicubic_antialias", square=_AT_EVERY_CALL),
    "dinov3_vit": Family(),
    "ijepa": Family(),
    "llama4_vision_model": Family(square=_ONE_NUMBER, own=False),
    "pixtral": Family(square=_ONE_NUMBER),
    "siglip_vision_model": Family(square=_ONE_NUMBER),
    "swin": Family(),
    "swinv2": Family(),
    "vit": Family(),
    "vit_mae": Family(square="its configuration makes a square table only"),
    "vit_msn": Family(),
}
"""config.model_type of an image tower of transformers -> how it treats its table; what is not here is refused."""

PAIRED = ("clip", "siglip")
"""config.model_type of models that hold such a tower beside one that reads text."""


class Library(ABC):
    """A vision model of one library.

    model: as it was given, without a PEFT wrapper. tower: the part that reads images.
    root, root_name: the part that is made from the tower's configuration: the model, or in one of images and text the tower.
    image_size: (height, width) that it is for. patch_size: likewise.
    """

    model: Any
    tower: Any
    root: Any
    root_name: str
    name: str
    model_type: str
    image_size: Grid
    patch_size: Grid

    @abstractmethod
    def usual(self, kind: str) -> str:
        """How the model's source makes a table of a kind for another grid."""

    @abstractmethod
    def twins(self, image_size: Grid, window_size: int | None) -> tuple[nn.Module, nn.Module]:
        """The root as its library makes it for its own size, and for another one; the values of their weights may be
        anything.

        Raises:
            InputError: the library has none for that size.
        """

    @abstractmethod
    def settings(self, image_size: Grid, window_size: int | None) -> list[tuple[Any, str, Any]]:
        """(owner, name, value) of what says the size beside the modules: configurations."""

    @abstractmethod
    def own(self, images: Tensor, after: nn.Module) -> Tensor | None:
        """What the model, as it is, gives for images of another size by its library's own means; None: it has none."""

    @abstractmethod
    def read(self, images: Tensor) -> Tensor:
        """What the model gives for images, (batch, tokens, dim). Its modules stay as they are."""

    def grid(self, image_size: Grid) -> Grid:
        """Patches of an image; what is left over at its edges is not read."""
        return image_size[0] // self.patch_size[0], image_size[1] // self.patch_size[1]

    def check_size(self, image_size: Grid) -> None:
        """Refuse another size than the model's own that is cut at the edges.

        Raises:
            InputError: no whole number of patches.
        """
        whole = all(n % p == 0 for n, p in zip(image_size, self.patch_size, strict=True))
        if not whole and image_size != self.image_size:
            near = tuple(max(round(n / p), 1) * p for n, p in zip(image_size, self.patch_size, strict=True))
            raise InputError(
                f"image_size={image_size}: no whole number of patches of {self.patch_size[0]} x {self.patch_size[1]}; "
                f"take {near}"
            )

    def check_weights(self) -> None:
        """Refuse a model that cannot be run.

        Raises:
            InputError: it has no weights.
        """
        if next(self.tower.parameters()).is_meta:
            raise InputError("model: it has no weights (they are on the device 'meta'); load them first")

    def images(self, image_size: Grid) -> Tensor:
        """Noise of a size, (1, channels, height, width), as the model takes it."""
        weight = next(self.tower.parameters())
        noise = torch.randn(1, self.channels, *image_size, generator=torch.Generator().manual_seed(0))
        return noise.to(weight.device, weight.dtype)

    @property
    @abstractmethod
    def channels(self) -> int:
        """Of an image."""


class HuggingFace(Library):
    """A model of transformers, with one image tower."""

    name = "transformers"

    def __init__(self, model: Any, name: str, tower: Any) -> None:
        self.model = model
        self.tower = tower
        self.config: Any = tower.config
        whole = model.config is tower.config
        self.root: Any = model if whole else tower
        self.root_name: str = "" if whole else name
        self.model_type: str = str(self.config.model_type)
        self.family: Family = FAMILIES[self.model_type]
        self.image_size: Grid = pair(self.config.image_size)
        self.patch_size: Grid = pair(self.config.patch_size)

    def usual(self, kind: str) -> str:
        return "bicubic" if self.family.method == "bilinear" and kind == "learned table" else self.family.method

    @property
    def channels(self) -> int:
        return int(self.config.num_channels)

    def settings(self, image_size: Grid, window_size: int | None) -> list[tuple[Any, str, Any]]:
        height, width = image_size
        number = height == width and isinstance(self.config.image_size, int)
        found: list[tuple[Any, str, Any]] = [(self.config, "image_size", height if number else [height, width])]
        if window_size is not None and window_size != self.config.window_size:
            found.append((self.config, "window_size", window_size))
            if hasattr(self.config, "pretrained_window_sizes") and not any(self.config.pretrained_window_sizes):
                sides = [min(window_of_stage) for window_of_stage in self._windows()]
                found.append((self.config, "pretrained_window_sizes", sides))
        return found

    def _windows(self) -> Iterator[Grid]:
        """Of each stage, as it is: a stage smaller than the window has one of its own size."""
        for stage in self.tower.encoder.layers:
            yield pair(stage.blocks[0].window_size)

    def twins(self, image_size: Grid, window_size: int | None) -> tuple[nn.Module, nn.Module]:
        from transformers.initialization import no_init_weights

        if self.family.square and image_size[0] != image_size[1]:
            remedy = "; the square one reads them as it is" if self.family.own else ""
            raise InputError(
                f"image_size={image_size}: transformers' {self.model_type} has no table for images that are not square "
                f"({self.family.square}){remedy}"
            )
        if window_size is not None and not hasattr(self.config, "window_size"):
            raise InputError(f"window_size={window_size}: {self.model_type} has no windows")
        made = []
        for settings in ([], self.settings(image_size, window_size)):
            config = copy.deepcopy(self.config)
            for _, name, value in settings:
                setattr(config, name, value)
            with torch.random.fork_rng(devices=[]), no_init_weights():
                made.append(type(self.root)(config))
        return made[0], made[1]

    def own(self, images: Tensor, after: nn.Module) -> Tensor | None:
        if not self.family.own or self.image_size[0] != self.image_size[1]:
            return None
        return self._read(images, interpolate="interpolate_pos_encoding" in self._takes())

    def read(self, images: Tensor) -> Tensor:
        return self._read(images, interpolate=False)

    def _takes(self) -> set[str]:
        return set(inspect.signature(type(self.tower).forward).parameters)

    @torch.no_grad()
    def _read(self, images: Tensor, interpolate: bool) -> Tensor:
        tower = shared_copy(self.tower).eval()  # Swin's layers change their window with what they read
        extra: dict[str, Any] = {"interpolate_pos_encoding": True} if interpolate else {}
        if "noise" in self._takes():  # of the patches that ViTMAE leaves out
            grid = self.grid((images.shape[2], images.shape[3]))
            extra["noise"] = torch.linspace(0, 1, grid[0] * grid[1], device=images.device)[None]
        found = tower(pixel_values=images, **extra)
        output: Tensor = found.last_hidden_state if hasattr(found, "last_hidden_state") else found.feature_maps[-1]
        return output


class Timm(Library):
    """A model of timm that cuts images into patches, told by what it holds."""

    name = "timm"
    root_name = ""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.root = model
        self.tower = model
        embed: Any = model.patch_embed
        self.patch_size: Grid = pair(embed.patch_size)
        self.model_type: str = type(model).__name__
        rows, columns = pair(embed.grid_size)
        self.image_size: Grid = pair(embed.img_size or (rows * self.patch_size[0], columns * self.patch_size[1]))

    def usual(self, kind: str) -> str:
        return "geometric" if kind == "table of offsets" else "bicubic_antialias"

    @property
    def channels(self) -> int:
        return int(self.tower.patch_embed.proj.in_channels)

    def settings(self, image_size: Grid, window_size: int | None) -> list[tuple[Any, str, Any]]:
        return []

    def twins(self, image_size: Grid, window_size: int | None) -> tuple[nn.Module, nn.Module]:
        after = shared_copy(self.model)
        takes = set(inspect.signature(after.set_input_size).parameters)
        extra: dict[str, Any] = {} if window_size is None else {"window_size": (window_size, window_size)}
        if not extra.keys() <= takes:
            raise InputError(f"window_size={window_size}: {self.model_type} has no windows")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # its interpolation indexes in ways that newer versions of PyTorch warn of
            after.set_input_size(img_size=image_size, **extra)
        return self.model, after

    def own(self, images: Tensor, after: nn.Module) -> Tensor | None:
        return self._read(images, after)

    def read(self, images: Tensor) -> Tensor:
        return self._read(images, self.model)

    @torch.no_grad()
    def _read(self, images: Tensor, model: nn.Module) -> Tensor:
        twin = shared_copy(model)
        twin.eval()
        found: Tensor = twin.forward_features(images)
        return found


def library_of(model: nn.Module) -> Library | None:
    """The library of a vision model that posenc knows, None: it is none, or has several image towers."""
    inner = _unwrapped(model)
    if hasattr(inner, "patch_embed") and hasattr(inner.patch_embed, "grid_size") and hasattr(inner, "set_input_size"):
        return Timm(inner)
    towers = _towers(inner)
    return HuggingFace(inner, *next(iter(towers.items()))) if len(towers) == 1 else None


def required(model: nn.Module) -> Library:
    """The library of a vision model.

    Raises:
        InputError: it is none that posenc knows, or has several image towers.
    """
    found = library_of(model)
    if found is None:
        inner = _unwrapped(model)
        if towers := _towers(inner):
            raise InputError(f"{type(inner).__name__} has several image towers ({', '.join(towers)}): pass one of them")
        kind = getattr(getattr(inner, "config", None), "model_type", None)
        if isinstance(kind, str):
            raise unknown("vision model type", kind, FAMILIES, 0.7)
        raise InputError(
            f"model={type(model).__name__}: pass a vision model of transformers ({', '.join(FAMILIES)}), or one of timm "
            "that has patch_embed and set_input_size"
        )
    return found


def shared_copy(model: nn.Module) -> Any:
    """A copy with modules and buffers of its own, and the same parameters."""
    return copy.deepcopy(model, {id(p): p for p in model.parameters()})


def _unwrapped(model: Any) -> Any:
    return model.get_base_model() if hasattr(model, "get_base_model") else model  # PEFT


def _towers(model: nn.Module) -> dict[str, Any]:
    """By name, what reads images by a configuration that is known; the innermost where a model with a head holds one."""
    found: dict[str, Any] = {}
    for name, module in model.named_modules():
        if getattr(getattr(module, "config", None), "model_type", None) in FAMILIES and _reads_images(module):
            found[name] = module
    return {name: m for name, m in found.items() if not any(_within(other, name) for other in found)}


def _reads_images(module: nn.Module) -> bool:
    takes = inspect.signature(type(module).forward).parameters
    return "pixel_values" in takes and hasattr(module, "get_input_embeddings")


def _within(name: str, outer: str) -> bool:
    return name != outer and (not outer or name.startswith(f"{outer}."))
