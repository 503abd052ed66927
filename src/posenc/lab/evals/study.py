# SPDX-License-Identifier: Apache-2.0
"""`posenc eval` as a study: a cell is some texts of one task, length, depth and seed, read under one method, or where the
model looks under a method. What could fail late is tried before anything is measured."""

import functools
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import nn

import posenc
from posenc.errors import InputError
from posenc.lab.engines import Engine, Tick
from posenc.lab.evals.attention import attention_profile
from posenc.lab.evals.config import CUT_OFF, NONE, Cell, EvaluationSettings, digests, planned, preset_of, settings_of
from posenc.lab.evals.reader import CHUNK, Reader, TextOutcome
from posenc.lab.evals.results import Measured, answer, limits, numbers, outcome_of
from posenc.lab.machine import describe, free_bytes, measurable, peak
from posenc.lab.study import Progress, Results, Study, run
from posenc.pretrained.attach import Attachment, attached
from posenc.pretrained.extend import extend, restore
from posenc.pretrained.inference import check_causal, check_tokens, evaluating
from posenc.pretrained.learned_table import has_learned_table, table_of
from posenc.pretrained.load import DEMO, chosen_because, load
from posenc.pretrained.methods import written_factor
from posenc.pretrained.models import check_model, unwrap
from posenc.tasks import Sample, Task

ATTENTION_LENGTH = 1024
"""Texts in which attention is followed are no longer, if there are such: the work grows with the square."""
STEP_COST = 50
"""Generating a token takes about as long as reading this many."""
ATTENTION_COST = 4
"""Following attention through a text takes about as long as reading it this many times."""


@dataclass(frozen=True)
class AttentionCell:
    """Where a model looks under one method, in one text of a task at each of some depths."""

    task: str
    method: str
    length: int
    depths: tuple[float, ...]

    def __str__(self) -> str:
        return f"attention, {self.method}"


@dataclass(frozen=True)
class AttentionRecord:
    """What an `AttentionCell` measured: a profile as plain data; or why the method does not allow it."""

    profile: dict[str, Any] | None
    refused: str = ""


AnyCell: TypeAlias = Cell | AttentionCell
AnyRecord: TypeAlias = Measured | AttentionRecord


@dataclass(eq=False)
class Evaluation(Study[AnyCell, AnyRecord]):
    """A model, its tokenizer and what is to be measured of it. attention: whether also where it looks."""

    name = "eval"
    unit = "cells"

    model: nn.Module
    tokenizer: Any
    settings: EvaluationSettings
    model_name: str
    attention: bool = False
    common: dict[str, Any] | None = field(init=False, default=None)
    tasks: dict[str, Task] = field(init=False)
    cache_bytes: dict[str, int] = field(default_factory=dict)
    samples: dict[tuple[Any, ...], Sample] = field(default_factory=dict)
    exact: dict[str, int] = field(default_factory=dict)
    """Method -> how many tokens from a text's start it leaves as the model as it is reads them, by construction."""

    def __post_init__(self) -> None:
        self.tasks = self.settings.made()
        self.config: Any = unwrap(self.model).config
        length = getattr(self.config, "max_position_embeddings", None)
        self.trained_length: int = int(length) if length else max(self.settings.lengths)
        self.target_length: int = max(*self.settings.lengths, self.trained_length)
        self.device: torch.device = next(self.model.parameters()).device
        self.batch_size: int = self.settings.batch_size or (1 if self.device.type == "cpu" else 8)

    # ---------------------------------------------------------------- before anything is measured

    def check(self) -> None:
        """Try what could fail after an hour of measuring.

        Raises:
            InputError: no tokenizer, a text that a task cannot make or the model has no positions for, a method that
                this model does not take, or texts whose cache does not fit into the memory.
        """
        if self.tokenizer is None:
            what = f"{self.model_name}: it has no tokenizer, and" if self.model_name else "tokenizer=None:"
            raise InputError(f"{what} every task needs one; pass the tokenizer that belongs to the model")
        s = self.settings
        self.loaded: Attachment | None = attached(unwrap(self.model))
        if self.loaded is not None and len(s.methods) > 1:
            raise InputError(
                f"methods={' '.join(s.methods[1:])}: the model comes extended by {self.loaded.report.method}; take "
                "the one that it was made from, and name that method beside the others"
            )
        check_causal(self.model)
        rows = table_of(self.model)[1] if has_learned_table(self.model) else s.lengths[-1]
        if s.lengths[-1] > rows:
            raise InputError(
                f"lengths={s.lengths[-1]}: the model as it is has a learned table of {rows} positions, and reads no "
                f"more; give lengths of at most {rows}"
            )
        for method in (*s.methods, CUT_OFF):
            try:
                with self.under(method), evaluating(self.model), torch.no_grad():
                    self.model(torch.zeros(1, 2, dtype=torch.long, device=self.device))
            except InputError as error:
                raise InputError(f"methods={method}: {error}; methods=none measures the model as it is") from None
        self.check_texts()  # last but one: long texts take a while to make
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
                        raise InputError(f"tasks={text} at length {length}: {error}") from None
                    check_tokens(self.model, found[0].ids)

    def check_memory(self) -> None:
        """Raises:
        InputError: the longest texts take more memory than what is free."""
        longest, need, free = self.settings.lengths[-1], self.reading_bytes(), free_bytes(self.device)
        if need > free:
            raise InputError(
                f"lengths={longest}: cache, scores and logits of {self.batch_size} such text(s) take about "
                f"{need / 2**30:.1f} GiB beside the model, and {free / 2**30:.1f} GiB are free; give shorter ones"
                + (" or batch_size=1" if self.batch_size > 1 else "")
                + (" or dtype=bfloat16" if self.model_dtype == torch.float32 else "")
            )

    def reading_bytes(self) -> int:
        """What the longest texts take beside the model: their cache, with scores and logits of a chunk."""
        longest = self.settings.lengths[-1]
        cache = self.cache_bytes_per_token() * longest
        scores = 4 * int(self.model_facts()["heads"]) * CHUNK * longest
        logits = 3 * 4 * CHUNK * int(unwrap(self.model).get_input_embeddings().weight.shape[0])
        return self.batch_size * (2 * cache + scores + logits)

    # ---------------------------------------------------------------- as a study

    def cells(self) -> list[AnyCell]:
        groups = planned(self.settings, self.tasks, self.trained_length, self.exact)
        return [*(cell for group in groups for cell in group), *(self.attention_cells() if self.attention else [])]

    def jobs(self, cells: Sequence[AnyCell]) -> list[list[AnyCell]]:
        """The cells of one task, method, length and seed go together, whatever their depths."""
        groups: dict[AnyCell, list[AnyCell]] = {}
        for cell in cells:
            groups.setdefault(replace(cell, depth=None) if isinstance(cell, Cell) else cell, []).append(cell)
        return list(groups.values())

    def describe(self, job: Sequence[AnyCell]) -> str:
        return str(replace(job[0], depth=None) if isinstance(job[0], Cell) else job[0])

    def outcome(self, job: Sequence[AnyCell], measured: Mapping[AnyCell, AnyRecord]) -> str:
        first = job[0]
        if isinstance(first, AttentionCell):
            record = measured[first]
            assert isinstance(record, AttentionRecord)
            return f"{first}: {record.refused or f'{max(len(first.depths), 1)} texts of {first.length} tokens'}"
        return outcome_of(
            self.tasks[first.task],
            {c: m for c, m in measured.items() if isinstance(c, Cell) and isinstance(m, Measured)},
        )

    def record(self, cell: AnyCell) -> type[Any]:
        return AttentionRecord if isinstance(cell, AttentionCell) else Measured

    def facts(self, cell: AnyCell) -> Mapping[str, Any]:
        if self.common is None:
            self.common = self.shared()
        return {**asdict(cell), **self.common}

    def remote(self) -> "Remote":
        return Remote.of(self)

    def resources(self) -> dict[str, Any]:
        gpu = self.device.type == "cuda"
        return {"gpu": gpu, "memory": 0 if gpu else self.weight_bytes() + self.reading_bytes()}

    def results(self, done: Mapping[AnyCell, AnyRecord]) -> dict[str, Any]:
        s = self.settings
        measured = {
            cell: record for cell, record in done.items() if isinstance(cell, Cell) and isinstance(record, Measured)
        }
        looks = {cell.method: record for cell, record in done.items() if isinstance(record, AttentionRecord)}
        results = numbers(s, self.tasks, measured, self.trained_length, self.exact)
        for row in results["cost"]:
            row["cache_bytes_per_token"] = self.cache_bytes[row["method"]]
        return {
            "model": self.model_facts() | {"precision": chosen_because(self.model)},
            "settings": {"preset": preset_of(s), **asdict(s), "tasks": list(self.tasks), "batch_size": self.batch_size},
            "machine": describe(self.device) | self.versions(),
            **results,
            "exact_tokens": {method: self.exact.get(method, 0) for method in s.methods if method != NONE},
            "attention": {method: look.profile for method, look in looks.items() if look.profile is not None} or None,
            "attention_refused": {method: look.refused for method, look in looks.items() if look.refused},
        }

    def sentences(self, results: Results) -> dict[str, Any]:
        return {"answer": answer(results), "limits": limits(results)}

    # ---------------------------------------------------------------- measuring

    def sample(self, cell: Cell, index: int) -> Sample:
        """One text of a cell; all methods read the same ones. Those of one seed and length are kept."""
        key = cell.task, cell.length, cell.depth, cell.seed, index
        if key not in self.samples:
            where = {} if cell.depth is None else {"depth": cell.depth}
            made = self.tasks[cell.task].sample(self.tokenizer, cell.length, seed=cell.seed, index=index, **where)
            self.samples[key] = made
        return self.samples[key]

    def measure(self, job: Sequence[AnyCell], tick: Tick) -> dict[AnyCell, AnyRecord]:
        if isinstance(job[0], AttentionCell):
            return {cell: self._measure_attention(cell, tick) for cell in job if isinstance(cell, AttentionCell)}
        return self._measure_texts([cell for cell in job if isinstance(cell, Cell)], tick)

    def _measure_texts(self, group: Sequence[Cell], tick: Tick) -> dict[AnyCell, AnyRecord]:
        """The cells of one task, method, length and seed: what their texts have in common is read once."""
        first, count = group[0], self.settings.samples
        self.samples = {k: v for k, v in self.samples.items() if (k[1], k[3]) == (first.length, first.seed)}
        task, owners = self.tasks[first.task], [cell for cell in group for _ in range(count)]
        samples = [self.sample(cell, index) for cell in group for index in range(count)]
        reader = Reader(self.model, self.tokenizer, self.settings.generate, self.batch_size)
        outcomes: list[TextOutcome] = []
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
                    on_sample=lambda index: tick(self.work(group) // len(samples), str(owners[index])),
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

    def _measure_attention(self, cell: AttentionCell, tick: Tick) -> AttentionRecord:
        depths = cell.depths or (None,)
        samples = [self.sample(Cell(cell.task, NONE, cell.length, depth, 0), 0) for depth in depths]
        tick(0, str(cell))
        try:
            with self.under(cell.method):
                profile = attention_profile(self.model, samples, depths=list(cell.depths) or None).to_dict()
        except InputError as error:
            return AttentionRecord(None, str(error))
        finally:
            tick(self.work([cell]), str(cell))
        return AttentionRecord(profile)

    def attention_cells(self) -> list[AttentionCell]:
        """Where the model looks under each method, in texts at three depths of the first task that asks for something that
        stands in them; none where there is no such task."""
        length = max((n for n in self.settings.lengths if n <= ATTENTION_LENGTH), default=self.settings.lengths[0])
        for text, task in self.tasks.items():
            every = self.settings.depths if task.takes_depth else (None,)
            depths = tuple(dict.fromkeys((every[0], every[len(every) // 2], every[-1])))
            if all(self.sample(Cell(text, NONE, length, depth, 0), 0).needle is not None for depth in depths):
                found = tuple(depth for depth in depths if depth is not None)
                return [AttentionCell(text, method, length, found) for method in self.settings.methods]
        return []

    def work(self, job: Sequence[AnyCell]) -> float:
        """The size of some cells, in tokens read."""
        texts, size = self.settings.samples, 0
        for cell in job:
            if isinstance(cell, AttentionCell):
                size += ATTENTION_COST * cell.length * max(len(cell.depths), 1)
            else:
                new = self.tasks[cell.task].new_tokens * self.settings.generate
                size += texts * (cell.length + STEP_COST * new)
        return size

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
        self.exact[method] = getattr(report, "exact_tokens", 0)
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
            "model": self.model_name,
            "weights": fingerprint(self.model),
            "tokenizer": [len(self.tokenizer), self.tokenizer("The code of apple is 4821.").input_ids],
            "files": digests(self.tasks),
            "device": self.device.type,
            **self.versions(),
        }

    def weight_bytes(self) -> int:
        return sum(p.numel() * p.element_size() for p in self.model.parameters())

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
            "name": self.model_name,
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


@dataclass(frozen=True)
class Remote:
    """What a worker elsewhere needs to measure the same. source: of the model, as `posenc.load` takes it; shared: JSON of what
    the numbers depend on."""

    source: str
    name: str
    dtype: torch.dtype
    device: str
    settings: EvaluationSettings
    shared: str

    @classmethod
    def of(cls, study: Evaluation) -> "Remote":
        """Raises:
        InputError: the model has no name by which workers could load it."""
        path = Path(study.model_name)
        local = study.model_name not in ("", DEMO) and path.exists()
        if not (local or study.model_name == DEMO or ("/" in study.model_name and not path.is_absolute())):
            raise InputError(
                f"name={study.model_name!r}: workers elsewhere load the model themselves, and this is no folder or file, "
                "nor OWNER/NAME on the hub: save model and tokenizer with save_pretrained(FOLDER) and give name=FOLDER"
            )
        source = os.path.abspath(path) if local else study.model_name
        shared = json.dumps(study.shared())
        return cls(source, study.model_name, study.model_dtype, study.device.type, study.settings, shared)

    def measure(self, job: Sequence[AnyCell], tick: Tick) -> dict[AnyCell, AnyRecord]:
        return _loaded(self).measure(job, tick)


@functools.cache
def _loaded(remote: Remote) -> Evaluation:
    """The evaluation in this process, with a model that it loads once.

    Raises:
        InputError: this worker would measure something else than the driver.
    """
    model, tokenizer = load(remote.source, dtype=remote.dtype, device=remote.device)
    study = Evaluation(model, tokenizer, remote.settings, remote.name)
    expected: dict[str, Any] = json.loads(remote.shared)
    here = json.loads(json.dumps(study.shared()))
    others = sorted(what for what in expected if here.get(what) != expected[what])
    if others:
        raise InputError(
            f"{remote.source}: what a worker finds there differs from what was given, in {', '.join(others)}; save the "
            "model as it is with save_pretrained(FOLDER) and give name=FOLDER, and have the same files everywhere"
        )
    return study


def evaluate(
    model: Any,
    tokenizer: Any,
    *,
    preset: str | None = None,
    directory: str | Path | None = None,
    name: str = "",
    engine: Engine | None = None,
    attention: bool = True,
    progress: Progress | None = None,
    command: str = "",
    render: Callable[[Results], str] | None = None,
    begin: Callable[[], object] = lambda: None,
    **settings: Any,
) -> dict[str, Any]:
    """Measure what a model finds in long texts, as it is and under methods that extend it.

    Args:
        model: a causal language model of transformers.
        tokenizer: its own.
        preset: see `posenc.lab.evals.config.PRESETS`; None: the settings say it all.
        directory: finished cells are kept there, and those that are there already are not measured again;
            results.json comes beside them, and report.html where `render` makes it. None: nothing is written.
        name: what to call the model; also what `posenc.load` takes where an engine's workers load it themselves.
        engine: where cells are measured, see `posenc.lab.engines`; unless there is one, here, with the model as it is.
        attention: also say where the model looks, see `posenc.lab.evals.attention`.
        settings: see `posenc.lab.evals.config.EvaluationSettings`.

    Returns:
        What results.json holds.

    Raises:
        InputError: settings that do not serve, or a model that workers elsewhere cannot load, before anything is
            measured.
        Interrupted: Ctrl-C before a single cell had finished; afterwards what was measured is reported, with
            "complete": false.

    The model is left as it was.
    """
    check_model(model)
    chosen = settings_of(preset, **settings)
    name = name or str(getattr(unwrap(model).config, "name_or_path", ""))
    study = Evaluation(model, tokenizer, chosen, name, attention)
    pages = {"report.html": render} if render is not None else {}
    return run(study, directory, engine=engine, progress=progress, command=command, pages=pages, begin=begin)


def fingerprint(model: nn.Module) -> str:
    """Hash of a model's configuration and of some numbers of each of its weights."""
    config = unwrap(model).config.to_dict()
    config.pop("_name_or_path", None)
    found = hashlib.sha256(json.dumps(config, sort_keys=True, default=str).encode())
    for name, weights in model.named_parameters():
        some = weights.detach().flatten()[:: max(weights.numel() // 64, 1)].float().cpu()
        found.update(f"{name} {tuple(weights.shape)} {weights.dtype}".encode() + some.numpy().tobytes())
    return found.hexdigest()
