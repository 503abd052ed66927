"""Rows for what needs a model: pretrained ones, analyses, evaluations."""

import shutil
import tempfile
from copy import deepcopy
from functools import cache
from inspect import isfunction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

import posenc
from hostile.library import HEADS, Row
from posenc import analysis, tasks
from posenc.lab.config import Settings
from posenc.lab.evals.config import Settings as EvalSettings
from posenc.lab.vision.config import ImageSettings
from posenc.pretrained.nbce import combine

LENGTH = 16
OF_A_SUBJECT = (
    "bounded",
    "deterministic",
    "kernel",
    "properties",
    "shift_matrix",
    "spectrum",
    "steps",
    "unique",
)
OF_AN_ENCODING = {"bias": "alibi", "phase_error": "rope", "rotation": "rope", "scores": "rope"}
"""Analyses that take a subject or an encoding, and nothing else that has no default."""


class Words:
    """A tokenizer of bytes that knows what ours ask of one."""

    eos_token_id = pad_token_id = 0
    bos_token = eos_token = None

    def __call__(self, text: str, **_: Any) -> SimpleNamespace:
        return SimpleNamespace(input_ids=[1 + byte % 60 for byte in text.encode()])

    def decode(self, tokens: list[int], **_: Any) -> str:
        return "".join(chr(64 + int(token)) for token in tokens)


@cache
def llama() -> Any:
    """A small Llama with random weights, as transformers makes it."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    shape = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4}
    return LlamaForCausalLM(LlamaConfig(vocab_size=64, max_position_embeddings=LENGTH, **shape)).eval()


@cache
def vit() -> Any:
    """A small ViT with random weights."""
    from transformers import ViTConfig, ViTModel

    torch.manual_seed(0)
    shape = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    return ViTModel(ViTConfig(image_size=16, patch_size=8, **shape)).eval()


def state(model: Any) -> tuple[str, str, list[float]]:
    """What a refused call must not change: modules, configuration, weights."""
    return repr(model), repr(model.config.to_dict()), [float(p.detach().double().sum()) for p in model.parameters()]


def restored(found: Any) -> Any:
    posenc.restore(llama())
    return found


def resized(found: Any) -> list[int]:
    table = vit().embeddings.position_embeddings
    posenc.restore(vit())
    return [*found.new, *table.shape]


def folder() -> str:
    """A name for a new folder, in one that is emptied of the last."""
    place = Path(tempfile.gettempdir()) / "posenc_hostile"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    return str(place / "model")


def rows() -> dict[str, Row]:
    tokens = torch.arange(12) % 11
    found = {
        "extend": Row(posenc.extend, lambda: {"model": llama(), "method": "yarn", "factor": 2.0}, restored),
        "resize": Row(posenc.resize, lambda: {"model": vit(), "image_size": 24}, resized),
        "restore": Row(posenc.restore, lambda: {"model": llama()}),
        "load": Row(posenc.load, lambda: {"name": _saved()}, only=("name", "dtype", "device", "encoders")),
        "to_hf": Row(posenc.to_hf, lambda: {"model": llama(), "directory": folder()}, only=("model", "directory")),
        "doctor": Row(posenc.doctor, lambda: {"model": llama()}, only=("model",)),
        "finetune": Row(
            posenc.finetune,
            lambda: {"model": deepcopy(llama()), "text": tokens.repeat(3), "steps": 1, "length": 8, "warmup": 0},
            then=lambda found: found.losses, only=("model", "text", "steps", "learning_rate", "length", "batch_size", "pose", "warmup", "seed"),
        ),
        "nbce_generate": Row(
            lambda model, tokenizer, contexts, question, max_new_tokens=2, beta=0.25, top_p=0.9, temperature=0.0: (
                posenc.nbce_generate(
                    model, tokenizer, contexts, question, max_new_tokens=max_new_tokens, beta=beta, top_p=top_p,
                    temperature=temperature,
                )
            ),
            lambda: {"model": llama(), "tokenizer": Words(), "contexts": ["a", "b"], "question": "c"},
        ),
        "nbce.combine": Row(combine, lambda: {"log_probs": torch.randn(3, 7).log_softmax(-1), "previous": 0}, lambda found: found[0].exp()),
        "tasks.create": Row(tasks.create, lambda: {"text": "passkey"}),
        "evals.Settings": Row(EvalSettings, lambda: {"tasks": ("passkey",)}, only=("samples", "seeds", "batch_size")),
        "lab.Settings": Row(Settings, dict),
        "lab.ImageSettings": Row(ImageSettings, dict),
    }  # fmt: skip
    for name in OF_A_SUBJECT:
        found[f"analysis.{name}"] = Row(
            getattr(analysis, name),
            lambda: {"subject": posenc.Sinusoidal(8), "length": LENGTH},
            only=("length", "subject"),
        )
    for name, encoding in OF_AN_ENCODING.items():
        shape = {"num_heads": HEADS} if encoding == "alibi" else {"head_dim": 8}
        length = "trained" if name == "rotation" else "length"
        made = posenc.create(encoding, **shape)
        found[f"analysis.{name}"] = Row(
            getattr(analysis, name), lambda length=length, made=made: {"encoding": made, length: LENGTH},
            only=(length, "layer", "encoding", "samples"),
        )  # fmt: skip
    return found


def unlisted() -> set[str]:
    """The analyses without a row."""
    known = rows()
    return {
        name for name in analysis.__all__ if isfunction(getattr(analysis, name)) and f"analysis.{name}" not in known
    }


@cache
def _saved() -> str:
    place = folder() + "_saved"
    llama().save_pretrained(place)
    return place
