# SPDX-License-Identifier: Apache-2.0
"""Extensions travel with the adapters of PEFT that were trained under them: an entry in adapter_config.json.

It is in `auto_mapping`, which PEFT reads, keeps and writes again as it is, so that an adapter in memory still has it. PEFT asks a
model for its state_dict before it writes an adapter, and gives it one where it reads one; hooks there write and compare the entry.
"""

import warnings
from collections.abc import Iterator, Mapping
from typing import Any

from torch.utils.hooks import RemovableHandle

from posenc.errors import InputError
from posenc.pretrained.models import record_of

ADAPTER = "adapter_config.json"
ENTRY = "posenc"


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


def check_entry(entry: Any) -> tuple[str, int | None]:
    """The method and the new length of an entry in a config.json.

    Raises:
        InputError: it is none.
    """
    if not (
        isinstance(entry, Mapping)
        and isinstance(entry.get("method"), str)
        and isinstance(entry.get("target_length"), int | None)
    ):
        raise InputError(
            "in config.json: must be an object with method, a text, and target_length, an integer or null", posenc=entry
        )
    return entry["method"], entry.get("target_length")
