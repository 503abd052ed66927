"""1-D rotations beyond RoPE: p-RoPE, decoupled RoPE of latent attention, xPos, bases per layer."""

from importlib import import_module

import pytest
import torch
import transformers
from rotary_embedding_torch import RotaryEmbedding
from torch import Tensor
from torch.testing import assert_close
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from x_transformers.x_transformers import RotaryEmbedding as XRotary
from x_transformers.x_transformers import apply_rotary_pos_emb

import posenc
from posenc import DecoupledRotary, InputError, NoPE, PerLayer, Positions, PRotary, Rotary, XPos, frequencies
from posenc.testing.oracles import rotations, schedules

deepseek_v3, gemma3, smollm3 = (
    import_module(f"transformers.models.{name}.modeling_{name}") for name in ("deepseek_v3", "gemma3", "smollm3")
)
EXACT = {"rtol": 1e-10, "atol": 1e-11}
LAYOUTS = pytest.mark.parametrize("layout", ["half", "interleaved"])
BASES = pytest.mark.parametrize("base", [10000.0, 500000.0, 7.0])


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def scores(encoding: posenc.Encoding, q: Tensor, k: Tensor, positions: Positions) -> Tensor:
    q, k = encoding.rotate(q, k, positions)
    return q @ k.repeat_interleave(q.shape[1] // k.shape[1], 1).mT


def products(q: Tensor, k: Tensor, frequencies: Tensor, layout: str, start: int = 0) -> Tensor:
    """Of queries at 5, 6, .. and keys at 0, 1, .., turned from channel start on."""
    q, k = (
        rotations.turned(x, (first + torch.arange(x.shape[1]))[:, None] * frequencies, layout, start)
        for x, first in ((q, 5), (k, 0))
    )
    return q @ k.mT


def angles(positions: Tensor, dim: int, base: float) -> Tensor:
    """Tables as transformers' modules take them, in float64: (1, n, dim)."""
    each = rotations.angles(positions, dim, base)
    return torch.cat((each, each), -1)[None]


# ---------------------------------------------------------------- the formulas


@LAYOUTS
@BASES
@pytest.mark.parametrize("fraction", [0.0, 0.25, 0.7, 1.0])
def test_p_rope_is_its_formula(layout, base, fraction):
    q, k = random(3, 4, 12), random(1, 9, 12)
    expected = products(q, k, torch.tensor(schedules.proportional(12, base, fraction), dtype=torch.float64), layout)
    p = Positions.arange(4, 5)
    assert_close(
        scores(PRotary(12, rope_theta=base, layout=layout, fraction=fraction), q[None], k[None], p)[0],
        expected,
        **EXACT,
    )
    if fraction == 0.7:
        partial = Rotary(12, rope_theta=base, layout=layout, rotary_dim=2 * int(fraction * 6))
        assert (scores(partial, q[None], k[None], p)[0] - expected).abs().max() > 0.01, "partial rotary differs"


@LAYOUTS
@BASES
@pytest.mark.parametrize("rotary_dim", [None, 2, 8, 12])
def test_decoupled_rope_is_its_formula(layout, base, rotary_dim):
    q, k = random(3, 4, 12), random(3, 9, 12)
    turning = 4 if rotary_dim is None else rotary_dim  # a third of 12
    expected = products(q, k, rotations.frequencies(turning, base), layout, 12 - turning)
    encoding, p = DecoupledRotary(12, rope_theta=base, layout=layout, rotary_dim=rotary_dim), Positions.arange(4, 5)
    assert_close(scores(encoding, q[None], k[None], p)[0], expected, **EXACT)
    assert encoding.scale(12) == 12**-0.5
    if turning < 12:
        first = scores(Rotary(12, rope_theta=base, layout=layout, rotary_dim=turning), q[None], k[None], p)[0]
        assert (first - expected).abs().max() > 0.1, "rotating the first channels gives other scores"


@LAYOUTS
@BASES
@pytest.mark.parametrize(("gamma", "scale_base"), [(0.4, 512.0), (0.4, 4.0), (1.5, 10.0)])
def test_xpos_is_its_formula(layout, base, gamma, scale_base):
    q, k = random(2, 4, 10), random(1, 9, 10)
    sizes = torch.tensor(schedules.xpos(range(9), 10, scale_base, gamma=gamma), dtype=torch.float64)
    sizes = rotations.by_layout(layout, sizes, sizes)
    encoding = XPos(10, rope_theta=base, layout=layout, gamma=gamma, scale_base=scale_base)
    ours = scores(encoding, q[None], k[None], Positions.arange(4, 5))[0]
    expected = products(q * sizes[5:], k / sizes, rotations.frequencies(10, base), layout)
    assert_close(ours, expected, **EXACT)
    assert (
        scores(Rotary(10, rope_theta=base, layout=layout), q[None], k[None], Positions.arange(4, 5))[0] - expected
    ).abs().max() > 1e-3


# ---------------------------------------------------------------- p-RoPE and transformers


@BASES
@pytest.mark.parametrize("factor", [1.0, 8.0])
@pytest.mark.parametrize("fraction", [0.25, 0.5, 0.75, 1.0])
@pytest.mark.parametrize("head_dim", [16, 40, 256])
def test_proportional_frequencies_are_those_of_transformers(head_dim, fraction, factor, base):
    rope = {"rope_type": "proportional", "rope_theta": base, "partial_rotary_factor": fraction, "factor": factor}
    config = transformers.LlamaConfig(hidden_size=2 * head_dim, num_attention_heads=2, rope_parameters=rope)
    theirs, attention_factor = ROPE_INIT_FUNCTIONS["proportional"](config)
    ours = frequencies.proportional(head_dim, base=base, fraction=fraction, factor=factor)
    assert_close(ours.inv_freq.float(), theirs, rtol=2e-6, atol=0)
    assert ours.attention_factor == attention_factor == 1
    scaled = PRotary(head_dim, rope_theta=base, fraction=fraction).with_schedule("linear", factor=factor)
    assert torch.equal(scaled.inv_freq, ours.inv_freq)
    assert torch.equal(
        Rotary(head_dim, rope_theta=base).with_schedule("proportional", fraction=fraction, factor=factor).inv_freq,
        ours.inv_freq,
    )


@pytest.mark.parametrize(
    "encoding",
    [
        Rotary(12, rope_theta=500.0, layout="interleaved", rotary_dim=8), PRotary(12, rope_theta=500.0, layout="interleaved", fraction=0.5),
        DecoupledRotary(12, rope_theta=500.0, layout="half", rotary_dim=8), XPos(12, rope_theta=500.0, layout="half", rotary_dim=8, gamma=0.9, scale_base=33.0),
        posenc.MRotary(24, rope_theta=500.0, layout="interleaved", interleaved=True, sections=(4, 4, 4)),
    ],
    ids=lambda e: e.name,
)  # fmt: skip
def test_another_schedule_changes_only_the_frequencies(encoding):
    other = encoding.with_schedule("linear", factor=4.0)
    assert type(other) is type(encoding)
    assert other.spec() == encoding.spec() | {"schedule": {"name": "linear", "factor": 4.0}}
    table = "frequency" if encoding.name == "m_rope" else "inv_freq"
    assert_close(getattr(other, table) * 4, getattr(encoding, table), **EXACT)


@pytest.mark.parametrize(
    "name", [name for name in posenc.ENCODINGS if hasattr(posenc.ENCODINGS[name], "with_schedule")]
)
def test_another_schedule_leaves_what_was_learned_and_the_heads(name):
    encoding = posenc.create(name, head_dim=12, num_heads=4, num_layers=2).to(torch.bfloat16).eval()
    for parameter in encoding.parameters():
        torch.nn.init.normal_(parameter).requires_grad_(False)
    part = encoding.heads(slice(2, 4), num_heads=4)
    for before in (encoding, part):
        other = before.with_schedule("linear", factor=2.0)
        want, got = before.state_dict(), other.state_dict()
        assert want.keys() == got.keys()
        assert all(
            torch.equal(want[at], got[at]) and want[at].dtype == got[at].dtype for at, _ in before.named_parameters()
        )
        assert not any(x.requires_grad for x in other.parameters())
        assert not other.training
        if before is part:
            assert other.spec() == encoding.with_schedule("linear", factor=2.0).heads(slice(2, 4), num_heads=4).spec()
            with pytest.raises(InputError, match="query heads 2 to 3"):
                posenc.attention(*torch.randn(3, 1, 4, 5, 12), other)


# ---------------------------------------------------------------- latent attention


def latent_attention(heads: int, q_lora_rank: int | None):
    config = transformers.DeepseekV3Config(
        hidden_size=40, num_attention_heads=heads, num_key_value_heads=heads, q_lora_rank=q_lora_rank, kv_lora_rank=20,
        qk_nope_head_dim=16, qk_rope_head_dim=8, v_head_dim=12, attn_implementation="sdpa",
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
    )  # fmt: skip
    module = deepseek_v3.DeepseekV3Attention(config, layer_idx=0).double().eval()
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return module


@pytest.mark.parametrize(("heads", "q_lora_rank"), [(3, None), (4, 24)])
@pytest.mark.parametrize(("new", "cached"), [(30, 0), (5, 25), (1, 29)])
def test_decoupled_rope_is_deepseek_expanded_and_absorbed(new, cached, heads, q_lora_rank):
    module, x = latent_attention(heads, q_lora_rank), random(2, new + cached, 40)
    table = angles(torch.arange(new + cached), 8, 10000.0)
    mask = torch.zeros(30, 30, dtype=x.dtype).masked_fill(torch.ones(30, 30).triu(1).bool(), -torch.inf)[None, None]
    theirs = module(x, (table.cos(), table.sin()), mask)[0][:, cached:]

    last = x[:, cached:]
    q = module.q_proj(last) if q_lora_rank is None else module.q_b_proj(module.q_a_layernorm(module.q_a_proj(last)))
    q = q.unflatten(-1, (heads, 24)).transpose(1, 2)
    latent, k_rope = module.kv_a_proj_with_mqa(x)[:, None].split((20, 8), -1)
    latent = module.kv_a_layernorm(latent)
    up_k, up_v = module.kv_b_proj.weight.unflatten(0, (heads, 28)).split((16, 12), 1)
    p = Positions.arange(new, cached, causal=True)

    def out(heads_out: Tensor) -> Tensor:
        return module.o_proj(heads_out.transpose(1, 2).flatten(-2))

    k, v = (torch.einsum("hec,bnc->bhne", up, latent[:, 0]) for up in (up_k, up_v))
    k = torch.cat((k, k_rope.expand(-1, heads, -1, -1)), -1)
    expanded = posenc.attention(q, k, v, DecoupledRotary(24, rotary_dim=8), p)
    assert_close(out(expanded), theirs, **EXACT)

    content, turning = q.split((16, 8), -1)
    absorbed_q = torch.cat((torch.einsum("bhne,hec->bhnc", content, up_k), turning), -1)
    absorbed = posenc.attention(
        absorbed_q, torch.cat((latent, k_rope), -1), latent, DecoupledRotary(28, rotary_dim=8), p, scale=24**-0.5
    )
    absorbed = torch.einsum("bhnc,hec->bhne", absorbed, up_v)
    assert_close(absorbed, expanded, **EXACT)
    assert_close(out(absorbed), theirs, **EXACT)

    wrong = posenc.attention(q, k, v, DecoupledRotary(24, layout="half", rotary_dim=8), p)
    assert new == 1 or (out(wrong) - theirs).abs().max() > 1e-2, "the other layout gives other values"


def test_a_third_rotates_by_default_as_in_deepseek():
    config = transformers.DeepseekV3Config()
    widths = config.qk_rope_head_dim, config.qk_nope_head_dim
    assert DecoupledRotary(sum(widths)).rotary_dim == widths[0]
    assert config.rope_interleave == (DecoupledRotary(192).layout == "interleaved")
    assert [DecoupledRotary(d).rotary_dim for d in (2, 4, 10, 64)] == [2, 2, 2, 20]


# ---------------------------------------------------------------- xPos and other packages


def test_xpos_is_x_transformers():
    theirs = XRotary(32, use_xpos=True, base=65536)  # frequencies that float32 holds exactly
    q, k = torch.randn(2, 3, 200, 40), torch.randn(2, 3, 200, 40)
    table, scale = theirs.forward_from_seq_len(200)
    expected = apply_rotary_pos_emb(q, table, scale) @ apply_rotary_pos_emb(k, table, 1 / scale).mT
    ours = scores(XPos(40, rope_theta=65536.0, rotary_dim=32), q, k, Positions.arange(200))
    assert_close(ours, expected, rtol=0, atol=1e-4)
    other = scores(XPos(40, rope_theta=65536.0, layout="half", rotary_dim=32), q, k, Positions.arange(200))
    assert (other - expected).abs().max() > 1, "the other layout gives other values"
    upside_down = apply_rotary_pos_emb(q, table, 1 / scale) @ apply_rotary_pos_emb(k, table, scale).mT
    assert (upside_down - expected).abs().max() > 1, "scaling keys up and queries down gives other values"


def test_xpos_is_rotary_embedding_torch_whose_cached_pass_is_another():
    theirs = RotaryEmbedding(32, theta=65536, use_xpos=True)
    q, k, rope = torch.randn(1, 2, 120, 32), torch.randn(1, 2, 120, 32), XPos(32, rope_theta=65536.0)
    rotated = theirs.rotate_queries_and_keys(q, k)
    expected = rotated[0] @ rotated[1].mT
    assert_close(scores(rope, q, k, Positions.arange(120)), expected, rtol=0, atol=1e-4)
    # they centre queries and cached keys on different lengths (competitors' fault A2-2)
    step = theirs.rotate_queries_with_cached_keys(q[:, :, -3:], k)
    assert (step[0] @ step[1].mT - expected[:, :, -3:]).abs().max() > 0.1
    assert_close(scores(rope, q[:, :, -3:], k, Positions.arange(3, 117)), expected[:, :, -3:], rtol=0, atol=1e-4)


@pytest.mark.parametrize(("dtype", "span"), [(torch.float16, 9000), (torch.bfloat16, 72000), (torch.float32, 72000)])
def test_xpos_is_finite_or_says_that_its_factors_are_not(dtype, span):
    xpos, x = XPos(64), torch.tensor([1.0, 0.0] * 32, dtype=dtype).expand(1, 1, 2, 64)
    for kind in (int, float):
        q, k = xpos.rotate(x, x, Positions.from_ids([kind(0), kind(span)]))
        assert bool(q.isfinite().all() & k.isfinite().all())
        with pytest.raises(InputError, match=r"^XPos at \d+ positions from the middle"):
            xpos.rotate(x, x, Positions.from_ids([kind(0), kind(span + 1000)]))


# ---------------------------------------------------------------- layers that differ


def test_bases_per_layer_are_gemma3():
    config = transformers.Gemma3TextConfig(num_hidden_layers=12, head_dim=32)
    theirs = gemma3.Gemma3RotaryEmbedding(config)
    local, everywhere = (config.rope_parameters[kind]["rope_theta"] for kind in ("sliding_attention", "full_attention"))
    assert (local, everywhere) == (1e4, 1e6)
    pattern = "/".join(["rope"] * 5 + [f"rope:rope_theta={everywhere}"])
    ours, ids = posenc.create(pattern, head_dim=32), torch.arange(100)[None]
    q, k = torch.randn(2, 4, 100, 32), torch.randn(2, 1, 100, 32)
    for layer, kind in enumerate(config.layer_types):
        cos, sin = theirs(q, ids, kind)
        expected = gemma3.apply_rotary_pos_emb(q, k, cos, sin)
        assert_close(ours.rotate(q, k, Positions.arange(100), layer), expected, rtol=0, atol=1e-4)
        wrong = ours.rotate(q, k, Positions.arange(100), (layer + 1 if kind == "full_attention" else 5))
        assert (wrong[0] - expected[0]).abs().max() > 1, "the other base gives other values"


def test_layers_without_position_are_smollm3():
    config = transformers.SmolLM3Config(
        hidden_size=48, num_attention_heads=4, num_key_value_heads=2, num_hidden_layers=8, attn_implementation="sdpa",
        rope_parameters={"rope_type": "default", "rope_theta": 5e6}, use_sliding_window=False, pad_token_id=0,
    )  # fmt: skip
    rope = Rotary(12, rope_theta=5e6)
    ours, x = PerLayer(rope, rope, rope, NoPE()), random(2, 20, 48)
    table = angles(torch.arange(20), 12, 5e6)
    mask = torch.zeros(20, 20, dtype=x.dtype).masked_fill(torch.ones(20, 20).triu(1).bool(), -torch.inf)[None, None]
    for layer in range(8):
        module = smollm3.SmolLM3Attention(config, layer).double().eval()
        theirs = module(x, (table.cos(), table.sin()), mask)[0]
        q, k, v = (p(x).unflatten(-1, (-1, 12)).transpose(1, 2) for p in (module.q_proj, module.k_proj, module.v_proj))
        out = [
            module.o_proj(posenc.attention(q, k, v, ours, causal=True, layer=at).transpose(1, 2).flatten(-2))
            for at in (layer, layer + 1 if layer % 4 == 3 else 3)
        ]
        assert_close(out[0], theirs, **EXACT)
        assert (out[1] - theirs).abs().max() > 1e-6, "a layer of the other kind gives other values"


# ---------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PRotary(8, fraction=1.5), "fraction=1.5"),
        (lambda: frequencies.proportional(8, fraction=-0.1), "fraction=-0.1"),
        (lambda: PRotary(7), "head_dim=7"),
        (lambda: DecoupledRotary(8, rotary_dim=10), "rotary_dim=10: .*head_dim=8"),
        (lambda: DecoupledRotary(8, rotary_dim=3), "rotary_dim=3"),
        (lambda: XPos(8, gamma=0.0), "gamma=0.0"),
        (lambda: XPos(8, scale_base=-1.0), "scale_base=-1.0"),
        (lambda: XPos(8, layout="neox"), "unknown layout"),
    ],
)  # fmt: skip
def test_bad_input(make, message):
    with pytest.raises(InputError, match=message):
        make()
