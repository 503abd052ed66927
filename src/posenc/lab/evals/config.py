# SPDX-License-Identifier: Apache-2.0
"""What an evaluation is, as data: frozen settings, presets, and cells whose id is the hash of their content."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

from posenc.errors import InputError, check_flags, is_integer, unknown
from posenc.spec import parse_single
from posenc.tasks import Task, create

NONE, CUT_OFF = "none", "cut_off"
"""The baselines, which are always there: the model as it is, and the same with no more than its trained length to read."""

LONGEST = 2**24
"""Tokens of a text: more than any model reads."""

LISTED: dict[str, tuple[Any, str]] = {
    "tasks": (str, "a task's name"),
    "methods": (str, "a method's name"),
    "lengths": (int, "a whole number of tokens"),
    "depths": (int | float, "a number from 0 to 1"),
}
"""EvaluationSettings of which there may be several, and what each of them is."""


@dataclass(frozen=True)
class EvaluationSettings:
    """Everything that says what an evaluation measures.

    tasks: as `posenc.tasks.create` takes them. methods: as `posenc.extend` takes them; the model as it is always comes
    first. One alone may stand without a list. lengths: of the texts, in tokens. depths: places of what is asked for, 0
    the start and 1 the end. samples: texts of a cell. seeds: cells that differ in their texts alone. generate: whether
    answers are generated too, where a task can score them. batch_size: texts side by side; None: 1 on a CPU, where
    what texts have in common is read once, and 8 on a GPU. text: a file of running text for the tasks that take one.
    """

    tasks: Annotated[tuple[str, ...], "what to look for (below)"]
    methods: Annotated[tuple[str, ...], "ways to extend the model"] = ()
    lengths: Annotated[tuple[int, ...], "of the texts, in tokens"] = (512, 1024, 2048)
    depths: Annotated[tuple[float, ...], "where in the text the answer is, from 0 (start) to 1 (end)"] = (
        0.0, 0.25, 0.5, 0.75, 1.0,
    )  # fmt: skip
    samples: Annotated[int, "texts a cell"] = 8
    seeds: Annotated[int, "cells that differ in their texts alone"] = 1
    generate: Annotated[bool, "generate answers too, where a task can score them"] = True
    batch_size: Annotated[
        int | None, "texts side by side (default: 1 on a CPU, where common beginnings are read once, else 8)"
    ] = None
    text: Annotated[
        str | None, "a file of running text for tasks that take one (default: the language reference inside Python)"
    ] = None

    def __post_init__(self) -> None:
        for name, (kind, wanted) in LISTED.items():
            given = getattr(self, name)
            each = (given,) if isinstance(given, str | int | float) else tuple(dict.fromkeys(given or ()))
            for value in each:
                if not isinstance(value, kind):
                    raise InputError(f"{name}={value!r}: pass {wanted}")
            object.__setattr__(self, name, each)
        check_flags(generate=self.generate)
        object.__setattr__(self, "methods", (NONE, *(m for m in self.methods if m not in (NONE, CUT_OFF))))
        for name in ("tasks", "lengths", "depths"):
            if not getattr(self, name):
                raise InputError(f"{name}: name at least one")
        for name, least, most in (("samples", 2, 10_000), ("seeds", 1, 1000), ("batch_size", 1, 4096)):
            value = getattr(self, name)
            if value is None and name == "batch_size":
                continue
            if not is_integer(value) or not least <= value <= most:
                why = "; one text has no interval" if name == "samples" else ""
                raise InputError(f"{name}={value}: must be a whole number, at least {least}, at most {most}{why}")
        for length in self.lengths:
            if length < 2:
                raise InputError(f"lengths={length}: a text has at least 2 tokens")
            if length > LONGEST:
                raise InputError(f"lengths={length}: must be at most {LONGEST}")
        for depth in self.depths:
            if not 0 <= depth <= 1:
                raise InputError(f"depths={depth:g}: 0 is the start of the context and 1 its end, as in 0 0.5 1")
        object.__setattr__(self, "lengths", tuple(sorted(self.lengths)))
        object.__setattr__(self, "depths", tuple(sorted(map(float, self.depths))))

    def made(self) -> dict[str, Task]:
        """The tasks by their texts, with `text` given to those that take one and do not say theirs.

        Raises:
            InputError: an unknown task or option, or the same task twice.
        """
        found, taken = {}, False
        for written in self.tasks:
            task = create(written)
            if "source" in {field.name for field in fields(task)}:
                taken = True
                if self.text is not None and "source" not in dict(parse_single(written).options):
                    given = {"source": self.text}
                    task = replace(task, **given)
            if task.text in found:
                raise InputError(f"tasks: {task.text} is named twice")
            found[task.text] = task
        if self.text is not None and not taken:
            raise InputError(f"text={self.text}: none of {', '.join(found)} takes a text; leave it out")
        return found


@dataclass(frozen=True)
class Cell:
    """Some texts of one task, length, depth (None: the task takes none) and seed, read by one method."""

    task: str
    method: str
    length: int
    depth: float | None
    seed: int

    def __str__(self) -> str:
        where = "" if self.depth is None else f", depth {self.depth:g}"
        return f"{self.task}, {self.method}, {self.length} tokens{where}, seed {self.seed}"


def planned(
    settings: EvaluationSettings,
    tasks: Mapping[str, Task],
    trained_length: int,
    exact: Mapping[str, int] = MappingProxyType({}),
) -> list[list[Cell]]:
    """The cells in groups over depths, in the order in which they are measured: seed by seed and short texts first, so
    that an interrupted evaluation has something of everything. The model that reads no more than its trained length
    is the model as it is, where a text is no longer than that; and so is every method, where a text is no longer than what
    it leaves as it is by construction. exact: method -> so many tokens."""
    groups = []
    for seed in range(settings.seeds):
        for length in settings.lengths:
            methods = [method for method in settings.methods if method == NONE or length > exact.get(method, 0)]
            for method in (*methods, *((CUT_OFF,) if length > trained_length else ())):
                for text, task in tasks.items():
                    depths = settings.depths if task.takes_depth else (None,)
                    groups.append([Cell(text, method, length, depth, seed) for depth in depths])
    return groups


def digests(tasks: Mapping[str, Task]) -> dict[str, str]:
    """SHA-256 of every file that an option of a task names."""
    found = {}
    for task in tasks.values():
        for value in (getattr(task, field.name) for field in fields(task)):
            if isinstance(value, str) and Path(value).is_file():
                found[value] = hashlib.sha256(Path(value).read_bytes()).hexdigest()
    return found


IN_WINDOW = ("ntk:factor=4", "rerope:window=256")
"""Methods that change how short texts are read as well."""

# Where 135M parameters in bfloat16 read 700 tokens a second (two cores of a CPU), quick took four minutes, and standard is
# estimated at half an hour; a key-value answer, of up to 100 generated tokens, would take as long as reading 5000.
PRESETS = {
    "quick": EvaluationSettings(("facts", "passkey", "perplexity"), IN_WINDOW, (256, 768), samples=4, generate=False),
    "standard": EvaluationSettings(
        ("facts", "key_value:keys=digits:values=digits", "passkey", "perplexity"),
        IN_WINDOW,
        (512, 1024, 2048),
        samples=8,
        generate=False,
    ),
    "thorough": EvaluationSettings(
        ("facts", "key_value", "needle", "multi_document", "passkey", "perplexity", "repeated", "copying"),
        ("ntk:factor=4", "yarn:factor=4", "rerope", "self_extend", "dual_chunk"),
        (512, 1024, 2048, 4096, 8192, 16384),
        (0.0, 0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875, 1.0),
        samples=16,
        seeds=2,
    ),
}


def settings_of(preset: str | None, **given: Any) -> EvaluationSettings:
    """A preset's settings with what is given in their place.

    Raises:
        InputError: an unknown preset or setting, or a value that does not serve.
    """
    known = [field.name for field in fields(EvaluationSettings)]
    for name in given:
        if name not in known:
            raise unknown("setting", name, known)
    if preset is None:
        if "tasks" not in given:
            raise InputError("tasks: name at least one, or a preset")
        return EvaluationSettings(**given)
    if preset not in PRESETS:
        raise unknown("preset", preset, PRESETS)
    return replace(PRESETS[preset], **given)


def preset_of(settings: EvaluationSettings) -> str | None:
    """The preset that says just this, however it was said; None: none does."""
    return next((name for name, preset in PRESETS.items() if preset == settings), None)
