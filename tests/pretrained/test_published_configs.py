"""Position fields of published configurations: config-only computes what each states, by an independent formula, and doctor says
nothing that is false. references/published_configs.json has where the fields were read."""

import json
from pathlib import Path

import pytest
import torch

from posenc import InputError
from posenc.pretrained.readers import ConfigFile, compare
from posenc.testing.oracles.schedules import linear

ROOT = Path(__file__).parents[2]
ENTRIES = {
    name: entry
    for file in ("tests/references/published_configs.json", "benchmarks/published_configs.json")
    for name, entry in json.loads((ROOT / file).read_text(encoding="utf-8")).items()
}
PUBLISHED = {name: entry["fields"] for name, entry in ENTRIES.items()}
FINDINGS = {
    "vicuna-7b-v1.5-16k": {"longer_length_stated"}, "Command-R": {"longer_length_stated"},
    "DeepSeek-R1-0528-Qwen3-8B": {"parameter_ignored"},
    "Qwen2 7B with YaRN 4": {"length_not_declared"},  # as its page says to write it, with max_position_embeddings unchanged
}  # fmt: skip
"""What is to be said of them; of all others nothing."""
DIFFER = {
    "mlc-llm, stablelm": {"SGLang"}, "stablelm-2-zephyr-1_6b": {"SGLang"}, "StableLM 2 1.6B": {"SGLang"},
    "stabilityai/stable-code-3b": {"SGLang"},
    **{key: {"llama.cpp"} for key in ("gpt-oss 20B", "openai/gpt-oss-20b", "openai/gpt-oss-120b")},
}  # fmt: skip
"""Programs that differ from the others, as benchmarks/six_programs.md has them; with yarn's attention factors below."""


REFUSED = {
    **dict.fromkeys(("mimo", "kimi_k2", "nemotron-nas"), "unknown model type"),  # which transformers 5.23 does not have
    **dict.fromkeys(("kimi_k3", "nemotron_h"), "none of its layers rotates"),
    "hunyuan_v1_dense": "its rotary module reads alpha",
}
"""Model types of which nothing is compared -> why."""


@pytest.mark.parametrize("name", [name for name, fields in PUBLISHED.items() if fields["model_type"] in REFUSED])
def test_a_type_of_which_nothing_is_known_is_a_line(name):
    with pytest.raises(InputError, match=REFUSED[PUBLISHED[name]["model_type"]]):
        compare(ConfigFile(name, PUBLISHED[name]))


@pytest.mark.parametrize("name", [name for name, fields in PUBLISHED.items() if fields["model_type"] not in REFUSED])
def test_nothing_false_is_said(name):
    comparison = compare(ConfigFile(name, PUBLISHED[name]))
    assert {finding.name for finding in comparison.findings} == FINDINGS.get(name, set())
    assert not any(finding.severity == "wrong" for finding in comparison.findings)
    parted = {sentence.split(" differs")[0] for sentence in comparison.apart()}
    if name != "DeepSeek-R1-0528-Qwen3-8B":  # SGLang multiplies by attn_factor, others do not
        assert parted == DIFFER.get(name, set())
    assert comparison.readings[0].program == "transformers 5"


def stated(fields):
    """Base, rotated channels and table of a configuration with one plain or linear rotation; None: another."""
    if fields["model_type"] in REFUSED:
        return None
    fields = fields.get("text_config", fields)
    table = fields.get("rope_parameters") or fields.get("rope_scaling") or {}
    kind = table.get("rope_type", table.get("type", "default"))
    base = fields.get("rope_theta", fields.get("rotary_emb_base", table.get("rope_theta")))
    if kind not in ("default", "linear") or base is None or "sliding_window_pattern" in fields:
        return None
    if fields.get("model_type") == "gemma3_text" or "qk_rope_head_dim" in fields:  # two bases; a width of its own
        return None
    width = fields.get("head_dim") or fields["hidden_size"] // fields["num_attention_heads"]
    part = fields.get("partial_rotary_factor", fields.get("rotary_pct", table.get("partial_rotary_factor", 1.0)))
    return base, fields.get("rotary_dim", int(width * part)), table.get("factor", 1.0)


@pytest.mark.parametrize("name", [name for name, fields in PUBLISHED.items() if stated(fields)])
def test_the_frequencies_are_those_that_are_stated(name):
    base, width, factor = stated(PUBLISHED[name])
    wanted = torch.tensor(linear(width, base, factor), dtype=torch.float64)
    reading = compare(ConfigFile(name, PUBLISHED[name])).readings[0]
    assert (reading.base, reading.rotary_dim, reading.attention_factor) == (base, width, 1.0)
    torch.testing.assert_close(reading.inv_freq, wanted, rtol=1e-5, atol=0)


def test_there_are_enough():
    """And no two have the same fields."""
    assert len({json.dumps(fields, sort_keys=True) for fields in PUBLISHED.values()}) >= 190
    assert len({ConfigFile(name, fields).model_type for name, fields in PUBLISHED.items()}) >= 40
    assert sum(stated(fields) is not None for fields in PUBLISHED.values()) >= 120
    assert all(entry["read_in"] for entry in ENTRIES.values())
