# SPDX-License-Identifier: Apache-2.0
"""Settings, presets and cells of an evaluation: frozen data."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from itertools import product
from typing import Annotated, Any

from posenc.errors import InputError, check_flags, check_numbers, counted, is_integer, unknown
from posenc.spec import parse_single
from posenc.tasks import Task, create, running_text
from posenc_cli.arguments import How

NONE, TRUNCATION = "none", "truncation"
"""The baselines: the unmodified model, and the same reading no more than the end of a text, of its context length."""

LONGEST = 2**24
"""Tokens of a text: more than any model reads."""


@dataclass(frozen=True)
class EvaluationSettings:
    """What an evaluation measures. `tasks`, `methods`, `lengths` and `depths` take several values, or one without a tuple.

    The unmodified model, "none", is always the first method. With `times` every method is set up for the length of each text,
    otherwise once, for the longest.
    """

    tasks: Annotated[tuple[str, ...], "what to look for, see below", How("TASK", names="task")]
    methods: Annotated[tuple[str, ...], "ways to extend the model", How("METHOD", names="method")] = ()
    lengths: Annotated[tuple[int, ...], "context lengths, in tokens"] = (512, 1024, 2048)
    depths: Annotated[tuple[float, ...], "where in the text the answer is, from 0 (start) to 1 (end)"] = (
        0.0, 0.25, 0.5, 0.75, 1.0,
    )  # fmt: skip
    samples: Annotated[int, "prompts per cell"] = 8
    seeds: Annotated[int, "cells that differ in their prompts alone"] = 1
    generate: Annotated[bool, "generate answers too, where a task can score them"] = True
    batch_size: Annotated[
        int | None, "prompts side by side (default: 1 on a CPU, where common beginnings are computed once, else 8)"
    ] = None
    text: Annotated[
        str | None, "a file of running text for tasks that take one (default: the language reference inside Python)"
    ] = None
    times: Annotated[
        tuple[float, ...],
        "lengths in multiples of the context length, instead of --lengths; methods are set up for each",
    ] = ()

    def __post_init__(self) -> None:
        for name in ("tasks", "methods", "lengths", "times", "depths"):
            given = getattr(self, name)
            values = (given,) if isinstance(given, str | int | float) else tuple(dict.fromkeys(given or ()))
            if not values and name not in ("methods", "times"):
                raise InputError("name at least one", argument=name)
            object.__setattr__(self, name, values)
        if TRUNCATION in self.methods:
            raise InputError("is measured by itself past the context length", "leave it out", methods=TRUNCATION)
        object.__setattr__(self, "methods", (NONE, *(m for m in self.methods if m != NONE)))
        check_flags(generate=self.generate)
        for length in self.lengths:
            _check_count("lengths", length, 2, LONGEST)
        _check_count("samples", self.samples, 2, 10_000)
        _check_count("seeds", self.seeds, 1, 1000)
        if self.batch_size is not None:
            _check_count("batch_size", self.batch_size, 1, 4096)
        for times in self.times:
            check_numbers(times=times)
            if not 0 < times <= LONGEST:
                raise InputError(f"must be above 0 and at most {LONGEST}", "give 2 for twice the length", times=times)
        for depth in self.depths:
            check_numbers(0, 1, depths=depth)
        object.__setattr__(self, "lengths", tuple(sorted(self.lengths)))
        for name in ("times", "depths"):
            object.__setattr__(self, name, tuple(sorted(map(float, getattr(self, name)))))

    def on(self, trained_length: int) -> "EvaluationSettings":
        """With the lengths that `times` gives for a model."""
        lengths = tuple(round(times * trained_length) for times in self.times)
        return replace(self, lengths=lengths or self.lengths)

    def made(self) -> dict[str, Task]:
        """The tasks by their documents; `text` is the source of those that take one and do not state theirs.

        Raises:
            InputError: an unknown task or option, or the same task twice.
        """
        tasks: dict[str, Task] = {}
        uses_text = False
        for written in self.tasks:
            task = create(written)
            if "source" in {field.name for field in fields(task)}:
                uses_text = True
                if self.text is not None and "source" not in dict(parse_single(written).options):
                    given = {"source": self.text}
                    task = replace(task, **given)
            if task.text in tasks:
                raise InputError(f"{task.text} is named twice", argument="tasks")
            tasks[task.text] = task
        if self.text is not None and not uses_text:
            raise InputError(f"none of {', '.join(tasks)} takes a text", "leave it out", text=self.text)
        return tasks


def texts_a_cell(samples: int, seeds: int) -> str:
    """As in "16 prompts per cell, 2 seeds"."""
    return f"{samples} prompts per cell, {counted(seeds, 'seed')}"


def _check_count(name: str, value: Any, least: int, most: int) -> None:
    if not is_integer(value) or not least <= value <= most:
        raise InputError(f"must be an integer from {least} to {most}", argument=name, value=value)


@dataclass(frozen=True)
class Cell:
    """Some prompts of one task, length, depth (None: the task takes none) and seed, under one method."""

    task: str
    method: str
    length: int
    depth: float | None
    seed: int

    def __str__(self) -> str:
        where = "" if self.depth is None else f", depth {self.depth:g}"
        return f"{self.task}, {self.method}, {self.length} tokens{where}, seed {self.seed}"


def planned(settings: EvaluationSettings, tasks: Mapping[str, Task], trained_length: int) -> list[Cell]:
    """The cells in the order of measurement: seed by seed and short inputs first, so that an
    interrupted evaluation has results of every task and method, and the baselines before the methods. TRUNCATION has cells past the context length
    alone: up to it, it is the unmodified model."""
    cells = []
    for seed, length in product(range(settings.seeds), settings.lengths):
        for method in (NONE, *((TRUNCATION,) if length > trained_length else ()), *settings.methods[1:]):
            for text, task in tasks.items():
                depths = settings.depths if task.takes_depth else (None,)
                cells += [Cell(text, method, length, depth, seed) for depth in depths]
    return cells


def material(task: Task) -> dict[str, str]:
    """What a task makes its prompts of, besides its code: SHA-256 of the running text.

    Raises:
        InputError: no such text.
    """
    source = getattr(task, "source", "")
    return {"text": hashlib.sha256(running_text.read(source).encode()).hexdigest()} if source else {}


IN_WINDOW = ("ntk:factor=4", "rerope:window=256")
"""Methods that change how short inputs are read as well."""

EXTENSIONS = (
    "yarn", "self_extend", "leaky_rerope", "rerope+log_n", "dual_chunk", "mrrope", "rerope", "yarn+log_n", "lampe",
    "jet_long", "llama3", "ntk_mixed", "lm_infinite", "streaming", "ntk", "linear", "dynamic", "ntk+log_n",
    "abf:new_base=500000", "string", "log_n", "softmax_n",
)  # fmt: skip
"""Methods of every kind that need nothing but the new length, by
benchmarks/longer_stories15M.md, good ones of each kind first, and last those that do not extend."""

# Where 135M parameters in bfloat16 read 700 tokens a second (two cores of a CPU), quick took four minutes, and standard is
# estimated at an hour; a key-value answer, of up to 100 generated tokens, would take as long as reading 5000.
PRESETS = {
    "quick": EvaluationSettings(("facts", "passkey", "perplexity"), IN_WINDOW, (256, 768), samples=4, generate=False),
    "standard": EvaluationSettings(
        ("facts", "key_value:keys=digits:values=digits", "passkey", "perplexity"),
        IN_WINDOW,
        (512, 1024, 2048),
        samples=16,
        generate=False,
    ),
    "longer": EvaluationSettings(
        ("perplexity", "repeated", "passkey", "facts"),
        EXTENSIONS,
        times=(2, 4, 8),
        depths=(0.25,),
        samples=16,
        generate=False,
    ),
}


def settings_of(preset: str | None, **given: Any) -> EvaluationSettings:
    """A preset's settings, with the given ones replaced.

    Raises:
        InputError: an unknown preset, or a value that is not valid.
    """
    if given.get("lengths") and given.get("times"):
        raise InputError("give one of the two", times=given["times"], lengths=given["lengths"])
    if preset is None:
        if "tasks" not in given:
            raise InputError("name at least one, or a preset", argument="tasks")
        return EvaluationSettings(**given)
    if preset not in PRESETS:
        raise unknown("preset", preset, PRESETS)
    if "lengths" in given:
        given = {"times": ()} | given
    return replace(PRESETS[preset], **given)
