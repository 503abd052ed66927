# SPDX-License-Identifier: Apache-2.0
"""Fine-tuning of extended models: a plain loop, all weights or LoRA, optionally with PoSE's skipped positions, and resumed
from a checkpoint."""

import hashlib
import json
import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from posenc.backends.precision import HALF
from posenc.encodings.augment import skipped_positions
from posenc.errors import (
    InputError,
    as_numbers,
    check_integers,
    check_positive,
    check_sizes,
    counted,
    holds_integers,
    needs,
)
from posenc.pretrained.attach import attached
from posenc.pretrained.changes import ChangeReport
from posenc.pretrained.inference import check_tokens, modes_restored
from posenc.pretrained.models import ModelStructure, model_structure, unwrap
from posenc.pretrained.scratch import replacing, sweep
from posenc.pretrained.state import disagreement, read, write
from posenc.pretrained.stopping import stoppable

HALF_TOLERANCE = 0.02
"""Of a behaviour where weights are in bfloat16 or float16, see `posenc.pretrained.state.TOLERANCE`."""
NOT_SETTINGS = {"progress", "checkpoint", "checkpoint_minutes"}
"""Arguments that change nothing in what is trained."""

RECIPES: dict[str, dict[str, Any]] = {
    # Chen et al. 2023, section 3.2: models of 7 and 13 billion parameters
    "position_interpolation": {"steps": 1000, "learning_rate": 2e-5, "batch_size": 64, "warmup": 20},
    # Zhu et al. 2023 (PoSE): the same on a short window with skipped positions
    "pose": {"steps": 1000, "learning_rate": 2e-5, "batch_size": 64, "pose": True},
}
"""Settings of papers, for `finetune(model, text, tokenizer, **RECIPES["position_interpolation"])`."""


@dataclass(frozen=True)
class Finetuning(ChangeReport):
    """The result of a training. losses: nats a token, one a step. settings: as given. trained: number of trained weights."""

    losses: tuple[float, ...]
    settings: dict[str, Any]
    trained: int
    seconds: float = field(compare=False)

    @property
    def complete(self) -> bool:
        """Whether all steps were done; False after Ctrl-C or SIGTERM."""
        return len(self.losses) == self.settings["steps"]

    def __str__(self) -> str:
        if not self.losses:
            return "no step was done"
        tenth = max(1, len(self.losses) // 10)
        first, last = (sum(part) / tenth for part in (self.losses[:tenth], self.losses[-tenth:]))
        s = self.settings
        what = f"LoRA of rank {s['lora']}" if s["lora"] else "all weights"
        where = f", positions skipped up to {s['target_length']} (PoSE)" if s["pose"] else ""
        steps = f"{len(self.losses)}" if self.complete else f"stopped after {len(self.losses)} of {s['steps']}"
        return (
            f"{steps} step{'s' * (s['steps'] != 1)} of {s['batch_size']} x {s['length']} tokens on {what} ({self.trained:,} numbers)"
            f"{where}, {self.seconds:.0f} s: loss {first:.3f} in the first {counted(tenth, 'step')}, {last:.3f} in "
            "the last"
        )


def finetune(
    model: Any,
    text: str | Tensor | Sequence[Any],
    tokenizer: Any = None,
    *,
    steps: int = 1000,
    learning_rate: float = 2e-5,
    length: int | None = None,
    batch_size: int = 1,
    lora: int | None = None,
    pose: bool = False,
    target_length: int | None = None,
    warmup: int = 20,
    seed: int = 0,
    checkpoint: str | Path | None = None,
    checkpoint_minutes: float = 10.0,
    progress: Callable[[int, float], None] | None = None,
) -> Finetuning:
    """Train a causal language model further, in place, at the length it was extended to.

    AdamW with betas 0.9 and 0.95 and no weight decay; the rate rises over `warmup` steps from a tenth and then stays, as
    in Position Interpolation (Chen et al. 2023, section 3.2); gradients are clipped to norm 1. Windows start anywhere.

    Args:
        model: what `model_structure` supports, extended or not. text: a string, which needs the tokenizer, or token ids, a
            tensor or a list: one sequence (tokens,), or several (sequences, tokens); or a list of these, of any lengths. Every
            window of every text is as likely as any other. length: of a window, the model's
            max_position_embeddings if None. lora: rank of adapters on all matrices of attention (peft), merged into the
            weights at the end; None: all weights are trained, which must be float32, since bfloat16 loses small steps.
        pose: each window is split in two and the positions of the second part are moved on by a random number, so that
            windows of `length` see every distance up to target_length (None: max_position_embeddings) (Zhu et al. 2023,
            arXiv 2309.10400; the tokens stay contiguous). progress: called after each step with its number and loss.
        checkpoint: a folder in which the state is written every `checkpoint_minutes`, when the training stops and at its
            end; the same call resumes it, also with more steps. The file takes about three times the trained weights.

    Ctrl-C or SIGTERM ends the training after the current step: the model stays trained so far, and the result has as many
    losses as there were steps. A second one raises KeyboardInterrupt.

    Raises:
        InputError: text that is shorter than a window or has tokens beyond the vocabulary, sizes below 1, half
            precision without LoRA, a loss that is not finite (the weights must then be loaded again, unless LoRA), a
            checkpoint of another training, of another program or of more steps; peft is missing.
    """
    settings, texts = prepared(
        model, text, tokenizer, steps=steps, learning_rate=learning_rate, length=length, batch_size=batch_size,
        lora=lora, pose=pose, target_length=target_length, warmup=warmup, seed=seed,
    )  # fmt: skip
    check_positive(checkpoint_minutes=checkpoint_minutes)
    store = None if checkpoint is None else Checkpoint(checkpoint, checkpoint_minutes, model, texts, settings)
    if store is not None:
        store.check()
    began = time.perf_counter()
    with modes_restored(model), torch.random.fork_rng():
        torch.manual_seed(int(seed))  # adapters start from random numbers, and dropout draws them
        tuned = model if lora is None else _with_adapters(model_structure(model), lora)
        if lora is None:
            tuned.requires_grad_(True)
        trained = [p for p in tuned.parameters() if p.requires_grad]
        try:
            losses = _train(tuned.train(), trained, texts, settings, store, progress)
        except BaseException:
            if lora is not None:
                tuned.unload()  # type: ignore[operator]
            raise
        finally:
            model.zero_grad()
        if lora is not None:
            tuned.merge_and_unload()  # type: ignore[operator]
    count = sum(p.numel() for p in trained)
    return Finetuning(tuple(losses), settings, count, time.perf_counter() - began)


def prepared(
    model: nn.Module, text: str | Tensor | Sequence[Any], tokenizer: Any = None, **given: Any
) -> tuple[dict[str, Any], list[Tensor]]:
    """All settings of `finetune`, and the tokens of each text, checked: for callers that do long work before training.

    Raises:
        InputError: as `finetune`, except for a loss that is not finite.
    """
    defaults = {name: p.default for name, p in signature(finetune).parameters.items() if p.kind is p.KEYWORD_ONLY}
    settings = {name: value for name, value in (defaults | given).items() if name not in NOT_SETTINGS}
    limit = int(model_structure(model).config.max_position_embeddings)
    if settings["length"] is None:
        settings["length"] = limit
    if settings["pose"] and settings["target_length"] is None:
        settings["target_length"] = limit
    length, target = settings["length"], settings["target_length"]
    check_sizes(**{name: settings[name] for name in ("steps", "batch_size", "lora")})
    check_integers(0, warmup=settings["warmup"])
    check_integers(2, length=length)  # one token to predict the other from
    check_integers(target_length=target)
    check_positive(learning_rate=settings["learning_rate"])
    if target is not None and not settings["pose"]:
        raise InputError("needs pose=True, which skips positions up to there", target_length=target)
    if settings["pose"] and target < length:
        raise InputError(f"must be at least length={length}", target_length=target)
    several = isinstance(text, list | tuple) and any(isinstance(each, str | list | tuple | Tensor) for each in text)
    texts = [row for each in (text if several else [text]) for row in token_rows(each, tokenizer, length)]
    check_tokens(model, torch.cat(texts))
    if settings["lora"] is not None:
        needs("peft", "peft")
    elif half := {p.dtype for p in model.parameters()} - {torch.float32, torch.float64}:
        raise InputError(
            f"the weights are {half.pop()}, which loses small steps",
            "pass lora=8, or load it with dtype=float32",
            argument="model",
        )
    return settings, texts


def _train(
    model: nn.Module,
    trained: list[nn.Parameter],
    texts: Sequence[Tensor],
    settings: Mapping[str, Any],
    store: "Checkpoint | None",
    progress: Callable[[int, float], None] | None,
) -> list[float]:
    generator = torch.Generator().manual_seed(int(settings["seed"]))
    optimizer = torch.optim.AdamW(trained, lr=settings["learning_rate"], betas=(0.9, 0.95), weight_decay=0.0)
    losses = []
    if store is not None and store.load() is not None:
        first = _loss(model, texts, settings, generator)  # of the step that is done already
        first.backward()
        store.behaviour = _behaviour(model, first, torch.nn.utils.clip_grad_norm_(trained, 1.0))
        losses = store.read(trained, optimizer, generator)
    with stoppable() as stopped:
        while len(losses) < settings["steps"] and not stopped:
            step, warmup = len(losses), settings["warmup"]
            rate = min(1.0, 0.1 + 0.9 * step / warmup) if warmup else 1.0
            optimizer.param_groups[0]["lr"] = rate * settings["learning_rate"]
            loss = _loss(model, texts, settings, generator)
            if not loss.isfinite() and step == 0:
                why = f"its loss is {loss.item()} before it is trained"
                raise InputError(why, "posenc.doctor(model) may find the cause", argument="model")
            if not loss.isfinite():
                reload = "" if settings["lora"] else ", and load the model again, whose weights are not finite"
                why = f"the loss is {loss.item()} at step {step}"
                raise InputError(why, f"lower it{reload}", learning_rate=settings["learning_rate"])
            optimizer.zero_grad()
            loss.backward()
            norm = torch.nn.utils.clip_grad_norm_(trained, 1.0)
            if store is not None and not losses:
                store.behaviour = _behaviour(model, loss, norm)
            optimizer.step()
            losses.append(loss.item())
            try:
                if progress is not None:
                    progress(len(losses), losses[-1])
            except KeyboardInterrupt:
                stopped.append(signal.SIGINT)
            due = store is not None and time.perf_counter() - store.written >= store.every
            if store is not None and (stopped or due or len(losses) == settings["steps"]):
                store.write(trained, optimizer, generator, losses)
    return losses


def _behaviour(model: nn.Module, loss: Tensor, norm: Tensor) -> dict[str, float]:
    """Of a first step, by which its program is known, see `disagreement`."""
    found = {"loss of the first step": loss.item(), "norm of its gradient": norm.item()}
    half = any(weight.dtype in HALF for weight in model.parameters())
    return found | ({"tolerance": HALF_TOLERANCE} if half else {})


def _loss(model: nn.Module, texts: Sequence[Tensor], settings: Mapping[str, Any], generator: torch.Generator) -> Tensor:
    length, batch, device = settings["length"], settings["batch_size"], next(model.parameters()).device
    windows = _windows(texts, length, batch, generator)
    positions = torch.arange(length).expand(batch, -1)
    if settings["pose"]:
        draws = torch.rand(2, batch, 1, dtype=torch.float64, generator=generator)
        positions = skipped_positions(positions, length, settings["target_length"], *draws)
    windows, positions = windows.to(device), positions.to(device)
    # without a mask, transformers takes positions that jump for packed sequences which do not see each other
    inputs = {"position_ids": positions, "attention_mask": torch.ones_like(windows), "use_cache": False}
    logits = model(input_ids=windows, **inputs).logits
    return cross_entropy(logits[:, :-1].float().flatten(0, 1), windows[:, 1:].flatten())


def _windows(texts: Sequence[Tensor], length: int, count: int, generator: torch.Generator) -> Tensor:
    """Random windows (count, length), all as likely: those that would begin too late in their text are drawn again."""
    places = torch.tensor([len(text) - length + 1 for text in texts])
    windows: list[Tensor] = []
    while len(windows) < count:
        drawn = torch.randint(len(texts), (count,), generator=generator)
        starts = torch.randint(int(places.max()), (count,), generator=generator)
        fits = starts < places[drawn]
        windows += [texts[t][s : s + length] for t, s in zip(drawn[fits].tolist(), starts[fits].tolist(), strict=True)]
    return torch.stack(windows[:count])


def token_rows(text: str | Tensor | Sequence[Any], tokenizer: Any, length: int) -> Tensor:
    """Token ids (texts, tokens) of one text, or of several that are as long.

    Raises:
        InputError: no token ids, or fewer than a window's length.
    """
    if isinstance(text, str):
        if tokenizer is None:
            raise InputError("text is a string: pass the tokenizer, too, or token ids")
        text = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
    ids = as_numbers("text", text)
    if not holds_integers(ids) or ids.dim() not in (1, 2) or not ids.numel():
        raise InputError(
            "pass a string, or token ids as integers, (tokens,) or (sequences, tokens), or a list of these",
            argument="text",
        )
    rows = ids.long().cpu().reshape(-1, ids.shape[-1]).clone()  # inference tensors cannot be trained on
    if rows.shape[-1] < length:
        raise InputError(
            f"text has {rows.shape[-1]} tokens, and a window {length}: pass a longer text, or a smaller length"
        )
    return rows


def _with_adapters(structure: ModelStructure, rank: int) -> nn.Module:
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError as error:
        raise InputError(f"needs peft: pip install 'posenc[peft]' ({error})", lora=rank) from None
    attention = {id(layer.module) for layer in structure.layers}
    names = [
        f"{path}.{name}"
        for path, module in structure.model.named_modules()
        if id(module) in attention
        for name, part in module.named_modules()
        if isinstance(part, nn.Linear)
    ]
    return get_peft_model(structure.model, LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=names))


class StateFile:
    """The state of a run in a file, for the same run to go on from. identity: a hash of what makes it the same. behaviour: numbers
    from its start, by which its program is known, see `disagreement`; set before it is saved."""

    REMEDY = "name another folder, or delete it to begin anew"

    def __init__(self, path: Path, identity: str) -> None:
        self.path, self.identity = path, identity
        self.behaviour: dict[str, float] = {}

    def save(self, state: dict[str, Any]) -> None:
        """Write it, atomically."""
        with replacing(self.path) as made:
            write(made, state | {"identity": self.identity, "behaviour": self.behaviour})

    def check_behaviour(self, state: Mapping[str, Any]) -> None:
        """Raises:
        InputError: another program wrote the state."""
        if why := disagreement(self.behaviour, state["behaviour"]):
            raise InputError(f"is of another program ({why})", self.REMEDY, checkpoint=str(self.path))

    def load(self) -> dict[str, Any] | None:
        """The state; None: there is no file.

        Raises:
            InputError: it is of another run, or damaged.
        """
        sweep(self.path.parent)
        if not self.path.exists():
            return None
        try:
            state: dict[str, Any] = read(self.path)
        except ValueError as error:
            raise InputError(f"cannot be read ({error})", self.REMEDY, checkpoint=str(self.path)) from None
        if state["identity"] != self.identity:
            raise InputError(
                "is of another model, text or settings", f"give those again, {self.REMEDY}", checkpoint=str(self.path)
            )
        return state


class Checkpoint(StateFile):
    """A training in a folder, finetuning.safetensors. minutes: between two writes. texts, settings: from `prepared`."""

    def __init__(
        self, folder: str | Path, minutes: float, model: nn.Module, texts: Sequence[Tensor], settings: Mapping[str, Any]
    ):
        super().__init__(Path(folder) / "finetuning.safetensors", identity(model, texts, settings))
        self.steps: int = settings["steps"]
        self.every, self.written = 60 * minutes, time.perf_counter()

    def write(
        self,
        trained: Sequence[nn.Parameter],
        optimizer: torch.optim.Optimizer,
        generator: torch.Generator,
        losses: list[float],
    ) -> None:
        """Write the state after a step, atomically."""
        device = trained[0].device
        self.save({
            "losses": losses, "weights": [weight.detach() for weight in trained], "optimizer": optimizer.state_dict(),
            "windows": generator.get_state(), "random": torch.get_rng_state(),
            "random_cuda": torch.cuda.get_rng_state(device) if device.type == "cuda" else None,
        })  # fmt: skip
        self.written = time.perf_counter()

    def check(self) -> None:
        """Raises:
        InputError: a checkpoint of another training, or of more steps."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.load()

    def read(
        self, trained: Sequence[nn.Parameter], optimizer: torch.optim.Optimizer, generator: torch.Generator
    ) -> list[float]:
        """Set weights, optimizer and random generators to where the training stopped, if there is a checkpoint.

        Returns:
            The losses so far.

        Raises:
            InputError: as `check`, or another program wrote it.
        """
        state = self.load()
        if state is None:
            return []
        self.check_behaviour(state)
        for weight, stored in zip(trained, state["weights"], strict=True):
            weight.data.copy_(stored)
        optimizer.load_state_dict(state["optimizer"])
        generator.set_state(state["windows"])
        torch.set_rng_state(state["random"])
        if state["random_cuda"] is not None and trained[0].is_cuda:
            torch.cuda.set_rng_state(state["random_cuda"], trained[0].device)
        return state["losses"]

    def remove(self) -> None:
        """Delete the file, and the folder if nothing else is in it."""
        self.path.unlink(missing_ok=True)
        with suppress(OSError):
            self.path.parent.rmdir()

    def load(self) -> dict[str, Any] | None:
        state = super().load()
        if state is not None and len(state["losses"]) > self.steps:
            raise InputError(
                f"checkpoint={str(self.path)!r} has {len(state['losses'])} already",
                f"give as many or more, {self.REMEDY}",
                steps=self.steps,
            )
        return state


def identity(model: nn.Module, texts: Iterable[Tensor], settings: Mapping[str, Any]) -> str:
    """Hash of the model before training, its extension, the tokens, and the settings but `steps`, which may change."""
    attachment = attached(unwrap(model))
    fixed = {name: value for name, value in settings.items() if name != "steps"}
    digest = hashlib.sha256(json.dumps([fixed, str(attachment and attachment.report.method)], sort_keys=True).encode())
    for text in texts:
        digest.update(f"{len(text)}".encode() + text.numpy().tobytes())
    for name, weight in model.named_parameters():
        some = weight.detach().flatten()[:: max(weight.numel() // 64, 1)].float().cpu()
        digest.update(f"{name} {tuple(weight.shape)} {weight.dtype}".encode() + some.numpy().tobytes())
    return digest.hexdigest()
