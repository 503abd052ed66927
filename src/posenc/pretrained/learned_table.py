# SPDX-License-Identifier: Apache-2.0
"""Learned position tables made longer: BERT's kind, GPT-2, OPT. The longer table is an ordinary one, so that plain
transformers saves, loads and trains it."""

import math
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate

from posenc.encodings import Hierarchical
from posenc.errors import InputError, unknown
from posenc.positions import Positions
from posenc.pretrained.anatomy import unwrapped

__all__ = [
    "TableExtension", "extend_table", "has_learned_table", "restore_table", "rows_of_table", "table_module", "table_of",
]  # fmt: skip

TABLES: dict[str, str] = {
    **dict.fromkeys(
        ("albert", "bert", "camembert", "distilbert", "electra", "mpnet", "roberta", "xlm-roberta"),
        "embeddings.position_embeddings",
    ),
    "biogpt": "embed_positions",
    "gpt2": "wpe",
    "opt": "decoder.embed_positions",
}
"""config.model_type -> where the base model has its table."""

METHODS = ("hierarchical", "interpolate")
RECORD = "_posenc_learned_table"


@dataclass(frozen=True)
class TableExtension:
    """What was done to a learned table. original_length, target_length: tokens. added_bytes: of the longer table."""

    method: str
    options: dict[str, float]
    original_length: int
    target_length: int
    added_bytes: int

    @property
    def trained_length(self) -> int:
        """As other extensions call it."""
        return self.original_length

    @property
    def new_length(self) -> int:
        """As other extensions call it."""
        return self.target_length

    def __str__(self) -> str:
        options = "".join(f", {name}={value:g}" for name, value in self.options.items())
        inside = (
            f"Texts of up to {self.original_length} tokens get what they got before."
            if self.method == "hierarchical"
            else "Every text gets other codes than in training, short ones too."
        )
        return (
            f"learned table: {self.original_length} -> {self.target_length} positions ({self.method}{options}), "
            f"{self.added_bytes / 2**20:.1f} MiB more. {inside}\n"
            f"Attention itself is unchanged. Let the tokenizer make longer texts: "
            f"tokenizer.model_max_length = {self.target_length}"
        )

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class _Original:
    """What `restore_table` puts back. method: by which the table was extended. buffers: by name, of the module that owns
    the table."""

    method: str
    weight: nn.Parameter
    buffers: dict[str, Tensor]
    max_position_embeddings: int


def has_learned_table(model: nn.Module) -> bool:
    """Whether the model is of a type whose positions are a learned table that can be extended."""
    return getattr(getattr(unwrapped(model), "config", None), "model_type", None) in TABLES


def table_of(model: nn.Module) -> tuple[str | None, int]:
    """How the table of a model was extended (None: it was not), and for how many tokens it has rows.

    RoBERTa's kind and OPT's have rows that are no token's.
    """
    inner = unwrapped(model)
    original: _Original | None = getattr(inner, RECORD, None)
    _, module = _find(inner)
    return None if original is None else original.method, len(_weight(module)) - _first(module)


def table_module(model: nn.Module) -> nn.Embedding:
    """The module that holds the table of a model."""
    return _find(unwrapped(model))[1]


def rows_of_table(model: nn.Module) -> Tensor:
    """The table of a model as it is now, a row per token: (positions, dim). Rows that are no token's are left out."""
    module = table_module(model)
    return _weight(module)[_first(module) :]


def extend_table(
    model: nn.Module,
    method: str,
    *,
    factor: float | None = None,
    target_length: int | None = None,
    alpha: float = 0.4,
) -> TableExtension:
    """Make the table of a BERT-like model longer, in place; `restore_table` undoes it.

    A model that is extended already is extended anew from its own table.

    Args:
        model: of a type in TABLES. method: "hierarchical" (Su 2020, kexue.fm/archives/7947: up to the square of the
            length, the first positions as they are; alpha weighs the coarse digit) or "interpolate" (linear between
            rows; the first and the last one stay). factor or target_length: how long it becomes.

    Raises:
        InputError: a model or method that is not supported, a length that is not longer, or one beyond the square.
    """
    inner = unwrapped(model)
    if inner.config.model_type not in TABLES:
        raise unknown("model type with a learned table", inner.config.model_type, TABLES, 0.7)
    if method not in METHODS:
        raise unknown("method for a learned table", method, METHODS)
    original = getattr(inner, RECORD, None)
    owner, module = _find(inner)
    first = _first(module)
    weight = _weight(module) if original is None else original.weight
    length = len(weight) - first
    if (factor is None) == (target_length is None):
        raise InputError(f"factor={factor}, target_length={target_length}: give one of the two")
    if factor is not None and not 1 < factor < math.inf:
        raise InputError(f"factor={factor}: the new length over that of the table, a number above 1")
    target = int(length * factor) if factor is not None else int(target_length or 0)
    if target <= length:
        raise InputError(f"target_length={target}: the table has {length} positions already; ask for more")
    limit = length**2
    if method == "hierarchical" and target > limit:
        raise InputError(f"target_length={target}: {length} rows reach {limit} positions, their square")
    rows = _longer(weight.detach()[first:].to(torch.promote_types(weight.dtype, torch.float32)), target, method, alpha)
    if original is not None:
        restore_table(model)
    buffers = {name: getattr(owner, name) for name in ("position_ids", "token_type_ids") if hasattr(owner, name)}
    weight = _weight(module)
    setattr(inner, RECORD, _Original(method, weight, buffers, inner.config.max_position_embeddings))
    longer = torch.cat((weight.detach()[:first], rows.to(weight)))
    _put(module, nn.Parameter(longer, requires_grad=weight.requires_grad))
    for name, buffer in buffers.items():
        count = torch.arange(buffer.shape[-1] + target - length, device=buffer.device)[None]
        setattr(owner, name, count if name == "position_ids" else torch.zeros_like(count))
    inner.config.max_position_embeddings += target - length
    added = (target - length) * longer.shape[1] * longer.element_size()
    options = {"alpha": alpha} if method == "hierarchical" else {}
    return TableExtension(method, options, length, target, added)


def restore_table(model: nn.Module) -> bool:
    """Put the table back that the model had before `extend_table`. What the longer one has learned since is lost. Whether
    there was anything to put back."""
    inner = unwrapped(model)
    original = getattr(inner, RECORD, None)
    if original is None:
        return False
    owner, module = _find(inner)
    weight, now = original.weight, _weight(module)
    if (weight.dtype, weight.device) != (now.dtype, now.device):  # the model was moved or cast in the meantime
        weight = nn.Parameter(weight.detach().to(now), requires_grad=weight.requires_grad)
    _put(module, weight)
    for name, buffer in original.buffers.items():
        setattr(owner, name, buffer.to(now.device))
    inner.config.max_position_embeddings = original.max_position_embeddings
    delattr(inner, RECORD)
    return True


def _longer(rows: Tensor, length: int, method: str, alpha: float) -> Tensor:
    if method == "interpolate":
        return interpolate(rows.T[None], size=length, mode="linear", align_corners=True)[0].T
    encoding = Hierarchical(len(rows), rows.shape[1], alpha=alpha).to(rows)
    with torch.no_grad():
        encoding.table.copy_(rows)
        return encoding.codes(Positions.arange(length, device=rows.device))[0]


def _find(inner: Any) -> tuple[Any, nn.Embedding]:
    """The module that owns the table, and the table."""
    owner, _, name = TABLES[inner.config.model_type].rpartition(".")
    parent = inner.base_model.get_submodule(owner)
    return parent, getattr(parent, name)


def _first(module: nn.Embedding) -> int:
    """The row of the first token: RoBERTa's kind leaves room for padding, OPT's kind says so."""
    if module.padding_idx is not None:
        return module.padding_idx + 1
    return int(getattr(module, "offset", 0))


def _weight(module: nn.Embedding) -> nn.Parameter:
    weight = module.weight
    assert isinstance(weight, nn.Parameter)
    return weight


def _put(module: nn.Embedding, weight: nn.Parameter) -> None:
    module.weight, module.num_embeddings = weight, len(weight)
