# SPDX-License-Identifier: Apache-2.0
"""A comparison as a page and on the terminal, by its task. "arms", as results.json calls them, are the variants compared:
trained models, and ways to use one without training it again."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from markupsafe import Markup

from posenc.encodings import ENCODINGS
from posenc.errors import summary
from posenc.lab.text import unit
from posenc.position_maps import MAPS
from posenc.report.figures import DASHES, GREY, PALETTE, Figure, Rows, buttons, error_bars, escape, line, mark
from posenc.report.html import Estimate, about, half_width, percent, rendered, signed
from posenc.report.terminal import print_files, stdout
from posenc.spec import parse

__all__ = ["page", "show"]

Results = Mapping[str, Any]

DESCRIPTIONS = {
    "none": "no positions at all; only a causal model can still count what it sees",
    "normalized": "position divided by the text's length, between 0 and 1",
    "integer": "the position itself, as a number",
    "binary": "the binary digits of the position",
    "sinusoidal": "sines and cosines of many frequencies, added to the input (Transformer, 2017)",
    "learned": "one learned vector per position, added to the input (BERT, GPT-2)",
    "rope": "queries and keys turned by an angle that grows with position (RoFormer, Llama)",
    "t5": "a learned number per head and range of distances, added to the scores (T5)",
    "alibi": "a fixed penalty proportional to the distance, added to the scores (ALiBi)",
    "grid_table": "one learned vector per patch, added to the input (ViT)",
    "grid_sinusoidal": "sines and cosines of row and column, side by side, added to the input (MAE, DETR)",
    "axial_rope": "queries and keys turned, some pairs by the row and some by the column (RoPE in two dimensions)",
    "mixed_rope": "queries and keys turned by learned mixtures of row and column (RoPE-mixed)",
    "swin": "a learned number per head and offset in rows and columns, added to the scores (Swin)",
    "grid_alibi": "a fixed penalty proportional to the distance of two patches, added to the scores (CROMA)",
}


def page(results: Results) -> str:
    """report.html for what results.json holds."""
    task = _task(results)
    return rendered(
        task.template,
        task.figures(results),
        r=results,
        described=_described(results),
        busy=busy(results),
        loss=_loss,
        accuracy=_accuracy,
        points=_points,
        points_lost=_points_lost,
        **task.values(results),
    )


def show(results: Results, directory: str) -> None:
    """The answer, the ranked table, and where the files are, on stdout."""
    from rich import markup
    from rich.table import Table

    out = stdout()
    for sentence in results["answer"]:
        out.print(f"- {sentence}", markup=False)
    ranking = _task(results).ranking(results)
    table = Table(box=None, pad_edge=False, header_style="bold")
    last = len(ranking.titles)
    for column, title in enumerate(("", *ranking.titles)):
        table.add_column(title, justify="left" if column in (1, last) else "right", no_wrap=True)
    for rank, row in enumerate(ranking.rows, 1):
        table.add_row(str(rank), *map(markup.escape, row))
    out.print()
    out.print(table)
    out.print()
    out.print(ranking.note, markup=False)
    if note := busy(results):
        out.print(f"{note[0].upper()}{note[1:]}.", markup=False)
    print_files(out, directory, Report="report.html", Numbers="results.json")


def busy(results: Results) -> str:
    """What to report where a comparison took more than twice, or less than half, of the time that its first steps let
    expect; "" where it did not, or was over within a minute."""
    took, estimated = results["seconds"], results.get("estimated_seconds")
    if not estimated or not results["complete"] or max(took, estimated) < 60 or estimated / 2 <= took <= 2 * estimated:
        return ""
    when = "was busy" if took > estimated else "was busy then"
    return f"estimated {about(estimated)} when it began, took {about(took)}: the machine {when}"


# -------------------------------------------------------------------- what differs between tasks


class Ranking(NamedTuple):
    """The ranked variants as a terminal shows them: titles, a row of words per variant without its number, and a note on the
    units. The encoding's name comes first and a verdict last."""

    titles: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str


class TaskReport(ABC):
    """How the results of one task are shown. template: of report.html."""

    template: ClassVar[str]

    @abstractmethod
    def values(self, results: Results) -> dict[str, Any]:
        """What the template asks for beside the results: `token` is what costs are counted in, `batch` what a step reads."""

    @abstractmethod
    def figures(self, results: Results) -> dict[str, Figure]:
        """The figures by name."""

    @abstractmethod
    def ranking(self, results: Results) -> Ranking:
        """The table for a terminal."""


class TextReport(TaskReport):
    """Losses in nats per token, by the length of the text."""

    template = "compare_text.html"

    def values(self, results: Results) -> dict[str, Any]:
        settings, of = results["settings"], unit(results["settings"]["tokenizer"])
        batch = f"{settings['batch_size']} × {settings['length']} {of}s"
        return {"unit": of, "token": of, "batch": batch, "factors": settings["factors"]}

    def figures(self, results: Results) -> dict[str, Figure]:
        variants, settings = results["arms"], results["settings"]
        of = unit(settings["tokenizer"])
        longer = {"change": change_by_length(variants, of)} if len(settings["factors"]) > 1 else {}
        return longer | {
            "position": loss_by_position(variants, settings["length"], of),
            "training": training(variants, of),
        }

    def ranking(self, results: Results) -> Ranking:
        settings = results["settings"]
        lengths = [f * settings["length"] for f in settings["factors"]]
        of = unit(settings["tokenizer"])
        bits = ["bits per byte"] if of == "token" else []
        rises = [f"rise at {n}" for n in lengths[1:]]
        titles = ("encoding", f"loss at {lengths[0]}", *bits, "behind the best", *rises, "verdict")
        rows = []
        for variant in results["arms"]:
            changes = [_with_half_width(point["change"]) for point in variant["lengths"][1:]]
            first = variant["lengths"][0]
            behind = _with_half_width(first["behind_best"]) if first["behind_best"]["mean"] > 0 else "best"
            losses = [f"{first['loss']['mean']:.3f}", *(f"{first['bits_per_byte']:.3f}" for _ in bits)]
            rows.append((variant["name"], *losses, behind, *changes, variant["verdict"]))
        return Ranking(titles, rows, f"Nats per {of}, lower is better; ± is half a 95 % interval.")


class VisionReport(TaskReport):
    """Shares of images that are classified right, by the size of the images."""

    template = "compare_vision.html"

    def values(self, results: Results) -> dict[str, Any]:
        settings = results["settings"]
        trained, sizes = settings["image_size"], settings["test_sizes"]
        return {
            "token": "patch", "trained": trained, "largest": sizes[-1], "larger": sizes[-1] > trained,
            "others": [size for size in sizes if size != trained],
            "batch": f"{settings['batch_size']} images of {trained} × {trained} pixels",
        }  # fmt: skip

    def figures(self, results: Results) -> dict[str, Figure]:
        variants, settings = results["arms"], results["settings"]
        several = len(settings["test_sizes"]) > 1
        sizes = {"sizes": accuracy_by_size(variants, settings["image_size"], results["data"]["chance"])}
        return (sizes if several else {}) | {"training": training(variants, "image")}

    def ranking(self, results: Results) -> Ranking:
        trained = results["settings"]["image_size"]
        others = [size for size in results["settings"]["test_sizes"] if size != trained]
        changed = [f"change at {n}" for n in others]
        titles = ("encoding", f"accuracy at {trained}", "behind the best", *changed, "shuffled", "larger")
        rows = []
        for variant in results["arms"]:
            at = next(point for point in variant["sizes"] if point["size"] == trained)
            changes = [_in_points(point["change"]) for point in variant["sizes"] if point["size"] != trained]
            behind = _in_points(at["behind_best"]) if at["behind_best"]["mean"] > 0 else "best"
            right, shuffled = (percent(scores["accuracy"]["mean"], 1) for scores in (at, variant["shuffled"]))
            rows.append((variant["name"], right, behind, *changes, shuffled, variant["verdict"]))
        note = "Changes in points of a hundred, at pixels of an image's side; ± is half a 95 % interval."
        return Ranking(titles, rows, note)


def _task(results: Results) -> TaskReport:
    """Results of earlier versions, which had one task, are of text."""
    return {"text": TextReport(), "vision": VisionReport()}[results.get("task", "text")]


def _with_half_width(estimate: Estimate) -> str:
    return f"{estimate['mean']:+.3f} {half_width(estimate)}"


def _in_points(estimate: Estimate) -> str:
    return f"{100 * estimate['mean']:+.1f} {half_width(estimate, 1, 100)}"


# -------------------------------------------------------------------- words of the page


def _described(results: Results) -> list[tuple[str, str]]:
    """The encodings of this comparison, and what each does."""
    known = {**ENCODINGS, **{f"@{name}": map for name, map in MAPS.items()}}
    descriptions = []
    for name in dict.fromkeys(variant["encoding"] for variant in results["arms"]):
        terms = parse(name).terms
        bases = dict.fromkeys(base for t in terms for base in (t.name, *((f"@{t.map.name}",) if t.map else ())))
        descriptions.append((name, "; ".join(_description(base, known) for base in bases)))
    return descriptions


def _description(name: str, known: Mapping[str, object]) -> str:
    return f"the class {name}" if ":" in name else DESCRIPTIONS.get(name) or summary(known[name])


def _loss(point: Mapping[str, Estimate]) -> Markup:
    behind = point["behind_best"]
    small = "best" if behind["mean"] <= 0 else f"{signed(behind['mean'])} {half_width(behind)}"
    return Markup("{:.3f}<small>{}</small>").format(point["loss"]["mean"], small)


def _accuracy(point: Mapping[str, Estimate]) -> Markup:
    behind = point["behind_best"]
    small = "best" if behind["mean"] <= 0 else _points_lost(behind)
    return Markup("{}<small>{}</small>").format(percent(point["accuracy"]["mean"], 1), small)


def _points(estimate: Estimate) -> Markup:
    return Markup("{}<small>{}</small>").format(signed(100 * estimate["mean"], 1), half_width(estimate, 1, 100))


def _points_lost(estimate: Estimate) -> str:
    return f"−{100 * estimate['mean']:.1f} {half_width(estimate, 1, 100)}"


# -------------------------------------------------------------------- figures


def styles(variants: Rows) -> dict[str, dict[str, Any]]:
    """A line style per variant: one colour per trained model, dashes for the ways to use it without training."""
    encodings = list(dict.fromkeys(sorted(variant["encoding"] for variant in variants)))
    by_name: dict[str, dict[str, Any]] = {}
    for variant in sorted(variants, key=lambda variant: (not variant["trained"], variant["name"])):
        index = encodings.index(variant["encoding"])
        siblings = sum(o["encoding"] == variant["encoding"] for o in variants if o["name"] in by_name)
        dash = siblings if index < len(PALETTE) else siblings + 1
        by_name[variant["name"]] = {"color": PALETTE[index % len(PALETTE)], "dash": DASHES[dash % len(DASHES)]}
    return by_name


def change_by_length(variants: Rows, unit: str = "byte") -> Figure:
    """How much the loss on the same targets rises as the text before them grows past the training length. unit: of text."""
    figure, style = Figure(), styles(variants)
    for variant in variants:
        name, points = variant["name"], variant["lengths"]
        change = [p["change"] for p in points]
        figure.add_scatter(
            x=[p["length"] for p in points],
            y=[c["mean"] for c in change],
            error_y=error_bars(change),
            **line(name, style[name], f"%{{y:+.3f}} at %{{x}} {unit}s"),
        )
    lengths = [p["length"] for p in variants[0]["lengths"]] if variants else []
    title = f"{unit}s of text before the end of the test passage"
    figure.update_xaxes(title=title, type="log", tickvals=lengths, ticktext=lengths)
    figure.update_yaxes(title=f"rise of the loss, nats per {unit}", zeroline=True)
    return figure


def loss_by_position(variants: Rows, trained_length: int, unit: str = "byte") -> Figure:
    """The loss at each position of the longest test texts, as it is or above the best variant's."""
    figure, style = Figure(), styles(variants)
    for variant in variants:
        name, points = variant["name"], variant["by_position"]
        hover = "%{y:.3f} (%{customdata[0]:.3f} to %{customdata[1]:.3f}) around position %{x:.0f}"
        figure.add_scatter(
            x=[p["position"] for p in points],
            y=[p["loss"] for p in points],
            customdata=[[p["low"], p["high"]] for p in points],
            **line(name, style[name], hover, width=1.8, mode="lines"),
        )
    mark(figure, trained_length, "training length")
    if variants:
        losses = [[p["loss"] for p in variant["by_position"]] for variant in variants]
        above = [[loss - best for loss, best in zip(each, losses[0], strict=True)] for each in losses]
        hover_above = "%{y:+.3f} around position %{x:.0f}"
        plain = [line(v["name"], style[v["name"]], hover_above)["hovertemplate"] for v in variants]
        shown = {
            "loss": {"y": losses, "hovertemplate": [trace.hovertemplate for trace in figure.data]},
            f"above {escape(variants[0]['name'])}": {"y": above, "hovertemplate": plain},
        }
        buttons(figure, [{"label": label, "method": "restyle", "args": [of]} for label, of in shown.items()])
    figure.update_xaxes(title="position in the test text")
    figure.update_yaxes(title=f"loss, nats per {unit}")
    return figure


def accuracy_by_size(variants: Rows, trained: int, chance: float) -> Figure:
    """The share of images that are classified right by their size, or its change from that of training. chance: of naming
    the commonest class."""
    figure, style = Figure(), styles(variants)
    kinds = {kind: [[p[kind] for p in variant["sizes"]] for variant in variants] for kind in ("accuracy", "change")}
    heights = {kind: [[100 * e["mean"] for e in each] for each in estimates] for kind, estimates in kinds.items()}
    bars = {kind: [error_bars(each, 100) for each in estimates] for kind, estimates in kinds.items()}
    for index, variant in enumerate(variants):
        name, points = variant["name"], variant["sizes"]
        figure.add_scatter(
            x=[point["patches"] for point in points],
            y=heights["accuracy"][index],
            error_y=bars["accuracy"][index],
            customdata=[[point["size"]] for point in points],
            **line(name, style[name], "%{y:.1f} at %{customdata[0]} pixels"),
        )
    points = variants[0]["sizes"] if variants else []
    sides = [point["patches"] for point in points]
    for point in points:
        if point["size"] == trained:
            mark(figure, point["patches"], "training size")
    across = {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "line": {"width": 1.5, "color": GREY}}
    words = {"accuracy": "images whose class is found, %", "change": "change from the training size, points"}
    marked = figure.to_dict()["layout"].get("shapes", ())
    shapes = {kind: [*marked, {**across, "y0": y, "y1": y}] for kind, y in (("accuracy", 100 * chance), ("change", 0))}
    choices = []
    for kind in kinds:
        ends = {f"error_y.{end}": [bar[end] for bar in bars[kind]] for end in ("array", "arrayminus")}
        layout = {"yaxis.title.text": words[kind], "shapes": shapes[kind]}
        choices.append({"label": kind, "method": "update", "args": [{"y": heights[kind], **ends}, layout]})
    buttons(figure, choices)
    figure.update_layout(shapes=shapes["accuracy"])
    figure.update_xaxes(title="patches per side of the test image", tickvals=sides, ticktext=sides)
    figure.update_yaxes(title=words["accuracy"])
    return figure


def training(variants: Rows, unit: str = "byte") -> Figure:
    """The loss of the training batches, mean over seeds."""
    figure, style = Figure(), styles(variants)
    for variant in variants:
        if variant["trained"]:
            name, points = variant["name"], variant["training"]
            figure.add_scatter(
                x=[p["step"] for p in points],
                y=[p["loss"] for p in points],
                **line(name, style[name], "%{y:.3f} up to step %{x}", width=1.8, mode="lines"),
            )
    figure.update_xaxes(title="training step")
    figure.update_yaxes(title=f"loss of the batch, nats per {unit}")
    return figure
