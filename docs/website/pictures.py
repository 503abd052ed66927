# SPDX-License-Identifier: Apache-2.0
"""What an encoding looks like: the plots of posenc.analysis where it has codes, turns, or biases of one axis, and plots of
this module where it acts on images, on positions or on the softmax."""

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

import posenc
from posenc.analysis import bias, codes_of, plots, rotation, scores
from posenc.analysis.codes import SHAPE
from posenc.analysis.finding import PALETTE, SOFT, Picture, image, plot
from posenc.attention import prepare
from posenc.backends.reference import Reference
from posenc.bias import dense_sum
from posenc.encoding import Encoding
from posenc.encodings import ENCODINGS, create
from posenc.errors import InputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LENGTH = 128
"""Positions shown."""
SIDE = 15
"""Patches of the image shown, and of the one that tables are made for, along each axis."""


def pictures(name: str) -> list[Picture]:
    """Up to two pictures of an encoding, the most telling first: none of one that leaves positions and scores as they are."""
    sites = ENCODINGS[name].sites()
    if sites in (("prefix_kv",), ("rotate_values",)):
        return []
    if "augment" in sites:
        return [Picture(placed, [_draws(name)])]
    if "sink" in sites:
        return [Picture(weight_kept, [_kept(name)])]
    if ENCODINGS[name].rotates_last:
        return [Picture(factor_by_position, [_factors(name)])]
    if has_grid(name):
        return [Picture(around_the_middle, [_around(name)])]
    if "embed" in sites:
        codes = codes_of(name)
        return [Picture(plots.heat_map, [codes, LENGTH]), Picture(plots.dot_products, [codes, LENGTH])]
    found = [*_of_distance(name), *_of_pairs(name), Picture(plots.effective_scores, [scores(name, LENGTH)])]
    return found[:2]


def has_grid(name: str) -> bool:
    """Whether it is an encoding of images."""
    return bool({"height", "axes"} & set(ENCODINGS[name].arguments())) or name in ("m_rope", "grid_alibi")


def _of_distance(name: str) -> list[Picture]:
    """What is added to the scores, where that does not depend on what the tokens say."""
    with suppress(InputError):
        found = bias(name, LENGTH)
        return [] if found.of_content else [Picture(plots.bias_by_distance, [found])]
    return []


def _of_pairs(name: str) -> list[Picture]:
    """How fast the pairs turn."""
    with suppress(InputError):
        return [Picture(plots.pair_wavelengths, [rotation(name, LENGTH)])]
    return []


@plot(
    "The patch in the middle meets others with the same content: red where position raises the score, blue where it lowers it.",
    (5, 4.2),
)
def around_the_middle(ax: "Axes", values: Tensor) -> None:
    """What position does to the score of an image's middle patch with every other one of the same content."""
    image(ax, values)
    ax.set(xlabel="column of the patch", ylabel="row of the patch")


@plot(
    "A row is one pass in training: where its sixteen tokens count as being. The lowest row is how they stand in the text."
)
def placed(ax: "Axes", draws: Tensor) -> None:
    """Where the tokens of a text are placed, pass by pass."""
    for number, row in enumerate(draws):
        colour = SOFT if number == 0 else PALETTE[(number - 1) % len(PALETTE)]
        ax.plot(row, [number] * len(row), "o", markersize=4, color=colour)
    ax.set(xlabel="position", ylabel="pass", yticks=range(len(draws)))


@plot("Where all scores are low the weights no longer add up to one: the head attends to nothing.")
def weight_kept(ax: "Axes", found: tuple[Tensor, Tensor, Tensor]) -> None:
    """The weights of eight keys together, by the score that all of them have."""
    at, kept, plain = found
    ax.plot(at, plain, color=SOFT, linestyle="--", label="softmax")
    ax.plot(at, kept, color=PALETTE[0], label="with it")
    ax.set(xlabel="score of each of eight keys", ylabel="their weights together", ylim=(0, 1.05))
    ax.legend()


@plot("Above one, a query's scores are further apart and its attention is sharper.")
def factor_by_position(ax: "Axes", found: tuple[Tensor, int]) -> None:
    """What queries are multiplied by, in a causal text."""
    factors, trained = found
    ax.plot(torch.arange(len(factors)), factors, color=PALETTE[0])
    ax.axvline(trained, color=SOFT, linestyle="--", label=f"trained length, {trained}")
    ax.set(xlabel="position of the query", ylabel="factor of its scores")
    ax.set_ylim(bottom=min(0.9, float(factors.min())))
    ax.legend()


@torch.no_grad()
def _around(name: str) -> Tensor:
    """(SIDE, SIDE): score with the encoding minus score without, mean over heads and contents."""
    torch.manual_seed(0)
    shape: dict[str, Any] = {**SHAPE, "max_positions": None, "causal": False, "grid": (SIDE, SIDE)}
    encoding = create(name, **shape).eval()
    positions, count, width = posenc.Positions.grid(SIDE, SIDE), SIDE * SIDE, SHAPE["head_dim"]
    found = []
    for content in torch.randn(32, width, dtype=torch.float64):
        x = encoding.embed(content.expand(1, count, width), positions)
        q = x[:, None].expand(1, SHAPE["num_heads"], count, width)
        problem = prepare(q, q, q, encoding, positions, None, None, None, 0.0, 0)
        score = Reference().scores(problem, 0, count, dense_sum(problem.bias, x.device))[0, :, count // 2]
        plain = prepare(q, q, q, create("none"), positions, None, None, None, 0.0, 0).scale * content.square().sum()
        found.append((score - plain).mean(0))
    return torch.stack(found).mean(0).reshape(SIDE, SIDE)


def _draws(name: str) -> Tensor:
    """(7, 16): the positions of a text as they are, then as six passes of training place them."""
    torch.manual_seed(0)
    options = {
        "shape": "shape:max_shift=100",
        "randomized": "randomized:max_length=128",
        "pose": "pose:max_length=128",
    }.get(name, name)
    encoding = create(options, **SHAPE).train()
    plain = posenc.Positions.arange(16, causal=True)
    passes = [encoding.augment(plain, 1).q.flatten() for _ in range(6)]
    return torch.stack([plain.q.flatten().double(), *(found.double() for found in passes)])


def _kept(name: str) -> tuple[Tensor, Tensor, Tensor]:
    """Scores, the weights of eight keys that all have that score, and what softmax gives them."""
    encoding: Encoding = create(name, num_heads=1)
    at = torch.linspace(-8, 8, 129)
    q, k = at[:, None, None, None], torch.ones(129, 1, 8, 1)
    with torch.no_grad():
        positions = posenc.Positions.from_ids([8], torch.arange(8))
        kept = posenc.attention(q, k, torch.ones_like(k), encoding, positions, scale=1.0)
    return at, kept.flatten(), torch.ones(129)


def _factors(name: str) -> tuple[Tensor, int]:
    """The factor of the queries of a text four times the trained length, and that length."""
    trained, texts = 128, {"temperature": "temperature:beta=1.3"}
    encoding = create(texts.get(name, name), max_positions=trained)
    one = torch.ones(1, 1, 4 * trained, 2, dtype=torch.float64)
    q, _ = encoding.rotate(one, one, posenc.Positions.arange(4 * trained, causal=True))
    return q[0, 0, :, 0], trained
