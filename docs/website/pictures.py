# SPDX-License-Identifier: Apache-2.0
"""What an encoding looks like: the plots of posenc.analysis where it has codes, turns, or biases of one axis, and plots of
this module where it acts on images, on positions or on the softmax."""

import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from html import escape
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

import posenc
from posenc.analysis import bias, codes_of, plots, rotation, scores
from posenc.analysis.codes import SHAPE, Codes
from posenc.analysis.finding import PALETTE, SOFT, STYLE, Picture, image, plot
from posenc.analysis.scores import Bias
from posenc.attention import Call, prepare
from posenc.backends.reference import Reference
from posenc.bias import dense_sum
from posenc.encoding import Encoding, gates_of
from posenc.encodings import ENCODINGS, HeadRotary, RoPEPlusPlus, SelectiveAttention, StickBreaking, create
from posenc.encodings.accumulated_rotary import AccumulatedRotary
from posenc.encodings.catalogue import family
from posenc.encodings.shared import key_angles
from posenc.errors import InputError
from posenc.report.analyze import drawn
from website.measured import loss_by_length
from website.trained import BYTES, GRID, PHRASE, measured, trained

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LENGTH = 128
"""Positions shown."""
SIDE = 15
"""Patches of the image shown, and of the one that tables are made for, along each axis."""

WIDTH, LEAST = 4.6, 10.5
"""Of a picture, in inches, and of its letters, in points: at half a page's column, a point is a pixel."""


@dataclass(frozen=True, eq=False)
class Half(Picture):
    """A picture for half a column: smaller, with letters that can be read there."""

    def draw(self) -> "Figure":
        from matplotlib import rc_context
        from matplotlib.figure import Figure
        from matplotlib.text import Text

        wide, high = self.plot.size
        style: Any = {**STYLE, "font.size": LEAST}
        with rc_context(style):
            figure = Figure(figsize=(WIDTH, max(WIDTH * high / wide, 3.1)))
            self.plot(*self.findings, ax=figure.subplots(), **self.options)
            for text in figure.findobj(Text):
                text.set_fontsize(max(text.get_fontsize(), LEAST))
        return figure


def card(path: Path) -> None:
    """The picture that stands for the site where a link to it is shared: 1200 x 630 pixels, loss by length of some encodings."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    style: Any = {**STYLE, "font.size": 17}
    with rc_context(style):
        figure = Figure(figsize=(12, 6.3), dpi=100, layout="constrained")
        ax = figure.subplots()
        for name, colour in zip(("none", "t5", "alibi", "rope"), (SOFT, *PALETTE), strict=False):
            lengths, losses = loss_by_length(name)
            ax.plot(lengths, losses, color=colour, linewidth=3, marker="o")
            ax.text(lengths[-1] * 1.05, losses[-1], name, color=colour, va="center")
        figure.suptitle("posenc: positional encodings for PyTorch, checked and measured", fontsize=26, weight="bold")
        ax.set(xscale="log", xlabel="length of the text in bytes; trained at the first", ylabel="loss, nats per byte")
        ax.set_xticks(lengths, [str(length) for length in lengths])
        ax.set_xlim(right=lengths[-1] * 1.4)
        ax.minorticks_off()
        _save(figure, path)


def card_of(name: str, title: str, path: Path) -> None:
    """The picture that stands for an encoding's page where a link to it is shared: 600 x 315 pixels, its first picture."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    picture = pictures(name)[0]
    with rc_context(cast(Any, STYLE)):
        figure = Figure(figsize=(6, 3.15), dpi=100, layout="constrained")
        picture.plot(*picture.findings, ax=figure.subplots(), **picture.options)
        figure.suptitle(f"{title} · posenc", fontsize=14, weight="bold")
        _save(figure, path)


def _save(figure: "Figure", path: Path) -> None:
    """As a PNG of 256 colours, which is a third as large."""
    from PIL import Image

    drawn = BytesIO()
    figure.savefig(drawn, dpi="figure")
    with Image.open(drawn) as image:
        image.convert("RGB").quantize(256).save(path, optimize=True)


def figures(shown: Iterable[Picture]) -> str:
    """Pictures side by side, with what to see in them, as HTML."""
    found = []
    for number, each in enumerate(shown):
        svg = str(drawn(Half(each.plot, each.findings, each.options), f"p{number}-"))
        svg = re.sub(r"(\d\.\d\d)\d+", r"\1", re.sub(r"font-family: [^;\"]*", "font-family: var(--font)", svg))
        found.append(f"<figure>{svg}<figcaption>{escape(each.see)}</figcaption></figure>")
    return f'<div class="drawings">{"".join(found)}</div>'


@cache
def pictures(name: str) -> list[Picture]:
    """One or two pictures of an encoding, the most telling first."""
    cls = ENCODINGS[name]
    sites, subject, found = cls.own_sites, trained(name) or name, measured(name)
    if found:
        return _measured(name, found)
    if "augment" in sites:
        return [Picture(placed, [_draws(name)])]
    if {"restrict", "prefix_kv"} & set(sites):
        return [Picture(seen, [*_seen(name)])]
    if sites == ("rotate_values",):
        return [Picture(arriving, [_arriving(name)])]
    if cls is StickBreaking:
        return [Picture(shares, [_shares()])]
    if cls is SelectiveAttention:
        return [Picture(selected, [_selected(name)])]
    if "sink" in sites:
        return [Picture(weight_kept, [_kept(name)])]
    if ENCODINGS[name].rotates_last:
        return [Picture(factor_by_position, [_factors(name)])]
    if has_grid(name):
        return [Picture(around_the_middle, [around(name)])]
    if "embed" in sites:
        codes = codes_of(subject)
        return [Picture(plots.heat_map, [codes, LENGTH]), Picture(plots.dot_products, [codes, LENGTH])]
    of_scores = Picture(plots.effective_scores, [scores(subject, LENGTH)])
    if issubclass(cls, AccumulatedRotary):
        return [Picture(accumulated, [_accumulated(name)]), of_scores]
    if cls is RoPEPlusPlus:
        of_scores = Picture(plots.scores_by_head, [scores(posenc.create(name, **SHAPE), LENGTH, num_heads=2)])
    if cls is HeadRotary:
        return [Picture(turns_by_head, [_turns_by_head(name)]), of_scores]
    return [*_of_distance(subject), *_of_pairs(subject), of_scores][:2]


def says(name: str) -> str:
    """What a trained encoding has learned, in a sentence made of its numbers; "" where it is drawn untrained."""
    found = measured(name)
    if "explained" in found:
        shares = [f"{100 * share:.0f}" for share in (found["explained"].min(), found["explained"].max())]
        changes = (found["distance"][:, -1] - found["distance"][:, 0]).tolist()
        most, least = (f"{pick(changes, key=abs):+.3g}" for pick in (max, min))
        return (
            f"From distance 0 to {found['distance'].shape[1] - 1}, position changes the mean score by {most} in the head that changes "
            f"most and by {least} in the one that changes least. Distance explains {' to '.join(dict.fromkeys(shares))} % of the variance of "
            "what position adds; the rest depends on the tokens."
        )
    if "prefix" in found:
        shares = [f"{100 * share:.0f}" for share in (found["prefix"][:, -1].min(), found["prefix"][:, -1].max())]
        return f"The last query of a text gives the learned keys {' to '.join(dict.fromkeys(shares))} % of its weight, depending on the head."
    if "frequencies" in found:
        of_bytes = found["frequencies"].abs()
        apart = float((of_bytes.std(0) / of_bytes.mean(0)).median())
        return f"In the median channel, frequencies of these bytes differ by {100 * apart:.0f} % (standard deviation over mean)."
    encoding = trained(name)
    if encoding is None:
        return ""
    if "sink" in encoding.sites():
        logits = encoding.get_parameter("logits")[0].tolist()
        return f"The logits of the first layer's heads lie between {min(logits):.2f} and {max(logits):.2f}; untrained, they are 0."
    if has_grid(name):
        return _around_words(around(name))
    finding = pictures(name)[0].findings[0]
    return _codes_words(finding) if isinstance(finding, Codes) else finding.sentences()[0]


def _around_words(values: Tensor) -> str:
    side = len(values)
    sentences = []
    for at in (int(values.argmin()), int(values.argmax())):
        down, right = at // side - side // 2, at % side - side // 2
        value = round(float(values.flatten()[at]), 6) + 0.0
        sentences.append(
            f"{value:+.2g} ({down:+d} rows and {right:+d} columns away)" if down or right else f"{value:.2g} (itself)"
        )
    return f"Position changes the middle patch's score with another by {sentences[0]} to {sentences[1]}."


def _codes_words(codes: Codes) -> str:
    of = codes(torch.arange(LENGTH))
    near, far = (float(torch.cosine_similarity(of[apart:], of[:-apart]).mean()) for apart in (1, LENGTH // 2))
    return (
        f"The codes of neighbours have a mean cosine of {near:.2f}, those of positions {LENGTH // 2} apart {far:.2f}."
    )


def _measured(name: str, found: dict[str, Tensor]) -> list[Picture]:
    """Pictures of what an encoding does in its trained model's first layer."""
    shown = []
    if "prefix" in found:
        return [Picture(weight_of_prefix, [found["prefix"]]), Picture(seen, [*_seen(name)])]
    if "frequencies" in found:
        return [Picture(frequencies_of_bytes, [found["frequencies"]])]
    if "angles" in found:
        shown.append(Picture(accumulated, [found["angles"], PHRASE]))
    if "flow" in found:
        shown.append(Picture(flow, [found["flow"]]))
    distances = torch.arange(found["distance"].shape[1])
    shown.append(
        Picture(plots.bias_by_distance, [Bias(name, distances, found["distance"], of_content=True, learned=True)])
    )
    head = int(found["pairs"].flatten(1).std(1).argmax())
    return [*shown, Picture(between_letters, [found["pairs"][head], head])][:2]


def has_grid(name: str) -> bool:
    """Whether it is an encoding of images."""
    return family(ENCODINGS[name]) == "grid"


def of_input(name: str) -> bool:
    """Whether its picture depends on what the tokens say, which is drawn."""
    return "gates" in ENCODINGS[name].own_sites


def _of_distance(subject: str | Encoding) -> list[Picture]:
    """What is added to the scores, where that does not depend on what the tokens say."""
    with suppress(InputError):
        found = bias(subject, LENGTH)
        return [] if found.of_content else [Picture(plots.bias_by_distance, [found])]
    return []


def _of_pairs(subject: str | Encoding) -> list[Picture]:
    """How fast the pairs turn."""
    with suppress(InputError):
        return [Picture(plots.pair_wavelengths, [rotation(subject, LENGTH)])]
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


@plot(
    "Rows are queries and columns keys of an English phrase: red where the trained encoding raises a score, blue where it lowers it.",
    (5, 4.6),
)
def between_letters(ax: "Axes", values: Tensor, head: int) -> None:
    """What position adds to the scores between the tokens of PHRASE, in one head."""
    image(ax, values.masked_fill(torch.ones_like(values).triu(1).bool(), torch.nan))
    letters = [letter.replace(" ", "␣") for letter in PHRASE]
    ax.set_xticks(range(len(letters)), letters)
    ax.set_yticks(range(len(letters)), letters)
    ax.tick_params(length=0)
    ax.grid(False)
    ax.set(xlabel=f"key, in head {head}", ylabel="query")


@plot("A line for each head. Learned keys have no position; they share a query's weight with ever more tokens.")
def weight_of_prefix(ax: "Axes", shares: Tensor) -> None:
    """The weight that learned keys get, by the position of the query."""
    for head, row in enumerate(shares):
        ax.plot(row, label=f"head {head}")
    ax.set(xlabel="position of the query", ylabel="weight of the learned keys", ylim=(0, 1))
    ax.legend()


@plot("Each byte has its frequencies; the dashed line is that of every byte before training.")
def frequencies_of_bytes(ax: "Axes", of_bytes: Tensor) -> None:
    """How fast the channels of some bytes turn."""
    channels = torch.arange(of_bytes.shape[1])
    for byte, row in zip(BYTES, of_bytes, strict=True):
        ax.plot(channels, row.abs(), label=byte.replace(" ", "space"))
    ax.plot(channels, 10000.0 ** (-2 * (channels // 2) / len(channels)), color=SOFT, linestyle="--", label="untrained")
    ax.set(xlabel="channel", ylabel="radians a position", yscale="log", ylim=(1e-4, None))
    ax.legend()


@plot("What the flow adds to a query in the first head. All of it is zero before training.")
def flow(ax: "Axes", codes: Tensor) -> None:
    """What FLOATER adds to queries, position by position."""
    image(ax, codes, aspect="auto")
    ax.set(xlabel="channel", ylabel="position")


@plot("Where all scores are low the weights no longer add up to one: the head attends to nothing.")
def weight_kept(ax: "Axes", found: tuple[Tensor, Tensor, Tensor]) -> None:
    """The weights of eight keys together, by the score that all of them have."""
    at, with_it, plain = found
    ax.plot(at, plain, color=SOFT, linestyle="--", label="softmax")
    for head, row in enumerate(with_it):
        ax.plot(at, row, color=PALETTE[head], label="with it" if len(with_it) == 1 else f"head {head}")
    ax.set(xlabel="score of each of eight keys", ylabel="their weights together", ylim=(0, 1.05))
    ax.legend()


@plot("Above one, a query's scores are further apart and its attention is sharper.")
def factor_by_position(ax: "Axes", found: tuple[Tensor, int]) -> None:
    """What queries are multiplied by, in a causal text."""
    factors, trained = found
    ax.plot(torch.arange(len(factors)), factors, color=PALETTE[0])
    ax.axvline(trained, color=SOFT, linestyle="--", label=f"training length, {trained}")
    ax.set(xlabel="position of the query", ylabel="factor of its scores")
    ax.set_ylim(bottom=min(0.9, float(factors.min())))
    ax.legend()


@plot(
    "A query sees the keys of the blue cells of its row. Keys before 0 are learned ones, without a position.", (5, 4.2)
)
def seen(ax: "Axes", visible: Tensor, learned: int) -> None:
    """Which keys each query of a causal text sees."""
    queries, keys = visible.shape
    extent = (-learned - 0.5, keys - learned - 0.5, queries - 0.5, -0.5)
    ax.imshow(visible, cmap="Blues", vmin=0, vmax=1.4, interpolation="nearest", extent=extent)
    ax.grid(False)
    ax.set(xlabel="key", ylabel="query")


@plot(
    "What arrives of a value of ones from so many tokens back, channel by channel: fast pairs differ from token to token."
)
def arriving(ax: "Axes", values: Tensor) -> None:
    """A value of ones as its query gets it, by distance."""
    image(ax, values, aspect="auto")
    ax.set(xlabel="channel", ylabel="tokens back")


@plot("Each key takes a fixed share of what nearer keys have left; the softmax would give all of them the same weight.")
def shares(ax: "Axes", found: Tensor) -> None:
    """Weights of the last query of a text where all scores are alike, a line for each score."""
    for score, row, colour in zip((-4, -2, 0, 2), found, PALETTE, strict=False):
        ax.plot(range(1, len(row)), row[1:], color=colour, label=f"all scores {score}")
    ax.set(xlabel="tokens back", ylabel="weight", yscale="log", ylim=(1e-6, 1))
    ax.legend()


@plot(
    "Blue columns are keys that tokens have selected: what follows attends to them less. The first key stays.", (5, 4.2)
)
def selected(ax: "Axes", values: Tensor) -> None:
    """What is subtracted from the scores of every pair."""
    image(ax, values)
    ax.set(xlabel="key", ylabel="query")


@plot("Angles grow with what the tokens say; those of RoPE would be straight lines.")
def accumulated(ax: "Axes", angles: Tensor, text: str = "") -> None:
    """The angle by which some pairs of the first head have turned, by position, or by token of a text."""
    for pair in range(0, angles.shape[1], max(1, angles.shape[1] // 5)):
        ax.plot(angles[:, pair], label=f"pair {pair}")
    ax.set(xlabel="token" if text else "position", ylabel="angle, radians")
    if text:
        ax.set_xticks(range(len(text)), [letter.replace(" ", "␣") for letter in text])
    ax.legend()


@plot("A line for each key head: at 1.5, its pairs turn as those of RoPE would if every distance were divided by 1.5.")
def turns_by_head(ax: "Axes", factors: Tensor) -> None:
    """Positions a turn, pair by pair, of each key head, over those of RoPE."""
    for head, row in enumerate(factors):
        ax.plot(row, label=f"head {head}")
    ax.set(xlabel="pair of channels", ylabel="wavelength, over RoPE's")
    ax.legend()


@torch.no_grad()
def _seen(name: str) -> tuple[Tensor, int]:
    """(queries, keys) of zeros and ones, and how many of the keys, the first ones, are learned."""
    options = {"window": "window:before=5", "chunks": "chunks:size=8"}
    encoding = create(options.get(name, name), **SHAPE)
    visible = encoding.restrict(posenc.Positions.arange(24, causal=True)).mask(0, 24)[0, 0].double()
    prefix = encoding.prefix_kv()
    learned = 0 if prefix is None else prefix[0].shape[1]
    return torch.cat((visible.new_ones(24, learned), visible), 1), learned


@torch.no_grad()
def _arriving(name: str) -> Tensor:
    """(distances, channels): what the query gets of a value of ones so many tokens back."""
    encoding, count = create(name, **SHAPE), 48
    positions = posenc.Positions.from_ids([count - 1] * count, torch.arange(count).flip(0))
    values = torch.ones(1, 1, count, SHAPE["head_dim"], dtype=torch.float64)
    return encoding.turn_back(encoding.rotate_values(values, positions), positions)[0, 0]


@torch.no_grad()
def _shares() -> Tensor:
    """(scores, keys): the weights of a query's keys from its token on, where all have the same score."""
    positions, count = posenc.Positions.from_ids([32], torch.arange(33), causal=True), 33
    q = torch.tensor([-4.0, -2.0, 0.0, 2.0], dtype=torch.float64)[:, None, None, None]
    values = torch.eye(count, dtype=torch.float64).expand(4, 1, -1, -1)
    keys = torch.ones(4, 1, count, 1, dtype=torch.float64)
    return posenc.attention(q, keys, values, create("stick_breaking"), positions, scale=1.0)[:, 0, 0].flip(-1)


@torch.no_grad()
def _selected(name: str) -> Tensor:
    """(queries, keys): what is added to the scores of a text of drawn queries and keys."""
    drawn = torch.Generator().manual_seed(0)
    q, k = torch.randn(2, 1, 1, 48, SHAPE["head_dim"], generator=drawn, dtype=torch.float64)
    positions = posenc.Positions.arange(48, causal=True)
    problem = prepare(Call(q, k, k, create(name, **SHAPE), positions, gates=q))
    added = dense_sum(problem.bias, q.device)
    assert added is not None
    return added[0, 0].masked_fill(~positions.mask(0, 48)[0, 0], torch.nan)


@torch.no_grad()
def _accumulated(name: str) -> Tensor:
    """(positions, pairs): the angles of the first key head in a text of drawn tokens."""
    torch.manual_seed(0)
    encoding = create(name, **SHAPE)
    assert isinstance(encoding, AccumulatedRotary)
    x = torch.randn(1, LENGTH, SHAPE["dim"], generator=torch.Generator().manual_seed(0))
    positions = posenc.Positions.arange(LENGTH, causal=True).with_gates(tuple(gates_of(encoding, x)))
    return encoding.angles(positions, 0)[1][0, 0]


@torch.no_grad()
def _turns_by_head(name: str) -> Tensor:
    """(key heads, pairs): wavelengths over those of RoPE."""
    plain, angles = (
        key_angles(create(each, **SHAPE), posenc.Positions.from_ids([1]))[0, :, 0] for each in ("rope", name)
    )
    return plain / angles


@cache
@torch.no_grad()
def around(name: str) -> Tensor:
    """(side, side): score with the encoding minus score without, mean over heads and contents; trained, of an image of the size
    of training."""
    torch.manual_seed(0)
    learned = trained(name)
    shape: dict[str, Any] = {**SHAPE, "max_positions": None, "causal": False, "grid": (SIDE, SIDE)}
    encoding = create(name, **shape).eval() if learned is None else learned
    side = SIDE if learned is None else GRID["grid"][0]
    heads = SHAPE["num_heads"] if learned is None else GRID["num_heads"]
    width = SHAPE["head_dim"] if learned is None else GRID["dim"] // heads
    if learned is not None and "embed" in encoding.sites():
        width = GRID["dim"]
    positions, count = posenc.Positions.grid(side, side), side * side
    found = []
    for content in torch.randn(32, width, dtype=torch.float64):
        x = encoding.embed(content.expand(1, count, width), positions)
        q = x[:, None].expand(1, heads, count, width)
        problem = prepare(Call(q, q, q, encoding, positions))
        middle = side // 2 * (side + 1)
        score = Reference().scores(problem, 0, count, dense_sum(problem.bias, x.device))[0, :, middle]
        plain = prepare(Call(q, q, q, create("none"), positions)).scale * content.square().sum()
        found.append((score - plain).mean(0))
    return torch.stack(found).mean(0).reshape(side, side)


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
    """Scores, the weights (heads, scores) of eight keys that all have that score, and what softmax gives them."""
    encoding = trained(name) or create(name, num_heads=1)
    heads = getattr(encoding, "num_heads", 1)
    at = torch.linspace(-8, 8, 129)
    q, k = at[:, None, None, None].expand(-1, heads, 1, 1), torch.ones(129, heads, 8, 1)
    with torch.no_grad():
        positions = posenc.Positions.from_ids([8], torch.arange(8))
        with_it = posenc.attention(q, k, torch.ones_like(k), encoding, positions, scale=1.0)
    return at, with_it[:, :, 0, 0].mT, torch.ones(129)


def _factors(name: str) -> tuple[Tensor, int]:
    """The factor of the queries of a text four times the training length, and that length."""
    trained, texts = 128, {"temperature": "temperature:beta=1.3"}
    encoding = create(texts.get(name, name), max_positions=trained)
    one = torch.ones(1, 1, 4 * trained, 2, dtype=torch.float64)
    q, _ = encoding.rotate(one, one, posenc.Positions.arange(4 * trained, causal=True))
    return q[0, 0, :, 0], trained
