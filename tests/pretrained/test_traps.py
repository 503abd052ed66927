"""doctor finds each fault of 2025 and 2026 where it is set, and its remedy mends it."""

import math

import pytest
import torch
import transformers
from torch import nn
from transformers import (
    CONFIG_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    initialization,
)

from posenc.pretrained import multimodal
from posenc.pretrained.doctor import doctor
from posenc.pretrained.findings import FINDINGS
from references.small_models import small_model

REBUILD = FINDINGS["config_not_applied"].remedy.partition(": ")[2]
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


def fill(model, value):
    """Memory as to_empty may leave it."""
    for name in ("inv_freq", "original_inv_freq"):
        buffer = getattr(model.base_model.rotary_emb, name)
        buffer.copy_(torch.as_tensor(value).expand_as(buffer))


GARBAGE = {
    "8 of 8 frequencies are 0": 0.0,
    "8 of 8 frequencies are not finite": math.nan,
    "8 of 8 frequencies are negative": -1e-38,
    "4 of 8 frequencies are above the one before": [0.1, 0.3] * 4,
}


@pytest.mark.parametrize(("evidence", "value"), GARBAGE.items())
def test_memory_that_nobody_wrote(llama, evidence, value):
    fill(llama, value)
    assert found(llama, "frequencies_uninitialised").evidence == f"inv_freq: {evidence}"
    exec(REBUILD, {"model": llama})
    assert names(llama) == []


@pytest.mark.parametrize("parameters", [{"rope_type": "default"}, {"rope_type": "dynamic", "factor": 2.0}])
def test_to_empty_and_the_weights(parameters):
    """torchtitan's and axolotl's way: built on meta, allocated, filled from a checkpoint."""
    loaded = small_model("llama", rope_parameters=parameters | {"rope_theta": 1e4})
    before = names(loaded)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(loaded.config).eval()
    model.to_empty(device="cpu").load_state_dict(loaded.state_dict())
    fill(model, 0.0)  # what the allocator gives is chance
    assert "frequencies_uninitialised" in names(model)
    exec(REBUILD, {"model": model})
    assert names(model) == before


class Turn(nn.Module):
    """A rotary module that transformers does not know by its name: from_pretrained leaves its buffer as allocated."""

    def __init__(self, config):
        super().__init__()
        inv_freq = 1 / config.rope_parameters["rope_theta"] ** (torch.arange(0, 16, 2).float() / 16)
        self.register_buffer("inv_freq", inv_freq, persistent=False)

    def forward(self, x, position_ids):
        angles = position_ids[..., None] * self.inv_freq
        return torch.cat((angles, angles), -1).cos(), torch.cat((angles, angles), -1).sin()


class Custom(transformers.LlamaForCausalLM):
    def __init__(self, config):
        super().__init__(config)
        self.model.rotary_emb = Turn(config)


class Decoder(transformers.LlamaModel):
    def _init_weights(self, module):
        super()._init_weights(module)
        if isinstance(module, Turn):
            initialization.copy_(module.inv_freq, Turn(self.config).inv_freq)


class Mended(Custom):
    def __init__(self, config):
        super().__init__(config)
        self.model = Decoder(config)
        self.model.rotary_emb = Turn(config)

    _init_weights = Decoder._init_weights


def test_a_rotary_module_that_from_pretrained_does_not_restore(llama, tmp_path):
    llama.save_pretrained(tmp_path)
    with torch.device("cpu"):
        model = Custom.from_pretrained(tmp_path).eval()
    assert "frequencies_not_restored" in names(model)
    fill_turn = model.model.rotary_emb.inv_freq
    fill_turn.fill_(7e-41)
    fill_turn[3] = 9e4
    exec(REBUILD, {"model": model})
    finding = found(model, "frequencies_not_restored")
    assert finding.evidence == "Turn: inv_freq stay as they are allocated"
    assert names(model) == ["frequencies_not_restored"]
    mended = Mended.from_pretrained(tmp_path).eval()
    assert names(mended) == []
    ids = torch.arange(20)[None]
    torch.testing.assert_close(mended(ids).logits, llama(ids).logits)


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
    model = latent("deepseek_v3", mscale_all_dim=0.0, mscale=0.0)
    model.model.layers[1].self_attn.scaling *= 1.1
    assert found(model, "softmax_scale_differs").measured == pytest.approx(1.1)


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


def test_pairs_that_follow_another_axis(monkeypatch):
    model = with_images("qwen2_vl")
    rotary = model.model.language_model.rotary_emb
    right = type(rotary).forward
    swapped = lambda self, x, ids: right(self, x, ids[[0, 2, 1]] if ids.dim() == 3 and len(ids) == 3 else ids)  # noqa: E731
    monkeypatch.setattr(type(rotary), "forward", swapped)
    finding = found(model, "axes_differ")
    assert finding.evidence == "6 of 8 pairs follow the height where mrope_section=[2, 3, 3] says otherwise"
    monkeypatch.undo()
    assert names(model) == ["packing_leaks"]


def test_sections_of_another_model():
    model = with_images("qwen2_vl")
    parameters = model.model.language_model.config.rope_parameters
    parameters["mrope_section"] = [1, 2, 2]
    assert "add up to head_dim/2 = 8" in found(model, "axes_differ").evidence
    with_images_of_3 = with_images("qwen2_5_vl")
    with_images_of_3.model.language_model.config.rope_parameters["mrope_section"] = [1, 1, 1]
    assert "add up to" in found(with_images_of_3, "axes_differ").evidence
    parameters["mrope_section"] = [3, 3, 2]
    assert "1 of 8 pairs follow the time where mrope_section=[3, 3, 2]" in found(model, "axes_differ").evidence
    exec(REBUILD, {"model": model})
    assert names(model) == ["packing_leaks"]


def test_rows_and_columns_of_an_image_exchanged(monkeypatch):
    """As in torchtitan#4239: a square image hides it."""
    model = with_images("qwen2_vl")
    right = type(model.model).get_rope_index

    def swapped(self, *given, **named):
        ids, delta = right(self, *given, **named)
        return ids[[0, 2, 1]], delta

    monkeypatch.setattr(type(model.model), "get_rope_index", swapped)
    finding = found(model, "image_positions_differ")
    assert "in height, width" in finding.evidence
    assert finding.measured == 2
    # the remedy: positions by posenc
    types = torch.tensor([[0, 0, 1, 1, 1, 1, 1, 1, 0, 0]])
    ids = torch.where(types > 0, 90, 5)
    ours = multimodal(
        ids, rule="qwen2_vl", image_token_id=90, image_grid_thw=[[1, 4, 6]], spatial_merge_size=2
    ).k.permute(2, 0, 1)
    grid = torch.tensor([[1, 4, 6]])
    theirs = right(model.model, input_ids=ids, mm_token_type_ids=types, image_grid_thw=grid)[0]
    assert torch.equal(ours, theirs)


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


# -------------------------------------------------------------------- compiled


def rounds_when_compiled(rotary):
    """A cast that the compiler moves, as in torchtitan#2575."""
    plain = rotary.forward

    def forward(x, position_ids):
        cos, sin = plain(x, position_ids)
        return (cos.bfloat16().float(), sin.bfloat16().float()) if torch.compiler.is_compiling() else (cos, sin)

    rotary.forward = forward


@pytest.mark.parametrize("in_place", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_compiled_pass_that_differs(in_place):
    model = small_model("llama", num_hidden_layers=1)
    rounds_when_compiled(model.model.rotary_emb)
    assert names(model) == []

    def compiled():
        torch._dynamo.reset()
        if not in_place:
            return torch.compile(model, backend="eager")
        model.compile(backend="eager")
        return model

    finding = found(compiled(), "compiled_differs")
    assert finding.severity == "wrong"
    assert finding.measured > 1e-3
    assert (model._compiled_call_impl is not None) == in_place
    exec(finding.remedy.partition(": ")[2], {"model": model, "torch": torch})
    assert names(compiled()) == []


def test_no_alarm_at_a_compiled_model():
    assert names(torch.compile(small_model("llama", num_hidden_layers=1), backend="aot_eager")) == []
