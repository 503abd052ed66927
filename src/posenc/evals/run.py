"""An evaluation from its settings to results.json: what could fail late is tried first, every finished cell is kept."""

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import nn

import posenc
from posenc.errors import InputError
from posenc.evals.attention import attention_profile
from posenc.evals.config import CUT_OFF, NONE, Cell, Settings, digests, planned, settings_of
from posenc.evals.reader import CHUNK, Outcome, Reader
from posenc.evals.results import numbers
from posenc.evals.store import Measured, Store
from posenc.evals.wording import answer, finished, limits
from posenc.machine import describe, free_bytes
from posenc.memory import measurable, peak
from posenc.pretrained.anatomy import unwrapped
from posenc.pretrained.attach import attached
from posenc.pretrained.calls import check_causal, check_tokens, evaluating
from posenc.pretrained.extend import extend, restore
from posenc.pretrained.learned_table import has_learned_table, table_of
from posenc.pretrained.methods import written_factor
from posenc.tasks import Sample, Task

SCHEMA = 1
LOOKED_AT = 1024
"""Texts in which attention is followed are no longer, if there are such: the work grows with the square."""
STEP_COST = 50
"""Generating a token takes about as long as reading this many."""
LOOK_COST = 4
"""Following attention through a text takes about as long as reading it this many times."""


class Interrupted(Exception):
    """Stopped from the keyboard before a cell had finished."""


@dataclass(frozen=True)
class Progress:
    """What an evaluation tells about its course: hooks that default to silence. Work is counted in tokens; `told` is given
    a sentence on the cells of one task, method, length and seed that have just finished."""

    planned: Callable[[int, int, int], None] = lambda cells, kept, work: None
    advanced: Callable[[str, int], None] = lambda what, work: None
    finished: Callable[[Cell], None] = lambda cell: None
    told: Callable[[str], None] = lambda found: None


def evaluate(
    model: nn.Module,
    tokenizer: Any,
    *,
    preset: str | None = None,
    directory: str | Path | None = None,
    name: str = "",
    attention: bool = True,
    progress: Progress = Progress(),
    command: str = "",
    render: Callable[[dict[str, Any]], str] | None = None,
    **settings: Any,
) -> dict[str, Any]:
    """Measure what a model finds in long texts, as it is and under methods that extend it.

    Args:
        model: a causal language model of transformers.
        tokenizer: its own.
        preset: see `posenc.evals.config.PRESETS`; None: the settings say it all.
        directory: finished cells are kept there, and those that are there already are not measured again;
            results.json comes beside them, and report.html where `render` makes it. None: nothing is written.
        name: what to call the model.
        attention: also say where the model looks, see `posenc.evals.attention`.
        settings: see `posenc.evals.config.Settings`.

    Returns:
        What results.json holds.

    Raises:
        InputError: settings that do not serve, before anything is measured. Interrupted: Ctrl-C before a single cell
            had finished; afterwards what was measured is reported, with "complete": false.

    The model is left as it was.
    """
    chosen = settings_of(preset, **settings)
    job = _Job(model, tokenizer, chosen, name or str(getattr(unwrapped(model).config, "name_or_path", "")))
    job.check()
    store = None if directory is None else Store(directory, job.shared())
    with nullcontext() if store is None else store.writing(command or "an evaluation from Python", "eval", SCHEMA):
        return _run(job, store, preset, attention, progress, command, render)


def _run(
    job: "_Job",
    store: Store | None,
    preset: str | None,
    attention: bool,
    progress: Progress,
    command: str,
    render: Callable[[dict[str, Any]], str] | None,
) -> dict[str, Any]:
    """An evaluation in a folder that is ours."""
    chosen = job.settings
    groups = planned(chosen, job.tasks, job.trained_length)
    cells = [cell for group in groups for cell in group]
    stored = {cell: None if store is None else store.load(cell) for cell in cells}
    done = {cell: measured for cell, measured in stored.items() if measured is not None}
    kept, started = len(done), time.perf_counter()
    todo = [[cell for cell in group if cell not in done] for group in groups]
    look_work = job.look_work() if attention else 0
    progress.planned(len(cells), kept, sum(map(job.work, todo)) + look_work)
    looks: dict[str, Any] = {}
    try:
        for group in filter(None, todo):
            found = job.measure(group, progress)
            for cell, measured in found.items():
                if store is not None:
                    store.save(cell, measured)
                done[cell] = measured
                progress.finished(cell)
            progress.told(finished(job.tasks[group[0].task], found))
        if attention:
            job.look(store, looks, progress)
    except KeyboardInterrupt:
        if store is not None:  # it may have come after a cell was written and before it was counted
            late = {cell: store.load(cell) for cell in cells if cell not in done}
            done |= {cell: measured for cell, measured in late.items() if measured is not None}
        if not done:
            raise Interrupted from None
    told = numbers(chosen, job.tasks, {cell: done[cell] for cell in cells if cell in done}, job.trained_length)
    for row in told["cost"]:
        row["cache_bytes_per_token"] = job.cache_bytes[row["method"]]
    results: dict[str, Any] = {
        "schema": SCHEMA,
        "kind": "eval",
        "complete": len(done) == len(cells),
        "cells": {"planned": len(cells), "finished": len(done), "kept_from_before": kept},
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "seconds": round(time.perf_counter() - started, 1),
        "command": command,
        "model": job.model_facts(),
        "settings": {"preset": preset, **asdict(chosen), "tasks": list(job.tasks), "batch_size": job.batch_size},
        "machine": describe(job.device) | job.versions(),
        "answer": [],
        "limits": [],
        **told,
        "attention": looks or None,
        "set_aside": [] if store is None else store.set_aside(),
    }
    results |= {"answer": answer(results), "limits": limits(results)}
    if store is not None:
        store.write("results.json", json.dumps(results, indent=1, allow_nan=False))
        if render is not None:
            store.write("report.html", render(results))
    return results


@dataclass(eq=False)
class _Job:
    """One evaluation on its way."""

    model: nn.Module
    tokenizer: Any
    settings: Settings
    name: str
    tasks: dict[str, Task] = field(init=False)
    cache_bytes: dict[str, int] = field(default_factory=dict)
    samples: dict[tuple[Any, ...], Sample] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.tasks = self.settings.made()
        self.config = unwrapped(self.model).config
        length = getattr(self.config, "max_position_embeddings", None)
        self.trained_length = int(length) if length else max(self.settings.lengths)
        self.target_length = max(*self.settings.lengths, self.trained_length)
        self.device = next(self.model.parameters()).device
        self.batch_size = self.settings.batch_size or (1 if self.device.type == "cpu" else 8)

    # ---------------------------------------------------------------- before anything is measured

    def check(self) -> None:
        """Try what could fail after an hour of measuring.

        Raises:
            InputError: no tokenizer, a text that a task cannot make or the model has no positions for, a method that
                this model does not take, or texts whose cache does not fit into the memory.
        """
        if self.tokenizer is None:
            raise InputError(f"{self.name}: it has no tokenizer, and every task needs one")
        s = self.settings
        self.loaded = attached(unwrapped(self.model))
        if self.loaded is not None and len(s.methods) > 1:
            raise InputError(
                f"--methods {' '.join(s.methods[1:])}: the model comes extended by {self.loaded.report.method}; take "
                "the one that it was made from, and name that method beside the others"
            )
        check_causal(self.model)
        self.check_texts()
        rows = table_of(self.model)[1] if has_learned_table(self.model) else s.lengths[-1]
        if s.lengths[-1] > rows:
            raise InputError(
                f"--lengths {s.lengths[-1]}: the model as it is has a learned table of {rows} positions, and reads no "
                f"more; give lengths of at most {rows}"
            )
        for method in (*s.methods, CUT_OFF):
            try:
                with self.under(method), evaluating(self.model), torch.no_grad():
                    self.model(torch.zeros(1, 2, dtype=torch.long, device=self.device))
            except InputError as error:
                raise InputError(f"--methods {method}: {error}; --methods none measures the model as it is") from None
        self.check_memory()

    def check_texts(self) -> None:
        """Raises:
        InputError: a task has no text of one of the lengths, or one that another model's tokenizer made."""
        s = self.settings
        for text, task in self.tasks.items():
            depths = s.depths if task.takes_depth else (None,)
            for length in s.lengths:  # the shortest length is where another seed's longer words may not fit
                drawn = [(seed, i) for seed in range(s.seeds) for i in range(s.samples)]
                for seed, index in drawn if length == s.lengths[0] else [(0, 0)]:
                    try:
                        found = [self.sample(Cell(text, NONE, length, depth, seed), index) for depth in depths]
                    except InputError as error:
                        raise InputError(f"--tasks {text} --lengths {length}: {error}") from None
                    check_tokens(self.model, found[0].ids)

    def check_memory(self) -> None:
        """Raises:
        InputError: the cache of the longest texts, with scores and logits of a chunk, is more than what is free."""
        facts, longest = self.model_facts(), self.settings.lengths[-1]
        cache = self.cache_bytes_per_token() * longest
        scores = 4 * facts["heads"] * CHUNK * longest
        logits = 3 * 4 * CHUNK * int(unwrapped(self.model).get_input_embeddings().weight.shape[0])
        need, free = self.batch_size * (2 * cache + scores + logits), free_bytes(self.device)
        if need > free:
            raise InputError(
                f"--lengths {longest}: cache, scores and logits of {self.batch_size} such text(s) take about "
                f"{need / 2**30:.1f} GiB beside the model, and {free / 2**30:.1f} GiB are free; give shorter ones"
                + (" or --batch-size 1" if self.batch_size > 1 else "")
                + (" or --dtype bfloat16" if self.model_dtype == torch.float32 else "")
            )

    # ---------------------------------------------------------------- measuring

    def sample(self, cell: Cell, index: int) -> Sample:
        """One text of a cell; all methods read the same ones. Those of one seed and length are kept."""
        key = cell.task, cell.length, cell.depth, cell.seed, index
        if key not in self.samples:
            where = {} if cell.depth is None else {"depth": cell.depth}
            made = self.tasks[cell.task].sample(self.tokenizer, cell.length, seed=cell.seed, index=index, **where)
            self.samples[key] = made
        return self.samples[key]

    def measure(self, group: Sequence[Cell], progress: Progress) -> dict[Cell, Measured]:
        """The cells of one task, method, length and seed: what their texts have in common is read once."""
        first, count = group[0], self.settings.samples
        self.samples = {k: v for k, v in self.samples.items() if (k[1], k[3]) == (first.length, first.seed)}
        task, owners = self.tasks[first.task], [cell for cell in group for _ in range(count)]
        samples = [self.sample(cell, index) for cell in group for index in range(count)]
        reader = Reader(self.model, self.tokenizer, self.settings.generate, self.batch_size)
        outcomes: list[Outcome] = []
        seconds = 0.0

        def read() -> None:
            nonlocal seconds
            started = time.perf_counter()
            outcomes.extend(
                reader.read(
                    task,
                    samples,
                    first.length,
                    window=self.trained_length if first.method == CUT_OFF else None,
                    on_sample=lambda index: progress.advanced(str(owners[index]), self.work(group) // len(samples)),
                )
            )
            seconds = time.perf_counter() - started

        with self.under(first.method):
            taken = None
            if measurable(self.device):
                taken = peak(read, self.device, collect=False)
            else:
                read()
        share = 1 / len(group)
        return {
            cell: Measured(tuple(outcomes[at * count : (at + 1) * count]), seconds * share, reader.fed * share, taken)
            for at, cell in enumerate(group)
        }

    def looked_at(self) -> list[Cell]:
        """The texts on which attention is followed, one at each of three depths, of the first task in whose texts
        something stands that is asked for; none where there is no such task."""
        length = max((n for n in self.settings.lengths if n <= LOOKED_AT), default=self.settings.lengths[0])
        for text, task in self.tasks.items():
            every = self.settings.depths if task.takes_depth else (None,)
            depths = dict.fromkeys((every[0], every[len(every) // 2], every[-1]))
            cells = [Cell(text, NONE, length, depth, 0) for depth in depths]
            if all(self.sample(cell, 0).needle is not None for cell in cells):
                return cells
        return []

    def look_work(self) -> int:
        """The size of following attention under every method, in tokens read."""
        return len(self.settings.methods) * LOOK_COST * sum(cell.length for cell in self.looked_at())

    def look(self, store: Store | None, found: dict[str, Any], progress: Progress) -> None:
        """Where the model looks under each method: method -> profile. Nothing where the model or its texts do not allow
        it."""
        cells = self.looked_at()
        if not cells:
            return
        samples = [self.sample(cell, 0) for cell in cells]
        depths = [cell.depth for cell in cells if cell.depth is not None]
        for method in self.settings.methods:
            key = {"attention": cells[0].task, "method": method, "length": cells[0].length, "depths": depths}
            profile = None if store is None else store.load_look(key)
            if profile is None:
                progress.advanced(f"attention, {method}", 0)
                try:
                    with self.under(method):
                        profile = attention_profile(self.model, samples, depths=depths or None).to_dict()
                except InputError:
                    return
                if store is not None:
                    store.save_look(key, profile)
            found[method] = profile
            progress.advanced(f"attention, {method}", self.look_work() // len(self.settings.methods))

    def work(self, group: Sequence[Cell]) -> int:
        """The size of some cells, in tokens read."""
        texts = self.settings.samples
        new = {cell.task: self.tasks[cell.task].new_tokens * self.settings.generate for cell in group}
        return sum(texts * (cell.length + STEP_COST * new[cell.task]) for cell in group)

    @contextmanager
    def under(self, method: str) -> Iterator[None]:
        """The model extended by a method."""
        if method in (NONE, CUT_OFF):
            self.cache_bytes[method] = self.cache_bytes_per_token()
            yield
            return
        target = self.target_length if written_factor(method) is None else None
        report = extend(self.model, method, target_length=target)
        self.cache_bytes[method] = getattr(report, "cache_bytes_per_token", self.cache_bytes_per_token())
        try:
            yield
        finally:
            restore(self.model)

    # ---------------------------------------------------------------- what was measured, and on what

    def shared(self) -> dict[str, Any]:
        """What the numbers of every cell depend on."""
        s = self.settings
        return {
            "samples": s.samples,
            "generate": s.generate,
            "target_length": self.target_length,
            "model": self.name,
            "weights": fingerprint(self.model),
            "tokenizer": [len(self.tokenizer), self.tokenizer("The code of apple is 4821.").input_ids],
            "files": digests(self.tasks),
            "device": self.device.type,
            **self.versions(),
        }

    def cache_bytes_per_token(self) -> int:
        facts = self.model_facts()
        size = torch.finfo(self.model_dtype).bits // 8
        return 2 * int(facts["layers"]) * int(facts["kv_heads"]) * int(facts["head_dim"]) * size

    @staticmethod
    def versions() -> dict[str, str]:
        return {"posenc": posenc.__version__, "torch": str(torch.__version__), "transformers": version("transformers")}

    @property
    def model_dtype(self) -> torch.dtype:
        return next((p.dtype for p in self.model.parameters() if p.is_floating_point()), torch.float32)

    def model_facts(self) -> dict[str, Any]:
        """What a reader wants to know of the model."""
        c = self.config.get_text_config()
        heads = int(c.num_attention_heads)
        parameters = getattr(c, "rope_parameters", None) or {}
        return {
            "name": self.name,
            "model_type": str(c.model_type),
            "parameters": sum(p.numel() for p in self.model.parameters()),
            "trained_length": self.trained_length,
            "dtype": str(self.model_dtype).removeprefix("torch."),
            "device": str(self.device),
            "layers": int(c.num_hidden_layers),
            "heads": heads,
            "kv_heads": int(getattr(c, "num_key_value_heads", None) or heads),
            "head_dim": int(getattr(c, "head_dim", None) or c.hidden_size // heads),
            "rope_theta": parameters.get("rope_theta"),
        }


def fingerprint(model: nn.Module) -> str:
    """Hash of a model's configuration and of some numbers of each of its weights."""
    config = unwrapped(model).config.to_dict()
    config.pop("_name_or_path", None)
    found = hashlib.sha256(json.dumps(config, sort_keys=True, default=str).encode())
    for name, weights in model.named_parameters():
        some = weights.detach().flatten()[:: max(weights.numel() // 64, 1)].float().cpu()
        found.update(f"{name} {tuple(weights.shape)} {weights.dtype}".encode() + some.numpy().tobytes())
    return found.hexdigest()
