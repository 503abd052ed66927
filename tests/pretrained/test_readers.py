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
from itertools import pairwise
from pathlib import Path

import pytest
import torch
import transformers

from posenc import InputError
from posenc.frequencies import create
from posenc.pretrained.families import FAMILIES
from posenc.pretrained.models import model_structure
from posenc.pretrained.parameters import rope_parameters_by_type
from posenc.pretrained.programs import PROGRAMS, RULED
from posenc.pretrained.readers import ConfigFile, compare, read_config
from references import gguf_files
from references.commands import run
from references.small_models import small_model

LLAMA = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "max_position_embeddings": 1024,
}
ORIGINAL = "original_max_position_embeddings"
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, ORIGINAL: 128}
YARN = {"rope_type": "yarn", "factor": 4.0, ORIGINAL: 256}
LONGROPE = {"rope_type": "longrope", "short_factor": [1.0] * 8, "long_factor": [2.0] * 8, ORIGINAL: 256}
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
    of_layers = [layer for layer in structure.layers if hasattr(layer.module, "layer_idx")]
    assert set(reading.unrotated) == {layer.module.layer_idx for layer in of_layers if not layer.rotates}
    programs = {reading.program for reading in comparison.readings}
    assert ("llama.cpp" in programs) is (model_type in RULED)
    assert ("vLLM" in programs) is (model_type in RULED and model_type != "gpt_oss")  # whose file states yarn's numbers
    assert str(comparison)


def test_all_agree_on_a_plain_model():
    comparison = read(LLAMA | {"rope_theta": 5e5})
    assert [reading.program for reading in comparison.readings] == list(PROGRAMS)
    assert not comparison.differ
    assert not comparison.apart()
    by_rules = "by posenc's rules, the same positions are computed by transformers 4, vLLM, SGLang and llama.cpp."
    assert f"transformers 5 alone was run; {by_rules}" in str(comparison)
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
    assert not comparison.refused


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


@pytest.mark.parametrize("package", ["vllm", "sglang"])
def test_the_programs_themselves(package):
    """Their model classes build their rotary modules; skipped where the sources are not on the path."""
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not on the path: see benchmarks/conform_peers/served.py")
    script = Path(__file__).parents[2] / "benchmarks" / "conform_peers" / "served.py"
    done = subprocess.run([sys.executable, script, package], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith(" as posenc doctor says\n")


def test_layer_types_with_two_bases():
    comparison = read(GEMMA)
    assert not comparison.differ
    for layers, base in (("sliding_attention", 1e4), ("full_attention", 1e6)):
        assert {reading.base for reading in by_program(comparison, layers).values()} == {base}
    assert apart(read({"model_type": "gemma3", "text_config": GEMMA})) == set()


def test_a_head_that_rotates_in_part():
    comparison = read(LLAMA | {"model_type": "glm", "head_dim": 16, "rope_theta": 1e4, "partial_rotary_factor": 0.5})
    assert not comparison.differ
    assert {reading.rotary_dim for reading in comparison.readings} == {8}
    odd = read(LLAMA | {"rope_theta": 1e4, "partial_rotary_factor": 0.5})
    assert {name: reading.rotary_dim for name, reading in by_program(odd).items()} == {
        "transformers 5": 16, "vLLM": 8, "SGLang": 16, "llama.cpp": 16,
    }  # fmt: skip
    (refused,) = odd.refused  # recorded: the size of tensor a (128) must match the size of tensor b (64)
    assert (refused.program, refused.why.partition(":")[0]) == ("transformers 4", "it fails")


def test_the_header_of_a_gguf_file(tmp_path):
    model = small_model("llama", rope_parameters={"rope_type": "default", "rope_theta": 5e4})
    gguf_files.write(tmp_path / "model.gguf", model, rope_freqs=torch.full((8,), 3.0))
    comparison = compare(read_config(tmp_path / "model.gguf"))
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
    with pytest.raises(InputError, match="max_position_embeddings=0"):
        read(LLAMA | {"max_position_embeddings": 0})


def test_a_program_that_fails_is_reported_beside_the_others():
    """transformers 4.57.6 raises KeyError at a table without a type, run."""
    for scaling in ({}, {"factor": 2.0}):
        comparison = read(LLAMA | {"rope_theta": 1e4, "rope_scaling": scaling})
        refused = {each.program: each.why for each in comparison.refused}
        assert refused == {"transformers 4": "it fails: KeyError: its rope_scaling has no rope_type"}
    assert transformers.__version__.startswith("5.")


def names(comparison):
    return {finding.name for finding in comparison.findings}


def test_a_linear_factor_below_1_is_run_and_found():
    """transformers 4 and llama.cpp run it: they divide by it."""
    comparison = read(LLAMA | {"rope_theta": 1e4, "rope_scaling": {"rope_type": "linear", "factor": 0.25}})
    assert names(comparison) == {"factor_below_one"}
    assert comparison.wrong
    want = create({"name": "default"}, 16, base=1e4).inv_freq * 4
    for program in ("transformers 5", "transformers 4", "llama.cpp"):
        torch.testing.assert_close(by_program(comparison)[program].inv_freq, want, rtol=1e-5, atol=0)


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


def test_another_programs_module_that_is_run_in_its_place_is_a_rule():
    for model_type in ("seed_oss", "gemma3_text"):
        by = {each.program: each.known_by for each in read(small_model(model_type).config.to_dict()).readings}
        assert by.pop("transformers 5") == "run"
        assert {*by.values()} == {"rules"}


def test_the_factor_of_scores_in_latent_attention():
    yarn = {"type": "yarn", "factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0, ORIGINAL: 4096}
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
    for fields, why in (
        ({"model_type": "granitemoehybrid", "position_embedding_type": "nope"}, "position_embedding_type='nope'"),
        ({"model_type": "falcon", "alibi": True}, "alibi=true"),
        ({"model_type": "zamba2"}, "use_mem_rope=false"),
    ):
        with pytest.raises(InputError, match=f"its layers do not rotate: {why}"):
            read(fields)


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
    calls = []

    def noted(function):
        def call(*args, **kwargs):
            calls.append("turned")
            return function(*args, **kwargs)

        return call

    for layer in model.modules():
        if "Attention" in type(layer).__name__ and hasattr(layer, "layer_idx"):
            layer.register_forward_pre_hook(lambda layer, _: calls.append(layer.layer_idx))
    with pytest.MonkeyPatch.context() as patch, torch.no_grad():
        for name in turning:
            patch.setattr(module, name, noted(getattr(module, name)))
        ids, mask = torch.zeros(1, 4, dtype=torch.long, device="meta"), torch.zeros(1, 1, 4, 4, device="meta")
        model(input_ids=ids, attention_mask=mask.bfloat16(), use_cache=False)
    return {each for each in calls if each != "turned"}, {one for one, then in pairwise(calls) if then == "turned"}


@pytest.mark.parametrize(
    "model_type",
    ["afmoe", "cohere2", "exaone4", "exaone_moe", "mistral_large4_text", "smollm3", "gemma3_text", "llama"],
)  # all with a condition on the rotation of a layer, and two without
def test_layers_without_rotation_are_those_of_the_module(model_type):
    file = ConfigFile("config.json", {"model_type": model_type, "num_hidden_layers": 8})
    attending, turned = rotating(file.hf)
    assert set(file.unrotated()) == attending - turned
    assert len(attending) == 8


@pytest.mark.parametrize("base", [None, "10000", math.nan, 0, -1.0])
def test_a_base_that_cannot_be(base):
    beside = {"rope_theta": base}
    for fields in (beside, beside | {"rope_parameters": None}, {"rope_parameters": beside | {"rope_type": "default"}}):
        comparison = read(LLAMA | fields)
        assert names(comparison) == {"parameter_impossible"}
        assert comparison.wrong
        assert {each.program for each in comparison.readings} <= {"transformers 5"}


def test_pairs_with_frequency_0_are_not_counted_as_rotated():
    fields = {"model_type": "gemma4_text", "num_hidden_layers": 6}
    (reading,) = (each for each in read(fields).readings if each.layers == "full_attention")
    assert (reading.rotary_dim, reading.turning) == (512, 128)
    assert reading.turning == 2 * sum(each > 0 for each in reading.inv_freq.tolist())


DEFAULT = {"rope_type": "default", "rope_theta": 1e4}
OLDER, PART = {"type": "linear", "factor": 4.0}, "partial_rotary_factor"
STRETCHED, LINEAR = ({"rope_type": kind, "rope_theta": 1e4, "factor": 4.0} for kind in ("yarn", "linear"))


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"rope_parameters": DEFAULT, "rope_scaling": LINEAR}, "rope_type='linear'"),
        ({"rope_parameters": {"rope_theta": 1e4}, "rope_scaling": OLDER}, "rope_type='linear'"),
        ({"rope_parameters": LINEAR, "rope_scaling": OLDER | {"factor": 8.0}}, "factor=8.0"),
        ({"rope_parameters": DEFAULT, "rope_theta": 5e5}, "rope_theta=500000.0 and"),
        ({"rope_scaling": YARN | {"type": "linear"}}, "rope_type='yarn' and type='linear'"),
        ({"rope_parameters": STRETCHED | {ORIGINAL: 32}, ORIGINAL: 64}, f"{ORIGINAL}=64 and"),
        ({"rope_parameters": DEFAULT | {PART: 0.5}, PART: 0.25}, "factor=0.25 and"),
    ],
)
def test_a_number_that_is_stated_twice(fields, why):
    (sentence,) = ConfigFile("config.json", LLAMA | fields).contradictions()
    assert why in sentence
    with pytest.raises(InputError, match="remove one"):
        read(LLAMA | fields)


def test_numbers_that_are_stated_twice_and_agree():
    yarn = STRETCHED | {ORIGINAL: 16}
    for fields in (
        {"rope_parameters": LINEAR, "rope_scaling": OLDER, "rope_theta": 1e4},
        {"rope_parameters": yarn, ORIGINAL: 16},
        {"rope_scaling": {"type": "yarn", "factor": 4.0, ORIGINAL: 16}},
    ):
        assert not list(ConfigFile("config.json", LLAMA | fields).contradictions())


def test_an_original_length_beside_the_table_is_that_of_the_findings():
    """transformers moves it into the table when it makes the module."""
    fields = LLAMA | {"rope_parameters": STRETCHED, ORIGINAL: LLAMA["max_position_embeddings"] // 4}
    assert read(fields).findings == ()


ODD = [None, [], {"a": {}}, [None], "x", True, -1, 1e400, math.nan]
BESIDE = ("head_dim", "hidden_size", "rope_theta", PART, ORIGINAL, "sliding_window", "layer_types")
INSIDE = ("rope_type", "type", "rope_theta", "factor", ORIGINAL, PART, "attention_factor", "full_attention")


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


@pytest.mark.parametrize("model_type", ["internlm3", "iquestcoder", "bloom", "jamba", "lama"])
def test_types_that_cannot_be_read_are_a_line(model_type):
    with pytest.raises(InputError, match=model_type):
        read({"model_type": model_type})


def check_turns(module, reading, length):
    """cos and sin of a rotary module at the first position, in the middle and at the last one are those of a reading."""
    tables = rope_parameters_by_type(module.config)
    of_base = {each for each, table in tables.items() if reading.layers == f"base {table['rope_theta']:.10g}"}
    kinds = [each for each in tables if reading.layers in ("all layers", each) or each in of_base]
    assert kinds
    for kind in kinds:
        _check_rotations(module, {} if kind is None else {"layer_type": kind}, reading, length)


def _check_rotations(module, by_type, reading, length):
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
        json.dumps(comparison.to_dict())
        file = ConfigFile("config.json", {"model_type": model_type, "num_hidden_layers": 6})
        module = rotary_of(file.hf) if file.states_language_model else None
        for reading in comparison.readings if module is not None else ():
            if reading.program == "transformers 5":
                check_turns(module, reading, comparison.length)
                compared += 1
    assert read_types > 10
    assert compared > 5


@pytest.mark.parametrize("name", ["max_sequence_length", "model_max_length", "seq_length", "max_seq_len", "n_ctx"])
def test_other_fields_of_a_length(name):
    (finding,) = read(LLAMA | {"rope_theta": 1e4, name: 4096}).findings
    assert (finding.name, finding.measured) == ("longer_length_stated", 4)
    assert read(LLAMA | {"rope_theta": 1e4, name: 512}).findings == ()


def test_a_configuration_is_told_whether_its_base_is_large_enough():
    """At each bound the slowest pair does what is said of it, and the comparison prints them."""
    heads = dict.fromkeys(("num_attention_heads", "num_hidden_layers"), 32)
    shape = {"model_type": "llama", "hidden_size": 4096, "max_position_embeddings": 131072} | heads
    text = str(read(shape | {"rope_theta": 10000.0}))
    least, stable = (float(found) for found in re.findall(r"at least ([\d.e+]+), ", text))
    for base, turned in ((least, 2 * math.pi), (stable, math.acos(0.5 ** (1 / 32)))):
        assert 131072 * base ** (-126 / 128) == pytest.approx(turned, rel=1e-2)
    assert text.count("NOT met") == 2
    assert re.search(r"first negative at \d+ tokens", text)
    most = float(re.search(r"at most ([\d.e+]+), .* float32", text)[1])
    assert most ** (-126 / 128) == pytest.approx(2**-23, rel=1e-2)
    assert str(read(shape | {"rope_theta": 1.2e7})).count("NOT met") == 1
