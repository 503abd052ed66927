# SPDX-License-Identifier: Apache-2.0
"""How long position survives: a linear probe of a token's position behind every layer, with and without residuals."""

import math
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from guide_code.model import check_single_text, check_tokens
from guide_code.shared import legend_above
from posenc.analysis.finding import PALETTE, SOFT, UP, Axes, Finding, plot
from posenc.conformance.fixtures import seeded
from posenc.encodings import from_spec
from posenc.errors import InputError
from posenc.lab.statistics import estimate
from posenc.lab.transformer import Block, Transformer
from posenc.positions import Positions
from posenc.pretrained.models import unwrap

RIDGES = tuple(10.0**power for power in range(-5, 4))
TESTED = 0.25
"""Share of the sequences, at the end, on which a probe is tested."""
BATCH = 8
"""Texts a forward pass."""
SHOWN = 0.005
"""Shares below this are reported as nothing."""

INTACT, WRITTEN, CUT = "with residuals", "written by the layer", "without residuals"
UNTRAINED, SHUFFLED = "untrained", "shuffled positions"


@dataclass(frozen=True, eq=False)
class ProbeCurve:
    """What a probe finds at the input of the first layer and behind every layer, on sequences that it was not fitted to.

    r2: share of the positions' variance explained; below 0 is worse than guessing. interval: (layers, 2), its 95 %
    interval over the sequences that it might have been tested on; nan where there was one alone. error: mean absolute, in
    tokens.
    """

    r2: Tensor
    interval: Tensor
    error: Tensor


@dataclass(frozen=True, eq=False)
class Survival(Finding):
    """Position, read linearly from the vectors behind each layer; entry 0 is the input of the first.

    curves, by what is read: "with residuals": the stream of vectors, as the model computes it. "written by the layer":
    what attention and MLP of a layer add to that stream, with the model unchanged. "without residuals": the stream of the
    same weights when every x + f(x) is f(x), so that position must pass through each sub-layer. "untrained": with
    residuals, fresh weights. "shuffled positions": with residuals, the probe's targets
    assigned at random. Of transformers models only the first and the controls.
    guess: mean absolute error in tokens of always guessing the middle. transfer: (layers, layers), the squared
    correlation with position of what the row's probe reads behind the column's layer: in what form position survives.
    """

    name: str
    texts: int
    length: int
    curves: Mapping[str, ProbeCurve]
    guess: float
    transfer: Tensor

    def sentences(self) -> list[str]:
        intact = self.curves[INTACT]
        layers, best = len(intact.r2) - 1, int(intact.r2[1:].argmax()) + 1
        first, most, last = (float(intact.r2[layer]) for layer in (0, best, -1))
        low, high = intact.interval[-1].tolist()
        sure = "" if math.isnan(low) or last < SHOWN else f" (95 % interval over sequences: {low:.0%} to {high:.0%})"
        sentences = [
            f"{self.name}: a linear probe explains {_share(first)} of the variance of position at the input and "
            f"{_share(last)} behind the last of {layers} layers{sure}. Its error there is {intact.error[-1]:.1f} tokens of "
            f"{self.length} (guessing the middle: {self.guess:.1f})."
        ]
        if best < layers and most >= SHOWN:
            sentences.append(f"It explains most behind layer {best}: {_share(most)}.")
        if CUT in self.curves:
            sentences.append(
                f"Without residual connections it explains {_share(self.curves[CUT].r2[-1])} there; from what the last layer "
                f"itself writes into the stream, {_share(self.curves[WRITTEN].r2[-1])}."
            )
        sentences.append(
            f"Controls, behind the last layer: {_share(self.curves[UNTRAINED].r2[-1])} in an untrained model, "
            f"{_share(self.curves[SHUFFLED].r2[-1])} for shuffled positions."
        )
        if first > 0.1:
            sentences.append(
                f"Read with the probe of the input, the last layer follows position with a squared correlation of "
                f"{self.transfer[0, -1]:.2f}."
            )
        return sentences


@torch.no_grad()
def survival(model: nn.Module, tokens: Tensor, *, untrained: nn.Module | None = None, seed: int = 0) -> Survival:
    """Fit a ridge regression of position on the vectors behind each layer, in closed form, for each layer separately.

    Its weight, for channels of unit variance, is that of RIDGES with the smallest error on sequences that it was not fitted to.

    Args:
        model: a posenc Transformer under any encoding, or a transformers model in eval mode. tokens: (batch, length)
            without padding; the last quarter of the sequences is for testing. Sequences that begin anywhere, not all with the
            same token, leave position to the model. untrained: the control; None: the same architecture with fresh weights.
        seed: of these weights and of the shuffled positions.

    Raises:
        InputError: too few sequences, tokens of a wrong shape, a model that cannot be taken apart or made afresh.
    """
    if not isinstance(model, Transformer):
        model = unwrap(model)
    check_tokens(tokens, model, 4)
    streams, name = _streams(model, tokens)
    control, _ = _streams(_afresh(model, seed) if untrained is None else untrained, tokens)
    streams[UNTRAINED] = control[INTACT]
    at = torch.arange(tokens.shape[1], dtype=torch.float64).expand(len(tokens), -1)
    draws = torch.Generator().manual_seed(seed)
    shuffled = at.flatten()[torch.randperm(at.numel(), generator=draws)].view_as(at)
    probes = {kind: [_Probe(layer, at) for layer in layers] for kind, layers in streams.items()}
    probes[SHUFFLED] = [_Probe(layer, shuffled) for layer in streams[INTACT]]
    return Survival(
        name=name,
        texts=len(tokens),
        length=tokens.shape[1],
        curves={
            kind: ProbeCurve(
                *(torch.tensor([getattr(p, name) for p in fitted]) for name in ("r2", "interval", "error"))
            )
            for kind, fitted in probes.items()
        },
        guess=float((at[0] - at[0].mean()).abs().mean()),
        transfer=torch.tensor([[probe.follows(layer, at) for layer in streams[INTACT]] for probe in probes[INTACT]]),
    )


def _share(r2: Tensor | float) -> str:
    return f"{float(r2):.0%}" if r2 >= SHOWN else "nothing"


class _Ridge:
    """Ridge regressions of (rows,) targets on (rows, dim) features, for every weight at the price of one."""

    def __init__(self, features: Tensor, targets: Tensor) -> None:
        self.mean, self.middle = features.mean(0), targets.mean()
        spread = features.std(0)
        self.spread = spread.where(spread > 1e-12 * spread.max(), torch.inf)  # constant channels are left out
        x = (features - self.mean) / self.spread
        energy, self.axes = torch.linalg.eigh(x.T @ x / len(x))
        self.energy, self.along = energy.clamp(min=0), self.axes.T @ (x.T @ (targets - self.middle)) / len(x)

    def read(self, features: Tensor, weight: float) -> Tensor:
        direction = self.axes @ (self.along / (self.energy + weight)) / self.spread
        return (features - self.mean) @ direction + self.middle


class _Probe:
    """A ridge regression of targets (texts, n) on features (texts, n, dim), tested on the last sequences. Its weight is the best
    on the last of the other sequences, when fitted to those before them."""

    def __init__(self, features: Tensor, targets: Tensor) -> None:
        (early, tested), (wanted, truth) = _split(features), _split(targets)
        (first, later), (of_first, of_later) = _split(early), _split(wanted)
        trial = _Ridge(first.flatten(0, 1), of_first.flatten())
        self.ridge = min(RIDGES, key=lambda weight: float((trial.read(later, weight) - of_later).square().sum()))
        self.fitted = _Ridge(early.flatten(0, 1), wanted.flatten())
        error = self.read(tested) - truth
        lost = error.square().mean(1) / (truth - self.fitted.middle).square().mean()  # of each text
        self.r2, self.interval = float(1 - lost.mean()), (torch.nan, torch.nan)
        if len(lost) > 1:
            sure = estimate(1 - lost[None])
            self.interval = sure.low, min(1.0, sure.high)
        self.error = float(error.abs().mean())

    def read(self, features: Tensor) -> Tensor:
        return self.fitted.read(features, self.ridge)

    def follows(self, features: Tensor, targets: Tensor) -> float:
        """Squared correlation of what it reads from the tested sequences with their targets."""
        read, truth = (x.flatten() - x.mean() for x in (self.read(_split(features)[1]), _split(targets)[1]))
        energy = read.square().sum() * truth.square().sum()
        return float((read @ truth).square() / energy) if energy > 0 else 0.0


def _split(x: Tensor) -> tuple[Tensor, Tensor]:
    """Sequences to fit, sequences to test."""
    tested = max(1, round(len(x) * TESTED))
    return x[:-tested], x[-tested:]


def _streams(model: nn.Module, tokens: Tensor) -> tuple[dict[str, list[Tensor]], str]:
    """What is read -> (texts, n, dim) float64 at the input and behind every layer; and the model's name."""
    if isinstance(model, Transformer):
        copy = deepcopy(model).to("cpu", torch.float64).eval()
        parts = [_walked(copy, batch.long()) for batch in tokens.cpu().split(BATCH)]
        name = copy.encoding.known_as
    else:
        inner: Any = model
        if inner.training:
            raise InputError(
                "it is in training mode, where dropout makes noise", "call model.eval() first", argument="model"
            )
        parts = [{INTACT: _hidden(inner, batch)} for batch in tokens.split(BATCH)]
        name = str(inner.config.model_type)
    streams = {kind: [torch.cat(layers) for layers in zip(*(p[kind] for p in parts), strict=True)] for kind in parts[0]}
    broken = [kind for kind, layers in streams.items() if not all(bool(x.isfinite().all()) for x in layers)]
    if broken:
        raise InputError(f"model {name!r}: vectors {broken[0]} are not finite; it cannot be probed")
    return streams, name


def _walked(model: Transformer, tokens: Tensor) -> dict[str, list[Tensor]]:
    """A forward pass of the model, block by block, with its residuals and without."""
    config, encoding = model.config, model.encoding
    positions = encoding.augment(Positions.arange(tokens.shape[1]).with_causal(config.causal), len(tokens))
    blocks = [block for block in model.blocks if isinstance(block, Block)]
    encoding.share([(block.attention.query, block.attention.key) for block in blocks])
    here = encoding.at(positions)
    streams: dict[str, list[Tensor]] = {INTACT: [], WRITTEN: [], CUT: []}
    for kind in (INTACT, CUT):
        x = model.embedding(tokens) * config.dim**0.5
        for layer, block in enumerate(blocks):
            x = here.embed(x, layer)
            if layer == 0:
                streams[kind].append(x)
            before, residual = x, kind == INTACT
            attention = block.attention_norm, block.attention
            x = block.add(x, *attention, here, layer, None, residual=residual)
            x = block.add(x, block.mlp_norm, block.mlp, residual=residual)
            streams[kind].append(x)
            if kind == INTACT:
                streams[WRITTEN].append(x - before)
    streams[WRITTEN].insert(0, streams[INTACT][0])
    return streams


def _hidden(model: Any, tokens: Tensor) -> list[Tensor]:
    check_single_text(model)
    output = model.base_model(tokens.to(model.device).long(), output_hidden_states=True)
    states = getattr(output, "hidden_states", None)
    if states is None:
        raise InputError(f"model of type {model.config.model_type!r} does not give its hidden states")
    if len({x.shape[-1] for x in states}) > 1:  # OPT's smallest projects what its last layer gives
        raise InputError(f"model of type {model.config.model_type!r}: its layers are not all of one width")
    return [x.to("cpu", torch.float64) for x in states]


def _afresh(model: nn.Module, seed: int) -> nn.Module:
    """The same architecture, untrained."""
    with seeded(seed):
        if isinstance(model, Transformer):
            try:
                return Transformer(model.config, from_spec(model.encoding.spec()))
            except InputError as error:
                raise error.about("pass an untrained model of the same kind", untrained=None) from None
        from transformers import AutoModel

        inner: Any = model
        return AutoModel.from_config(inner.config).to(inner.device, inner.dtype).eval()


@plot(
    "Compare the full lines, with and without residuals, with the grey ones: those are what chance and no training give."
)
def plot_survival(ax: Axes, finding: Survival) -> None:
    """How much of position a linear probe explains behind each layer."""
    looks = {
        INTACT: (PALETTE[0], "-"),
        WRITTEN: (PALETTE[2], "-"),
        CUT: (PALETTE[1], "-"),
        UNTRAINED: (SOFT, "--"),
        SHUFFLED: (SOFT, ":"),
    }
    for kind, curve in finding.curves.items():
        colour, line = looks[kind]
        # a probe can be far worse than guessing; how far says nothing
        ax.plot(
            range(len(curve.r2)), curve.r2.clamp(min=-0.1), line, color=colour, label=kind, marker="o", markersize=3
        )
    layers = len(finding.curves[INTACT].r2)
    ax.set(xlabel="layer (0: input of the first)", ylabel="R² of position", ylim=(-0.12, 1.05))
    ax.set_xticks(range(0, layers, max(1, layers // 12)))
    legend_above(ax, ncols=2)


@plot(
    "Bright off the diagonal: the layers represent position in the same directions. Bright on it alone: in different ones.",
    (5.2, 4.2),
)
def plot_probe_transfer(ax: Axes, finding: Survival) -> None:
    """How well the probe of one layer follows position behind another."""
    image = ax.imshow(finding.transfer.numpy(), cmap=UP, vmin=0, vmax=1, interpolation="nearest")
    ax.grid(False)
    marks = torch.arange(0, len(finding.transfer), max(1, len(finding.transfer) // 12)).tolist()
    ax.set(xlabel="read behind layer", ylabel="probe of layer", xticks=marks, yticks=marks)
    ax.figure.colorbar(image, ax=ax, label="squared correlation with position")
