"""vLLM and SGLang, run: the attention layers of their model classes are built on a CPU from configurations, and the rotary
modules that they make are compared with what `posenc doctor CONFIG` says of them (src/posenc/pretrained/readers.py).

    python benchmarks/conform_peers/served.py vllm     # or sglang

Only the modules of models and of rotary embeddings are theirs; all else of the packages, which ask for CUDA, are stubs. The
packages' folders have to be on the path: unpack vllm-0.33.0.tar.gz and sglang-0.5.23's wheel, and set PYTHONPATH to them.
Exit code 1: a rotary module differs from what `compare` reports.
"""

import importlib
import importlib.util
import inspect
import sys
import warnings
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace

import torch
from shared import from_angles

from posenc.errors import InputError
from posenc.pretrained.families import FAMILIES
from posenc.pretrained.programs import SGLANG_BACKEND, VLLM_BACKEND
from posenc.pretrained.readers import ConfigFile, compare

PACKAGES = {
    "vllm": ("vLLM", "vllm.model_executor.models", "vllm.model_executor.layers.rotary_embedding", VLLM_BACKEND),
    "sglang": ("SGLang", "sglang.srt.models", "sglang.srt.layers.rotary_embedding", SGLANG_BACKEND),
}
"""Package -> its name in the comparison, its folders of models and rotary modules, model types that it has no class for."""
FILES = {"mistral": "llama", "phi3": "llama", "cohere": "commandr", "gemma3_text": "gemma3"}
SGLANG_FILES = FILES | {"gemma3_text": "gemma3_causal"}
"""Model type -> the module with its attention, where it has another name."""

SHAPE = {
    "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 6, "num_attention_heads": 4, "num_key_value_heads": 4,
    "max_position_embeddings": 64, "rope_theta": 20000.0, "vocab_size": 97,
}  # fmt: skip
HEADS = {"head_dim": 16}
WITHOUT_HEAD_DIM = ("gpt_neox", "phi", "phi3", "stablelm", "starcoder2", "olmo", "olmo2", "olmoe", "qwen2", "qwen2_moe")
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "beta_fast": 32.0, "beta_slow": 1.0}
LONG = {"short_factor": [1.0] * 8, "long_factor": [1.0, 1, 2, 2, 3, 3, 4, 4], "original_max_position_embeddings": 16}
TABLES = {
    "plain": None,
    "linear": {"rope_type": "linear", "factor": 4.0},
    "dynamic": {"rope_type": "dynamic", "factor": 4.0},
    "llama3": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 16},
    "yarn": YARN,
    "yarn with attention_factor": YARN | {"attention_factor": 1.0, "beta_fast": 16.0},
    "yarn with mscale": YARN | {"mscale": 0.7, "mscale_all_dim": 0.5},
    "yarn without truncation": YARN | {"truncate": False},
    "longrope": {"rope_type": "longrope", "factor": 4.0, **LONG},
    "longrope with attention_factor": {"rope_type": "longrope", "factor": 4.0, "attention_factor": 1.0, **LONG},
}  # fmt: skip
PARTIAL = {"partial_rotary_factor": 0.5}


# -------------------------------------------------------------------- stubs


class One(int):
    """Any function, value or decorator of a package that is not there."""

    def __new__(cls, *given, **named):
        return super().__new__(cls, 1)

    def __init__(self, *given, **named):
        pass

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return One()

    def __call__(self, *given, **named):
        decorated = len(given) == 1 and not named and callable(given[0]) and not isinstance(given[0], One)
        return given[0] if decorated else One()

    def __iter__(self):
        return iter((One(), One()))

    def __getitem__(self, key):
        return One()


class AnyClass(type):
    """Any class of a package that is not there."""

    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return One()

    @classmethod
    def named(mcs, name):
        def attribute(self, name):
            if name.startswith("__"):
                raise AttributeError(name)
            return One()

        return mcs(name, (), {
            "__init__": lambda self, *given, **named: None, "__getattr__": attribute,
            "__call__": lambda self, *given, **named: given[0] if given else None,
            "__class_getitem__": classmethod(lambda cls, key: cls),
        })  # fmt: skip


class Stub(ModuleType):
    """A module from which every name can be imported."""

    __path__ = []

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        if name.lstrip("_")[:1].isupper():
            value = AnyClass.named(name)
        elif name.lstrip("_").startswith(("is_", "has_", "use_", "cpu_has", "get_bool")):
            value = lambda *given, **named: False  # noqa: E731
        else:
            value = One()
        setattr(self, name, value)
        return value


class Operator(torch.nn.Module):
    """A layer without a choice of kernels."""

    def __init__(self, *given, **named):
        super().__init__()

    @classmethod
    def enabled(cls):
        return False

    @staticmethod
    def register(name, **named):
        return lambda cls: cls


class Finder(MetaPathFinder, Loader):
    """Stubs for all modules of a package but the real ones."""

    def __init__(self, package, real):
        self.package, self.real = package, real

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] != self.package or any(f"{name}.".startswith(f"{each}.") for each in self.real):
            return None
        return ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        return Stub(spec.name)

    def exec_module(self, module):
        pass


def install(package):
    """Stubs of the package, whose folder is on the path."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ImportError(f"{package} is not on the path")
    folder = Path(next(iter(spec.submodule_search_locations))).parent
    _, models, rotary, _ = PACKAGES[package]
    sys.meta_path.insert(0, Finder(package, (models, rotary)))
    for real in (models, rotary):
        parts = real.split(".")
        for count in range(1, len(parts)):
            importlib.import_module(".".join(parts[:count])).__path__ = [str(folder.joinpath(*parts[:count]))]
    if package == "vllm":
        operators = importlib.import_module("vllm.model_executor.custom_op")
        operators.CustomOp = operators.PluggableLayer = Operator
        settings = SimpleNamespace(model_config=SimpleNamespace(max_model_len=SHAPE["max_position_embeddings"]))
        importlib.import_module("vllm.config").get_current_vllm_config = lambda: settings
        return
    importlib.import_module("sglang.kernels.fused_op").BaseFusedOp = Operator
    importlib.import_module("sglang.srt.runtime_context").publish_role = lambda: None
    utils = importlib.import_module("sglang.srt.utils")
    utils.is_cpu, utils.get_compiler_backend = lambda *given: True, lambda *given, **named: "eager"

    def rope_config(config):  # what its get_rope_config does with a configuration of transformers 5
        return config.rope_parameters["rope_theta"], config.rope_parameters

    for name in ("hf_transformers_utils", "hf_transformers", "hf_transformers.common"):
        importlib.import_module(f"sglang.srt.utils.{name}").get_rope_config = rope_config


# -------------------------------------------------------------------- one attention layer


def rotary_of(package, config, layer, length):
    """(inv_freq, attention factor) of the rotary module that an attention layer of the package's class makes."""
    _, models, rotary, _ = PACKAGES[package]
    files = FILES if package == "vllm" else SGLANG_FILES
    module = importlib.import_module(f"{models}.{files.get(config.model_type, config.model_type)}")
    if hasattr(module, "Gemma3RotaryEmbedding"):  # on other CPUs than those with AMX, and on GPUs
        table = config.rope_parameters[config.layer_types[layer]]
        config.rope_parameters = dict(table)
        made = module.Gemma3RotaryEmbedding(config)
        return made.inv_freq, float(made.attention_scaling)
    factory = importlib.import_module(rotary)
    made, real = [], factory.get_rope

    def spy(*given, **named):
        made.append(real(*given, **named))
        return made[-1]

    for name, each in list(sys.modules.items()):
        if name.startswith(models) and "get_rope" in vars(each):
            each.get_rope = spy
    try:
        build(module, config, layer)
    except Exception:
        if not made:  # what comes after the rotary module in a constructor is of no interest
            raise
    finally:
        for name, each in list(sys.modules.items()):
            if name.startswith(models) and "get_rope" in vars(each):
                each.get_rope = real
    if hasattr(made[0], "cos_sin_cache"):
        return from_angles(*made[0].cos_sin_cache[1].chunk(2))
    x = torch.zeros(length, made[0].head_size)  # longrope: by the text's positions
    x[:, : made[0].rotary_dim // 2] = 1
    turned = made[0](torch.arange(length), x.clone(), x.clone())[0][1, : made[0].rotary_dim]
    return from_angles(*turned.chunk(2))


def build(module, config, layer):
    """The first attention layer class of a module."""
    classes = [each for each in vars(module).values() if inspect.isclass(each) and each.__module__ == module.__name__]
    attention = [each for each in classes if each.__name__.endswith("DecoderLayer")]
    attention = attention or [each for each in classes if each.__name__.endswith("Attention")]
    model = SimpleNamespace(
        hf_config=config, hf_text_config=config, dtype=torch.float32, max_model_len=64, use_mla=False
    )
    parts = dict.fromkeys(("parallel_config", "scheduler_config", "compilation_config"), One())
    known = {
        "config": config, "layer_id": layer, "layer_idx": layer, "prefix": f"model.layers.{layer}",
        "vllm_config": SimpleNamespace(model_config=model, cache_config=None, quant_config=None, speculative_config=None, **parts),
    }  # fmt: skip
    wanted = inspect.signature(attention[0].__init__).parameters.values()
    needed = {
        each.name for each in wanted if each.default is each.empty and each.name not in ("self", "args", "kwargs")
    }
    attention[0](**{each.name: known.get(each.name) for each in wanted if each.name in known or each.name in needed})


# -------------------------------------------------------------------- the comparison


def cases():
    """(model type, what, fields, tokens of the text)."""
    for kind in FAMILIES:
        shape = SHAPE | ({} if kind in WITHOUT_HEAD_DIM else HEADS)
        for what, table in TABLES.items():
            if kind == "phi3" and table and table["rope_type"] != "longrope":
                continue  # its configuration refuses them
            if kind == "gpt_oss" and (table is None or table["rope_type"] != "yarn"):
                continue
            fields = shape if table is None else shape | {"rope_scaling": table}
            for length in (8, 17, 64) if what == "longrope" else (64,):
                yield kind, what, {**fields, "model_type": kind}, length
        table = {"rope_scaling": YARN} if kind == "gpt_oss" else {}
        if kind == "phi3":  # whose field beside the table counts, as in published files
            for length in (8, 17, 64):
                fields = {
                    "rope_scaling": {
                        "type": "longrope",
                        "short_factor": LONG["short_factor"],
                        "long_factor": LONG["long_factor"],
                    }
                }
                yield (
                    kind,
                    "as published",
                    {**shape, **fields, "original_max_position_embeddings": 16, "model_type": kind},
                    length,
                )
        yield kind, "a part of the head", {**shape, **PARTIAL, "model_type": kind, **table}, 64


def verdict(package, fields, length):
    """None where the rotary modules are as `compare` reports, else a sentence with the difference.

    Raises LookupError for a model type that `compare` has no rules for."""
    program = PACKAGES[package][0]
    file = ConfigFile("config.json", fields)
    try:
        comparison = compare(file, length)
    except InputError:
        return None
    readings = [each for each in comparison.readings if each.program == program]
    refused = [each.why for each in comparison.refused if each.program == program]
    if any("does not have its rules" in why for why in refused):
        raise LookupError
    types = list(getattr(file.hf, "layer_types", None) or ["all layers"])
    for layer in sorted({types.index(each) for each in types}):
        config = ConfigFile("config.json", fields).hf
        try:
            inv_freq, factor = rotary_of(package, config, layer, length)
        except Exception as error:
            if not refused:
                return f"does not build: {type(error).__name__}: {error}"
            continue
        if refused:
            return f"builds; reported not to: {refused[0]}"
        (reading,) = [each for each in readings if each.layers in (types[layer], "all layers")]
        if len(inv_freq) != len(reading.inv_freq):
            return f"rotates {2 * len(inv_freq)} channels; reported: {reading.rotary_dim}"
        if not torch.allclose(inv_freq.double(), reading.inv_freq, rtol=2e-5):
            return f"other frequencies than {reading.schedule} with base {reading.base:g}"
        if abs(factor - reading.attention_factor) > 1e-5:
            return f"attention factor {factor:.6g}; reported: {reading.attention_factor:.6g}"
    return None


def main(package):
    warnings.simplefilter("ignore")
    install(package)
    count, wrong = 0, []
    for kind, what, fields, length in cases():
        if kind in PACKAGES[package][3]:
            continue
        try:
            found = verdict(package, fields, length)
        except LookupError:
            continue
        count += 1
        if found:
            wrong.append(f"{kind}, {what}, {length} tokens: {found}")
    print("\n".join([*wrong, f"{package}: {count - len(wrong)} of {count} as posenc doctor says"]))
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
