# SPDX-License-Identifier: Apache-2.0
"""Several tasks of the same comparison: the page of each, and one table of all, on the terminal and as a page."""

import shlex
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from posenc.report.compare import Results, page, settings_of, styles, trade_off, winners
from posenc.report.html import Choice, Panel, plot, rendered
from posenc.report.terminal import print_files, stdout

__all__ = ["pages", "show_tasks"]

OF_ALL = ("complete", "running", "created", "seconds", "estimated_seconds", "command", "runs")
"""What the page of a task takes from the results of all."""


def pages(tasks: Sequence[str], *, may_import: bool = False) -> dict[str, Callable[[Results], str]]:
    """The files of the report: report.html with the table, and for each task a page as of a comparison of it alone.
    may_import: as in `posenc.report.compare.page`."""
    table = partial(table_page, may_import=may_import)

    def of(task: str) -> Callable[[Results], str]:
        def made(results: Results) -> str:
            if task not in results["tasks"]:  # no run of it is finished
                return table(results)
            return page({**results["tasks"][task], **_of_all(results)}, may_import=may_import)

        return made

    return {"report.html": table, **{file_of(task): of(task) for task in tasks}}


def file_of(task: str) -> str:
    """The name of a task's page."""
    return f"{''.join(c if c.isalnum() else '_' for c in task)}.html"


def _of_all(results: Results) -> dict[str, Any]:
    return {name: results[name] for name in OF_ALL} | {"machine": results["machine"]}


def table_page(results: Results, *, may_import: bool = False) -> str:
    """report.html: every encoding's dot and group in every task."""
    tasks = {name: {**of, "task": of.get("task", name)} for name, of in results["tasks"].items() if of["arms"]}
    settings = {name: settings_of(of, may_import) for name, of in tasks.items()}
    style = styles([arm for of in tasks.values() for arm in of["arms"]])
    task = Choice("task", "Task:", list(tasks))
    dots = plot(
        "dots", [task], lambda at: trade_off(list(tasks.values())[at]["arms"], list(settings.values())[at], style)
    )
    panel = Panel("of-tasks", "Every encoding at the training length and at the longest", [dots], key=False)
    sizes = {name: (s.size_at(s.trained_at), s.size_at(s.conditions[-1])) for name, s in settings.items()}
    lines = {name: winners(of, settings[name]) for name, of in tasks.items()}
    command = partial(_of_one, results["command"])
    figures = {"dots": dots.figures}
    return rendered(
        "leaderboard.html",
        figures,
        r=results,
        file_of=file_of,
        panel=panel,
        winners=lines,
        command=command,
        sizes=sizes,
    )


def _of_one(command: str, encoding: str) -> str:
    """The command that compares one encoding instead of all, in the default folder."""
    words, found = shlex.split(command), []
    dropping = False
    for word in words:
        dropping = word in ("--encodings", "--out") or (dropping and not word.startswith("--"))
        found += [] if dropping else [word]
    return shlex.join([*found, "--encodings", encoding]) if found else ""


def show_tasks(results: Results, directory: str) -> None:
    """The table of all tasks, and where the files are, on stdout."""
    from rich import markup
    from rich.table import Table

    out, tasks = stdout(), results["settings"]["tasks"]
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("encoding", no_wrap=True)
    for task in tasks:
        table.add_column(task, justify="right", no_wrap=True)
    table.add_column("mean", justify="right", no_wrap=True)
    for row in results["table"]:
        groups = (f"{group['trained']} {group['longest']}" for group in map(row["groups"].__getitem__, tasks))
        table.add_row(markup.escape(row["encoding"]), *groups, f"{row['mean_trained']:.1f} {row['mean_longest']:.1f}")
    for line in results["answer"]:
        out.print(line, markup=False)
    out.print(table)
    out.print()
    out.print(
        "The groups at the training length and at the longest: 1 is the best, and encodings of a group cannot be distinguished.",
        markup=False,
    )
    print_files(out, directory, Report="report.html", Numbers="results.json")
