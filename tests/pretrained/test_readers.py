"""What programs compute from one configuration: transformers 5 as its modules have it, the others by their rules, and traps."""

import importlib.util
import json
import math
import re
import subprocess
import sys
import warnings
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest
import torch
import transformers
from gguf import GGUFWriter

from posenc import InputError
from posenc.frequencies import create
from posenc.pretrained.families import FAMILIES
from posenc.pretrained.models import model_structure
from posenc.pretrained.parameters import rope_parameters_by_type
from posenc.pretrained.programs import PROGRAMS, RULED
from posenc.pretrained.readers import ConfigFile, compare, read_config
from references.commands import run
from references.small_models import small_model

LLAMA = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "max_position_embeddings": 1024,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 128,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256}
LONGROPE = {
    "rope_type": "longrope",
    "short_factor": [1.0] * 8,
    "long_factor": [2.0] * 8,
    "original_max_position_embeddings": 256,
}
GEMMA = {
    "model_type": "gemma3_text", "hidden_size": 64, "num_attention_heads": 4, "head_dim": 16, "num_hidden_layers": 6, "max_position_embeddings": 1024,
    "rope_theta": 1e6, "rope_local_base_freq": 1e4, "sliding_window": 64, "rope_scaling": {"rope_type": "linear", "factor": 8.0},
}  # fmt: skip


def read(fields, length=None):
    return compare(ConfigFile("config.json", fields), length)


def by_program(comparison, layers="all layers"):
    return {reading.program: reading for reading in comparison.readings if reading.layers in (layers, "all layers")}


def apart(comparison):
    return {sentence.split(" differs")[0] for sentence in comparison.apart()}


@pytest.mark.parametrize("model_type", FAMILIES)
def test_transformers_5_is_what_its_model_computes(model_type):
    model = small_model(model_type)
    structure = model_structure(model)
    comparison = read(model.config.to_dict(), length=8)
    for layers, rope in structure.ropes.items():
        reading = by_program(comparison, layers)["transformers 5"]
        torch.testing.assert_close(reading.inv_freq, rope.frequencies().inv_freq, rtol=1e-5, atol=0)
        assert reading.attention_factor == pytest.approx(rope.frequencies().attention_factor)
        check_turns(structure.rotary, replace(reading, layers=layers if structure.rope_per_type else "all layers"), 64)
    programs = {reading.program for reading in comparison.readings}
    assert ("llama.cpp" in programs) is (model_type in RULED)
    assert ("vLLM" in programs) is (
        model_type in RULED and model_type != "gpt_oss"
    )  # it takes yarn's numbers from the file
    assert str(comparison)


def test_all_agree_on_a_plain_model():
    comparison = read(LLAMA | {"rope_theta": 5e5})
    assert [reading.program for reading in comparison.readings] == list(PROGRAMS)
    assert not comparison.differ
    assert not comparison.apart()
    by_rules = "transformers 4, vLLM, SGLang, llama.cpp and DeepSpeed compute the same positions."
    assert f"transformers 5 alone was run; by posenc's rules of them, {by_rules}" in str(comparison)
    want = create({"name": "default"}, 16, base=5e5).inv_freq
    for reading in comparison.readings:
        torch.testing.assert_close(reading.inv_freq, want, rtol=1e-6, atol=0)


def test_a_file_of_transformers_5_read_by_4_has_its_base_and_no_schedule():
    comparison = read(LLAMA | {"rope_parameters": LLAMA3 | {"rope_theta": 5e5}})
    assert apart(comparison) == {"transformers 4"}
    reading = by_program(comparison)["transformers 4"]
    assert (reading.base, reading.schedule) == (10000.0, "default")
    assert "transformers 4 differs: base 10000, not 500000; schedule default, not llama3" in str(comparison)
    assert "rope_parameters" in reading.note
    assert [each.program for each in comparison.refused] == ["DeepSpeed"]


def test_a_base_that_is_missing():
    readings = by_program(read(LLAMA | {"model_type": "mixtral"}))
    assert readings["transformers 4"].base == 1e6
    assert (
        readings["llama.cpp"].base == 1e6
    )  # recorded: its converter has the configuration completed by transformers 4


def test_yarn_with_an_attention_factor():
    comparison = read(LLAMA | {"rope_theta": 1e4, "rope_scaling": YARN | {"attention_factor": 1.0}})
    assert apart(comparison) == {"SGLang", "llama.cpp"}
    usual = 0.1 * math.log(4) + 1
    assert [by_program(comparison)[each].attention_factor for each in ("vLLM", "SGLang", "llama.cpp")] == pytest.approx(
        [1.0, usual, usual]
    )
    assert not read(LLAMA | {"rope_theta": 1e4, "rope_scaling": YARN}).differ


def test_yarn_without_truncation():
    comparison = read(LLAMA | {"rope_theta": 1e4, "rope_scaling": YARN | {"truncate": False}})
    assert apart(comparison) == {"llama.cpp"}
    assert "has no truncate=false" in str(comparison)


def test_dynamic_is_four_schedules():
    fields = LLAMA | {"rope_theta": 1e4, "rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}
    short, long = read(fields), read(fields, length=4096)
    assert apart(short) == {"SGLang"}
    assert [len(group) for group in long.groups()["all layers"]] == [2, 2, 1]
    stretched = create({"name": "dynamic", "factor": 2.0, "original_max_positions": 1024, "length": 2048}, 16, base=1e4)
    torch.testing.assert_close(by_program(long)["SGLang"].inv_freq, stretched.inv_freq)


def test_longrope_outside_phi3():
    comparison = read(LLAMA | {"rope_theta": 1e4, "rope_scaling": LONGROPE | {"attention_factor": 1.0}})
    usual = math.sqrt(1 + math.log(4) / math.log(256))
    assert by_program(comparison)["vLLM"].attention_factor == pytest.approx(usual)
    assert by_program(comparison)["llama.cpp"].schedule == "default"
    assert by_program(comparison)["transformers 5"].attention_factor == 1.0
    assert "writes longrope's factors for phi3 alone" in str(comparison)


@pytest.mark.parametrize(
    ("length", "long"),
    [(200, {"vLLM", "llama.cpp"}), (257, {"transformers 4", "transformers 5", "vLLM", "llama.cpp"}), (1000, None)],
)
def test_phi3_by_the_length_of_the_text(length, long):
    """vLLM decides by max_model_len, llama.cpp by its context, SGLang by the largest position, above the original length of 256."""
    scaling = {"type": "longrope", "short_factor": [1.0] * 8, "long_factor": [2.0] * 8}
    phi3 = {"model_type": "phi3", "rope_theta": 1e4, "rope_scaling": scaling, "original_max_position_embeddings": 256}
    comparison = read(LLAMA | phi3, length)
    assert comparison.differ == (long is not None)
    plain = create({"name": "default"}, 16, base=1e4).inv_freq
    for reading in comparison.readings:
        divisor = 2 if long is None or reading.program in long else 1
        torch.testing.assert_close(reading.inv_freq, plain / divisor, rtol=1e-6, atol=0)


@pytest.mark.parametrize("model_type", ["mixtral", "gemma2", "starcoder2"])
def test_sglang_gives_some_models_no_schedule(model_type):
    comparison = read(LLAMA | {"model_type": model_type, "head_dim": 16, "rope_theta": 1e4, "rope_scaling": YARN})
    reading = by_program(comparison)["SGLang"]
    assert (reading.schedule, reading.attention_factor) == ("default", 1.0)
    assert reading.note == "applies no yarn to the model type"
    assert "SGLang" in apart(comparison)


def test_sglang_rotates_complete_heads_where_transformers_5_has_moved_the_part():
    """StableLM rotates a quarter, Phi a half."""
    comparison = read(LLAMA | {"model_type": "stablelm", "partial_rotary_factor": 0.25})
    assert {name: reading.rotary_dim for name, reading in by_program(comparison).items()} == {
        "transformers 5": 4, "transformers 4": 4, "vLLM": 4, "SGLang": 16, "llama.cpp": 4,
    }  # fmt: skip
    phi = {each.program: each.why for each in read(LLAMA | {"model_type": "phi"}).refused}
    assert "partial_rotary_factor" in phi["SGLang"]


def test_transformers_4_checks_the_scaling_of_some_models():
    """Run: transformers 4.57.6 raises at these, and at no other of the 284 configurations of served.py."""
    plain = LLAMA | {"rope_theta": 1e4}
    for model_type, scaling, fine in (
        ("olmo2", {"type": "linear", "factor": 2.0}, True),
        ("olmo2", {"rope_type": "linear", "factor": 2.0}, False),
        ("olmo", YARN, False),
        ("phi3", {"type": "su", "short_factor": [1.0] * 8, "long_factor": [2.0] * 8}, True),
        ("phi3", LONGROPE, False),
    ):
        comparison = read(plain | {"model_type": model_type, "rope_scaling": scaling})
        assert ("transformers 4" in by_program(comparison)) == fine, (model_type, scaling)


def test_what_has_no_class_runs_transformers_module():
    dynamic = {"rope_theta": 1e4, "rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}
    readings = by_program(read(LLAMA | {"model_type": "seed_oss", "head_dim": 16} | dynamic, length=4096))
    for program in ("vLLM", "SGLang"):
        assert readings[program].same(readings["transformers 5"])
        assert readings[program].note == "has no class for the model type, and runs transformers' module"


@pytest.mark.slow
@pytest.mark.parametrize("package", ["vllm", "sglang"])
def test_the_programs_themselves(package):
    """Their model classes build their rotary modules; skipped where the sources are not on the path."""
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not on the path: see benchmarks/conform_peers/served.py")
    script = Path(__file__).parents[2] / "benchmarks" / "conform_peers" / "served.py"
    done = subprocess.run([sys.executable, script, package], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith(" as posenc doctor says\n")


def test_the_page_has_the_table_of_published_configurations():
    """As benchmarks/six_programs.py --write makes it."""
    root = Path(__file__).parents[2]
    spec = importlib.util.spec_from_file_location("six_programs", root / "benchmarks" / "six_programs.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    page = (root / "benchmarks" / "six_programs.md").read_text(encoding="utf-8")
    assert page.split(module.BEGIN)[1].split(module.END)[0].strip() == module.table()
    published = json.loads((root / "benchmarks" / "published_configs.json").read_text(encoding="utf-8"))
    assert len(published) >= 10
    assert all(entry["from"] and entry["read_in"] for entry in published.values())


def test_layer_types_with_two_bases():
    comparison = read(GEMMA)
    assert not comparison.differ
    for layers, base in (("sliding_attention", 1e4), ("full_attention", 1e6)):
        assert {reading.base for reading in by_program(comparison, layers).values()} == {base}
    assert comparison.windows == {"sliding_attention": 64, "full_attention": None}
    assert apart(read({"model_type": "gemma3", "text_config": GEMMA})) == set()


def test_a_head_that_rotates_in_part():
    comparison = read(LLAMA | {"model_type": "glm", "head_dim": 16, "rope_theta": 1e4, "partial_rotary_factor": 0.5})
    assert not comparison.differ
    assert {reading.rotary_dim for reading in comparison.readings} == {8}
    odd = read(LLAMA | {"rope_theta": 1e4, "partial_rotary_factor": 0.5})
    assert {name: reading.rotary_dim for name, reading in by_program(odd).items()} == {
        "transformers 5": 16, "vLLM": 8, "SGLang": 16, "llama.cpp": 16, "DeepSpeed": 16,
    }  # fmt: skip
    (refused,) = odd.refused  # recorded: the size of tensor a (128) must match the size of tensor b (64)
    assert (refused.program, refused.why.partition(":")[0]) == ("transformers 4", "it fails")


def gguf_file(path, architecture="llama", **keys):
    writer = GGUFWriter(path, architecture)
    writer.add_context_length(1024)
    writer.add_embedding_length(64)
    writer.add_head_count(4)
    writer.add_block_count(2)
    writer.add_rope_dimension_count(16)
    for name, value in keys.items():
        getattr(writer, f"add_{name}")(value)
    writer.add_tensor("rope_freqs.weight", torch.full((8,), 3.0).numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_the_header_of_a_gguf_file(tmp_path):
    comparison = compare(read_config(gguf_file(tmp_path / "model.gguf", rope_freq_base=5e4)))
    readings = by_program(comparison)
    assert list(readings) == ["transformers 5", "llama.cpp"]
    torch.testing.assert_close(readings["llama.cpp"].inv_freq, create({"name": "default"}, 16, base=5e4).inv_freq / 3)
    assert apart(comparison)


def test_the_command_needs_no_weights(tmp_path, capsys):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA | {"rope_parameters": LLAMA3 | {"rope_theta": 5e5}}))
    for path in (tmp_path, tmp_path / "config.json"):
        code, out, _ = run(capsys, "doctor", str(path))
        assert code == 1
        assert "transformers 4 differs" in out
    code, out, _ = run(capsys, "doctor", str(tmp_path), "--config-only", "--length", "77", "--json")
    printed = json.loads(out)
    assert (printed["length"], printed["differ"], len(printed["readings"])) == (77, True, 5)
    (tmp_path / "config.json").write_text(json.dumps(LLAMA | {"rope_theta": 5e5}))
    assert run(capsys, "doctor", str(tmp_path))[0] == 0


BAD = {
    "two bases": (LLAMA | {"rope_theta": 1e4, "rope_parameters": {"rope_theta": 5e5}}, "rope_theta=10000.0 and rope_parameters.rope_theta=500000.0"),
    "two types": (LLAMA | {"rope_scaling": {"rope_type": "yarn", "type": "linear"}}, "rope_type='yarn' and type='linear'"),
    "two tables": (LLAMA | {"rope_scaling": {"factor": 2.0}, "rope_parameters": {"factor": 4.0}}, "rope_parameters.factor=4.0 and rope_scaling.factor=2.0"),
    "no model type": ({"hidden_size": 64}, "has no model_type"),
    "unknown": (LLAMA | {"model_type": "lama"}, "lama"),
    "no length": (LLAMA | {"max_position_embeddings": 0}, "max_position_embeddings=0"),
}  # fmt: skip


@pytest.mark.parametrize(("fields", "message"), BAD.values(), ids=BAD)
def test_refusals(fields, message):
    with pytest.raises(InputError, match=message):
        read(fields)


def test_files_that_are_none(tmp_path):
    (tmp_path / "list.json").write_text("[1]")
    (tmp_path / "broken.json").write_text("{")
    (tmp_path / "text.gguf").write_text("no")
    for name, message in (
        ("", "has no config.json"),
        ("none", "no such file"),
        ("list.json", "holds list"),
        ("broken.json", "is no JSON"),
        ("text.gguf", "this GGUF file cannot be read"),
    ):
        with pytest.raises(InputError, match=message):
            read_config(tmp_path / name)
    with pytest.raises(InputError, match="length=0"):
        read(LLAMA, 0)


def test_a_program_that_fails_is_reported_beside_the_others():
    """transformers 4.57.6 raises KeyError at a table without a type, run."""
    for scaling in ({}, {"factor": 2.0}):
        comparison = read(LLAMA | {"rope_theta": 1e4, "rope_scaling": scaling})
        refused = {each.program: each.why for each in comparison.refused}
        assert refused == {"transformers 4": "it fails: KeyError: its rope_scaling has no rope_type"}
    assert transformers.__version__.startswith("5.")


def names(comparison):
    return {finding.name for finding in comparison.findings}


@pytest.mark.parametrize(
    "scaling",
    [
        LONGROPE | {"short_factor": [1.0] * 4, "long_factor": [1.0] * 4},
        {"rope_type": "linear"},
        YARN | {"factor": math.nan},
        YARN | {"beta_fast": 1.0, "beta_slow": 32.0},
        LLAMA3 | {"low_freq_factor": 4.0, "high_freq_factor": 1.0},
        YARN | {"attention_factor": 0},
    ],
    ids=str,
)
def test_a_number_that_cannot_be_is_a_finding_and_no_rule_is_asked(scaling):
    comparison = read(LLAMA | {"rope_theta": 1e4, "rope_scaling": scaling})
    assert names(comparison) == {"parameter_impossible"}
    assert comparison.wrong
    assert {each.program for each in comparison.not_known} == {*PROGRAMS} - {"transformers 5"}
    assert "compute the same positions" not in str(comparison)


def test_a_base_that_is_no_number():
    for theta in (math.nan, None, 0.0, -1.0):
        comparison = read(LLAMA | {"rope_parameters": {"rope_type": "default", "rope_theta": theta}})
        assert names(comparison) == {"parameter_impossible"}, theta
        assert comparison.wrong


def test_a_linear_factor_below_1_is_run_and_found():
    """transformers 4 and llama.cpp run it: they divide by it."""
    comparison = read(LLAMA | {"rope_theta": 1e4, "rope_scaling": {"rope_type": "linear", "factor": 0.25}})
    assert names(comparison) == {"factor_below_one"}
    assert comparison.wrong
    want = create({"name": "default"}, 16, base=1e4).inv_freq * 4
    for program in ("transformers 5", "transformers 4", "llama.cpp"):
        torch.testing.assert_close(by_program(comparison)[program].inv_freq, want, rtol=1e-5, atol=0)


def test_findings_need_no_weights():
    for scaling, name in (
        (YARN | {"attn_factor": 0.8782488562869419}, "parameter_ignored"),
        ({"rope_type": "yarn", "factor": 4.0}, "original_length_missing"),
        (YARN | {"factor": 16.0}, "length_not_declared"),
        (YARN | {"factor": 2.0}, "declared_longer_than_stretched"),
        (YARN | {"attention_factor": 1.2}, "attention_factor_differs"),
        (LLAMA3 | {"original_max_position_embeddings": 1024}, "llama3_without_effect"),
    ):
        assert names(read(LLAMA | {"rope_theta": 1e4, "rope_scaling": scaling})) == {name}
    vicuna = {"rope_theta": 1e4, "rope_scaling": {"type": "linear", "factor": 4.0}, "max_sequence_length": 4096}
    (finding,) = read(LLAMA | vicuna).findings
    assert (finding.name, finding.measured) == ("longer_length_stated", 4)
    (finding,) = read(LLAMA | {"model_type": "cohere", "model_max_length": 131072}).findings
    assert (finding.name, finding.measured) == ("longer_length_stated", 128)


@pytest.mark.parametrize("error", [KeyError, TypeError, AttributeError, RuntimeError])
@pytest.mark.parametrize("program", [name for name in PROGRAMS if name != "transformers 5"])
def test_an_error_of_posencs_rules_is_no_statement_about_a_program(program, error, monkeypatch):
    def broken(*_):
        raise error("a mistake in a rule")

    monkeypatch.setitem(PROGRAMS, program, broken)
    with pytest.raises(error, match="a mistake in a rule"):
        read(LLAMA | {"rope_theta": 12345.0})


def test_one_program_is_no_agreement():
    comparison = read(small_model("deepseek_v3").config.to_dict())
    assert [reading.program for reading in comparison.readings] == ["transformers 5"]
    assert "Nothing is compared: transformers 5 alone is known to run it." in str(comparison)
    assert {each.program for each in comparison.not_known} >= {"vLLM", "SGLang", "llama.cpp"}


def test_the_same_is_of_programs_that_were_asked():
    """What follows from rules alone is said to; another program's module, run in its place, is a rule too."""
    fields = LLAMA | {"rope_theta": 1e4}
    comparison = read(fields)
    (reading, *others) = comparison.readings
    for known_by, sentence in (
        (["run", "recorded"], "transformers 5 and transformers 4, which were run, compute the same positions."),
        (["run", "recorded", "rules"], "which were run, compute the same positions; by posenc's rules of it, vLLM too."),
        (["run", "rules"], "transformers 5 alone was run; by posenc's rules of it, transformers 4 computes the same positions."),
        (["rules", "rules"], "No program was run; by posenc's rules of them, transformers 5 and transformers 4 compute"),
    ):  # fmt: skip
        given = (replace(each, known_by=by) for each, by in zip((reading, *others), known_by, strict=False))
        made = replace(comparison, readings=tuple(given))
        assert sentence in str(made)
        assert len(made.asked()) == len(known_by) - known_by.count("rules") == len(made.to_dict()["asked"])
    for model_type in ("seed_oss", "gemma3_text"):
        by = {each.program: each.known_by for each in read(small_model(model_type).config.to_dict()).readings}
        assert by.pop("transformers 5") == "run"
        assert {*by.values()} == {"rules"}


def test_the_factor_of_scores_in_latent_attention():
    yarn = {
        "type": "yarn",
        "factor": 40,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 4096,
    }
    deepseek = {"model_type": "deepseek_v3", "max_position_embeddings": 163840, "rope_theta": 1e4, "rope_scaling": yarn}
    reading, *_ = read(deepseek).readings
    assert reading.note == "its attention multiplies scores by 1.874 too (mscale_all_dim)"


def test_what_multiplies_queries_by_their_position_is_noted():
    yarn = {"rope_type": "yarn", "factor": 16.0, "original_max_position_embeddings": 16384, "rope_theta": 1e6}
    reading, *_ = read({"model_type": "ministral3", "rope_parameters": yarn | {"llama_4_scaling_beta": 0.1}}).readings
    assert "multiplies queries by 1 + 0.1 ln(1 + floor(position / 16384)) too" in reading.note


def test_layers_without_rotation():
    smollm3 = LLAMA | {"model_type": "smollm3", "num_hidden_layers": 8, "rope_theta": 1e4}
    comparison = read(smollm3)
    assert "2 of 8 layers do not rotate: 3, 7" in str(comparison)
    assert not comparison.differ
    assert apart(read(smollm3 | {"no_rope_layer_interval": 2})) == {"llama.cpp"}
    llama4 = read({"model_type": "llama4_text", "num_hidden_layers": 8})
    assert "2 of 8 layers do not rotate: 3, 7" in str(llama4)
    assert llama4.windows == {"chunked_attention": 8192, "full_attention": None}
    for fields, why in (
        ({"model_type": "granitemoehybrid", "position_embedding_type": "nope"}, "position_embedding_type='nope'"),
        ({"model_type": "falcon", "alibi": True}, "alibi=true"),
        ({"model_type": "zamba2"}, "use_mem_rope=false"),
    ):
        with pytest.raises(InputError, match=f"its layers do not rotate: {why}"):
            read(fields)


@pytest.mark.parametrize("model_type", FAMILIES)
def test_layers_without_rotation_are_those_of_the_model(model_type):
    model = small_model(model_type)
    layers = model_structure(model).layers
    (first, *_) = read(model.config.to_dict(), length=8).readings
    rotates = {layer.module.layer_idx: layer.rotates for layer in layers if hasattr(layer.module, "layer_idx")}
    assert set(first.unrotated) == {number for number, does in rotates.items() if not does}


def rotating(config):
    """Numbers of the layers with attention, and of those that rotate, in a model of the configuration on the meta device: whose
    attention is given to the module's function of that name."""
    module = import_module(type(config).__module__.replace(".configuration_", ".modeling_"))
    turning = [name for name in vars(module) if re.match(r"apply_\w*rotary", name)]
    mapping = transformers.MODEL_FOR_CAUSAL_LM_MAPPING
    made = (mapping if type(config) in mapping else transformers.MODEL_MAPPING)[type(config)]
    dtype = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)  # in which experts are multiplied
    try:
        with torch.device("meta"), warnings.catch_warnings(action="ignore"):
            model = made._from_config(config, attn_implementation="eager")
    finally:
        torch.set_default_dtype(dtype)
    inside, turned, attending = [], set(), set()

    def enter(layer, *_):
        inside.append(layer.layer_idx)
        attending.add(layer.layer_idx)

    def leave(*_):
        inside.pop()

    def counted(function):
        def call(*args, **kwargs):
            turned.update(inside[-1:])
            return function(*args, **kwargs)

        return call

    for layer in model.modules():
        if "Attention" in type(layer).__name__ and hasattr(layer, "layer_idx"):
            layer.register_forward_pre_hook(enter)
            layer.register_forward_hook(leave)
    with pytest.MonkeyPatch.context() as patch, torch.no_grad():
        for name in turning:
            patch.setattr(module, name, counted(getattr(module, name)))
        ids, mask = torch.zeros(1, 4, dtype=torch.long, device="meta"), torch.zeros(1, 1, 4, 4, device="meta")
        model(input_ids=ids, attention_mask=mask.bfloat16(), use_cache=False)
    return attending, turned


LAYERS = {
    "cohere2_moe": {"first_k_dense_replace": 4},
    "cohere_compass_text": {
        "layer_types": ["sliding_attention", "sliding_attention", "sliding_attention", "full_attention"] * 2,
        "rope_parameters": {"sliding_attention": {"rope_type": "default", "rope_theta": 1e4}, "full_attention": None},
    },
    "granite_swa": {"layer_rope_theta": [0, 1e4, 5e5, 1e4, 0, 1e4, 1e4, 0]},
    "granitemoe_swa": {"layer_rope_theta": [1e4, 0] * 4},
}
"""Fields of model types beside transformers' own."""


@pytest.mark.parametrize(
    "model_type",
    [
        *(
            "afmoe",
            "cohere2",
            "cohere2_moe",
            "cohere_compass_text",
            "exaone4",
            "exaone_moe",
            "flint",
            "granite_swa",
            "granitemoe_swa",
            "kolibri1",
        ),
        *("mistral_large4_text", "muse_glimmer_text", "muse_spark_text", "smollm3", "gemma3_text", "llama"),
    ],
)  # all with a condition on the rotation of a layer, and two without
def test_layers_without_rotation_are_those_of_the_module(model_type):
    """Of types that `FAMILIES` has not, too."""
    fields = {"model_type": model_type, "num_hidden_layers": 8} | LAYERS.get(model_type, {})
    file = ConfigFile("config.json", fields)
    attending, turned = rotating(file.hf)
    assert set(file.unrotated()) == attending - turned
    assert len(attending) == 8


@pytest.mark.parametrize("base", [None, "10000", math.nan, 0, -1.0])
def test_a_base_without_a_table_that_cannot_be(base):
    for table in ({}, {"rope_parameters": None}):
        comparison = read(LLAMA | {"rope_theta": base} | table)
        assert names(comparison) == {"parameter_impossible"}
        assert {each.program for each in comparison.readings} <= {"transformers 5"}


def test_pairs_with_frequency_0_are_not_counted_as_rotated():
    fields = {"model_type": "gemma4_text", "num_hidden_layers": 6}
    (reading,) = (each for each in read(fields).readings if each.layers == "full_attention")
    assert (reading.rotary_dim, reading.turning) == (512, 128)
    assert reading.turning == 2 * sum(each > 0 for each in reading.inv_freq.tolist())


DEFAULT, STRETCHED = (
    {"rope_type": "default", "rope_theta": 1e4},
    {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0},
)
LINEAR = {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}
ORIGINAL = "original_max_position_embeddings"


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"rope_parameters": DEFAULT, "rope_scaling": LINEAR}, "rope_type='linear'"),
        ({"rope_parameters": DEFAULT, "rope_scaling": {"type": "linear", "factor": 4.0}}, "rope_type='linear'"),
        (
            {"rope_parameters": {"rope_theta": 1e4}, "rope_scaling": {"type": "linear", "factor": 4.0}},
            "rope_type='linear'",
        ),
        ({"rope_parameters": LINEAR, "rope_scaling": {"type": "linear", "factor": 8.0}}, "factor=8.0"),
        ({"rope_parameters": DEFAULT, "rope_theta": 5e5}, "rope_theta=500000.0 and"),
        ({"rope_parameters": STRETCHED | {ORIGINAL: 32}, ORIGINAL: 64}, f"{ORIGINAL}=64 and"),
        (
            {"rope_parameters": DEFAULT | {"partial_rotary_factor": 0.5}, "partial_rotary_factor": 0.25},
            "factor=0.25 and",
        ),
    ],
)
def test_a_number_that_is_stated_twice(fields, why):
    (sentence,) = ConfigFile("config.json", LLAMA | fields).contradictions()
    assert why in sentence
    with pytest.raises(InputError, match="programs read different ones; remove one"):
        read(LLAMA | fields)


def test_numbers_that_are_stated_twice_and_agree():
    yarn = STRETCHED | {ORIGINAL: 16}
    for fields in (
        {"rope_parameters": LINEAR, "rope_scaling": {"type": "linear", "factor": 4.0}, "rope_theta": 1e4},
        {"rope_parameters": yarn, ORIGINAL: 16},
        {"rope_scaling": {"type": "yarn", "factor": 4.0, ORIGINAL: 16}},
    ):
        assert not list(ConfigFile("config.json", LLAMA | fields).contradictions())


def test_an_original_length_beside_the_table_is_that_of_the_findings():
    """transformers moves it into the table when it makes the module."""
    fields = LLAMA | {"rope_parameters": STRETCHED, ORIGINAL: LLAMA["max_position_embeddings"] // 4}
    assert read(fields).findings == ()


ODD = [None, [], {"a": {}}, [None], "x", True, -1, 1e400, math.nan]
BESIDE = ("head_dim", "hidden_size", "rope_theta", "partial_rotary_factor", ORIGINAL, "sliding_window", "layer_types")
INSIDE = (
    "rope_type",
    "type",
    "rope_theta",
    "factor",
    ORIGINAL,
    "partial_rotary_factor",
    "attention_factor",
    "full_attention",
)


@pytest.mark.parametrize("kind", ["default", "yarn"])
def test_a_value_of_another_kind_is_refused_or_reported_and_no_traceback(kind):
    table = DEFAULT if kind == "default" else STRETCHED | {ORIGINAL: 256}
    odd = [LLAMA | {"rope_parameters": table, key: value} for key in BESIDE for value in ODD]
    odd += [LLAMA | {"rope_parameters": table | {key: value}} for key in INSIDE for value in ODD]
    answers = []
    for fields in odd:
        with suppress(InputError):
            answers.append(read(fields))
    assert len(answers) > len(odd) / 4


@pytest.mark.parametrize("kind", [["llama"], {"a": 1}, 3, True])
def test_a_model_type_that_is_no_name(kind):
    with pytest.raises(InputError, match=r"model_type=.* must be the name of a model type"):
        ConfigFile("config.json", LLAMA | {"model_type": kind})


@pytest.mark.parametrize(
    ("fields", "why", "measured"),
    [
        (
            {"model_type": "minimax", "rotary_dim": 8},
            "rotary_dim=8, and transformers' minimax rotates 16 channels",
            0.5,
        ),
        ({"model_type": "lfm2", "theta": 5e5}, "theta=500000, and transformers' lfm2 takes rope_theta=1000000", 0.5),
    ],
)
def test_fields_that_transformers_does_not_read(fields, why, measured):
    comparison = read(LLAMA | fields)
    (finding,) = comparison.findings
    assert (finding.name, finding.measured) == ("fields_contradict", measured)
    assert why in finding.evidence
    assert "transformers 4" in {each.program for each in comparison.not_known}


def test_fields_that_transformers_reads_by_another_name_are_no_finding():
    assert read(LLAMA | {"model_type": "minimax_m2", "rotary_dim": 8, "rope_theta": 1e4}).findings == ()
    assert read(LLAMA | {"model_type": "minimax", "rotary_dim": 16, "rope_theta": 1e4}).findings == ()
    assert read(LLAMA | {"model_type": "lfm2", "theta": 1e6}).findings == ()


@pytest.mark.parametrize("model_type", ["llama", "qwen2", "gemma3_text"])
def test_vllm_takes_no_text_beyond_what_yarn_states(model_type):
    """32 x 4 tokens under a length of 1024; the other programs compute positions beyond."""
    table = YARN | {"rope_theta": 1e4, "original_max_position_embeddings": 32}
    tables = {"sliding_attention": {"rope_type": "default", "rope_theta": 1e4}, "full_attention": table}
    table = tables if model_type == "gemma3_text" else table
    fields = LLAMA | {"model_type": model_type, "num_hidden_layers": 6, "rope_parameters": table}
    refused = {each.program: each.why for each in read(fields).refused}
    assert "it takes at most 128 tokens" in refused["vLLM"]
    assert "SGLang" not in refused
    assert "vLLM" not in {each.program for each in read(fields, 128).refused}


def test_bases_of_layers_are_read():
    fields = {"model_type": "granite_swa", "num_hidden_layers": 4, "layer_rope_theta": [0, 1e4, 5e5, 1e4]}
    comparison = read(fields)
    assert [reading.base for reading in comparison.readings] == [1e4, 5e5]
    assert "1 of 4 layers do not rotate: 0" in str(comparison)
    for reading in comparison.readings:
        plain = create({"name": "default"}, reading.rotary_dim, base=reading.base)
        torch.testing.assert_close(reading.inv_freq, plain.inv_freq, rtol=1e-5, atol=0)


def test_fields_that_another_model_type_reads():
    """Published files of Command R7B state position_embedding_type, which transformers' cohere2 does not read."""
    command_r = {"model_type": "cohere2", "num_hidden_layers": 4, "position_embedding_type": "rope_gptj"}
    assert "1 of 4 layers do not rotate: 3" in str(read(command_r))
    for field, value in (("alibi", True), ("position_embedding_type", "nope"), ("no_rope_layers", [0, 0])):
        (reading, *_) = read(LLAMA | {"rope_theta": 1e4, field: value}).readings
        assert not reading.unrotated


def test_chunks_of_qwen_2_5_1m():
    chunks = {"chunk_size": 262144, "local_size": 8192, "original_max_position_embeddings": 262144}
    qwen2 = LLAMA | {"model_type": "qwen2", "rope_theta": 1e7, "dual_chunk_attention_config": chunks}
    not_known = {each.program for each in read(qwen2).not_known}
    assert {"vLLM", "SGLang"} <= not_known
    assert not {"vLLM", "SGLang"} & {each.program for each in read(qwen2).readings}


def test_a_type_that_transformers_has_and_a_file_that_it_refuses():
    with pytest.raises(InputError, match=r"transformers refuses it: .*layer_types"):
        read({"model_type": "zamba2", "num_hidden_layers": 10})


def test_families_own_modules_are_run():
    """HunYuan states a base as alpha."""
    hunyuan = {
        "type": "dynamic",
        "alpha": 1000.0,
        "factor": 1.0,
        "beta_fast": 32,
        "beta_slow": 1,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
    }
    fields = LLAMA | {"model_type": "hunyuan_v1_dense", "head_dim": 16, "rope_theta": 1e4, "rope_scaling": hunyuan}
    comparison = read(fields)
    want = create({"name": "default"}, 16, base=1e4 * 1000 ** (16 / 14)).inv_freq
    torch.testing.assert_close(by_program(comparison)["transformers 5"].inv_freq, want, rtol=1e-5, atol=0)
    assert names(comparison) == {"parameter_unread"}


def test_phi3s_first_files():
    """Run in transformers 4.57.6: "su" is longrope, with the factor of the lengths and the long list."""
    su = {"type": "su", "short_factor": [1.0] * 8, "long_factor": [2.0] * 8}
    fields = {"model_type": "phi3", "rope_theta": 1e4, "rope_scaling": su, "original_max_position_embeddings": 256}
    reading = by_program(read(LLAMA | fields))["transformers 4"]
    assert reading.attention_factor == pytest.approx(math.sqrt(1 + math.log(4) / math.log(256)))
    torch.testing.assert_close(reading.inv_freq, create({"name": "default"}, 16, base=1e4).inv_freq / 2)


def test_parts_of_several():
    """Qwen2-VL as published is flat; others have a part for the language model, beside which a scaling does nothing."""
    mrope = {"type": "mrope", "mrope_section": [2, 3, 3]}
    comparison = read(LLAMA | {"model_type": "qwen2_vl", "rope_theta": 1e6, "rope_scaling": mrope})
    assert comparison.model_type == "qwen2_vl_text"
    assert by_program(comparison)["transformers 5"].base == 1e6
    parent = {"model_type": "gemma3", "text_config": GEMMA}
    assert names(read(parent)) == set()
    comparison = read(parent | {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}})
    assert names(comparison) == {"scaling_beside_the_model"}
    assert comparison.wrong
    with pytest.raises(
        InputError, match=r"rope_scaling .* stands beside the part .*: move it into that part \(transformers refuses"
    ):
        read({"model_type": "gemma3", "rope_scaling": YARN, "text_config": {"model_type": "gemma3_text"}})
    internvl = {"model_type": "internvl_chat", "llm_config": LLAMA | {"rope_theta": 1e4}}
    assert read(internvl).model_type == "llama"


@pytest.mark.parametrize("model_type", ["internlm3", "iquestcoder", "bloom", "jamba"])
def test_types_that_cannot_be_read_are_a_line(model_type):
    with pytest.raises(InputError, match=model_type):
        read({"model_type": model_type})


def check_turns(module, reading, length):
    """cos and sin of a rotary module at the first position, in the middle and at the last one are those of a reading."""
    kinds = [each for each in rope_parameters_by_type(module.config) if reading.layers in ("all layers", each)]
    assert kinds
    for kind in kinds:
        _check_turns(module, {} if kind is None else {"layer_type": kind}, reading, length)


def _check_turns(module, by_type, reading, length):
    pairs = reading.inv_freq.numel()
    positions = torch.tensor([[0, length // 2, length - 1]])
    by_axis = getattr(module, "mrope_section", None) is not None
    with torch.no_grad():
        out = module(torch.zeros(1, 1, 1), positions.expand(3, 1, -1) if by_axis else positions, **by_type)
    tables = (out.real, out.imag) if isinstance(out, torch.Tensor) else out
    angles = positions[0, :, None] * reading.inv_freq
    rounding = 1e-5 + 3e-7 * length * float(reading.inv_freq.max())
    for table, wanted in zip(tables, (angles.cos(), angles.sin()), strict=True):
        rows = table.reshape(-1, 3, table.shape[-1])[-1].double()
        if rows.shape[-1] == 2 * pairs:
            halves = torch.equal(rows[:, :pairs], rows[:, pairs:])
            rows = rows[:, :pairs] if halves else rows[:, ::2]
        torch.testing.assert_close(rows, reading.attention_factor * wanted, rtol=0, atol=rounding)


def rotary_of(config):
    """The rotary module of transformers' model for a configuration, which is made on "meta" to find it; None: there is no such
    model, or it needs more than a configuration."""
    for mapping in (transformers.MODEL_FOR_CAUSAL_LM_MAPPING, transformers.MODEL_MAPPING):
        try:
            made = mapping[type(config)]
            with torch.device("meta"):
                model = (made[0] if isinstance(made, tuple | list) else made)(config)
        except Exception:  # transformers raises errors of many types here
            continue
        for module in model.modules():
            if "Rotary" in type(module).__name__ and type(getattr(module, "config", None)) is type(config):
                return type(module)(module.config)
    return None


@pytest.mark.parametrize("part", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in range(1, 12))])
def test_every_type_of_transformers_turns_as_it_is_read_or_is_refused(part):
    """By transformers' own values, a twelfth of the types at a time, as models of six layers."""
    read_types = compared = 0
    for model_type in sorted(transformers.CONFIG_MAPPING)[part::12]:
        try:
            comparison = read({"model_type": model_type})
        except InputError:
            continue
        read_types += 1
        assert {finding.severity for finding in comparison.findings} <= {"note"}, model_type
        assert len({each.program for each in comparison.readings}) > 1 or "the same" not in str(comparison), model_type
        assert len(comparison.asked()) > 1 or "which were run" not in str(comparison), model_type
        json.dumps(comparison.to_dict())
        file = ConfigFile("config.json", {"model_type": model_type, "num_hidden_layers": 6})
        module = rotary_of(file.hf) if file.states_language_model else None
        for reading in comparison.readings if module is not None else ():
            if reading.program == "transformers 5":
                check_turns(module, reading, comparison.length)
                compared += 1
    assert read_types > 10
    assert compared > 5


@pytest.mark.parametrize("stated", [8192, 4096, 10**30, None, "8192", math.nan])
def test_the_length_of_the_tokenizer(tmp_path, stated):
    """transformers writes 10^30 where a tokenizer has no limit."""
    (tmp_path / "config.json").write_text(json.dumps(LLAMA | {"max_position_embeddings": 4096, "rope_theta": 1e4}))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"model_max_length": stated}))
    findings = compare(read_config(tmp_path)).findings
    assert [finding.evidence for finding in findings] == (
        ["its tokenizer also states model_max_length=8192, and max_position_embeddings is 4096"]
        if stated == 8192
        else []
    )


@pytest.mark.parametrize("name", ["max_sequence_length", "model_max_length", "seq_length", "max_seq_len", "n_ctx"])
def test_other_fields_of_a_length(name):
    (finding,) = read(LLAMA | {"rope_theta": 1e4, name: 4096}).findings
    assert (finding.name, finding.measured) == ("longer_length_stated", 4)
    assert read(LLAMA | {"rope_theta": 1e4, name: 512}).findings == ()


def test_a_configuration_is_told_whether_its_base_is_large_enough():
    """At each bound the slowest pair does what is said of it, and the comparison prints them."""
    shape = {
        "model_type": "llama",
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "num_hidden_layers": 32,
        "max_position_embeddings": 131072,
    }
    text = str(read(shape | {"rope_theta": 10000.0}))
    least, stable = (float(found) for found in re.findall(r"at least ([\d.e+]+), ", text))
    for base, turned in ((least, 2 * math.pi), (stable, math.acos(0.5 ** (1 / 32)))):
        assert 131072 * base ** (-126 / 128) == pytest.approx(turned, rel=1e-2)
    assert text.count("NOT met") == 2
    assert re.search(r"first negative at \d+ tokens", text)
    most = float(re.search(r"at most ([\d.e+]+), .* float32", text)[1])
    assert most ** (-126 / 128) == pytest.approx(2**-23, rel=1e-2)
    assert str(read(shape | {"rope_theta": 1.2e7})).count("NOT met") == 1
