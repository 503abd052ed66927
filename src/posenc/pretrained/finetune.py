# SPDX-License-Identifier: Apache-2.0
"""Fine-tuning of extended models by transformers' Trainer: windows of documents, PoSE's skipped positions, LoRA."""

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.random import fork_rng
from torch.utils.data import Dataset

from posenc.encodings.augment import skipped_positions
from posenc.errors import InputError, Positive, Size, as_numbers, check_arguments, check_integers, holds_integers, needs
from posenc.pretrained.attach import attached
from posenc.pretrained.changes import ChangeReport
from posenc.pretrained.inference import check_tokens, modes_restored
from posenc.pretrained.learned_table import check_rows, has_learned_table, table_of
from posenc.pretrained.models import model_structure, unwrap
from posenc.pretrained.scratch import replacing, scratch
from posenc.pretrained.stopping import stoppable

needs("transformers", "lab")
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainingArguments  # noqa: E402

SETTINGS = "steps", "learning_rate", "length", "batch_size", "lora", "pose", "target_length", "warmup", "seed"
STATED = {"output_dir", "max_steps", "learning_rate", "seed", "per_device_train_batch_size", "auto_find_batch_size", "warmup_steps",
          "logging_strategy", "logging_steps", "logging_nan_inf_filter", "save_strategy", "train_sampling_strategy"}  # fmt: skip
"""Arguments of the Trainer that those of `finetune` state, or on which its report relies."""


@dataclass(frozen=True)
class Finetuning(ChangeReport):
    """The result of a training. losses: nats a token, one a step. trained: number of trained weights. complete: False after
    Ctrl-C or SIGTERM."""

    losses: tuple[float, ...]
    settings: dict[str, Any]
    trained: int
    complete: bool
    seconds: float = field(compare=False)

    def __str__(self) -> str:
        s, tenth = self.settings, max(1, len(self.losses) // 10)
        first, last = (sum(part) / tenth for part in (self.losses[:tenth], self.losses[-tenth:]))
        return (
            f"{len(self.losses)} of {s['steps']} steps of {s['batch_size']} x {s['length']} tokens on "
            f"{'LoRA of rank ' + str(s['lora']) if s['lora'] else 'all weights'} ({self.trained:,} numbers), "
            f"{self.seconds:.0f} s: loss {first:.3f} at first, {last:.3f} at last (means of {tenth})"
        )


class Windows(Dataset[dict[str, Tensor]]):
    """Random windows of documents, all as likely; number n depends on the seed and n alone, so that a resumed training reads the same.
    target_length: PoSE splits each window in two and moves the positions of the second part on, up to there."""

    def __init__(self, texts: Sequence[Tensor], length: int, count: int, seed: int, target_length: int | None = None):
        self.texts, self.length, self.count, self.seed, self.target = texts, length, count, seed, target_length
        self.ends = torch.tensor([len(text) - length + 1 for text in texts]).cumsum(0)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        draw = torch.Generator().manual_seed(hash((self.seed, index)) % 2**63)
        place = int(torch.randint(int(self.ends[-1]), (), generator=draw))
        text = int(torch.searchsorted(self.ends, place, right=True))
        start = place - (int(self.ends[text - 1]) if text else 0)
        ids, at = self.texts[text][start : start + self.length], torch.arange(self.length)
        if self.target is not None:
            draws = torch.rand(2, 1, 1, dtype=torch.float64, generator=draw)
            at = skipped_positions(at[None], self.length, self.target, *draws)[0]
        # without a mask, transformers takes positions that jump for packed sequences which do not see each other
        return {"input_ids": ids, "labels": ids, "position_ids": at, "attention_mask": torch.ones_like(ids)}


def finetune(
    model: Any, text: str | Tensor | Sequence[Any], tokenizer: Any = None, *,
    steps: Size = 1000, learning_rate: Positive = 2e-5, length: int | None = None, batch_size: Size = 1, lora: Size | None = None,
    pose: bool = False, target_length: int | None = None, warmup: int = 20, seed: int = 0, checkpoint: str | Path | None = None,
    progress: Callable[[int, float], None] | None = None, arguments: Mapping[str, Any] | None = None,
) -> Finetuning:  # fmt: skip
    """Train a causal language model further, in place, at the length it was extended to, by transformers' Trainer.

    AdamW (0.9, 0.95) without weight decay; the rate rises over `warmup` steps from a tenth and then stays (Chen et al. 2023,
    section 3.2). Ctrl-C or SIGTERM ends the training after the step under way, and the model stays trained so far.

    Args:
        text: a string, which needs the tokenizer, or token ids (tokens,) or (sequences, tokens); or a list of these, of any
            lengths. length: of a window; None: the model's max_position_embeddings. lora: rank of adapters on all matrices of
            attention (peft), merged at the end; None trains all weights, which must be float32.
        pose: windows of `length` see every distance up to target_length (None: max_position_embeddings) (Zhu et al. 2023,
            arXiv 2309.10400). checkpoint: a folder for the Trainer's checkpoints, written every twentieth of the steps and at
            the end; the same call resumes there, also with more steps. progress: called with a step's number and its loss.
        arguments: others of `TrainingArguments`, such as bf16, gradient_accumulation_steps, deepspeed or report_to.

    Raises:
        InputError: a text shorter than a window or with tokens beyond the vocabulary, sizes below 1, half precision without
            LoRA, a loss that is not finite, arguments stated twice, a checkpoint of another training; peft is missing.
    """
    settings, texts = prepared(
        model, text, tokenizer, checkpoint, arguments, steps=steps, learning_rate=learning_rate, length=length,
        batch_size=batch_size, lora=lora, pose=pose, target_length=target_length, warmup=warmup, seed=seed,
    )  # fmt: skip
    use_cache = getattr(model.config, "use_cache", None)
    with scratch() as unused, modes_restored(model), fork_rng(), stoppable() as stopped:
        made = TrainingArguments(**{
            "output_dir": str(checkpoint or unused), "max_steps": steps, "learning_rate": learning_rate, "seed": seed,
            "per_device_train_batch_size": batch_size, "warmup_steps": warmup, "adam_beta2": 0.95, "logging_steps": 1,
            "lr_scheduler_type": "warmup_stable_decay", "lr_scheduler_kwargs": {"num_decay_steps": 0, "min_lr_ratio": 0.1},
            "logging_nan_inf_filter": False, "train_sampling_strategy": "sequential", "save_steps": max(steps // 20, 1),
            "save_strategy": "steps" if checkpoint else "no", "save_total_limit": 1, "report_to": [], "disable_tqdm": True,
            "use_cpu": model.device.type == "cpu", "dataloader_pin_memory": model.device.type == "cuda",
        } | dict(arguments or {}))  # fmt: skip
        torch.manual_seed(seed)  # adapters start from random numbers
        tuned = model.requires_grad_(True) if lora is None else _with_adapters(model, lora)
        trained = sum(p.numel() for p in tuned.parameters() if p.requires_grad)
        count = steps * made.train_batch_size * made.world_size * made.gradient_accumulation_steps
        data = Windows(texts, settings["length"], count, seed, settings["target_length"])
        trainer = Trainer(tuned, made, train_dataset=data, callbacks=[_Watch(stopped, progress)])
        trainer.remove_callback(PrinterCallback)
        end, own = getattr(tuned, "unload", None), {"forward": tuned.forward} if "forward" in vars(tuned) else {}
        try:
            seconds = trainer.train(resume_from_checkpoint=_last(checkpoint)).metrics["train_runtime"]
            end = getattr(tuned, "merge_and_unload", None)
        finally:
            for name in ("forward", "_original_forward"):  # bf16 exchanges it
                vars(tuned).pop(name, None)
            vars(tuned).update(own)
            if end is not None:
                end()
            model.zero_grad()
            model.config.use_cache = use_cache
    losses = tuple(row["loss"] for row in trainer.state.log_history if "loss" in row)
    return Finetuning(losses, settings, trained, trainer.state.global_step == steps, seconds)


def _last(folder: str | Path | None) -> str | None:
    """The last checkpoint that is complete: the Trainer writes its state as the last file."""
    complete = {}
    for file in Path(folder).glob("checkpoint-*/trainer_state.json") if folder else ():
        with suppress(ValueError, TypeError, KeyError, OSError, OverflowError):  # killed while writing it
            complete[int(json.loads(file.read_text())["global_step"])] = str(file.parent)
    return complete[max(complete)] if complete else None


@dataclass
class _Watch(TrainerCallback):
    """Says how far a training is, and ends one that was stopped or whose loss is not finite."""

    stopped: Sequence[int]
    progress: Callable[[int, float], None] | None

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        if (loss := logs.get("loss")) is None:
            return
        if not math.isfinite(loss):
            cure = "lower learning_rate" if state.global_step > 1 else "posenc.doctor(model) may find the cause"
            why = f"the loss is {loss} at step {state.global_step}"
            raise InputError(why, f"load it again; {cure}", argument="model")
        if self.progress is not None:
            self.progress(state.global_step, loss)
        if self.stopped:
            control.should_training_stop, control.should_save = True, args.save_strategy != "no"


def prepared(
    model: Any, text: Any, tokenizer: Any = None, checkpoint: str | Path | None = None,
    arguments: Mapping[str, Any] | None = None, **given: Any,
) -> tuple[dict[str, Any], list[Tensor]]:  # fmt: skip
    """All settings of `finetune`, and the tokens of each text, checked: for callers that do long work before training."""
    known = signature(finetune).parameters
    s = {name: known[name].default for name in SETTINGS} | given
    check_arguments(finetune, s)
    if twice := sorted(STATED & dict(arguments or {}).keys()):
        remedy = "leave it out; finetune takes other arguments, such as steps and batch_size"
        raise InputError(f"{twice[0]} is what finetune states itself", remedy, arguments=arguments)
    limit = table_of(model)[1] if has_learned_table(model) else model_structure(model).config.max_position_embeddings
    s |= {name: limit for name, used in (("length", True), ("target_length", s["pose"])) if used and s[name] is None}
    check_integers(0, warmup=s["warmup"])
    check_integers(2, length=s["length"])  # one token to predict the other from
    if s["pose"]:
        check_integers(s["length"], target_length=s["target_length"])
    elif s["target_length"] is not None:
        raise InputError("needs pose=True, which skips positions up to there", target_length=s["target_length"])
    several = isinstance(text, list | tuple) and any(isinstance(each, str | list | tuple | Tensor) for each in text)
    texts = [row for each in (text if several else [text]) for row in token_rows(each, tokenizer, s["length"])]
    check_tokens(model, torch.cat(texts))
    check_rows(model, s["target_length"] or s["length"])
    if s["lora"] is not None:
        needs("peft", "peft")
    elif half := {p.dtype for p in model.parameters()} - {torch.float32, torch.float64}:
        why = f"the weights are {half.pop()}, which loses small steps"
        raise InputError(why, "pass lora=8, or load it with dtype=float32", argument="model")
    if checkpoint is not None:
        _check_same(Path(checkpoint) / "finetuning.sha256", model, texts, s | dict(sorted((arguments or {}).items())))
    return s, texts


def _check_same(file: Path, model: Any, texts: list[Tensor], settings: dict[str, Any]) -> None:
    """Store a hash of what makes a training the same, but its steps; refuse the checkpoints of another one."""
    method = (attachment := attached(unwrap(model))) and attachment.report.method
    digest = hashlib.sha256(repr((settings | {"steps": 0}, method)).encode())
    for values in [*texts, *(p.detach().flatten()[:: max(p.numel() // 64, 1)].float() for p in model.parameters())]:
        digest.update(f"{values.shape}".encode() + values.cpu().numpy().tobytes())
    if not file.exists():
        with replacing(file) as made:
            made.write_text(digest.hexdigest())
    elif file.read_text() != digest.hexdigest():
        cure = "give those again, name another folder, or delete it to begin anew"
        raise InputError("is of another model, text or settings", cure, checkpoint=str(file.parent))


def token_rows(text: str | Tensor | Sequence[Any], tokenizer: Any, length: int) -> Tensor:
    """Token ids (texts, tokens) of one text, or of several that are as long."""
    if isinstance(text, str):
        if tokenizer is None:
            raise InputError("text is a string: pass the tokenizer, too, or token ids")
        text = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
    ids = as_numbers("text", text)
    if not holds_integers(ids) or ids.dim() not in (1, 2) or not ids.numel():
        expected = "pass a string, or token ids as integers, (tokens,) or (sequences, tokens), or a list of these"
        raise InputError(expected, argument="text")
    rows = ids.long().cpu().reshape(-1, ids.shape[-1]).clone()  # inference tensors cannot be trained on
    if rows.shape[-1] < length:
        why = f"text has {rows.shape[-1]} tokens, and a window {length}"
        raise InputError(why, "pass a longer text, or a smaller length")
    return rows


def _with_adapters(model: Any, rank: int) -> Any:
    from peft import LoraConfig, get_peft_model

    structure = model_structure(model)
    attention = {id(part) for layer in structure.layers for part in layer.module.modules()}
    named = structure.model.named_modules()
    names = [name for name, part in named if isinstance(part, torch.nn.Linear) and id(part) in attention]
    return get_peft_model(structure.model, LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=names))
