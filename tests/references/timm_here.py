"""timm where there is no torchvision, which timm imports for a few names and its models do without.

`timm = timm_here.timm()` skips the test that asks where timm is missing. A torchvision that can be imported is used; where
there is none, empty stand-ins answer for its names while timm is imported, and are gone afterwards, so that nothing else
takes torchvision to be there.
"""

import importlib
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from functools import cache
from types import ModuleType
from typing import Any

import pytest

NAMES = (
    "datasets", "models", "models.feature_extraction", "ops", "ops.misc", "transforms", "transforms.functional", "utils",
)  # fmt: skip


class InterpolationMode(Enum):
    """timm makes tables of these when it is imported."""

    NEAREST, BILINEAR, BICUBIC, BOX, HAMMING, LANCZOS = "nearest", "bilinear", "bicubic", "box", "hamming", "lanczos"


class _StandIn(ModuleType):
    """A module in which every class is there, and empty."""

    InterpolationMode = InterpolationMode

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return type(name, (), {})


@contextmanager
def _torchvision() -> Iterator[None]:
    """Stand-ins for torchvision while this is entered, unless it can be imported."""
    try:
        importlib.import_module("torchvision")
    except (ImportError, RuntimeError):  # a wheel for another torch raises RuntimeError
        for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
            del sys.modules[name]  # what was imported before it failed
        modules = {name: _StandIn(name) for name in ("torchvision", *(f"torchvision.{part}" for part in NAMES))}
        for name, module in modules.items():
            parent, _, last = name.rpartition(".")
            if parent:
                setattr(modules[parent], last, module)
        sys.modules.update(modules)
        try:
            yield
        finally:
            for name in modules:
                sys.modules.pop(name, None)
    else:
        yield


@cache
def _imported() -> ModuleType | None:
    if importlib.util.find_spec("timm") is None:
        return None
    with _torchvision():
        return importlib.import_module("timm")


def timm() -> ModuleType:
    """timm, with its layers and models; skips where it is not installed."""
    found = _imported()
    if found is None:
        pytest.skip("no timm here (make test installs it: pip install --no-deps timm)", allow_module_level=True)
    return found
