# SPDX-License-Identifier: Apache-2.0
"""A fine-tuning on its way, in a folder: written every few minutes and where it is stopped, and gone on from."""

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from posenc.errors import InputError
from posenc.files import Folder
from posenc.pretrained.anatomy import unwrapped
from posenc.pretrained.attach import attached

NAME = "finetuning.safetensors"
NOT_ITS_IDENTITY = {"steps"}
"""Settings that may change when a training goes on: more steps of the same."""


class Checkpoint:
    """One training in a folder.

    folder: has `NAME` in it, about three times what is trained. minutes: between two. The state is read as safetensors, which
    runs no code.
    """

    def __init__(self, folder: str | Path, minutes: float, model: nn.Module, rows: Tensor, settings: Mapping[str, Any]):
        self.folder = Folder(folder)
        self.path: Path = self.folder.directory / NAME
        self.identity: str = _identity(model, rows, settings)
        self.steps: int = settings["steps"]
        self.every, self.last = 60 * minutes, time.perf_counter()

    def due(self) -> bool:
        return time.perf_counter() - self.last >= self.every

    def write(
        self,
        moved: Sequence[nn.Parameter],
        optimizer: torch.optim.Optimizer,
        losses: list[float],
        generator: torch.Generator,
    ) -> None:
        """Write the state after a whole step. The file is there whole or as it was before."""
        from safetensors.torch import save

        found: dict[str, Tensor] = {"windows": generator.get_state(), "random": torch.get_rng_state()}
        if moved[0].is_cuda:
            found["random.cuda"] = torch.cuda.get_rng_state(moved[0].device)
        for index, weight in enumerate(moved):
            found[f"{index}"] = weight.detach().cpu().contiguous()
            for name, value in optimizer.state[weight].items():
                found[f"{index}.{name}"] = value.detach().cpu().contiguous()
        about = {"identity": self.identity, "losses": losses}
        self.folder.write(NAME, save(found, {"posenc": json.dumps(about)}))
        self.last = time.perf_counter()

    def check(self) -> None:
        """Raises:
        InputError: there is a file, and it is damaged, of another training, or of more steps than are asked for."""
        self._read(tensors=False)

    def read(
        self, moved: Sequence[nn.Parameter], optimizer: torch.optim.Optimizer, generator: torch.Generator
    ) -> list[float]:
        """Bring weights, optimizer and random numbers to where the training stopped, if there is one here.

        Returns:
            The losses so far.

        Raises:
            InputError: as `check`.
        """
        found = self._read(tensors=True)
        if found is None:
            return []
        losses, state = found
        for index, weight in enumerate(moved):
            weight.data.copy_(state[f"{index}"])
            names = [name for name in state if name.startswith(f"{index}.")]
            optimizer.state[weight] = {
                name.partition(".")[2]: state[name] if name.endswith(".step") else state[name].to(weight.device)
                for name in names
            }
        generator.set_state(state["windows"])
        torch.set_rng_state(state["random"])
        if "random.cuda" in state and moved[0].is_cuda:
            torch.cuda.set_rng_state(state["random.cuda"], moved[0].device)
        return losses

    def _read(self, tensors: bool) -> tuple[list[float], dict[str, Tensor]] | None:
        """The losses so far, and the state if asked for; None: there is no file."""
        from safetensors import SafetensorError, safe_open

        if not self.path.exists():
            return None
        what = f"checkpoint={str(self.path)!r}"
        try:
            with safe_open(self.path, "pt") as file:
                about = json.loads((file.metadata() or {}).get("posenc", "{}"))
                names = file.keys() if tensors else ()
                state = {name: file.get_tensor(name) for name in names}
        except (SafetensorError, ValueError) as error:
            raise InputError(f"{what}: cannot be read ({error}); delete it to begin anew") from None
        if about.get("identity") != self.identity:
            raise InputError(
                f"{what}: is of another model, text or settings; give those again, name another folder, or delete it to "
                "begin anew"
            )
        losses: list[float] = about["losses"]
        if len(losses) > self.steps:
            raise InputError(
                f"steps={self.steps}: {what} has {len(losses)} already; give as many or more, name another folder, or "
                "delete it to begin anew"
            )
        return losses, state


def _identity(model: nn.Module, rows: Tensor, settings: Mapping[str, Any]) -> str:
    """Hash of what a training is of: the model as it is before it, its extension, the tokens and the settings."""
    record = attached(unwrapped(model))
    told = {name: value for name, value in settings.items() if name not in NOT_ITS_IDENTITY}
    found = hashlib.sha256(json.dumps([told, str(record and record.report.method)], sort_keys=True).encode())
    found.update(rows.numpy().tobytes())
    for name, weight in model.named_parameters():
        some = weight.detach().flatten()[:: max(weight.numel() // 64, 1)].float().cpu()
        found.update(f"{name} {tuple(weight.shape)} {weight.dtype}".encode() + some.numpy().tobytes())
    return found.hexdigest()


def remove(folder: str | Path) -> None:
    """Forget a training whose outcome is saved elsewhere."""
    (Path(folder) / NAME).unlink(missing_ok=True)
    with suppress(OSError):  # something else is in it
        Path(folder).rmdir()
