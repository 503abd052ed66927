# SPDX-License-Identifier: Apache-2.0
"""Extensions travel with the adapters of PEFT that were trained under them: an entry in adapter_config.json.

It is in `auto_mapping`, which PEFT reads, keeps and writes again as it is, so that an adapter in memory still has it. PEFT asks a
model for its state_dict before it writes an adapter, and gives it one where it reads one; hooks there write and compare the entry.
"""

import re
import warnings
from collections.abc import Iterator, Mapping
from math import isfinite
from pathlib import Path
from typing import Any

from torch.utils.hooks import RemovableHandle

from posenc.errors import InputError, needs, shown
from posenc.pretrained.checked import shapes_in, weight_files
from posenc.pretrained.models import record_of
from posenc.spec import read_json

ADAPTER, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
ENTRY = "posenc"
OTHERS = "megatron_config", "adapters", "prompt_tuning_init_state_dict_path"
"""Of an adapter's configuration: for these PEFT imports the module megatron_core, reads adapters by their paths, and unpickles."""
SIZES = re.compile(r"(init_|target_)?r|num_virtual_tokens|num_ranks|n_frequency")
"""Names of sizes in it that are dimensions of the adapter's tensors, or below one."""
LOW_RANK = re.compile(r"^(?!.*expert).*lora_(embedding_)?[AB]\b")
"""Names of tensors that PEFT makes of as many as it reads; of experts it may make one."""


def watch(inner: Any) -> list[RemovableHandle]:
    """Have adapters of a transformers model state its extension when they are saved, and warn of one that was trained under
    another. Gives what removes that, nothing where it was so already."""
    if _note in inner._state_dict_pre_hooks.values():
        return []
    return [inner.register_state_dict_pre_hook(_note), inner.register_load_state_dict_pre_hook(_compare)]


def _configs(inner: Any) -> dict[str, Any]:
    """PEFT's configurations of the adapters in a model, by name."""
    found = getattr(inner, "peft_config", None)
    return found if isinstance(found, dict) else {}


def entry_of(inner: Any) -> dict[str, Any] | None:
    """What `posenc.extend` is called with for a model's extension; None: it has none."""
    change = record_of(inner)
    if change is None:
        return None
    return {"method": change.report.method, "target_length": getattr(change.report, "new_length", None)}


def _note(inner: Any, *_: Any) -> None:
    """A state_dict pre-hook."""
    configs = _configs(inner)
    entry = entry_of(inner) if configs else None
    for config in configs.values() if entry is not None else ():
        if config.inference_mode and ENTRY in (config.auto_mapping or {}):
            continue  # trained before it was loaded, perhaps under another
        if config.task_type is None and type(inner).__name__.endswith("ForCausalLM"):
            config.task_type = "CAUSAL_LM"  # else PEFT writes an auto_mapping as well
        config.auto_mapping = {**(config.auto_mapping or {}), ENTRY: entry}


def _compare(inner: Any, state: Mapping[str, Any], *_: Any) -> None:
    """A load_state_dict pre-hook. Warns where an adapter is read for another extension."""
    if any("lora_" in name for name in state):
        for text in apart(inner):
            warnings.warn(f"posenc: {text}", stacklevel=2)


def apart(inner: Any) -> Iterator[str]:
    """A sentence for each adapter of a model that was trained under another extension than the model has."""
    configs = _configs(inner)
    now = entry_of(inner) if configs else None
    for name, config in configs.items():
        entry = (getattr(config, "auto_mapping", None) or {}).get(ENTRY)
        if entry is not None and entry != now:
            has = "is not extended" if now is None else f"is extended by {entry_text(now)}"
            yield f"the adapter {name!r} was trained under {entry_text(entry)}, and the model {has}"


def entry_text(entry: Mapping[str, Any]) -> str:
    length = entry.get("target_length")
    return f"{entry.get('method')}" + ("" if length is None else f" for {length} tokens")


def check_entry(entry: Any, file: str) -> tuple[str, int | None]:
    """The method and the new length of an entry in a file.

    Raises:
        InputError: it is none.
    """
    if not (
        isinstance(entry, Mapping)
        and isinstance(entry.get("method"), str)
        and isinstance(entry.get("target_length"), int | None)
    ):
        raise InputError(
            f"in {file}: must be an object with method, a text, and target_length, an integer or null", posenc=entry
        )
    return entry["method"], entry.get("target_length")


def base_of(folder: Path) -> str:
    """The model that the adapter in a folder is for.

    Raises:
        InputError: the folder names none, its weights are no safetensors, or it names other files or modules to read.
    """
    needs("peft", "peft")
    stored = stored_adapter(folder)
    for key in OTHERS:
        if stored.get(key):
            raise InputError(
                f"{folder}: its {ADAPTER} has {key}, which names modules or files that posenc does not read"
            )
    base = stored.get("base_model_name_or_path")
    if not isinstance(base, str) or not base:
        raise InputError(
            f"{folder}: its {ADAPTER} names no model (base_model_name_or_path={shown(base)}): load that model with posenc.load, "
            f"and the adapter by peft.PeftModel.from_pretrained(model, {str(folder)!r})"
        )
    if not (folder / ADAPTER_WEIGHTS).is_file():
        raise InputError(f"{folder}: contains no {ADAPTER_WEIGHTS}, and other files of weights can run code")
    return base


def check_numbers(folder: Path) -> None:
    """Refuse numbers that no adapter with these weights has, before a model is read for it.

    Raises:
        InputError: what is not finite, or a rank or number of tokens that no tensor has.
    """
    shapes = shapes_in(weight_files(folder, ADAPTER_WEIGHTS)).values()
    largest = max((size for shape in shapes for size in shape), default=0)
    for key, value in _numbers(stored_adapter(folder)):
        if not isfinite(value) or (SIZES.fullmatch(key) and not 0 <= value <= largest):
            raise InputError(
                f"{folder}: its {ADAPTER} has {key}={value}, and the tensors in {ADAPTER_WEIGHTS} at most {largest} of a dimension: "
                "get both files again"
            )


def check_placed(folder: Path, model: Any) -> None:
    """Refuse an adapter of which the model took a part alone.

    Raises:
        InputError: tensors of low rank that the configuration has no place for.
    """
    tensors = [name for name in shapes_in(weight_files(folder, ADAPTER_WEIGHTS)) if LOW_RANK.search(name)]
    places = [name for name, _ in model.named_parameters(remove_duplicate=False) if LOW_RANK.search(name)]
    if len(tensors) > len(places):
        raise InputError(
            f"{folder}: {len(tensors) - len(places)} of the {len(tensors)} tensors of low rank in {ADAPTER_WEIGHTS} have no place under "
            f"its {ADAPTER}: get both files of one training"
        )


def _numbers(value: Any, key: str = "") -> Iterator[tuple[str, float]]:
    """Every number in JSON, by the nearest name; a rank of some modules is a rank."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        yield key, value
    elif isinstance(value, Mapping):
        for name, each in value.items():
            yield from _numbers(each, "r" if key == "rank_pattern" else str(name))
    elif isinstance(value, list):
        for each in value:
            yield from _numbers(each, key)


def stored_adapter(folder: Path) -> dict[str, Any]:
    try:
        stored = read_json((folder / ADAPTER).read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise InputError(f"{folder}: its {ADAPTER} is no JSON: {error}") from None
    if not isinstance(stored, dict):
        raise InputError(f"{folder}: its {ADAPTER} holds {type(stored).__name__}, and must be an object")
    return stored
