# SPDX-License-Identifier: Apache-2.0
"""What other programs were recorded to compute (benchmarks/recorded.py), for a configuration without weights."""

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from posenc.errors import InputError
from posenc.pretrained.config_file import ConfigFile

RULES = "rules"
RECORDS: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_name("recorded.json").read_text(encoding="utf-8"))
"""Program -> its "version" and the "date"; "as transformers 5": model types of which it computes the same for each probe;
"missing": those that it does not have; "answers": `fingerprint` -> "transformers 5" or "rules", which compute what it did, or why it
fails; "lengths": `fingerprint` -> the lengths that were asked for, where the answer depends on them."""

FIELDS = ("rope_theta", "rope_scaling", "rope_parameters", "partial_rotary_factor", "rotary_pct", "rotary_emb_base", "rotary_dim",
          "rope_local_base_freq", "swa_rope_theta", "compress_rope_theta", "original_max_position_embeddings",
          "max_position_embeddings", "hidden_size", "num_attention_heads", "head_dim", "qk_rope_head_dim", "sliding_window",
          "use_sliding_window", "attention_chunk_size", "no_rope_layer_interval", "position_embedding_type", "alibi")  # fmt: skip
"""Fields on which a rotation depends; of the layers it is which types there are, and which of them do not rotate."""


def fingerprint(config: ConfigFile) -> str:
    """The same for two configurations that state the same of their rotation."""
    raw = config.raw
    stated = {key: raw[key] for key in FIELDS if raw.get(key) is not None}
    stated |= {
        "kinds": sorted(set(raw.get("layer_types") or ())),
        "model_type": raw.get("model_type"),
        "of": config.outer.get("model_type"),
    }
    with suppress(InputError):  # transformers does not know it
        if still := config.unrotated():
            stated["unrotated"] = still
    return hashlib.sha256(json.dumps(_plain(stated), sort_keys=True).encode()).hexdigest()[:12]


def _plain(value: Any) -> Any:
    """A value of JSON in which 1 and 1.0 are alike."""
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


def answer_of(program: str, config: ConfigFile, length: int) -> str | None:
    """What was recorded of a program for this very configuration; None: nothing was."""
    record = RECORDS.get(program)
    if record is None:
        return None
    try:
        key = fingerprint(config)
    except (InputError, ValueError, TypeError):  # a file with numbers or tables that cannot be
        return None
    lengths = record["lengths"].get(key)
    return record["answers"].get(key) if lengths is None or length in lengths else None
