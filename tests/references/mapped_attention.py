"""Attention at mapped relative positions by the oracles, inside transformers' own model code."""

import math
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from posenc.testing.oracles import maps
from posenc.testing.oracles.attention import mix

MAPPED = (
    "none", "rerope:window=12", "leaky_rerope:window=12:factor=5", "self_extend:window=12:group=4",
    "jet_long:window=6:trained=16:groups=9:least=1", "streaming:sinks=3:recent=9", "dual_chunk:chunk=24:local=4",
    "string:shift=20:window=4", "lampe:window=12:used=40:length=100", "lm_infinite:sinks=3:window=20",
)  # fmt: skip


@cache
def relative(method: str, queries: int, keys: int) -> Tensor:
    """The relative positions of queries and keys at 0, 1, .. under a map of the oracles; NaN where a key is hidden."""
    name, *options = method.split(":")
    given = {key: int(value) for key, value in (option.split("=") for option in options)}
    rho = getattr(maps, name)(**given) if given else lambda i, j: i - j
    i, j = torch.arange(queries), torch.arange(keys)
    return maps.relative(rho, i[None], j[None], torch.tensor(True))[0]


class NoRotation(nn.Module):
    """A rotary module that turns nothing."""

    def __init__(self, replaced: nn.Module) -> None:
        super().__init__()
        self.replaced = replaced

    def forward(self, *given: Any, **named: Any) -> tuple[Tensor, Tensor] | Tensor:
        tables = self.replaced(*given, **named)
        if isinstance(tables, Tensor):  # complex
            return torch.ones_like(tables)
        return torch.ones_like(tables[0]), torch.zeros_like(tables[1])


def use_mapped_attention(
    model: Any,
    method: str,
    inv_freq: Tensor,
    layout: str = "half",
    train_length: int | None = None,
    n: float = 0.0,
    trailing: bool = False,
) -> None:
    """Let a model attend so, for good. train_length: of log-n scaling; n: of softmax_n. trailing: the last channels rotate."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import eager_mask

    width = 2 * len(inv_freq)

    def parts(x: Tensor) -> tuple[Tensor, Tensor]:
        """The channels that rotate, and the others."""
        start = x.shape[-1] - width if trailing else 0
        return x[..., start : start + width], torch.cat((x[..., :start], x[..., start + width :]), -1)

    def attend(
        module: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scaling: float, **others: Any
    ) -> tuple[Tensor, None]:
        i, j = torch.arange(q.shape[2])[:, None], torch.arange(k.shape[2])[None]
        where = relative(method, q.shape[2], k.shape[2])
        scores = maps.scores(parts(q)[0], parts(k)[0], where[None], inv_freq, layout)
        scores = (scores + parts(q)[1] @ parts(k)[1].repeat_interleave(q.shape[1] // k.shape[1], 1).mT) * scaling
        if train_length is not None:
            seen = (~where.isnan() & (i >= j)).sum(1)
            scores = scores * (seen.double().log() / math.log(train_length)).clamp(min=1)[:, None]
        sink = torch.full(q.shape[1:2], math.log(n), dtype=torch.float64) if n else None
        out = mix(scores + mask, v.double(), visible=~where.isnan(), sink=sink).to(v)
        return out.transpose(1, 2).contiguous(), None

    AttentionInterface.register("mapped_by_brute_force", attend)
    AttentionMaskInterface.register("mapped_by_brute_force", eager_mask)
    model.base_model.rotary_emb = NoRotation(model.base_model.rotary_emb)
    model.set_attn_implementation("mapped_by_brute_force")
