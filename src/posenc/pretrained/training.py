# SPDX-License-Identifier: Apache-2.0
"""doctor on the first step of a training: the model and the batch as the trainer passes them, measured in a few passes without
gradients."""

import warnings
from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers import TrainerCallback

from posenc.errors import InputError, check_word
from posenc.pretrained.doctor import configuration
from posenc.pretrained.findings import SEVERITIES, Diagnosis, Evidence, diagnosis
from posenc.pretrained.inference import evaluating
from posenc.pretrained.probe import PROBE, Probe, differ
from posenc.pretrained.traps import softmax_scale

__all__ = ["DoctorCallback", "examine_batch"]

NOT_PASSED = {"labels", "num_items_in_batch", "return_dict"}
"""Arguments of a training's pass that its logits do not depend on."""


@torch.no_grad()
def examine_batch(model: nn.Module, batch: Mapping[str, Any]) -> Diagnosis:
    """What is wrong with the positions of a batch, and with the frequencies of the model that reads it.

    Of one row, tokens are exchanged that others must not see: later ones, padding, and the packed text in front; any effect on
    the logits is a finding. The model runs four times at most.

    Args:
        model: as `posenc.doctor` takes it.
        batch: what the trainer passes to the model: input_ids (batch, n), and, if there are any, attention_mask and position_ids.

    Raises:
        InputError: a model that doctor refuses, or a batch without input_ids of two dimensions.
    """
    ids = batch.get("input_ids")
    if not isinstance(ids, Tensor) or ids.dim() != 2 or not ids.numel():
        raise InputError("has no input_ids (batch, n)", "pass a batch as the model is called with it", argument="batch")
    probe = Probe(model)
    with evaluating(probe.model), probe.with_rotary(), probe.uncompiled():
        found = list(_evidence(probe, ids, batch))
    return diagnosis(probe.description(), iter(found))


def _evidence(probe: Probe, ids: Tensor, batch: Mapping[str, Any]) -> Evidence:
    if probe.attachment is None or not probe.attachment.design.rotations:
        yield from configuration(probe)
    yield from softmax_scale(probe)
    positions = batch.get("position_ids")
    longest = ids.shape[1] if positions is None else int(positions.max()) + 1
    if longest > probe.length:
        text = f"a text of {longest} tokens, and max_position_embeddings is {probe.length}"
        yield "positions_beyond_length", text, longest / probe.length
    begins = _begins(positions, ids)
    packed = begins.any(1)
    row = _Row(probe, batch, int(packed.int().argmax()))
    index = torch.arange(ids.shape[1], device=ids.device)
    if len(index) > 1:
        near = slice(max(len(index) - PROBE, 0), -1)
        text = "another last token moves the logits before it"
        yield from differ(probe, "sees_the_future", text, row.changed(index == index[-1])[:, near], row.logits[:, near])
    if packed.any():
        start = int(begins[row.number].int().argmax())
        near = slice(start, start + PROBE)
        text = f"other tokens before {start} move the logits of the text that begins there"
        yield from differ(probe, "batch_leaks", text, row.changed(index < start)[:, near], row.logits[:, near])
    mask = batch.get("attention_mask")
    if isinstance(mask, Tensor) and mask.dim() == 2 and not mask.all():
        row = _Row(probe, batch, int((mask == 0).any(1).int().argmax()))
        real = mask[row.number].bool()
        text = "other tokens where attention_mask is 0 move the logits of the rest"
        yield from differ(probe, "padding_differs", text, row.changed(~real)[:, real], row.logits[:, real])


class _Row:
    """One row of a batch. logits: of its tokens, float32."""

    def __init__(self, probe: Probe, batch: Mapping[str, Any], number: int) -> None:
        self.probe, self.number, rows = probe, number, len(batch["input_ids"])
        self.passed = {name: _row(value, number, rows) for name, value in batch.items() if name not in NOT_PASSED}
        self.logits: Tensor = probe.model(**self.passed).logits.float()

    def changed(self, where: Tensor) -> Tensor:
        """The logits with other tokens at an index, (n,) bool, but those of images."""
        ids, images = self.passed["input_ids"], self.passed.get("mm_token_type_ids")
        where = where if images is None else where & (images == 0)
        other = torch.where(where, (ids == 0).to(ids.dtype), ids)
        return self.probe.model(**self.passed | {"input_ids": other}).logits.float()


def _begins(positions: Tensor | None, ids: Tensor) -> Tensor:
    """Where position_ids, (batch or 1, n) or of several axes, go back to 0, but at a row's first token and in padding, where all are 0."""
    if positions is None:
        return torch.zeros_like(ids, dtype=torch.bool)
    rows = positions.reshape(-1, *positions.shape[-2:])[0].expand_as(ids)
    begins = (rows == 0) & (torch.cat([rows[:, :1], rows[:, :-1]], 1) > 0)
    begins[:, 0] = False
    # zeros in a row are padding
    return begins & (torch.cat([rows[:, 1:], torch.ones_like(rows[:, :1])], 1) > 0)


def _row(value: Any, row: int, batch: int) -> Any:
    if not isinstance(value, Tensor) or batch == 1:
        return value
    if value.dim() >= 2 and value.shape[0] == batch:
        return value[row : row + 1]
    return value[:, row : row + 1] if value.dim() == 3 and value.shape[1] == batch else value


class DoctorCallback(TrainerCallback):
    """For transformers' Trainer, and those built on it: `Trainer(..., callbacks=[DoctorCallback()])`.

    Examines the first batch as `examine_batch` does, before the model reads it; raises what is at least as bad as `raises`, and
    warns of the rest but notes. diagnosis: of the last training, None before one.

    Args:
        raises: "wrong", "hazard", "note", or "none", which only warns.

    Raises:
        InputError: another word; when training begins, a model that doctor refuses; at the first step, what was found.
    """

    def __init__(self, raises: Literal["wrong", "hazard", "note", "none"] = "wrong") -> None:
        check_word("raises", raises, (*SEVERITIES, "none"))
        self.raises = raises
        self.diagnosis: Diagnosis | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        Probe(model)
        self.hook = model.register_forward_pre_hook(torch.compiler.disable(self._first), with_kwargs=True)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.hook.remove()

    def _first(self, model: nn.Module, args: tuple[Any, ...], batch: dict[str, Any]) -> None:
        self.hook.remove()
        self.diagnosis = examine_batch(model, batch)
        grave = SEVERITIES[: SEVERITIES.index(self.raises) + 1] if self.raises != "none" else ()
        if found := [str(finding) for finding in self.diagnosis.findings if finding.severity in grave]:
            raise InputError("the first batch, examined by DoctorCallback:\n" + "\n".join(found))
        for finding in self.diagnosis.findings:
            if finding.severity != "note":
                warnings.warn(f"the first batch: {finding}", stacklevel=2)
