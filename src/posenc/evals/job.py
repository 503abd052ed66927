# SPDX-License-Identifier: Apache-2.0
"""An evaluation on its way: what could fail late is tried first, then cells are measured."""

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any

import torch
from torch import nn

import posenc
from posenc.engines.work import Tick
from posenc.errors import InputError
from posenc.evals.attention import attention_profile
from posenc.evals.config import CUT_OFF, NONE, Cell, Settings, digests
from posenc.evals.reader import CHUNK, Outcome, Reader
from posenc.evals.store import Measured, Store
from posenc.measuring.machine import free_bytes
from posenc.measuring.memory import measurable, peak
from posenc.pretrained.attach import Attachment, attached
from posenc.pretrained.extend import extend, restore
from posenc.pretrained.inference import check_causal, check_tokens, evaluating
from posenc.pretrained.learned_table import has_learned_table, table_of
from posenc.pretrained.methods import written_factor
from posenc.pretrained.models import unwrap
from posenc.tasks import Sample, Task

LOOKED_AT = 1024
"""Texts in which attention is followed are no longer, if there are such: the work grows with the square."""
STEP_COST = 50
"""Generating a token takes about as long as reading this many."""
LOOK_COST = 4
"""Following attention through a text takes about as long as reading it this many times."""


@dataclass(eq=False)
class Job:
    """A model, its tokenizer and what is to be measured of it."""

    model: nn.Module
    tokenizer: Any
    settings: Settings
    name: str
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
            what = f"{self.name}: it has no tokenizer, and" if self.name else "tokenizer=None:"
            raise InputError(f"{what} every task needs one; pass the tokenizer that belongs to the model")
        s = self.settings
        self.loaded: Attachment | None = attached(unwrap(self.model))
        if self.loaded is not None and len(s.methods) > 1:
            raise InputError(
                f"--methods {' '.join(s.methods[1:])}: the model comes extended by {self.loaded.report.method}; take "
                "the one that it was made from, and name that method beside the others"
            )
        check_causal(self.model)
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
                        raise InputError(f"--tasks {text} --lengths {length}: {error}") from None
                    check_tokens(self.model, found[0].ids)

    def check_memory(self) -> None:
        """Raises:
        InputError: the longest texts take more memory than what is free."""
        longest, need, free = self.settings.lengths[-1], self.reading_bytes(), free_bytes(self.device)
        if need > free:
            raise InputError(
                f"--lengths {longest}: cache, scores and logits of {self.batch_size} such text(s) take about "
                f"{need / 2**30:.1f} GiB beside the model, and {free / 2**30:.1f} GiB are free; give shorter ones"
                + (" or --batch-size 1" if self.batch_size > 1 else "")
                + (" or --dtype bfloat16" if self.model_dtype == torch.float32 else "")
            )

    def reading_bytes(self) -> int:
        """What the longest texts take beside the model: their cache, with scores and logits of a chunk."""
        longest = self.settings.lengths[-1]
        cache = self.cache_bytes_per_token() * longest
        scores = 4 * int(self.model_facts()["heads"]) * CHUNK * longest
        logits = 3 * 4 * CHUNK * int(unwrap(self.model).get_input_embeddings().weight.shape[0])
        return self.batch_size * (2 * cache + scores + logits)

    # ---------------------------------------------------------------- measuring

    def sample(self, cell: Cell, index: int) -> Sample:
        """One text of a cell; all methods read the same ones. Those of one seed and length are kept."""
        key = cell.task, cell.length, cell.depth, cell.seed, index
        if key not in self.samples:
            where = {} if cell.depth is None else {"depth": cell.depth}
            made = self.tasks[cell.task].sample(self.tokenizer, cell.length, seed=cell.seed, index=index, **where)
            self.samples[key] = made
        return self.samples[key]

    def measure(self, group: Sequence[Cell], tick: Tick) -> dict[Cell, Measured]:
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

    def look(
        self,
        store: Store | None,
        found: dict[str, Any],
        refused: dict[str, str],
        tick: Tick,
        told: Callable[[str], None],
    ) -> None:
        """Where the model looks under each method: method -> profile; or refused, method -> why not. Nothing where its
        texts do not allow it. told: a sentence for each method."""
        cells = self.looked_at()
        if not cells:
            return
        samples = [self.sample(cell, 0) for cell in cells]
        depths = [cell.depth for cell in cells if cell.depth is not None]
        for method in self.settings.methods:
            key = {"attention": cells[0].task, "method": method, "length": cells[0].length, "depths": depths}
            profile = None if store is None else store.load_look(key)
            if profile is None:
                tick(0, f"attention, {method}")
                try:
                    with self.under(method):
                        profile = attention_profile(self.model, samples, depths=depths or None).to_dict()
                except InputError as error:
                    refused[method] = str(error)
                if store is not None and profile is not None:
                    store.save_look(key, profile)
            if profile is not None:
                found[method] = profile
            tick(self.look_work() // len(self.settings.methods), f"attention, {method}")
            told(f"attention, {method}: " + (refused.get(method) or f"{len(cells)} texts of {cells[0].length} tokens"))

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
            "model": self.name,
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
    config = unwrap(model).config.to_dict()
    config.pop("_name_or_path", None)
    found = hashlib.sha256(json.dumps(config, sort_keys=True, default=str).encode())
    for name, weights in model.named_parameters():
        some = weights.detach().flatten()[:: max(weights.numel() // 64, 1)].float().cpu()
        found.update(f"{name} {tuple(weights.shape)} {weights.dtype}".encode() + some.numpy().tobytes())
    return found.hexdigest()
