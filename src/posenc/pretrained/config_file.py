# SPDX-License-Identifier: Apache-2.0
"""A configuration as it is in a file: a config.json, or the header of a GGUF file."""

import json
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

from posenc.errors import InputError, described, shown
from posenc.pretrained.checked import check_counts
from posenc.pretrained.families import FAMILIES
from posenc.pretrained.parameters import NUMBERS, impossible_sentences, is_number, unknown_type
from posenc.spec import MOST_LAYERS

SLIDING, FULL = "sliding_attention", "full_attention"
V4_HEADS: dict[str, int] = {"qwen3": 128, "gemma": 256, "gemma2": 256, "gemma3_text": 256, "glm": 128,
                            "glm4": 128, "seed_oss": 128, "gpt_oss": 64}  # fmt: skip
"""Widths of a head in a configuration that does not state them, where they are not hidden_size / num_attention_heads."""

ROTATING = ("llama4_text", "smollm3", "mistral_large4_text")
"""Model types whose no_rope_layers has a number for each layer, 0 where the layer does not rotate."""
PARTS = (("text_config",), ("llm_config",), ("language_config",), ("thinker_config", "text_config"))
"""Where a configuration of several parts has the language model's."""
ROPE_TABLES = ("rope_parameters", "rope_scaling")
BESIDE = ("rope_theta", "original_max_position_embeddings", "partial_rotary_factor")
"""Fields that may stand in a table and beside it."""


class ConfigFile:
    """A configuration, as a file has it.

    raw: the fields of the language model. part: where they are among all fields, outer. gguf: header of a GGUF file, by key, else None.

    Raises:
        InputError: no model_type, or a text, a number or a list where an object is due.
    """

    def __init__(self, name: str, raw: Mapping[str, Any], gguf: Mapping[str, Any] | None = None) -> None:
        self.name, self.gguf, self.outer = name, gguf, dict(raw)
        self.raw: dict[str, Any] = dict(raw)
        self.part: tuple[str, ...] = ()
        for path in PARTS:
            part: Any = raw
            for key in path:
                part = part.get(key) if isinstance(part, Mapping) else None
            if isinstance(part, Mapping):
                self.raw, self.part = dict(part), path
                break
        for fields in (raw, self.raw):
            for key in (*ROPE_TABLES, *(path[0] for path in PARTS)):
                if not isinstance(fields.get(key), Mapping | None):
                    raise InputError(f"{name}: {key}={shown(fields[key])}: must be an object, or left out")
            if not isinstance(kind := fields.get("model_type"), str | None):
                raise InputError(f"{name}: model_type={shown(kind)}: must be the name of a model type of transformers")
            _check_kinds(name, fields)
        if not (raw.get("model_type") or self.raw.get("model_type")):
            raise InputError(f"{name}: has no model_type; pass the config.json of a transformers model")

    @cached_property
    def model_type(self) -> str:
        """Of the language model."""
        try:
            return str(self.hf.model_type)
        except InputError:
            return str(self.raw.get("model_type") or self.outer["model_type"])

    @cached_property
    def hf(self) -> Any:
        """The configuration of the language model in transformers 5.

        Raises:
            InputError: transformers does not know it, or refuses it.
        """
        from transformers import CONFIG_MAPPING

        for fields in (self.outer, self.raw):
            kind, layers = str(fields.get("model_type")), fields.get("num_hidden_layers") or 0
            if not is_number(layers) or not layers <= MOST_LAYERS:
                raise InputError(f"must be a number of at most {MOST_LAYERS}", num_hidden_layers=layers)
            check_counts(self.name, fields)
            if kind in CONFIG_MAPPING:
                given = {key: value for key, value in json.loads(json.dumps(fields)).items() if key != "model_type"}
                try:
                    made: Any = CONFIG_MAPPING[kind](**given).get_text_config(decoder=True)
                    if isinstance(made, Mapping):  # Mistral 3 leaves it as it is where the file has no vision part
                        inner = {key: value for key, value in made.items() if key != "model_type"}
                        made = CONFIG_MAPPING[made["model_type"]](**inner)
                    if getattr(made, "rope_parameters", None):
                        made.standardize_rope_params()  # as the rotary module does, which then sees fields beside the table
                    return made
                except Exception as error:  # transformers raises errors of many types here
                    raise InputError(f"transformers refuses it: {described(error)}") from error
        raise InputError(f"transformers does not know the model type {self.outer.get('model_type')!r}")

    @property
    def states_language_model(self) -> bool:
        """Whether the file has the fields of the language model, and not of parts that each program completes by itself."""
        return self.raw != self.outer or self.outer.get("model_type") == self.model_type

    @cached_property
    def head_dim(self) -> int:
        if self.raw.get("head_dim"):
            return self.number("head_dim")
        return V4_HEADS.get(self.model_type) or self.number("hidden_size") // self.number("num_attention_heads")

    @cached_property
    def length(self) -> int:
        return self.number("max_position_embeddings")

    def number(self, key: str) -> int:
        """A field, or transformers' value for it.

        Raises:
            InputError: it is no number above 0.
        """
        value = self.raw[key] if key in self.raw else getattr(self.hf, key, None)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise InputError(f"{self.name}: {key}={value!r}: must be an integer above 0")
        return value

    def contradictions(self) -> Iterator[str]:
        """Two fields for one number that differ."""
        tables = {key: self.raw[key] for key in ROPE_TABLES if isinstance(self.raw.get(key), Mapping)}
        for key, table in tables.items():
            one, other = table.get("rope_type"), table.get("type")
            if one and other and one != other and {one, other} not in ({"su", "longrope"}, {"mrope", "default"}):
                yield f"{key} has rope_type={one!r} and type={other!r}: remove one of them"
            for name in BESIDE:
                inner, outer = table.get(name), self.raw.get(name)
                void = outer is None and not (name == "rope_theta" and name in self.raw)  # at null transformers 4 fails
                if inner is not None and outer != inner and not void:
                    yield f"{name}={outer} and {key}.{name}={inner}: programs read different ones; remove one"
        if len(tables) == 2:
            parameters, scaling = (self._typed(table) for table in tables.values())
            for name in sorted(scaling.keys() & parameters.keys()):
                if scaling[name] != parameters[name]:
                    yield (
                        f"rope_parameters.{name}={parameters[name]!r} and rope_scaling.{name}={scaling[name]!r}: programs read "
                        "different ones; remove one"
                    )

    @staticmethod
    def _typed(table: Mapping[str, Any]) -> dict[str, Any]:
        """A table with its rope_type, of which "type" is the older name; one by layer type as it is."""
        if any(isinstance(each, Mapping) for each in table.values()):
            return dict(table)
        kind = {"su": "longrope", "mrope": "default"}
        given = table.get("rope_type", table.get("type", "default"))
        rest = {key: value for key, value in table.items() if key != "type"}
        return rest | {"rope_type": kind.get(given, given) if isinstance(given, str) else given}

    def tables(self) -> Iterator[dict[str, Any]]:
        """The file's tables of the rotation with the base that may stand beside them, or the base alone. "mrope" is "default"."""
        for table in (self.raw.get(key) for key in ROPE_TABLES):
            if isinstance(table, Mapping):
                nested = [each for each in table.values() if isinstance(each, Mapping)]
                for each in nested or [table]:
                    kind = each.get("rope_type", each.get("type", "default"))
                    rope_type = {"rope_type": "default" if kind == "mrope" else kind}
                    yield {"rope_theta": self.raw.get("rope_theta", 1e4), **each} | rope_type
        if "rope_theta" in self.raw and not any(isinstance(self.raw.get(key), Mapping) for key in ROPE_TABLES):
            yield {"rope_theta": self.raw["rope_theta"], "rope_type": "default"}

    def faults(self) -> Iterator[str]:
        """Numbers in its tables that cannot be, and "su", which transformers 5 does not read."""
        for table in self.tables():
            yield from (sentence for sentence, _ in impossible_sentences(table))
            if table["rope_type"] == "su":
                yield unknown_type(table)

    def beside(self) -> Iterator[str]:
        """Tables of the rotation beside the part of the language model, where no module reads them."""
        for key in ROPE_TABLES:
            table = self.outer.get(key)
            if self.raw != self.outer and isinstance(table, Mapping) and table != self.raw.get(key):
                yield f"{key} {dict(table)} stands beside the part that has the language model's fields"

    def unrotated(self) -> tuple[int, ...]:
        """Numbers of the layers with attention that do not rotate queries and keys, where others do."""
        hf, kind = self.hf, str(self.hf.model_type)
        fields = vars(hf)
        if kind in ROTATING and (stated := fields.get("no_rope_layers")):
            return tuple(number for number, rotates in enumerate(stated) if not rotates)
        if kind not in FAMILIES or FAMILIES[kind].full_rotates or fields.get("sliding_window") is None:
            return ()
        return tuple(number for number, name in enumerate(hf.layer_types) if name == FULL)


def _check_kinds(name: str, fields: Mapping[str, Any]) -> None:
    """Raises:
    InputError: a text, a list or an object where a number, a name or an object is due."""
    for key in BESIDE:
        if isinstance(fields.get(key), list | Mapping) or (key != "rope_theta" and isinstance(fields.get(key), str)):
            raise InputError(f"{name}: {key}={shown(fields[key])}: must be a number")
    for key in ROPE_TABLES:
        table = fields.get(key) or {}
        for kind in (FULL, SLIDING):
            if not isinstance(table.get(kind), Mapping | None):
                raise InputError(f"{name}: {kind}={shown(table[kind])} in {key}: must be an object, or left out")
        for each in (table, *(inner for inner in table.values() if isinstance(inner, Mapping))):
            for number in sorted(NUMBERS & each.keys()):
                if isinstance(each[number], list | Mapping):
                    raise InputError(f"{name}: {number}={shown(each[number])} in {key}: must be a number")
            for kind in ("rope_type", "type"):
                if not isinstance(each.get(kind), str | None):
                    raise InputError(f"{name}: {kind}={shown(each[kind])} in {key}: must be a name, such as 'yarn'")
