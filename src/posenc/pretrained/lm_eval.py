# SPDX-License-Identifier: Apache-2.0
"""Our tasks inside EleutherAI's lm-evaluation-harness (lm-eval 0.4.13 and later).

lm-eval reads tasks from YAML files. `write` makes a folder of them, one task for each length and depth, so that each depth
has a line in lm-eval's table, and one group over all of them; lm-eval takes the folder as `--include_path`:

    python -c "from posenc.pretrained.lm_eval import write; write('tasks', ['passkey'], [2048, 4096])"
    lm_eval --model hf --model_args pretrained=FOLDER --tasks posenc_passkey --include_path tasks

The files name the functions below. lm-eval passes the arguments of the model to a task, so the documents are measured with its
tokenizer: that of `tokenizer`, `pretrained` or `model`, as for lm-eval's own RULER tasks.
"""

import json
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from posenc.errors import InputError, check_numbers, check_sizes
from posenc.tasks import Sample, Task, create
from posenc.tasks.task import encode

__all__ = ["dataset", "generated", "group_name", "likelihood", "write"]

TASK = """\
task: {name}
tag: posenc
custom_dataset: !function posenc.pretrained.lm_eval.dataset
dataset_kwargs: {{cell: {cell}}}
test_split: test
output_type: {kind}
doc_to_text: prompt
doc_to_target: answer
target_delimiter: ""
{generation}process_results: !function posenc.pretrained.lm_eval.{function}
metric_list: {metrics}
metadata: {{version: 1.0}}
"""
GROUP = """\
group: {name}
task: {tasks}
aggregate_metric_list: {metrics}
metadata: {{version: 1.0}}
"""


def write(
    folder: str | Path,
    tasks: Sequence[str],
    lengths: Sequence[int],
    depths: Sequence[float] = (0.0, 0.5, 1.0),
    samples: int = 20,
) -> Path:
    """Make a folder of tasks for lm-eval, and return it.

    A task appears twice: scored by the likelihood of its answer ("posenc_passkey"; acc: whether every token of the answer
    is the most likely, nll: nats a token), and by the generated text ("posenc_passkey_generate"; score), if it generates
    any. Each of the two names is a group of one task for every length and depth, "posenc_passkey_4096_at_0.5"; tasks
    without a depth leave it out of the name. Options are part of it: "key_value:keys=digits" becomes
    "posenc_key_value_keys_digits".

    Args:
        folder: made if it is missing. tasks: as `posenc.tasks.create` reads them. lengths: in tokens. depths: from 0 to 1,
            for the tasks that have one. samples: documents for every task, length and depth, with seed 0.

    Raises:
        InputError: an unknown task, or a length or depth out of range.
    """
    for name, given in {"tasks": tasks, "lengths": lengths, "depths": depths}.items():
        if isinstance(given, str) or not given:
            raise InputError("pass a list of one or more", argument=name, value=given)
    check_sizes(samples=samples)
    for length in lengths:
        check_sizes(lengths=length)
    for depth in depths:
        check_numbers(0, 1, depths=depth)
    made: dict[str, Task] = {}
    for task in map(create, tasks):
        other = made.setdefault(group_name(task), task)
        if other != task:
            raise InputError(f"{other.text} and {task.text} are both {group_name(task)} for lm-eval", argument="tasks")
    out = Path(folder)
    out.mkdir(parents=True, exist_ok=True)
    for task in made.values():
        cells = [
            {"task": task.text, "length": length, "depth": depth, "samples": samples}
            for length in lengths
            for depth in (depths if task.takes_depth else (None,))
        ]
        _write_group(out, group_name(task), cells, ("acc", "nll"))
        if task.new_tokens:
            _write_group(out, f"{group_name(task)}_generate", cells, ("score",), task.new_tokens)
    return out


def _write_group(
    out: Path, group: str, cells: Sequence[Mapping[str, Any]], measures: Sequence[str], new: int = 0
) -> None:
    """The tasks of all cells, and the group over them. JSON is YAML."""
    metrics = [{"metric": name, "aggregation": "mean"} for name in measures]
    shared = {
        "kind": "generate_until" if new else "loglikelihood",
        "function": "generated" if new else "likelihood",
        "metrics": json.dumps([m | {"higher_is_better": m["metric"] != "nll"} for m in metrics]),
        "generation": f"generation_kwargs: {{do_sample: false, max_gen_toks: {new}, until: []}}\n" if new else "",
    }
    texts = {}
    for cell in cells:
        at = "" if cell["depth"] is None else f"_at_{float(cell['depth'])!r}".removesuffix(".0")
        name = f"{group}_{cell['length']}{at}"
        texts[name] = TASK.format(name=name, cell=json.dumps(cell), **shared)
    weighted = json.dumps([metric | {"weight_by_size": True} for metric in metrics])
    texts[group] = GROUP.format(name=group, tasks=json.dumps([*texts]), metrics=weighted)
    for name, text in texts.items():
        (out / f"{name}.yaml").write_text(text, encoding="utf-8")


def group_name(task: Task) -> str:
    """The name of a task in lm-eval, as posenc_key_value_keys_digits."""
    return "posenc_" + re.sub(r"[^\w.]+", "_", task.text)


def dataset(cell: Mapping[str, Any], **metadata: Any) -> dict[str, Any]:
    """The documents of one task, length and depth, for lm-eval. metadata: the model's arguments, as lm-eval passes them on;
    `tokenizer` may also be a tokenizer.

    Raises:
        InputError: no tokenizer among the arguments, a length in which the task does not fit, or a task on running text.
    """
    import datasets

    tokenizer, task = _tokenizer(metadata), create(cell["task"])
    depth = {} if cell["depth"] is None else {"depth": cell["depth"]}
    rows = []
    for index in range(cell["samples"]):
        sample = task.sample(tokenizer, cell["length"], index=index, **depth)
        if not sample.prompt:
            raise InputError(f"{task.text} has no prompt as text, which lm-eval takes: measure it with posenc eval")
        rows.append(
            {"task": task.text, "index": index, "prompt": sample.prompt, "answer": sample.answer}
            | {"references": list(sample.references), "scored": _scored(tokenizer, sample.prompt, sample.answer)}
        )
    return {"test": datasets.Dataset.from_list(rows)}


def likelihood(doc: Mapping[str, Any], results: Sequence[tuple[float, bool]]) -> dict[str, float]:
    """The measures of an answer from its log-likelihood and whether it is the greedy one."""
    [(log_likelihood, greedy)] = results
    return {"acc": float(greedy), "nll": -log_likelihood / doc["scored"]}


def generated(doc: Mapping[str, Any], results: Sequence[str]) -> dict[str, float]:
    """The task's own score of the generated text."""
    none = torch.empty(0, dtype=torch.int64)
    sample = Sample(none, 0, doc["prompt"], doc["answer"], tuple(doc["references"]))
    return {"score": create(doc["task"]).score(results[0], sample)}


def _scored(tokenizer: Any, prompt: str, answer: str) -> int:
    """How many tokens lm-eval scores: a prompt's last spaces go to the answer."""
    return len(encode(tokenizer, prompt + answer)) - len(encode(tokenizer, prompt.rstrip()))


def _tokenizer(metadata: Mapping[str, Any]) -> Any:
    given = metadata.get("tokenizer") or metadata.get("pretrained") or metadata.get("model")
    if given is None:
        remedy = "name it in lm_eval's --model_args pretrained=... or --metadata '{\"tokenizer\": ...}'"
        raise InputError("documents are measured with the model's own", remedy, argument="tokenizer")
    return _load(given) if isinstance(given, str) else given


@lru_cache(maxsize=1)
def _load(name: str) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(name, trust_remote_code=False)
