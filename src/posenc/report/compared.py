# SPDX-License-Identifier: Apache-2.0
"""What a comparison looks like, by its task: the page's template with its values and figures, and the table of a terminal."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from posenc.lab.config import unit
from posenc.report.terminal import about, print_files, stdout

Results = Mapping[str, Any]


class Ranking(NamedTuple):
    """The ranked arms as a terminal shows them: titles, a row of words per arm without its number, and a note on the units.
    The encoding's name comes first and a verdict last."""

    titles: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str


class Look(ABC):
    """How one task is shown. template: of report.html."""

    template: ClassVar[str]

    @abstractmethod
    def values(self, results: Results) -> dict[str, Any]:
        """What the template asks for beside the results: `token` is what costs are counted in, `batch` what a step reads."""

    @abstractmethod
    def figures(self, results: Results) -> dict[str, Any]:
        """The figures by name; needs plotly."""

    @abstractmethod
    def ranking(self, results: Results) -> Ranking:
        """The table for a terminal."""


class TextLook(Look):
    """Losses in nats per token, by the length of the text."""

    template = "compare_text.html"

    def values(self, results: Results) -> dict[str, Any]:
        settings, of = results["settings"], unit(results["settings"]["tokenizer"])
        batch = f"{settings['batch_size']} × {settings['length']} {of}s"
        return {"unit": of, "token": of, "batch": batch, "factors": settings["factors"]}

    def figures(self, results: Results) -> dict[str, Any]:
        from posenc.report import figures

        arms, settings = results["arms"], results["settings"]
        of = unit(settings["tokenizer"])
        longer = {"change": figures.change_by_length(arms, of)} if len(settings["factors"]) > 1 else {}
        return longer | {
            "position": figures.loss_by_position(arms, settings["length"], of),
            "training": figures.training(arms, of),
        }

    def ranking(self, results: Results) -> Ranking:
        settings = results["settings"]
        lengths = [f * settings["length"] for f in settings["factors"]]
        of = unit(settings["tokenizer"])
        bits = ["bits per byte"] if of == "token" else []
        rises = [f"rise at {n}" for n in lengths[1:]]
        titles = ("encoding", f"loss at {lengths[0]}", *bits, "behind the best", *rises, "verdict")
        rows = []
        for arm in results["arms"]:
            changes = [_with_half_width(point["change"], "+.3f") for point in arm["lengths"][1:]]
            first = arm["lengths"][0]
            behind = _with_half_width(first["behind_best"], "+.3f") if first["behind_best"]["mean"] > 0 else "best"
            losses = [f"{first['loss']['mean']:.3f}", *(f"{first['bits_per_byte']:.3f}" for _ in bits)]
            rows.append((arm["name"], *losses, behind, *changes, arm["verdict"]))
        return Ranking(titles, rows, f"Nats per {of}, lower is better; ± is half a 95 % interval.")


class VisionLook(Look):
    """Shares of images whose class is found, by the size of the images."""

    template = "compare_vision.html"

    def values(self, results: Results) -> dict[str, Any]:
        settings = results["settings"]
        trained, sizes = settings["image_size"], settings["test_sizes"]
        return {
            "token": "patch", "trained": trained, "largest": sizes[-1], "larger": sizes[-1] > trained,
            "others": [size for size in sizes if size != trained],
            "batch": f"{settings['batch_size']} images of {trained} × {trained} pixels",
        }  # fmt: skip

    def figures(self, results: Results) -> dict[str, Any]:
        from posenc.report import figures

        arms, settings = results["arms"], results["settings"]
        several = len(settings["test_sizes"]) > 1
        sizes = {"sizes": figures.accuracy_by_size(arms, settings["image_size"], results["data"]["chance"])}
        return (sizes if several else {}) | {"training": figures.training(arms, "image")}

    def ranking(self, results: Results) -> Ranking:
        trained = results["settings"]["image_size"]
        others = [size for size in results["settings"]["test_sizes"] if size != trained]
        titles = (
            "encoding",
            f"accuracy at {trained}",
            "behind the best",
            *(f"change at {n}" for n in others),
            "shuffled",
            "larger",
        )
        rows = []
        for arm in results["arms"]:
            own = next(point for point in arm["sizes"] if point["size"] == trained)
            changes = [_in_points(point["change"]) for point in arm["sizes"] if point["size"] != trained]
            behind = _in_points(own["behind_best"]) if own["behind_best"]["mean"] > 0 else "best"
            accuracies = [
                f"{100 * accuracy['mean']:.1f} %" for accuracy in (own["accuracy"], arm["shuffled"]["accuracy"])
            ]
            rows.append((arm["name"], accuracies[0], behind, *changes, accuracies[1], arm["verdict"]))
        note = "Changes in points of a hundred, at pixels of an image's side; ± is half a 95 % interval."
        return Ranking(titles, rows, note)


def busy(results: Results) -> str:
    """What to say where a comparison took more than twice, or less than half, of what its first steps let expect; "" where
    it did not, or was over within a minute."""
    took, estimated = results["seconds"], results.get("estimated_seconds")
    if not estimated or not results["complete"] or max(took, estimated) < 60 or estimated / 2 <= took <= 2 * estimated:
        return ""
    when = "was busy" if took > estimated else "was busy then"
    return f"estimated {about(estimated)} when it began, took {about(took)}: the machine {when}"


LOOKS: dict[str, Look] = {"text": TextLook(), "vision": VisionLook()}


def look(results: Results) -> Look:
    """How results are shown; those of earlier versions, which had one task, as text."""
    return LOOKS[results.get("task", "text")]


def _with_half_width(estimate: Mapping[str, float], form: str) -> str:
    return f"{estimate['mean']:{form}} ± {(estimate['high'] - estimate['low']) / 2:.3f}"


def _in_points(estimate: Mapping[str, float]) -> str:
    return f"{100 * estimate['mean']:+.1f} ± {50 * (estimate['high'] - estimate['low']):.1f}"


def show(results: Results, directory: str) -> None:
    """The answer, the ranked table, and where the files are, on stdout."""
    from rich.markup import escape
    from rich.table import Table

    out = stdout()
    for sentence in results["answer"]:
        out.print(f"- {sentence}", markup=False)
    ranking = look(results).ranking(results)
    table = Table(box=None, pad_edge=False, header_style="bold")
    last = len(ranking.titles)
    for column, title in enumerate(("", *ranking.titles)):
        table.add_column(title, justify="left" if column in (1, last) else "right", no_wrap=True)
    for rank, row in enumerate(ranking.rows, 1):
        table.add_row(str(rank), *map(escape, row))
    out.print()
    out.print(table)
    out.print()
    out.print(ranking.note, markup=False)
    if line := busy(results):
        out.print(f"{line[0].upper()}{line[1:]}.", markup=False)
    print_files(out, directory, Report="report.html", Numbers="results.json")
