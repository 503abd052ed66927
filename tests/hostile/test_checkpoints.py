"""Checkpoints whose configuration, index or header says what cannot be: one line, nothing run, allocated or left behind."""

import contextlib
import json
import os
import pickle
import resource
import struct
from contextlib import contextmanager
from pathlib import Path

import pytest

import posenc
from hostile.test_files_models import Bomb
from posenc import cli
from posenc.errors import InputError
from posenc.pretrained import checked
from posenc.pretrained.load import _PICKLES
from references import gguf_files
from references.small_models import small_model

HUGE = 10**12
WORDS = ["<unk>", "<s>", "</s>", "w", "x", "0", "w0", *(f"x{index}" for index in range(90))]


def edit(folder, **entries):
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | entries))


@contextmanager
def little_memory(spare=2**30):
    """No more address space than there is, and a little."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + spare, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def refused(folder, match, **entries):
    """The load is one line, in little memory, and runs nothing."""
    edit(folder, **entries)
    with little_memory(), pytest.raises(InputError, match=match) as error:
        posenc.load(folder)
    assert "\n" not in str(error.value)
    assert not list(folder.parent.glob("RAN*"))


SIZES = [
    ("num_hidden_layers", HUGE, "num_hidden_layers=1000000000000: its files have"),
    ("num_hidden_layers", 0, "a model has at least one layer"),
    ("num_hidden_layers", 1, "of the weights in its files are not used by its configuration"),
    ("num_hidden_layers", -1, "num_hidden_layers=-1"),
    ("vocab_size", 10**9, "vocab_size=1000000000: is more than any model has"),
    ("vocab_size", -1, "vocab_size=-1: must be an integer above 0"),
    ("vocab_size", 1.5, "vocab_size=1.5: must be an integer above 0"),
    ("vocab_size", 2**70, "must be an integer above 0"),
    ("head_dim", 10**9, "head_dim=1000000000: is more than any model has"),
    ("head_dim", -2, "head_dim=-2: must be an integer above 0"),
    ("head_dim", 0, "head_dim=0: must be an integer above 0"),
    ("rms_norm_eps", float("nan"), "rms_norm_eps=nan: must be a finite number$"),
    ("rms_norm_eps", -1.0, r"rms_norm_eps=-1\.0: must be a finite number, at least 0 and below 1"),
    ("logits_scaling", float("nan"), "logits_scaling=nan: must be a finite number$"),
    ("hidden_size", 10**5, "a mismatch"),
    ("hidden_size", float("inf"), "hidden_size=inf: must be an integer above 0"),
    ("intermediate_size", 10**9, "intermediate_size=1000000000: is more than any model has"),
    ("intermediate_size", -5, "must be an integer above 0"),
    ("num_attention_heads", -1, "num_attention_heads=-1: must be an integer above 0"),
    ("num_attention_heads", 10**6, "a mismatch|cannot be read|must be|not a multiple|divide"),
    ("num_key_value_heads", 0, "must be an integer above 0"),
]


@pytest.mark.parametrize(("key", "value", "match"), SIZES, ids=[f"{key}={value}" for key, value, _ in SIZES])
def test_sizes_that_the_files_do_not_have_are_refused_before_a_model_is_made(model, key, value, match):
    refused(model, match, **{key: value})


ENTRIES = [[], {}, {"method": 3}, {"method": "yarn", "target_length": "x"}, "yarn", 3, {"target_length": 9}]


@pytest.mark.parametrize("entry", ENTRIES, ids=str)
def test_the_entry_of_posenc_that_is_none_is_refused_before_weights_are_read(model, entry):
    (model / "model.safetensors").write_bytes(b"no weights")
    refused(model, r"posenc=.*: in config.json: must be an object with method", posenc=entry)


def test_the_entry_of_posenc_that_names_code_imports_nothing(model, tmp_path):
    planted(tmp_path)
    for method in (f"{tmp_path}/evil.py:Evil", "evil:Evil", "yarn+evil.py:Evil"):
        refused(model, r"unknown|write", posenc={"method": method, "target_length": None})


def planted(folder):
    """A module that leaves a file RAN where it is imported."""
    (folder / "evil.py").write_text(f"open({str(folder / 'RAN')!r}, 'w')\nclass Evil: pass\n")


@pytest.mark.parametrize("file", ["config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"])
def test_json_that_is_nested_deep_is_one_line(model, file):
    (model / file).write_text('{"a":' + "[" * 100000 + "]" * 100000 + "}")
    with pytest.raises(InputError, match=r"nested too deep|recursion") as error:
        posenc.load(model)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("key", ["rope_parameters", "rope_scaling", "text_config", "quantization_config", "other"])
@pytest.mark.parametrize("depth", [1, 60, 800, 10**5])
def test_nested_entries_are_a_report_or_one_line_in_every_reader_of_configurations(model, key, depth, capsys):
    """config-only, and doctor of a model whose config.json was changed since."""
    loaded = small_model("llama")
    loaded.config._name_or_path = str(model)
    for nested in (f'{{"{key}":' * depth + "1" + "}" * depth, "[" * depth + "]" * depth):
        entries = json.loads((model / "config.json").read_text(), object_pairs_hook=dict)
        entries.pop(key, None)
        text = json.dumps(entries)[:-1] + f', "{key}": {nested}}}'
        (model / "config.json").write_text(text)
        try:
            assert cli.main(["doctor", str(model), "--config-only"]) in (0, 1, 2)
            with contextlib.suppress(InputError):
                posenc.doctor(loaded)
            with contextlib.suppress(InputError):
                posenc.load(model)
        finally:
            (model / "config.json").write_text(json.dumps(entries))
        assert "bug" not in capsys.readouterr().err


@pytest.mark.parametrize("table", [{"a": {"b": 1}}, {"a": {}, "b": {}}, {"full_attention": {"rope_type": "default"}}])
def test_tables_of_layers_that_a_model_does_not_have_end_in_no_traceback(model, table):
    edit(model, rope_parameters=table)
    assert cli.main(["doctor", str(model), "--config-only"]) in (0, 1, 2)


NAMES = [
    *(f"weights{suffix}" for suffix in _PICKLES), "../outside/x.safetensors", "/absolute/x.safetensors", "a/x.safetensors",
    "..", "", ".safetensors/..", "x.safetensors/../y.bin", "a\\x.safetensors", 3, None, ["x.safetensors"],
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES, ids=str)
def test_an_index_names_plain_files_of_the_folder(model, tmp_path, name):
    """The pickle beside it, a bomb, is not opened, not even by torch's own reader."""
    weights = checked.shapes_in([model / "model.safetensors"])
    for suffix in _PICKLES:
        (model / f"weights{suffix}").write_bytes(pickle.dumps(Bomb(tmp_path / "RAN")))
    (model / "model.safetensors").rename(model / "other.safetensors")
    (model / checked.INDEX).write_text(json.dumps({"metadata": {}, "weight_map": dict.fromkeys(weights, name)}))
    refused(model, "must be a plain name in the folder that ends in .safetensors|is no index of weights")


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"weight_map": []}', "[" * 10**5, '{"weight_map": {"a": {}}}'])
def test_an_index_that_is_none_is_refused(model, content):
    (model / "model.safetensors").rename(model / "other.safetensors")
    (model / checked.INDEX).write_text(content)
    refused(model, "is no index of weights|must be a plain name")


@pytest.mark.parametrize(
    "name", ["weights.bin", "../x.safetensors", "/x.safetensors", 3, "x.index.json", "adapter_model.bin"]
)
def test_a_configuration_names_its_weights_as_an_index_does(model, name):
    refused(model, "must be a plain name in the folder|names a pickle|has neither", transformers_weights=name)


def test_shards_that_an_index_names_are_loaded(model):
    weights = checked.shapes_in([model / "model.safetensors"])
    (model / "model.safetensors").rename(model / "one.safetensors")
    (model / checked.INDEX).write_text(
        json.dumps({"metadata": {}, "weight_map": dict.fromkeys(weights, "one.safetensors")})
    )
    assert posenc.load(model)[0].config.model_type == "llama"


@pytest.mark.parametrize("size", [None, 0, 4, 100, 2000, -5])
def test_a_file_that_is_missing_or_cut_off_is_named_with_what_to_do(model, size):
    complete, shard = model / "model.safetensors", model / "one.safetensors"
    if size is not None:
        shard.write_bytes(complete.read_bytes()[:size])
    first, *others = checked.shapes_in([complete])
    complete.rename(model / "two.safetensors")
    index = dict.fromkeys(others, "two.safetensors") | {first: "one.safetensors"}
    (model / checked.INDEX).write_text(json.dumps({"metadata": {}, "weight_map": index}))
    refused(model, r"one\.safetensors: (is missing.*get the files that are|its \d+ bytes are no.*get the file again)")


@pytest.mark.parametrize("key", ["attn_implementation", "_attn_implementation", "_attn_implementation_internal"])
@pytest.mark.parametrize("value", ["org/kernel", "flash_attention_2", "paged|org/kernel", {"": "org/kernel"}])
def test_the_attention_of_a_configuration_is_not_followed(model, key, value, monkeypatch):
    from transformers import modeling_utils

    def load(*given, **named):
        raise AssertionError("a kernel of the hub was asked for")

    for name in ("load_and_register_attn_kernel", "lazy_import_flash_attention", "get_kernel"):
        if hasattr(modeling_utils, name):
            monkeypatch.setattr(modeling_utils, name, load)
    edit(model, **{key: value, "experts_implementation": "org/experts"})
    assert posenc.load(model)[0].config._attn_implementation in ("sdpa", "eager")


def test_quantised_weights_are_refused_before_their_package_is_imported(model):
    refused(model, "its weights are quantised", quantization_config={"quant_method": "gptq", "bits": 4})
    refused(model, "its weights are quantised", quantization_config="x")


@pytest.mark.parametrize("dtype", ["load", "float33", "nn", "ops"])
def test_a_dtype_is_a_dtype(model, dtype):
    refused(model, "in its configuration: must be float32", dtype=dtype)


# ------------------------------------------------------------------------------------------ GGUF


@pytest.fixture(scope="module")
def gguf(tmp_path_factory):
    file = tmp_path_factory.mktemp("gguf") / "model.gguf"
    gguf_files.write(file, small_model("llama"), WORDS)
    posenc.load(file)
    return file


def head(data):
    """Where each key's value and each tensor's offset is in a file."""
    at, places = 24, {}

    def text(at):
        (size,) = struct.unpack_from("<Q", data, at)
        return data[at + 8 : at + 8 + size].decode(), at + 8 + size

    def skip(kind, at):
        if kind == 8:
            return text(at)[1]
        if kind == 9:
            inner, count = struct.unpack_from("<IQ", data, at)
            at += 12
            for _ in range(count):
                at = skip(inner, at)
            return at
        return at + {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}[kind]

    tensors, keys = struct.unpack_from("<QQ", data, 8)
    for _ in range(keys):
        name, at = text(at)
        (kind,) = struct.unpack_from("<I", data, at)
        places[name] = (at + 4, kind)
        at = skip(kind, at + 4)
    for _ in range(tensors):
        name, at = text(at)
        (dims,) = struct.unpack_from("<I", data, at)
        places[f"dim0 of {name}"] = (at + 4, 10)
        places[f"offset of {name}"] = (at + 8 + 8 * dims, 10)
        at += 16 + 8 * dims
    return places


KEYS = [
    (key, value)
    for key in ("block_count", "embedding_length", "feed_forward_length", "attention.head_count", "rope.dimension_count",
                "attention.head_count_kv", "context_length", "vocab_size")
    for value in (0, 1, 3, 10**9, 2**32 - 1)
]  # fmt: skip


def test_keys_of_a_gguf_file_that_its_tensors_contradict_are_one_line(gguf, tmp_path):
    data, outcomes = gguf.read_bytes(), {}
    places = head(data)
    for key, value in KEYS:
        place = next((at for name, (at, kind) in places.items() if name == f"llama.{key}" and kind == 4), None)
        if place is None:
            continue
        changed = bytearray(data)
        struct.pack_into("<I", changed, place, value)
        outcomes[key, value] = _outcome(tmp_path, changed)
    assert len(outcomes) >= 25
    assert {case for case, outcome in outcomes.items() if outcome == "loaded"} <= {
        ("context_length", v) for v in (1, 3, 10**9, 2**32 - 1)
    } | {("attention.head_count", 1), ("attention.head_count_kv", 1)}, outcomes
    for value in (0, 1, 3, 10**9):
        assert "llama.block_count" in outcomes["block_count", value] or value == 2


def test_places_of_tensors_that_are_not_in_a_gguf_file_are_one_line(gguf, tmp_path):
    data = gguf.read_bytes()
    names = [name for name in head(data) if name.startswith(("offset of", "dim0 of"))]
    for name in names[:6]:
        for value in (2**64 - 32, 1, 3, 2**40, 2**63):
            changed = bytearray(data)
            struct.pack_into("<Q", changed, head(data)[name][0], value)
            assert _outcome(tmp_path, changed) != "loaded", (name, value)


@pytest.mark.parametrize(("at", "layout", "value"), [
    (8, "<Q", 2**60), (16, "<Q", 2**60), (24, "<Q", 2**63), (24, "<Q", 2**40), (4, "<I", 99), (0, "<I", 0), (8, "<Q", 2**63),
])  # fmt: skip
def test_counts_beyond_a_gguf_file_are_one_line(gguf, tmp_path, at, layout, value):
    changed = bytearray(gguf.read_bytes())
    struct.pack_into(layout, changed, at, value)
    assert "this GGUF file cannot be read" in _outcome(tmp_path, changed)


def _outcome(folder, data):
    file = Path(folder) / "changed.gguf"
    file.write_bytes(data)
    before, outcome = set(os.listdir(folder)), "loaded"
    try:
        posenc.load(file)
    except InputError as error:
        outcome = str(error)
    assert set(os.listdir(folder)) == before
    assert "\n" not in outcome
    return outcome
