# SPDX-License-Identifier: Apache-2.0
"""What a checkpoint's files may say: which files have its weights, and that its configuration agrees with them, checked before a
model is made or anything of the stated size is allocated."""

import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import inf, prod
from pathlib import Path
from typing import Any

import torch
from torch import nn

from posenc.errors import InputError, described, import_failed, on_one_line, shown
from posenc.spec import MOST_LAYERS, read_json

INDEX = "model.safetensors.index.json"
SIZES = re.compile(
    r"(vocab|hidden|intermediate|embedding|ffn|mlp)_size|(head|embed|n_embd|kv|qk|v)_dim|n_embd|n_head|head_dim|d_(model|ff|kv|head)"
    r"|num_(attention_|key_value_)?heads|max_position_embeddings|n_positions|n_ctx"
)
"""Names of sizes in a configuration, which are integers above 0."""
LAYERS = re.compile(r"(num_|n_)?(\w+_)?(layers?|blocks|depth)|n_layer")
"""Names of numbers of layers."""
COUNTS = re.compile(
    r"(?!n_ctx|n_positions)((num|n)_\w+|\w*(size|dim|count|heads|labels|experts|groups|layers?|blocks))"
)
"""Names of numbers of which something is made, one by one."""
MOST = 2**20
"""Of any of them but the sizes, which the tensors in the files have too."""
EPSILONS = re.compile(r"(^|_)(eps|epsilon)$")
"""How names of what norms add to a variance end."""
SCALES = re.compile(r"(scale(_inv)?|scales|qweight|qzeros|g_idx|zero_point|quant_state\..*|absmax|quant_map|SCB)$")
"""How names of weights end that quantisation adds."""
QUANTISED = re.compile(r"F[468]_|[IU]\d+$|BOOL$")
"""Dtypes in safetensors' headers that no weight has as it is trained."""
SPARE = 2**28
"""Numbers of a model, such as its masks and tables, that need not be in its files."""


# ------------------------------------------------------------------------------------------ safetensors


def weight_files(folder: Path, stated: Any = None) -> list[Path]:
    """The files with the weights of a folder: model.safetensors, or those that its index names. stated: transformers_weights in
    its configuration.

    Raises:
        InputError: another than a file of the folder whose name ends in .safetensors; a link that leads out of the folder, unless
            the folder is a snapshot in the cache of the Hugging Face hub and the file is in its blobs; an index that is none.
    """
    name = stated or ("model.safetensors" if (folder / "model.safetensors").is_file() else INDEX)
    if isinstance(name, str) and name.endswith(".index.json"):
        index = _inside(folder, name, ".index.json")
        if not index.is_file():
            raise InputError(f"{folder}: has neither model.safetensors nor {name}: get the files that are missing")
        try:
            content = read_json(index.read_bytes())
            names = list(dict.fromkeys(content["weight_map"].values()))
        except (ValueError, TypeError, KeyError, AttributeError):
            raise InputError(
                f"{index}: is no index of weights (weight_map: names and files); get the file again"
            ) from None
    else:
        names = [name]
    return [_inside(folder, each, ".safetensors") for each in names]


def check_file_name(model: object, name: object, suffix: str) -> str:
    """The name of a file with weights, as a configuration or an index states it.

    Raises:
        InputError: it leads out of the model's folder, or has another suffix.
    """
    if not isinstance(name, str) or name != Path(name).name or not name.endswith(suffix) or "\\" in name:
        raise InputError(
            f"{model}: names {shown(name)} as a file of its weights: must be a plain name in the folder that ends in {suffix}"
        )
    return name


def _inside(folder: Path, name: object, suffix: str) -> Path:
    file = folder / check_file_name(folder, name, suffix)
    own = folder.resolve()
    roots = [own, own.parent.parent / "blobs"] if own.parent.name == "snapshots" else [own]
    if file.is_symlink() and not any(file.resolve().is_relative_to(root) for root in roots):
        raise InputError(f"{file}: is a link to a file outside of the folder: put the file itself there")
    return file


def shapes_in(files: Iterable[Path]) -> dict[str, tuple[int, ...]]:
    """The shape of each tensor in safetensors, by name, from their headers.

    Raises:
        InputError: a file that is missing or cut off; a weight in float8 or in integers, which is one only with the scales of its
            quantisation.
    """
    from safetensors import SafetensorError, safe_open

    shapes: dict[str, tuple[int, ...]] = {}
    for file in files:
        if not file.exists():
            raise InputError(f"{file}: is missing, and has weights of the model: get the files that are missing")
        try:
            with safe_open(file, "pt") as opened:
                for name in opened.keys():  # noqa: SIM118
                    tensor = opened.get_slice(name)
                    shapes[name], kind = tuple(tensor.get_shape()), str(tensor.get_dtype())
                    if name.endswith(("weight", ".bias")) and QUANTISED.match(kind):
                        raise InputError(
                            f"{file}: {name} is in {kind}, quantised: take the model in float32, bfloat16 or float16, or as a GGUF file"
                        )
        except SafetensorError as error:
            size = file.stat().st_size
            raise InputError(
                f"{file}: its {size} bytes are no complete safetensors ({error}): get the file again"
            ) from error
    return shapes


def check_counts(name: str, stored: Mapping[str, Any], tensors: int | None = None) -> None:
    """Refuse numbers in a configuration, also of its parts, that no model has: of a walk over all values, before anything is made of
    them. tensors: how many the files have; None: there are no files, and only counts are bounded, by `MOST`.

    Raises:
        InputError: more of something than any model has; with files, a size that is no integer above 0, more layers than tensors,
            or NaN, of which all outputs are.
    """
    for key, value in stored.items():
        if isinstance(value, Mapping):
            check_counts(name, value, tensors)
        if not isinstance(value, int | float):
            continue
        must, size, whole = "", SIZES.fullmatch(key), isinstance(value, int)
        counted = COUNTS.fullmatch(key) or (tensors is None and size and key.endswith(("size", "dim", "heads")))
        if whole and (counted or not size) and abs(value) > (MOST if counted else 2**63):
            must = "is more than any model has"
        if tensors is not None and not isinstance(value, bool):
            if LAYERS.fullmatch(key) and not -1 < value <= max(tensors, MOST_LAYERS):
                must = f"its files have {tensors} tensors, and a layer has at least one"
            elif size and not (whole and 0 < value < 2**63):
                must = "must be an integer above 0"
            elif not must and not abs(value) < inf:
                must = "must be a finite number"
            elif EPSILONS.search(key) and not 0 <= value < 1:
                must = "must be a finite number, at least 0 and below 1"
            elif key == "num_hidden_layers" and value == 0:
                must = "a model has at least one layer"
        if must:
            raise InputError(f"{name}: {key}={value}: {must}")


def check_model(name: str, model: nn.Module, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Refuse a model on "meta" that its files cannot fill, before it is allocated. shapes: of the tensors in the files.

    Raises:
        InputError: a weight of another shape than in the files, or far more numbers than they have.
    """
    state = dict(model.state_dict())
    prefix = getattr(model, "base_model_prefix", "") + "."
    for weight, tensor in state.items():
        stored = shapes.get(weight, shapes.get(weight.removeprefix(prefix)))
        if stored is not None and stored != tuple(tensor.shape):
            raise InputError(
                f"{name}: its weights cannot be read: {weight} is {stored} in its files and {tuple(tensor.shape)} by its "
                "configuration, a mismatch: get the configuration that fits"
            )
    wanted = sum(tensor.numel() for tensor in {*model.parameters(), *model.buffers()})
    have = sum(map(prod, shapes.values()))
    if wanted > 2 * have + SPARE:
        raise InputError(
            f"{name}: its configuration makes a model of {wanted:,} numbers, and its files have {have:,}: get the configuration "
            "that fits"
        )


TOKENS = 4
"""Read at loading."""


@torch.no_grad()
def check_runs(name: str, model: Any) -> None:
    """Read a few tokens: what makes every output NaN, or ends in an error of the model's code, is seen in no number by itself.

    Raises:
        InputError: the model does not run, or its output is not finite.
    """
    words = getattr(model.config.get_text_config(decoder=True), "vocab_size", None)
    if not model.can_generate() or model.device.type == "meta" or words is None:  # as CLIP, which needs an image
        return
    base, again = model.base_model, f"{name}: {TOKENS} tokens"
    try:
        output = model(torch.arange(TOKENS, device=model.device)[None] % words, return_dict=True)
    except Exception as error:  # whatever its code raises
        if out_of_memory(error):
            raise
        raise InputError(f"{again} end in {described(error)}: get the configuration that fits") from error
    if getattr(base, "rope_deltas", None) is not None:  # by which Qwen2-VL counts on from its last prompt
        base.rope_deltas = None
    if not torch.isfinite(output[0]).all():
        dtype = str(model.dtype).removeprefix("torch.")
        raise InputError(f"{again} give NaN or infinite numbers in {dtype}: get the files again, or take another dtype")


def check_used(name: str, left: Sequence[str]) -> None:
    """Raises:
    InputError: names of weights in the files that are in the way of a model's numbers and that it does not read."""
    if not left:
        return
    first = next(filter(SCALES.search, left), left[0])
    why = (
        "scales quantised weights: take the model in float32, bfloat16 or float16, or as a GGUF file"
        if SCALES.search(first)
        else "would change the output: get the configuration that fits (more layers, biases or norms)"
    )
    raise InputError(
        f"{name}: {len(left)} of the weights in its files are not used by its configuration, and {first} {why}"
    )


@contextmanager
def reading(what: str) -> Iterator[None]:
    """Name the model in what the parsers of its files raise, of many types. Out-of-memory errors pass as they are. The hub's
    warnings of each try to reach it are left out: the last one is the error."""
    logger = logging.getLogger("huggingface_hub")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    except InputError:
        raise
    except RecursionError as error:
        raise InputError(f"{what}a JSON file of it is nested too deep; get the files again") from error
    except Exception as error:
        if out_of_memory(error):
            raise
        if (why := import_failed(error)) is not None:  # the file has no part in it
            raise InputError(why) from error
        kind = "" if isinstance(error, ValueError | OSError) else f"{type(error).__name__}: "
        raise InputError(f"{what}{kind}{on_one_line(error)}") from error
    finally:
        logger.setLevel(level)


def out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory is exhausted, which on a CPU is a plain RuntimeError."""
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or "allocate memory" in str(error)
