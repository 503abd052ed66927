# SPDX-License-Identifier: Apache-2.0
"""Learned position tables made longer: BERT's kind, GPT-2, OPT. The longer table is an ordinary one, so that plain
transformers saves, loads and trains it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate

from posenc.encodings import Hierarchical
from posenc.errors import InputError, unknown
from posenc.positions import Positions
from posenc.pretrained.changes import RECORD, Change, ChangeReport, ModelChange
from posenc.pretrained.families import TABLES as TABLES
from posenc.pretrained.methods import check_lengths
from posenc.pretrained.models import unwrap
from posenc.spec import check_options, parse_single

METHODS: dict[str, dict[str, float]] = {"hierarchical": {"alpha": 0.1}, "interpolate": {}}
"""Their options. An alpha of 0.1 is better than the paper's 0.4 where nothing is trained (benchmarks/encoders.md)."""


@dataclass(frozen=True)
class TableExtension(ChangeReport):
    """What `posenc.extend` did to a learned table. trained_length, new_length: tokens. added_bytes: of the table."""

    method: str
    options: dict[str, float]
    trained_length: int
    new_length: int
    added_bytes: int

    def __str__(self) -> str:
        options = "".join(f", {name}={value:g}" for name, value in self.options.items())
        expected = (
            f"Inputs of up to {self.trained_length} tokens are unchanged."
            if self.method == "hierarchical"
            else "Every text gets other codes than in training, short ones too."
        )
        return (
            f"learned table: {self.trained_length} -> {self.new_length} positions ({self.method}{options}), "
            f"{self.added_bytes / 2**20:.1f} MiB more. {expected}\n"
            f"Attention itself is unchanged. Let the tokenizer make longer inputs: "
            f"tokenizer.model_max_length = {self.new_length}"
        )


def has_learned_table(model: nn.Module) -> bool:
    """Whether the model is of a type with a learned position table that can be extended."""
    config = unwrap(model).config
    return config.model_type in TABLES and getattr(config, "position_embedding_type", "absolute") == "absolute"


def table_of(model: nn.Module) -> tuple[str | None, int]:
    """The method by which the table was extended (None: it was not), and the number of tokens that it has rows for."""
    attachment = getattr(unwrap(model).base_model, RECORD, None)
    return None if attachment is None else attachment.report.method, len(rows_of_table(model))


def table_module(model: nn.Module) -> nn.Embedding:
    """The module of a model's table."""
    return unwrap(model).base_model.get_submodule(TABLES[unwrap(model).config.model_type])


def rows_of_table(model: nn.Module) -> Tensor:
    """The current table of a model, (tokens, dim), without rows of padding (RoBERTa) or of an offset (OPT)."""
    module = table_module(model)
    return module.weight[_first_row(module) :]


def check_rows(model: nn.Module, tokens: int) -> None:
    """Refuse more tokens than a learned table has rows: errors of an index or of shapes do not say so, and an index out of
    range ends all use of a GPU.

    Raises:
        InputError: names both numbers.
    """
    if has_learned_table(model) and tokens > (rows := table_of(model)[1]):
        remedy = f'cut the text, or posenc.extend(model, "hierarchical", target_length={tokens})'
        raise InputError(f"{tokens} tokens, and the model's table of positions has {rows} rows", remedy)


def plan_table(
    inner: Any, method: str, factor: float | None, target_length: int | None, options: Mapping[str, Any]
) -> ModelChange:
    """A longer table, computed from the model's own one even where the model is extended already.

    method: with its options, "hierarchical:alpha=0.2", which may be keywords too. "hierarchical" (Su 2020, kexue.fm/archives/7947: up to the square of the length, the first positions as they
    are; option alpha, 0.1, weighs the coarse digit) or "interpolate" (linear between rows; the first and the last one stay).

    Raises:
        InputError: an unknown method or option, a length that is not longer, or one beyond the square.
    """
    spec = parse_single(method)
    if (name := spec.name) not in METHODS:
        raise unknown("method for a learned table", name, METHODS)
    written = spec.values(name, METHODS[name])
    if twice := sorted(written.keys() & options.keys()):
        raise InputError(f"{method} has it already", "give it once", argument=twice[0], value=options[twice[0]])
    chosen = METHODS[name] | written | dict(options)
    check_options(name, chosen, METHODS[name], Hierarchical.__init__)
    check_lengths(factor, target_length)
    module, current = table_module(inner), getattr(inner.base_model, RECORD, None)
    weight: Any = module.weight
    most = inner.config.max_position_embeddings
    if current is not None:
        weight = current.before(module)["weight"]
        most = current.before(inner.config)["max_position_embeddings"]
    first = _first_row(module)
    length = len(weight) - first
    target = int(target_length or 0) if factor is None else round(length * factor)
    given = {"target_length": target_length} if factor is None else {"factor": factor}
    if target <= length:
        remedy = f"give factor=2, or a target_length of more than {length}"
        raise InputError(f"the table has {length} positions already", remedy, **given)
    if name == "hierarchical" and target > length**2:
        raise InputError(f"must make at most {length**2} tokens, the square of the table's {length} rows", **given)
    rows = weight.detach()[first:].to(torch.promote_types(weight.dtype, torch.float32))
    longer = torch.cat((weight.detach()[:first], _resampled(rows, target, **chosen).to(weight)))
    added = (target - length) * longer.shape[1] * longer.element_size()
    report = TableExtension(name, chosen, length, target, added)
    owner = inner.base_model.get_submodule(TABLES[inner.config.model_type].rpartition(".")[0])
    count = torch.arange(len(longer), device=weight.device)[None]
    buffers = {"position_ids": count, "token_type_ids": torch.zeros_like(count)}
    changes = [
        Change(module, "weight", nn.Parameter(longer, requires_grad=weight.requires_grad)),
        Change(module, "num_embeddings", len(longer)),
        Change(inner.config, "max_position_embeddings", most + target - length),
        *(Change(owner, name, value) for name, value in buffers.items() if hasattr(owner, name)),
    ]
    return ModelChange(inner.base_model, report, changes)


def _resampled(rows: Tensor, length: int, alpha: float | None = None) -> Tensor:
    if alpha is None:
        return interpolate(rows.T[None], size=length, mode="linear", align_corners=True)[0].T
    encoding = Hierarchical(len(rows), dim=rows.shape[1], alpha=alpha).to(rows)
    with torch.no_grad():
        encoding.table.copy_(rows)
        return encoding.codes(Positions.arange(length, device=rows.device))[0]


def _first_row(module: nn.Embedding) -> int:
    """The row of the first token, after RoBERTa's padding or OPT's offset."""
    if module.padding_idx is not None:
        return module.padding_idx + 1
    return int(getattr(module, "offset", 0))
