# SPDX-License-Identifier: Apache-2.0
"""A reversible change of a model: attributes of its modules and configurations that are exchanged, and exchanged back."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from torch import Tensor, nn

RECORD = "_posenc_attached"
"""Attribute of an extended model's base model: the `ModelChange` that is in effect."""


class MISSING:
    """Sentinel: an attribute that does not exist."""


class ChangeReport:
    """What was done to a model: a frozen dataclass, printed as text."""

    def to_dict(self) -> dict[str, Any]:
        """The same as plain data."""
        return asdict(self)  # type: ignore[call-overload]


@dataclass
class Change:
    """An attribute of a module or of a configuration, and its other value; `MISSING`: it has none."""

    owner: Any
    name: str
    value: Any

    def swap(self) -> None:
        """Exchange the value and the attribute."""
        now = getattr(self.owner, self.name, MISSING)
        if self.value is not MISSING:
            setattr(self.owner, self.name, _moved(self.value, now))
        elif now is not MISSING:
            delattr(self.owner, self.name)
        self.value = now


def config_changes(config: Any, values: Mapping[str, Any]) -> list[Change]:
    """The changes that set values of a configuration."""
    return [Change(config, name, value) for name, value in values.items()]


@dataclass(eq=False)
class ModelChange:
    """A change of a model. owner: the module whose attribute `RECORD` is this while it is in effect. report: what it does."""

    owner: nn.Module
    report: Any
    changes: list[Change] = field(default_factory=list)

    def attach(self) -> None:
        """Make all changes, or none."""
        self._swap(self.changes)
        setattr(self.owner, RECORD, self)

    def detach(self) -> None:
        """Put back the very objects that were there, on the device where the model is now."""
        self._swap(self.changes[::-1])
        delattr(self.owner, RECORD)

    def before(self, owner: Any) -> dict[str, Any]:
        """The values that an owner's changed attributes had, while the change is in effect."""
        return {change.name: change.value for change in self.changes if change.owner is owner}

    def _swap(self, changes: list[Change]) -> None:
        done: list[Change] = []
        try:
            for change in changes:
                change.swap()
                done.append(change)
        except BaseException:
            for change in reversed(done):
                change.swap()
            raise


def _moved(value: Any, now: Any) -> Any:
    """A module or tensor on the device of the one that it replaces, a tensor also in its dtype: the model may have been
    moved or cast meanwhile."""
    if isinstance(value, nn.Module) and isinstance(now, nn.Module):
        device = next((buffer.device for buffer in now.buffers()), None)
        return value if device is None else value.to(device)
    if not isinstance(value, Tensor) or not isinstance(now, Tensor):
        return value
    if (value.dtype, value.device) == (now.dtype, now.device):
        return value
    moved = value.detach().to(now.device, now.dtype if value.is_floating_point() else value.dtype)
    return nn.Parameter(moved, requires_grad=value.requires_grad) if isinstance(value, nn.Parameter) else moved
