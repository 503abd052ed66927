# SPDX-License-Identifier: Apache-2.0
"""Models of transformers with any encoding in place of their rotation, which transformers makes, trains, saves and runs.

    posenc.hf.register()
    model = AutoModelForCausalLM.from_config(config, encoding="alibi")

`register` gives each model type of `FAMILIES` a twin, "llama" a "posenc_llama", whose configuration has the field `encoding`. The
twin is transformers' class with four changes: its rotary module turns nothing, its attention is `posenc.attention`, its layers
give that the positions of the pass, and `encoding` is one of its modules. `attach.py` has what it shares with `extend`.
"""

import copy
import inspect
import json
from dataclasses import replace
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn

from posenc.encoding import Encoding, gates_of
from posenc.encodings import create
from posenc.encodings.create_encoding import lookup
from posenc.encodings.patterns import read
from posenc.errors import InputError, needs
from posenc.functional import table_device
from posenc.positions import Positions
from posenc.pretrained.attach import NAME as OF_MODELS
from posenc.pretrained.attach import attend as attend_as_made
from posenc.pretrained.attach import register_attention, unrotated
from posenc.pretrained.encoded_pass import NAME, EncodedPass, LayerPlan, attend, begun
from posenc.pretrained.encoders import read_tables
from posenc.pretrained.families import ENCODED, FAMILIES
from posenc.pretrained.masks import HostPass, token_index
from posenc.pretrained.models import ModelStructure, model_structure
from posenc.pretrained.parameters import head_dim_of
from posenc.spec import Spec

__all__ = ["register"]

GUARD = (
    "posenc: this model has the encoding in config.encoding in place of its rotation; call posenc.hf.register(), then "
    "AutoModelForCausalLM.from_pretrained. The rope_type was "
)
"""Before the rope_type in a saved config.json: the classes of plain transformers stop at it, where they would rotate."""


UNLIKE = (
    "gemma3n_text", "gemma4_text", "gemma4_unified_text", "lfm2", "modernbert-decoder", "olmo_hybrid", "qwen3_next",
)  # fmt: skip
"""Types with layers of other kinds than attention, or that share keys between layers."""


def register() -> None:
    """Let transformers make models with any encoding, by a field of their configuration.

    Afterwards `AutoModelForCausalLM.from_config(config, encoding="alibi")` and `.from_pretrained(name, encoding="alibi")` replace
    the rotation of the model types that `kinds` lists; `encoding` is a text as `posenc.create` takes it, also as
    `config.encoding`. Options of a rotation that the text leaves out (rope_theta, layout, rotary_dim) are the model's, so that
    "rope" is what it had. Without `encoding`, these calls do what they did before. `save_pretrained` writes the model type
    posenc_llama, and `from_pretrained`, or `posenc.load`, reads it where `register` was called.

    Afterwards, too, `attn_implementation="posenc"` is what encoders and encoder-decoders of T5's kind can be loaded with: see
    encoders.py.

    An encoding that a model cannot have is refused with the reason (InputError), when the model is made.
    """
    needs("transformers", "lab")
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.conversion_mapping import (
        get_checkpoint_conversion_mapping,
        register_checkpoint_conversion_mapping,
    )

    register_attention(OF_MODELS, attend_as_made, token_index)
    read_tables(OF_MODELS)
    for kind in kinds():
        config, model = classes(kind)
        AutoConfig.register(config.model_type, config, exist_ok=True)
        AutoModelForCausalLM.register(config, model, exist_ok=True)
        AutoModelForCausalLM.register(model.plain.config_class, _chooser(model.plain, model), exist_ok=True)
        # how weights are stored, by model type or by class
        for name, its in ((kind, config.model_type), (model.plain.__name__, model.__name__)):
            conversion = get_checkpoint_conversion_mapping(name)
            if conversion is not None:
                register_checkpoint_conversion_mapping(its, conversion, overwrite=True)
    for plain in (_plain(kind) for kind in _causal() if kind not in kinds()):
        AutoModelForCausalLM.register(plain.config_class, _chooser(plain), exist_ok=True)


@cache
def kinds() -> tuple[str, ...]:
    """The model types of `FAMILIES` whose attention can be given any encoding: those that take more than a schedule, but for
    latent attention, whose rotated channels are apart, positions on three axes, and `UNLIKE`."""
    found = []
    for kind in _causal():
        family = FAMILIES[kind]
        if not (family.schedules_only or family.latent or family.table == "sections" or kind in UNLIKE):
            found.append(kind)
    return tuple(found)


@cache
def _causal() -> tuple[str, ...]:
    """The model types of `FAMILIES` that transformers has a causal language model of, and can import here: one whose own
    requirements are not installed must not keep the others from being registered."""
    from transformers import CONFIG_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING

    def has_one(kind: str) -> bool:
        try:
            return kind in CONFIG_MAPPING and CONFIG_MAPPING[kind] in MODEL_FOR_CAUSAL_LM_MAPPING
        except ImportError:
            return False

    return tuple(kind for kind in FAMILIES if has_one(kind))


@cache
def classes(kind: str) -> tuple[Any, Any]:
    """The configuration and the model with an encoding for a model type of `FAMILIES`, PosencLlamaConfig and
    PosencLlamaForCausalLM for "llama"."""
    from transformers import CONFIG_MAPPING

    register_attention(NAME, attend, token_index)
    of_type: Any = CONFIG_MAPPING[kind]
    plain = _plain(kind)
    attributes: dict[str, Any] = {"__module__": __name__, "__annotations__": {"encoding": str}, "encoding": ""}
    config: Any = type(f"Posenc{of_type.__name__}", (_Config, of_type), attributes | {"model_type": ENCODED + kind})
    attributes = {"__module__": __name__, "config_class": config, "plain": plain}
    return config, type(f"Posenc{plain.__name__}", (_Encoded, plain), attributes)


def _plain(kind: str) -> Any:
    """transformers' class of a model type, whether or not `register` was called."""
    from transformers import CONFIG_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING

    mapped: Any = MODEL_FOR_CAUSAL_LM_MAPPING[CONFIG_MAPPING[kind]]
    return getattr(mapped, "plain", mapped)


def __getattr__(name: str) -> Any:
    """The classes by name, which pickle looks up here."""
    if name.startswith("Posenc"):
        for kind in kinds():
            for each in classes(kind):
                if each.__name__ == name:
                    return each
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _chooser(plain: Any, model: Any = None) -> Any:
    """What transformers gets for a plain configuration: the plain class, but where an encoding is given `model`, or, for a type
    that takes none, a refusal."""

    def chosen(config: Any, given: dict[str, Any]) -> tuple[Any, Any]:
        encoding = given.pop("encoding", None)
        encoding = getattr(config, "encoding", None) if encoding is None else encoding
        if encoding is None:
            return plain, config
        if model is None:
            raise InputError(
                f"models of type {config.model_type!r} take no encoding: they have latent attention, layers of "
                "other kinds, or a rotation that cannot be taken out",
                "posenc.pretrained.hf.kinds() lists the types that do",
                encoding=encoding,
            )
        stated = {key: value for key, value in config.to_dict().items() if key not in ("model_type", "encoding")}
        return model, model.config_class(**stated, encoding=encoding)

    def from_config(cls: Any, /, config: Any, **given: Any) -> Any:
        its, config = chosen(config, given)
        return its._from_config(config, **given)

    def from_pretrained(cls: Any, /, name: Any, *rest: Any, config: Any, **given: Any) -> Any:
        its, config = chosen(config, given)
        return its.from_pretrained(name, *rest, config=config, **given)

    methods = {"_from_config": classmethod(from_config), "from_pretrained": classmethod(from_pretrained)}
    # its module is that of the plain class, by which transformers prefers a checkpoint's code where a user trusts it
    return type(plain.__name__, (plain,), methods | {"plain": plain, "__module__": plain.__module__})


class _Config:
    """A configuration with an encoding. In memory rope_parameters are the plain model's; in a file they have `GUARD`."""

    def __post_init__(self, **given: Any) -> None:
        given.pop("rope_scaling", None)
        if self.rope_parameters:
            self.rope_parameters = _guarded(self.rope_parameters, guard=False)
        super().__post_init__(**given)  # type: ignore[misc]
        stated: Any = self
        if stated._attn_implementation is None:  # else the plain class would rotate
            stated._attn_implementation = NAME

    def to_json_string(self, use_diff: bool = True) -> str:
        values = json.loads(super().to_json_string(use_diff))  # type: ignore[misc]
        values["rope_parameters"] = _guarded(self.rope_parameters, guard=True)
        values["rope_scaling"] = {"rope_type": GUARD}  # which transformers 4 reads
        return json.dumps(values, indent=2, sort_keys=True) + "\n"

    rope_parameters: Any


def _guarded(parameters: dict[str, Any], guard: bool) -> dict[str, Any]:
    """rope_parameters, of each layer type where they are nested, with `GUARD` before rope_type, or without."""
    if "rope_type" not in parameters:
        return {key: _guarded(its, guard) if isinstance(its, dict) else its for key, its in parameters.items()}
    return parameters | {"rope_type": GUARD * guard + parameters["rope_type"].removeprefix(GUARD)}


class Unrotated(nn.Module):
    """A rotary module whose angles are 0."""

    def __init__(self, rotary: nn.Module) -> None:
        super().__init__()
        self.rotary = rotary

    def forward(self, *given: Any, **named: Any) -> Any:
        return unrotated(self.rotary(*given, **named))


def _made(config: Any) -> Encoding:
    return create(
        config.encoding, dim=config.hidden_size, num_heads=config.num_attention_heads, head_dim=head_dim_of(config),
        num_kv_heads=getattr(config, "num_key_value_heads", None), num_layers=config.num_hidden_layers,
        max_positions=config.max_position_embeddings, causal=True, may_import=False,
    )  # fmt: skip


def _completed(text: Any, structure: ModelStructure) -> str:
    """The text with the options of the model's rotation that it leaves out, where they are not the defaults."""
    if not isinstance(text, str) or not text.strip():
        raise InputError("pass a text, such as 'alibi' or 'rope/rope/rope/none'", encoding=text)
    ropes = {(rope.rope_theta, rope.rotary_dim): rope for rope in structure.ropes.values()}
    rope = structure.rope
    its = {"rope_theta": rope.rope_theta, "layout": structure.layout, "rotary_dim": rope.rotary_dim}

    def completed(term: Spec) -> Spec:
        if ":" in term.name:
            raise InputError(
                f"{term.name} names a class to import, which a configuration from anywhere must not: register the class, "
                "posenc.ENCODINGS['name'] = Class, before a model is made or loaded"
            )
        arguments, written = lookup(term.name, may_import=False).arguments(), dict(term.options)
        if "rope_theta" in written or "schedule" in written or "rope_theta" not in arguments:
            return term
        if arguments["rope_theta"].default is None:  # it rotates only where that is written
            return term
        if len(ropes) > 1 or rope.scaled:
            what = f"{len(ropes)} bases" if len(ropes) > 1 else f"rope_type={rope.schedule['name']!r}"
            raise InputError(
                f"{term} is without rope_theta, and the model's rotation has {what}, which no encoding here expresses: write the "
                f"base, as in {term}:rope_theta={rope.rope_theta:.12g}, which is another rotation than the model's"
            )
        defaults = {n: structure.head_dim if p.default is None else p.default for n, p in arguments.items()}
        more = {n: v for n, v in its.items() if n in arguments and n not in written and v != defaults[n]}
        return replace(term, options=(*term.options, *Spec.of(term.name, more).options))

    return str(read(text).replaced(completed))


class _Encoded:
    """What the classes with an encoding have before those of transformers."""

    plain: Any
    config: Any
    encoding: Any
    _arguments: tuple[str, ...]
    _plans: tuple[LayerPlan, ...]

    def __init__(self, config: Any, *given: Any, encoding: str | None = None, **named: Any) -> None:
        if encoding is not None:
            config = copy.deepcopy(config)
            config.encoding = encoding
        asked = config._attn_implementation
        if asked not in (None, NAME):
            raise InputError(
                f"computes no encoding of posenc: leave it out for encoding={config.encoding!r}",
                attn_implementation=asked,
            )
        config._attn_implementation = NAME
        super().__init__(config, *given, **named)  # type: ignore[call-arg]
        structure = model_structure(self)  # type: ignore[arg-type]
        try:
            config.encoding = _completed(config.encoding, structure)
            made = _made(config)
            self._install(structure, made)
        except InputError as error:
            if error.argument == "encoding":
                raise
            raise InputError(f"in a {structure.model_type}: {error}", encoding=config.encoding) from error

    def _install(self, structure: ModelStructure, encoding: Encoding) -> None:
        decoder: Any = structure.decoder
        attentions: list[Any] = [layer.module for layer in structure.layers]
        if _shares(encoding) and not all(hasattr(module, "q_proj") for module in attentions):
            raise InputError(
                f"{encoding.known_as} puts vectors through the query and the key projection of a layer, which are one matrix here"
            )
        if any(hasattr(module, "sinks") for module in attentions) and "sink" in encoding.sites():
            raise InputError(
                f"{encoding.known_as} has a sink, and so has the model's attention: one of them is one too many"
            )
        decoder.rotary_emb = Unrotated(structure.rotary)
        self._arguments = tuple(inspect.signature(decoder.forward).parameters)
        self._plans = tuple(LayerPlan(layer, number) for number, layer in enumerate(structure.layers))
        for plan, layer, attends in zip(self._plans, decoder.layers, attentions, strict=True):
            attends._posenc_plan = plan
            layer.register_forward_pre_hook(partial(self._enter, plan.number), with_kwargs=True)
            if "gates" in encoding.sites():
                attends.register_forward_pre_hook(partial(self._gate, plan), with_kwargs=True)
        decoder.register_forward_pre_hook(self._begin, with_kwargs=True)
        self.encoding = encoding
        encoding.register_state_dict_post_hook(_drop_repeats)  # type: ignore[no-untyped-call]
        encoding.register_load_state_dict_pre_hook(_add_repeats)  # type: ignore[no-untyped-call]
        if not next(structure.model.parameters()).is_meta:
            with torch.no_grad():
                self._try(structure)

    def _try(self, structure: ModelStructure) -> None:
        """Have attention refuse now what it would refuse in the first forward pass."""
        encoding, size = self.encoding, (1, structure.num_heads, 3, structure.head_dim)
        positions, x = Positions.arange(3, causal=True), torch.zeros(1, 3, self.config.hidden_size)
        q, k = torch.zeros(size), torch.zeros(1, structure.num_kv_heads, *size[2:])
        self._share(encoding)
        tried = []
        for plan in self._plans:
            encoding.effects(positions, plan.number).embedded(x)
            kind = type(encoding.acting_in(plan.number).part), plan.layer.window
            if not plan.layer.rotates or kind in tried:
                continue
            tried.append(kind)
            gates, sink = gates_of(encoding, x, plan.number), getattr(plan.layer.module, "sinks", None)
            here = HostPass().at(encoding, plan.layer.window, None, None, 3, 3, x.device)
            here.attention(q, k, k, layer=plan.number, gates=gates, sink=sink)

    def _share(self, encoding: Encoding) -> None:
        if _shares(encoding):
            attentions: list[Any] = [plan.layer.module for plan in self._plans]
            encoding.share([(attends.q_proj, attends.k_proj) for attends in attentions])

    @property
    def acting_encoding(self) -> Encoding:
        """The encoding, or the copy of it that PEFT trains (modules_to_save)."""
        module: Any = self.encoding
        if isinstance(module, Encoding):
            return module
        names = [] if module.disable_adapters else module.active_adapters
        return module.modules_to_save[names[0]] if names else module.original_module

    def _get_name(self) -> str:
        """The plain class's: Trainer knows by this name that label smoothing has to shift the labels."""
        return str(self.plain.__name__)

    def _begin(
        self, decoder: Any, given: tuple[Any, ...], named: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Where the tokens of the pass are, for its layers. A forward pre-hook of the decoder."""
        name, encoding = decoder.config._attn_implementation, self.acting_encoding
        if name != NAME:
            raise InputError(
                f"computes no encoding of posenc: call model.set_attn_implementation({NAME!r})",
                attn_implementation=name,
            )
        inputs = dict(zip(self._arguments, given, strict=False)) | named
        self._share(encoding)
        return given, named | {"posenc_pass": begun(decoder, encoding, inputs)}

    def _enter(self, number: int, layer: Any, given: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """A layer's input with the encoding, and for its attention the positions beside the mask. A forward pre-hook."""
        here: EncodedPass = named.pop("posenc_pass")
        named["attention_mask"] = here, named.get("attention_mask")
        return (here.input.embed(given[0], number), *given[1:]), named

    def _gate(self, plan: LayerPlan, module: Any, given: tuple[Any, ...], named: dict[str, Any]) -> None:
        """The gates of the layer's input, for its attention. A forward pre-hook of that."""
        x = given[0] if given else named["hidden_states"]
        plan.gates = tuple(gates_of(self.acting_encoding, x, plan.number)) if plan.layer.rotates else ()

    def initialize_weights(self) -> None:
        """As transformers', which knows the encoding's weights and tables not: those that no file had are made anew."""
        encoding = getattr(self, "encoding", None)
        for module in () if encoding is None else encoding.modules():
            module._is_hf_initialized = True
        super().initialize_weights()  # type: ignore[misc]
        if encoding is None:
            return
        for module in encoding.modules():
            for name, table in module.tables().items() if isinstance(module, Encoding) else ():
                module._buffers[name] = table.to(table_device(module._buffers[name].device))
        state = encoding.state_dict(keep_vars=True)
        missing = [name for name, value in state.items() if not getattr(value, "_is_hf_initialized", False)]
        if missing:
            with torch.device("cpu"), torch.no_grad():
                fresh = _made(self.config).state_dict()
                for name in missing:
                    state[name].copy_(fresh[name])


def _repeats(encoding: nn.Module) -> dict[str, str]:
    """Further names of weights -> their first, where layers take turns and one encoding has several."""
    first: dict[Tensor, str] = {}
    named = encoding.named_parameters(remove_duplicate=False)
    return {name: first[weight] for name, weight in named if first.setdefault(weight, name) != name}


def _drop_repeats(encoding: nn.Module, state: dict[str, Any], prefix: str, metadata: Any) -> None:
    """safetensors stores no weight twice. A hook of state_dict."""
    for name in _repeats(encoding):
        state.pop(prefix + name, None)


def _add_repeats(encoding: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """A hook of load_state_dict."""
    for name, first in _repeats(encoding).items():
        if prefix + first in state:
            state.setdefault(prefix + name, state[prefix + first])


def _shares(encoding: Encoding) -> bool:
    """Whether an encoding, or a part of it, takes projections of the layers."""
    parts = [module for module in encoding.modules() if isinstance(module, Encoding) and not hasattr(module, "parts")]
    return any(type(part).share is not Encoding.share for part in parts)
