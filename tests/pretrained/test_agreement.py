"""Which programs compute an extension, asked before a checkpoint is written."""

import json
from pathlib import Path

import pytest
import torch
import transformers

import posenc
from posenc.pretrained.agreement import agreement
from posenc.pretrained.config_file import ConfigFile
from posenc.pretrained.extend import plan_rotary
from posenc.pretrained.models import model_structure
from posenc.pretrained.rope_config import NAMED, hf_config, hf_rope_parameters
from references.small_models import METHODS, TRAINED, small_model, tokens

FORMS = Path(__file__).parents[2] / "benchmarks" / "written_forms.json"


def agreeing(answers):
    return {each.program for each in answers if each.agrees}


@pytest.mark.parametrize("model_type", ["llama", "qwen2", "cohere", "gemma3_text", "gpt_neox"])
def test_no_other_exact_form_is_computed_by_more_programs(model_type):
    model = small_model(model_type)
    structure = model_structure(model)
    for method in METHODS:
        rotations = plan_rotary(model, method, 4, None, {}).design.rotations
        wanted = {kind: each.frequencies() for kind, each in rotations.items()}
        made = {kind: each.schedule for kind, each in rotations.items()}
        counts = []
        for kinds in (NAMED, *([kind] for kind in NAMED), ()):
            parameters = hf_rope_parameters(structure, wanted, 4 * TRAINED, kinds, made)
            if kinds is NAMED:
                parameters = hf_config(structure, wanted, 4 * TRAINED, made).rope_parameters
            fields = json.loads(model.config.to_json_string(use_diff=False)) | {
                "rope_parameters": parameters, "max_position_embeddings": 4 * TRAINED,
            }  # fmt: skip
            found = agreeing(agreement(ConfigFile("config.json", fields), wanted, 4 * TRAINED))
            if "transformers 5" in found or not counts:
                counts.append(len(found))
        assert counts[0] == max(counts), method


@pytest.mark.parametrize("method", ["yarn:beta_fast=4:beta_slow=0.1", "llama3:high_freq_factor=8"])
@pytest.mark.parametrize("model_type", ["llama", "deepseek_v3"])
def test_the_options_of_a_schedule_are_written(model_type, method, tmp_path):
    """As yarn and llama3, which more programs compute than longrope, with equal logits in plain transformers."""
    model = small_model(model_type)
    posenc.extend(model, method, factor=4)
    parameters = posenc.to_hf(model, tmp_path / "model").rope_parameters
    name, *options = method.split(":")
    assert parameters["rope_type"] == name
    assert parameters.items() >= {key: float(value) for key, value in (each.split("=") for each in options)}.items()
    plain = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "model").eval()
    with torch.no_grad():
        ids = tokens(1, 200)
        assert (plain(ids).logits - model(ids).logits).abs().max() < 1e-3


def test_the_report_names_who_agrees_who_differs_and_who_is_not_known(tmp_path):
    model = small_model("llama")
    posenc.extend(model, "ntk_mixed", factor=4)
    text = str(posenc.to_hf(model, tmp_path / "a"))
    assert "the same positions in transformers 5 (run)\n" in text
    assert "by posenc's rules of them the same positions in vLLM and SGLang" in text
    assert "llama.cpp differs: schedule default, not longrope" in text
    model = small_model("deepseek_v3")
    posenc.extend(model, "yarn", factor=4)
    assert "not known for vLLM: posenc does not have its rules" in str(posenc.to_hf(model, tmp_path / "b"))


def test_the_measured_forms_are_what_the_report_says():
    """Of benchmarks/written_forms.py: a program that was run computes the same exactly where the rules say that it does."""
    forms = json.loads(FORMS.read_text())["forms"]
    assert {"transformers 5", "llama.cpp"} <= {program for row in forms for program in row["off"]}
    for row in forms:
        small = 2e-3 * row["deviation"]
        assert row["off"]["transformers 5"] < small, row["name"]
        assert row["off"].get("llama.cpp", 0) < 5e-3, row["name"]
        assert ("llama.cpp" in row["off"]) != ("no_gguf" in row)


def test_the_page_has_the_measured_numbers():
    measured = json.loads(FORMS.read_text())
    forms, versions = measured["forms"], measured["versions"]

    def largest(program, agreeing_alone=True):
        rows = [row for row in forms if program in row["off"] and (program in row["agree"] or not agreeing_alone)]
        return f"{len(rows)} of them in {program} ({versions.get(program, versions['xllamacpp'])}): {max(row['off'][program] for row in rows):.0e}"

    page = (FORMS.parents[1] / "docs" / "export.md").read_text()
    assert f"{len(forms)} forms of tiny models" in page
    assert largest("transformers 5") in page
    assert largest("llama.cpp", agreeing_alone=False) in page
