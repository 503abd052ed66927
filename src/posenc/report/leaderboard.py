# SPDX-License-Identifier: Apache-2.0
"""Several tasks of the same comparison: the page of each, and one table of all, on the terminal and as a page."""

from collections.abc import Callable, Sequence
from typing import Any

from posenc.report.compare import Results, page
from posenc.report.html import rendered
from posenc.report.terminal import print_files, stdout

__all__ = ["pages", "show_tasks"]

OF_ALL = ("complete", "running", "created", "seconds", "estimated_seconds", "command", "runs")
"""What the page of a task takes from the results of all."""


def pages(tasks: Sequence[str]) -> dict[str, Callable[[Results], str]]:
    """The files of the report: report.html with the table, and for each task a page as of a comparison of it alone."""

    def of(task: str) -> Callable[[Results], str]:
        def made(results: Results) -> str:
            if task not in results["tasks"]:  # no run of it is finished
                return table_page(results)
            return page({**results["tasks"][task], **_of_all(results)})

        return made

    return {"report.html": table_page, **{file_of(task): of(task) for task in tasks}}


def file_of(task: str) -> str:
    """The name of a task's page."""
    return f"{''.join(c if c.isalnum() else '_' for c in task)}.html"


def _of_all(results: Results) -> dict[str, Any]:
    return {name: results[name] for name in OF_ALL} | {"machine": results["machine"]}


def table_page(results: Results) -> str:
    """report.html: every encoding's group in every task."""
    return rendered("leaderboard.html", {}, r=results, file_of=file_of)


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
