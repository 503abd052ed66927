"""convert_layout: exact on tensors, and equal outputs from models that rotate in the two layouts."""

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close
from transformers.modeling_gguf_pytorch_utils import LlamaTensorProcessor
from transformers.models.qwen3.modeling_qwen3 import Qwen3Attention, Qwen3RotaryEmbedding

import posenc
from posenc import InputError, Positions, convert_layout, functional
from references.calls import merge, split

LAYOUTS = [("half", "interleaved"), ("interleaved", "half")]
EXACT = {"rtol": 1e-10, "atol": 1e-11}
FLOAT32 = {"rtol": 1e-5, "atol": 1e-5}


def randomised(module: torch.nn.Module) -> torch.nn.Module:
    """With every parameter drawn anew: transformers starts biases at 0 and norms at 1, where their order is not seen."""
    torch.manual_seed(0)
    for parameter in module.parameters():
        parameter.data.normal_(0.5 if parameter.dim() == 1 else 0, 0.3)
    return module.eval()


def test_the_permutation_is_the_known_one():
    # evens then odds: what transformers' conversion of Meta's Llama weights does, and its inverse
    assert functional.layout_permutation(8, source="interleaved", target="half").tolist() == [0, 2, 4, 6, 1, 3, 5, 7]
    assert functional.layout_permutation(8, source="half", target="interleaved").tolist() == [0, 4, 1, 5, 2, 6, 3, 7]
    weight = torch.arange(12.0).view(12, 1)
    converted = convert_layout(weight, 6, source="half", target="interleaved", rotary_dim=4)
    assert converted.flatten().tolist() == [0, 2, 1, 3, 4, 5, 6, 8, 7, 9, 10, 11], "head by head, the rest in place"
    converted = convert_layout(weight, 6, source="half", target="interleaved", rotary_dim=4, rotary_start=2)
    assert converted.flatten().tolist() == [0, 1, 2, 4, 3, 5, 6, 7, 8, 10, 9, 11]
    assert torch.equal(convert_layout(weight, 6, source="half", target="interleaved", rotary_start=2), converted), (
        "all the rest"
    )


@st.composite
def heads(draw):
    """(query heads, key heads, head_dim, rotary_dim) of grouped-query and partially rotated attention."""
    kv_heads, group, pairs = draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.integers(1, 6))
    return kv_heads * group, kv_heads, 2 * pairs + draw(st.integers(0, 3)) * 2, 2 * pairs


@pytest.mark.parametrize(("source", "target"), LAYOUTS)
@given(shape=heads(), seed=st.integers(0, 2**16))
def test_the_target_layout_gives_the_scores_of_the_source(source, target, shape, seed):
    num_heads, kv_heads, head_dim, rotary_dim = shape
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(2, 7, 5, generator=draw, dtype=torch.float64)
    weights = [torch.randn(h * head_dim, 5, generator=draw, dtype=torch.float64) for h in (num_heads, kv_heads)]
    biases = [torch.randn(h * head_dim, generator=draw, dtype=torch.float64) for h in (num_heads, kv_heads)]
    positions = Positions.from_ids(torch.randint(0, 5000, (2, 7), generator=draw))

    def scores(layout: str, q_weight: Tensor, k_weight: Tensor, q_bias: Tensor, k_bias: Tensor) -> Tensor:
        q, k = split(x @ q_weight.T + q_bias, head_dim), split(x @ k_weight.T + k_bias, head_dim)
        q, k = posenc.Rotary(head_dim, layout=layout, rotary_dim=rotary_dim).rotate(q, k, positions)
        return q @ k.repeat_interleave(num_heads // kv_heads, 1).mT

    converted = [
        convert_layout(w, head_dim, source=source, target=target, rotary_dim=rotary_dim) for w in weights + biases
    ]
    want = scores(source, *weights, *biases)
    assert_close(scores(target, *converted), want, **EXACT)
    if rotary_dim > 2:  # a single pair is the same in both
        assert (scores(target, *weights, *biases) - want).abs().max() > 1e-3, "unconverted weights give other scores"
    back = [convert_layout(w, head_dim, source=target, target=source, rotary_dim=rotary_dim) for w in converted]
    assert all(torch.equal(a, b) for a, b in zip(back, weights + biases, strict=True))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float8_e4m3fn])
def test_dtype_and_every_bit_are_preserved(dtype):
    weight = torch.randn(24, 5).mul(40).to(dtype)
    there = convert_layout(weight, 12, source="half", target="interleaved", rotary_dim=8)
    back = convert_layout(there, 12, source="interleaved", target="half", rotary_dim=8)
    assert there.dtype == dtype
    assert not torch.equal(there.view(torch.uint8), weight.view(torch.uint8))
    assert torch.equal(back.view(torch.uint8), weight.view(torch.uint8))
    assert torch.equal(
        convert_layout(weight, 12, source="half", target="half").view(torch.uint8), weight.view(torch.uint8)
    )


def test_weights_stay_on_their_device():
    converted = convert_layout(torch.empty(64, 16, device="meta"), 32, source="half", target="interleaved")
    assert converted.is_meta
    assert converted.shape == (64, 16)
    weight = torch.randn(64, 16)
    with torch.device("meta"):
        converted = convert_layout(weight, 32, source="half", target="interleaved")
    assert torch.equal(converted, convert_layout(weight, 32, source="half", target="interleaved")), (
        "the default device is no matter"
    )


def test_heads_may_be_a_separate_axis():
    weight = torch.randn(3, 8, 5)  # (heads, head_dim, dim)
    converted = convert_layout(weight, 8, source="half", target="interleaved", axis=1)
    assert torch.equal(
        converted.flatten(0, 1), convert_layout(weight.flatten(0, 1), 8, source="half", target="interleaved")
    )


def test_gradients_return_to_the_channels_they_came_from():
    weight = torch.randn(24, 5, dtype=torch.float64, requires_grad=True)
    wanted = torch.randn(24, 5, dtype=torch.float64)
    (convert_layout(weight, 12, source="half", target="interleaved", rotary_dim=8) * wanted).sum().backward()
    assert torch.equal(weight.grad, convert_layout(wanted, 12, source="interleaved", target="half", rotary_dim=8))


def test_a_cache_of_rotated_keys_is_converted_along_its_last_axis():
    k, positions = torch.randn(2, 3, 40, 16, dtype=torch.float64), Positions.arange(40)
    half = posenc.Rotary(16, layout="half").rotate(k, k, positions)[1]
    unrotated = convert_layout(k, 16, source="half", target="interleaved", axis=-1)
    interleaved = posenc.Rotary(16, layout="interleaved").rotate(unrotated, unrotated, positions)[1]
    assert_close(convert_layout(half, 16, source="half", target="interleaved", axis=-1), interleaved, rtol=0, atol=0)


@pytest.mark.parametrize(("num_heads", "kv_heads"), [(6, 6), (6, 2)])
def test_interleaved_to_half_is_what_transformers_does_to_gguf_files(num_heads, kv_heads):
    theirs = LlamaTensorProcessor({"num_attention_heads": num_heads, "num_key_value_heads": kv_heads})
    for name, count in [("q", num_heads), ("k", kv_heads)]:
        weight = np.random.default_rng(0).normal(size=(count * 10, 7))
        want = theirs.process(weight, f"blk.0.attn_{name}.weight").weights
        ours = convert_layout(torch.from_numpy(weight), 10, source="interleaved", target="half")
        assert np.array_equal(ours.numpy(), want)


SMALL = {
    "vocab_size": 50, "hidden_size": 60, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 6,
    "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 256, "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
}  # fmt: skip


def converted(state: dict[str, Tensor], head_dim: int, *names: str, **options) -> dict[str, Tensor]:
    """A state dict, in which the weights of some modules are converted."""
    return {
        name: convert_layout(weight, head_dim, **options) if name.split(".")[-2] in names else weight
        for name, weight in state.items()
    }


def logits(cls: type, config: transformers.PreTrainedConfig, state: dict[str, Tensor]) -> Tensor:
    model = cls(config).eval()
    model.load_state_dict(state)
    tokens = torch.arange(200).mul(7).remainder(50).view(2, 100)
    with torch.no_grad():
        return model(tokens).logits


def test_llama_converted_is_ernie():
    """transformers' Ernie 4.5 is its Llama with interleaved rotation: two implementations that are not ours."""
    llama = transformers.LlamaConfig(**SMALL, attention_bias=True, mlp_bias=True)
    ernie = transformers.Ernie4_5Config(**SMALL, use_bias=True)
    half = randomised(transformers.LlamaForCausalLM(llama)).state_dict()
    interleaved = converted(half, 16, "q_proj", "k_proj", source="half", target="interleaved")
    want = logits(transformers.LlamaForCausalLM, llama, half)
    assert_close(logits(transformers.Ernie4_5ForCausalLM, ernie, interleaved), want, **FLOAT32)
    assert (logits(transformers.Ernie4_5ForCausalLM, ernie, half) - want).abs().max() > 0.5, "unconverted"


def test_deepseek_runs_in_either_layout():
    """transformers' DeepSeek-V3 rotates the last channels of each query head and of the one shared key, in the layout
    that its configuration names."""
    nope, rope, rank = 8, 12, 20
    shape = SMALL | {"num_key_value_heads": 6, "head_dim": rope}
    configs = [
        transformers.DeepseekV3Config(
            **shape, kv_lora_rank=rank, q_lora_rank=24, qk_rope_head_dim=rope, qk_nope_head_dim=nope, v_head_dim=8,
            first_k_dense_replace=2, num_mtp_layers=0, rope_interleave=interleave,
        )
        for interleave in (True, False)
    ]  # fmt: skip
    interleaved = randomised(transformers.DeepseekV3ForCausalLM(configs[0])).state_dict()
    half = dict(interleaved)
    for name, unrotated in [("q_b_proj", nope), ("kv_a_proj_with_mqa", rank)]:
        half = converted(half, unrotated + rope, name, source="interleaved", target="half", rotary_start=unrotated)
    want = logits(transformers.DeepseekV3ForCausalLM, configs[0], interleaved)
    assert_close(logits(transformers.DeepseekV3ForCausalLM, configs[1], half), want, **FLOAT32)
    assert (logits(transformers.DeepseekV3ForCausalLM, configs[1], interleaved) - want).abs().max() > 0.5


def test_norms_of_queries_and_keys_are_qwen3():
    """Qwen3: half, a norm with weights over the channels of each head."""
    config = transformers.Qwen3Config(**SMALL, attn_implementation="eager")
    module, x = randomised(Qwen3Attention(config, layer_idx=0)), torch.randn(2, 50, 60)
    tables, unseen = Qwen3RotaryEmbedding(config)(x, torch.arange(50)[None]), torch.full((50, 50), -torch.inf).triu(1)
    theirs, half = module(x, tables, unseen)[0], {name: w.clone() for name, w in module.state_dict().items()}

    def ours(*names: str) -> Tensor:
        module.load_state_dict(converted(half, 16, *names, source="half", target="interleaved"))
        q, k, v = (split(p(x), 16) for p in (module.q_proj, module.k_proj, module.v_proj))
        encoding = posenc.Rotary(16, layout="interleaved")
        return module.o_proj(merge(posenc.attention(module.q_norm(q), module.k_norm(k), v, encoding, causal=True)))

    assert_close(ours("q_proj", "k_proj", "q_norm", "k_norm"), theirs, **FLOAT32)
    assert (ours("q_proj", "k_proj") - theirs).abs().max() > 0.05


WEIGHT = torch.zeros(24, 5)


@pytest.mark.parametrize(
    ("weights", "arguments", "message"),
    [
        (WEIGHT, (7,), "head_dim=7: .* must be even"),
        (WEIGHT, (16,), r"weight of shape \(24, 5\): its 24 channels along axis 0 are no multiple of head_dim=16"),
        (WEIGHT[:0], (8,), "its 0 channels"),
        (WEIGHT, (8, "halves"), "unknown source 'halves': did you mean 'half'"),
        (WEIGHT, (8, "half", "gptj"), "unknown target 'gptj': known are half, interleaved"),
        (WEIGHT, (8, "half", "interleaved", {"rotary_dim": 3}), "rotary_dim=3: .* must be even"),
        (WEIGHT, (8, "half", "interleaved", {"rotary_dim": 0}), "rotary_dim=0"),
        (WEIGHT, (8, "half", "interleaved", {"rotary_dim": 10}), "rotary_dim=10, .* within head_dim=8"),
        (WEIGHT, (8, "half", "interleaved", {"rotary_dim": 4, "rotary_start": 6}), "rotary_start=6: .* head_dim=8"),
        (WEIGHT, (8, "half", "interleaved", {"rotary_start": -2}), "rotary_start=-2"),
        (WEIGHT, (8, "half", "interleaved", {"rotary_start": 3}), "head_dim - rotary_start=5: .* must be even"),
        ({"q_proj.weight": WEIGHT}, (8,), "weight=.*convert the weights of queries and keys one by one"),
        (WEIGHT.int(), (8,), "weight is torch.int32, as quantised weights are: convert before quantising"),
        (torch.zeros(8, 8, 5), (8,), r"axis=0: weight has shape \(8, 8, 5\): pass the axis of the channels, 1 of"),
        (torch.zeros(8, 8, 5), (8, "half", "interleaved", {"axis": -3}), "axis=-3: .* pass the axis of the channels"),
        (WEIGHT, (8, "half", "interleaved", {"axis": 5}), "axis=5: must be at most 1"),
        (torch.tensor(1.0), (8,), "weight=a tensor"),
    ],
)
def test_bad_input_is_refused(weights, arguments, message):
    head_dim, source, target, options = (*arguments, *(None, "half", "interleaved", {})[len(arguments) :])
    with pytest.raises(InputError, match=message):
        convert_layout(weights, head_dim, source=source, target=target, **options)
