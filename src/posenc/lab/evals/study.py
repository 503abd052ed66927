# SPDX-License-Identifier: Apache-2.0
"""`posenc eval` as a study: a cell is some prompts of one task, length, depth and seed, under one method. Every method and text is tried before anything is measured."""

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from importlib.metadata import version
from itertools import chain, product
from pathlib import Path
from typing import Any

import torch
from torch import nn

from posenc.errors import InputError
from posenc.lab.engines import Tick
from posenc.lab.evals.comparison import comparison
from posenc.lab.evals.config import NONE, TRUNCATION, Cell, EvaluationSettings, material, planned, settings_of
from posenc.lab.evals.reader import CHUNK, Reader, TextOutcome
from posenc.lab.evals.results import Measured, answer, limits, numbers
from posenc.lab.machine import describe, free_bytes, measurable, peak
from posenc.lab.study import Pages, Progress, Study, code, run, versions
from posenc.pretrained.attach import attached
from posenc.pretrained.extend import extend, restore
from posenc.pretrained.inference import check_causal, check_tokens, evaluating
from posenc.pretrained.learned_table import has_learned_table, table_of
from posenc.pretrained.methods import written_factor
from posenc.pretrained.models import model_structure, unwrap
from posenc.tasks import Sample, Task

STEP_COST = 50
"""Generating a token takes about as long as reading this many."""


@dataclass(eq=False)
class Evaluation(Study[Cell, Measured]):
    """A model, its tokenizer and what is measured of it."""

    name = "eval"
    unit = "cells"

    model: nn.Module
    tokenizer: Any
    settings: EvaluationSettings
    model_name: str
    tasks: dict[str, Task] = field(init=False)
    samples: dict[tuple[Any, ...], Sample] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.tasks = self.settings.made()
        length = getattr(unwrap(self.model).config.get_text_config(), "max_position_embeddings", None)
        if attached(unwrap(self.model)) is None:  # else the configuration has the new length
            with suppress(InputError):
                length = model_structure(self.model).loaded_length
        self.trained_length: int = int(length) if length else max(self.settings.lengths)
        self.settings = self.settings.on(self.trained_length)
        self.target_length: int = max(*self.settings.lengths, self.trained_length)
        self.device: torch.device = next(self.model.parameters()).device
        self.batch_size: int = self.settings.batch_size or (1 if self.device.type == "cpu" else 8)

    # ---------------------------------------------------------------- before anything is measured

    def check(self) -> None:
        """Try what could fail after an hour of measuring.

        Raises:
            InputError: no tokenizer, a text that a task cannot make or the model has no positions for, a method that
                this model does not take, or documents whose cache does not fit into the memory.
        """
        s = self.settings
        if self.tokenizer is None:
            what = f"{self.model_name}: it has no tokenizer, and" if self.model_name else "tokenizer=None:"
            raise InputError(f"{what} every task needs one; pass the tokenizer that belongs to the model")
        attachment = attached(unwrap(self.model))
        if attachment is not None and len(s.methods) > 1:
            remedy = "pass the original model, and name that method beside the others"
            why = f"the model is already extended by {attachment.report.method}"
            raise InputError(why, remedy, methods=s.methods[1:])
        check_causal(self.model)
        rows = table_of(self.model)[1] if has_learned_table(self.model) else s.lengths[-1]
        if s.lengths[-1] > rows:
            why = f"the unmodified model has a learned table of {rows} positions"
            raise InputError(why, f"give lengths of at most {rows}", lengths=s.lengths[-1])
        set_up = s.lengths if s.times else s.lengths[-1:]
        for method, length in product((*s.methods, TRUNCATION), set_up):
            try:
                with self.under(method, length), evaluating(self.model), torch.no_grad():
                    self.model(torch.zeros(1, 2, dtype=torch.long, device=self.device))
            except InputError as error:
                raise error.about("methods=none measures the unmodified model", methods=method) from None
        self.check_texts()  # late: long inputs take a while to make
        need, free = self.reading_bytes(), free_bytes(self.device)
        if need > free:
            what, remedy = f"{self.batch_size} such text(s)", "give shorter ones, batch_size=1 or dtype=bfloat16"
            why = f"cache, scores and logits of {what} take about {need / 2**30:.1f} GiB beside the model, and {free / 2**30:.1f} GiB are free"
            raise InputError(why, remedy, lengths=s.lengths[-1])

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
                        made = [self.sample(Cell(text, NONE, length, depth, seed), index) for depth in depths]
                    except InputError as error:
                        raise error.about(tasks=text, **{"length" if s.times else "lengths": length}) from None
                    check_tokens(self.model, made[0].ids)

    def reading_bytes(self) -> int:
        """Memory for the longest documents beside the model: their cache, with scores and logits of a chunk."""
        longest = self.settings.lengths[-1]
        scores = 4 * int(self.model_facts["heads"]) * CHUNK * longest
        logits = 3 * 4 * CHUNK * int(unwrap(self.model).get_input_embeddings().weight.shape[0])
        of_token, of_windows = self.cache_bytes
        return self.batch_size * (2 * (of_token * longest + of_windows) + scores + logits)

    # ---------------------------------------------------------------- as a study

    def cells(self) -> list[Cell]:
        return planned(self.settings, self.tasks, self.trained_length)

    def jobs(self, cells: Sequence[Cell]) -> list[list[Cell]]:
        """The cells of one task, method, length and seed are one job, over all depths."""
        groups: dict[Cell, list[Cell]] = {}
        for cell in cells:
            groups.setdefault(_all_depths(cell), []).append(cell)
        return list(groups.values())

    def describe(self, job: Sequence[Cell]) -> str:
        return str(_all_depths(job[0]))

    def record(self, cell: Cell) -> type[Any]:
        return Measured

    def facts(self, cell: Cell) -> Mapping[str, Any]:
        shared = self.shared | {"material": self.shared["material"][cell.task], "texts": self.texts(cell)}
        return {**asdict(cell), **shared, "target_length": self.target(cell.length)}

    def texts(self, cell: Cell) -> str:
        """The hash of a cell's first text, which stands for all."""
        sample = self.sample(Cell(cell.task, NONE, cell.length, cell.depth, 0), 0)
        plain = asdict(sample) | {"ids": sample.ids.tolist()}
        return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()[:16]

    def results(self, done: Mapping[Cell, Measured]) -> dict[str, Any]:
        s = self.settings
        apart = {(text, n): task.apart(self.tokenizer, n) for text, task in self.tasks.items() for n in s.lengths}
        fewer = {key: count for key, count in apart.items() if count is not None and count < s.samples * s.seeds}
        results = numbers(s, self.tasks, done, self.trained_length, fewer)
        results["longer"] = comparison(self.tasks, done, self.trained_length)
        for row in results["cost"]:
            row["cache_bytes_per_token"], row["cache_bytes_of_windows"] = self.cache_bytes
        results |= {
            "model": self.model_facts | {"precision": str(self.model.dtype).removeprefix("torch.")},
            "settings": {**asdict(s), "tasks": list(self.tasks), "batch_size": self.batch_size},
            "machine": describe(self.device) | versions() | {"transformers": version("transformers")},
        }
        return results | {"answer": answer(results), "limits": limits(results)}

    # ---------------------------------------------------------------- measuring

    def sample(self, cell: Cell, index: int) -> Sample:
        """One text of a cell, the same for all methods."""
        key = cell.task, cell.length, cell.depth, cell.seed, index
        if key not in self.samples:
            depth = {} if cell.depth is None else {"depth": cell.depth}
            made = self.tasks[cell.task].sample(self.tokenizer, cell.length, seed=cell.seed, index=index, **depth)
            self.samples[key] = made
        return self.samples[key]

    def measure(self, job: Sequence[Cell], tick: Tick) -> dict[Cell, Measured]:
        """The cells of one task, method, length and seed: common beginnings of their documents are read once."""
        first, count = job[0], self.settings.samples
        self.samples = {k: v for k, v in self.samples.items() if (k[1], k[3]) == (first.length, first.seed)}
        cells = [cell for cell in job for _ in range(count)]
        samples = [self.sample(cell, index) for cell in job for index in range(count)]
        reads = Reader(self.model, self.tokenizer, self.settings.generate, self.batch_size)
        outcomes: list[TextOutcome] = []
        window = self.trained_length if first.method == TRUNCATION else None
        step = self.work(job) // len(samples)

        def on_sample(index: int) -> None:
            tick(step, str(cells[index]))

        def read() -> None:
            task = self.tasks[first.task]
            outcomes.extend(reads.read(task, samples, first.length, window=window, on_sample=on_sample))

        with self.under(first.method, first.length):
            started, worked = time.perf_counter(), time.process_time()
            taken = None
            if measurable(self.device):
                taken = peak(read, self.device, collect=False)
            else:
                read()
            seconds, processor = time.perf_counter() - started, time.process_time() - worked
        share = 1 / len(job)
        cost = seconds * share, reads.fed * share, taken, processor * share
        return {cell: Measured(tuple(outcomes[at * count : (at + 1) * count]), *cost) for at, cell in enumerate(job)}

    def work(self, job: Sequence[Cell]) -> float:
        """The size of some cells, in tokens."""
        step = STEP_COST * self.settings.generate
        return self.settings.samples * sum(cell.length + step * self.tasks[cell.task].new_tokens for cell in job)

    @contextmanager
    def under(self, method: str, length: int) -> Iterator[None]:
        """The model extended by a method, for inputs of a length."""
        if method in (NONE, TRUNCATION):
            yield
            return
        target = self.target(length) if written_factor(method) is None else None
        extend(self.model, method, target_length=target)
        try:
            yield
        finally:
            restore(self.model)

    def target(self, length: int) -> int:
        """The length for which methods are set up."""
        return max(length, self.trained_length) if self.settings.times else self.target_length

    # ---------------------------------------------------------------- the model

    @cached_property
    def shared(self) -> dict[str, Any]:
        """All that the numbers of every cell depend on."""
        return {
            "samples": self.settings.samples,
            "generate": self.settings.generate,
            "model": self.model_name,
            "weights": fingerprint(self.model),
            "tokenizer": [len(self.tokenizer), self.tokenizer("The code of apple is 4821.").input_ids],
            "material": {text: material(task) for text, task in self.tasks.items()},
            "device": self.device.type,
            "code": code(),
        }

    @cached_property
    def cache_bytes(self) -> tuple[int, int]:
        """Of a token in the layers that see all keys, and of all layers with a window together."""
        item = unwrap(self.model).dtype.itemsize
        with suppress(InputError):
            structure = model_structure(self.model)
            return structure.cached_numbers * item, structure.cached_in_windows * item
        layers, heads, width = (int(self.model_facts[name]) for name in ("layers", "kv_heads", "head_dim"))
        return 2 * layers * heads * width * item, 0

    @cached_property
    def model_facts(self) -> dict[str, Any]:
        """The model in results.json."""
        c = unwrap(self.model).config.get_text_config()
        heads = int(c.num_attention_heads)
        parameters = getattr(c, "rope_parameters", None) or {}
        return {
            "name": self.model_name,
            "model_type": str(c.model_type),
            "parameters": sum(p.numel() for p in self.model.parameters()),
            "trained_length": self.trained_length,
            "dtype": str(unwrap(self.model).dtype).removeprefix("torch."),
            "device": str(self.device),
            "layers": int(c.num_hidden_layers),
            "heads": heads,
            "kv_heads": int(getattr(c, "num_key_value_heads", None) or heads),
            "head_dim": int(getattr(c, "head_dim", None) or c.hidden_size // heads),
            "rope_theta": parameters.get("rope_theta"),
        }


def _all_depths(cell: Cell) -> Cell:
    return replace(cell, depth=None)


def evaluate(
    model: Any,
    tokenizer: Any,
    *,
    preset: str | None = None,
    directory: str | Path | None = None,
    name: str = "",
    progress: Progress | None = None,
    command: str = "",
    pages: Pages | None = None,
    begin: Callable[[], object] = lambda: None,
    **settings: Any,
) -> dict[str, Any]:
    """Measure what a model retrieves from and predicts in long inputs, unmodified and under methods that extend it.

    Args:
        model: a causal language model of transformers.
        tokenizer: the model's tokenizer.
        preset: see `posenc.lab.evals.config.PRESETS`; None: the settings are complete.
        directory: finished cells are stored there, and those that are there already are not measured again;
            results.json comes beside them. None: nothing is written.
        pages: what makes files of the results, such as `posenc.report.evaluate.files`.
        name: of the model.
        settings: see `posenc.lab.evals.config.EvaluationSettings`.

    Returns:
        The contents of results.json.

    Raises:
        InputError: settings that are not valid, before anything is measured.
        Interrupted: Ctrl-C before a single cell had finished; afterwards what was measured is reported, with
            "complete": false.

    The model is restored afterwards.
    """
    name = name or str(getattr(unwrap(model).config, "name_or_path", ""))
    study = Evaluation(model, tokenizer, settings_of(preset, **settings), name)
    return run(study, directory, progress=progress, command=command, pages=pages, begin=begin)


def fingerprint(model: nn.Module) -> str:
    """Hash of a model's configuration, and of all its parameters and buffers."""
    config = unwrap(model).config.to_dict()
    config.pop("_name_or_path", None)
    digest = hashlib.sha256(json.dumps(config, sort_keys=True, default=str).encode())
    for name, tensor in chain(model.named_parameters(), model.named_buffers()):
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()
