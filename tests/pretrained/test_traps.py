"""doctor finds each fault of 2025 and 2026 where it is set, and its remedy mends it."""

import math

import pytest
import torch
from transformers import CONFIG_MAPPING, AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

from posenc.pretrained.doctor import doctor
from references.small_models import small_model

SHAPE = {
    "vocab_size": 97, "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "max_position_embeddings": 64, "initializer_range": 0.3, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
LATENT = {
    "num_key_value_heads": 4, "q_lora_rank": 32, "kv_lora_rank": 16, "qk_rope_head_dim": 16, "qk_nope_head_dim": 16,
    "v_head_dim": 16, "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "n_group": 1, "topk_group": 1,
}  # fmt: skip
YARN = {
    "rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 16, "mscale": 1.0,
    "mscale_all_dim": 1.0,
}  # fmt: skip


def latent(model_type, **changes):
    config = AutoConfig.for_model(model_type, **SHAPE, **LATENT, rope_parameters=YARN | changes)
    return AutoModelForCausalLM.from_config(config).eval()


def with_images(model_type, sections=None):
    rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": sections or ([4, 2, 2] if model_type == "qwen3_vl" else [2, 3, 3])}  # fmt: skip
    text = SHAPE | {"num_key_value_heads": 2, "head_dim": 16, "rope_parameters": rope}
    vision = {
        "depth": 1, "embed_dim": 32, "hidden_size": 64 if model_type == "qwen2_vl" else 32, "num_heads": 2,
        "out_hidden_size": 64, "intermediate_size": 32, "deepstack_visual_indexes": [0],
    }  # fmt: skip
    tokens = {"image_token_id": 90, "video_token_id": 91, "vision_start_token_id": 92, "vision_end_token_id": 93}
    config = CONFIG_MAPPING[model_type](text_config=text, vision_config=vision, **tokens)
    return AutoModelForImageTextToText.from_config(config).eval()


def names(model):
    return [finding.name for finding in doctor(model).findings]


def found(model, name):
    (finding,) = [finding for finding in doctor(model).findings if finding.name == name]
    return finding


# -------------------------------------------------------------------- latent attention


@pytest.mark.parametrize("model_type", ["deepseek_v2", "deepseek_v3"])
def test_the_softmax_factor_of_latent_attention(model_type):
    """transformers up to 5.10.4 left mscale_all_dim out of DeepSeek-V2 (huggingface/transformers#47435)."""
    model = latent(model_type)
    assert names(model) == []
    for layer in model.model.layers:
        layer.self_attn.scaling = 32**-0.5
    finding = found(model, "softmax_scale_differs")
    asked = 32**-0.5 * (0.1 * math.log(4) + 1) ** 2
    stated = f"layers 0, 1 of 2: scores are multiplied by {32**-0.5:.10g}, the configuration asks for {asked:.10g}; "
    assert finding.evidence.startswith(stated)
    assert finding.measured == pytest.approx((0.1 * math.log(4) + 1) ** -2)
    for layer in model.model.layers:
        layer.self_attn.scaling = float(finding.evidence.partition("asks for ")[2].partition(";")[0])
    assert names(model) == []


def test_without_mscale_all_dim_scores_have_no_factor():
    assert names(latent("deepseek_v3", mscale_all_dim=0.0, mscale=0.0)) == []


# -------------------------------------------------------------------- positions on three axes


@pytest.mark.parametrize("model_type", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl"])
def test_no_alarm_at_models_for_images(model_type):
    """Except: two of these models of transformers separate packed sequences only by a fourth row of position_ids."""
    assert names(with_images(model_type)) == ([] if model_type == "qwen3_vl" else ["packing_leaks"])


def test_text_whose_positions_depend_on_how_they_are_passed():
    model = with_images("qwen3_vl")

    def doubled(module, given, named):
        if named.get("position_ids") is None:
            named["position_ids"] = 2 * torch.arange(named["inputs_embeds"].shape[1]).expand(3, 1, -1)
        return given, named

    hook = model.model.language_model.register_forward_pre_hook(doubled, with_kwargs=True)
    assert names(model).count("text_positions_differ") == 2
    ids = torch.arange(3, 19)[None]
    with torch.no_grad():
        remedied = model(ids, position_ids=torch.arange(16)[None]).logits
        hook.remove()
        torch.testing.assert_close(remedied, model(ids).logits)
    assert names(model) == []


@pytest.mark.parametrize("model_type", ["qwen2_vl", "qwen3_vl"])
def test_positions_that_an_earlier_prompt_left(model_type):
    """After a prompt with an image, transformers counts on from it in the second call of a text without one."""
    model = with_images(model_type)
    before = names(model)
    types = torch.tensor([[0] * 3 + [1] * 6 + [0] * 2])
    ids = torch.where(types > 0, 90, 5)
    ids[0, 2] = 92
    vision = model.config.vision_config
    pixels = torch.randn(24, vision.in_channels * vision.temporal_patch_size * vision.patch_size**2)
    with torch.no_grad():
        model(ids, mm_token_type_ids=types, image_grid_thw=torch.tensor([[1, 4, 6]]), pixel_values=pixels)
    assert names(model) == ["positions_of_another_prompt", *before]
    remedy = found(model, "positions_of_another_prompt").remedy
    exec(remedy.partition(": ")[2].partition(";")[0], {"model": model})
    assert names(model) == before


@pytest.mark.parametrize("make", [lambda: small_model("gpt_oss"), lambda: with_images("qwen2_vl")])
def test_a_mask_that_separates_packed_texts(make):
    """The remedy for packing_leaks."""
    model = make()
    assert "packing_leaks" in names(model)
    ids = torch.arange(3, 19)[None]
    positions = torch.cat([torch.arange(6), torch.arange(10)])[None]
    document = torch.arange(16) >= 6
    allowed = (document[:, None] == document) & torch.ones(16, 16).tril().bool()
    mask = torch.zeros(1, 1, 16, 16).masked_fill(~allowed, torch.finfo(torch.float32).min)
    if model.config.model_type == "gpt_oss":  # windows: shorter than the text
        mask = {"full_attention": mask, "sliding_attention": mask}
    with torch.no_grad():
        packed = model(ids, position_ids=positions, attention_mask=mask, use_cache=False).logits[:, 6:]
        alone = model(ids[:, 6:], use_cache=False).logits
    torch.testing.assert_close(packed, alone, rtol=1e-4, atol=1e-4)


def test_no_alarm_at_a_compiled_model():
    assert names(torch.compile(small_model("llama", num_hidden_layers=1), backend="aot_eager")) == []
