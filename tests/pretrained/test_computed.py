"""doctor compares what each attention layer computes with the formula that the configuration declares, and names the mistake."""

import copy
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
import transformers
from transformers import AttentionInterface, AttentionMaskInterface

import posenc
from posenc.errors import InputError
from posenc.pretrained.doctor import doctor
from posenc.pretrained.families import FAMILIES
from posenc.pretrained.models import attention_layers, cache_name, decoder_of
from posenc.pretrained.probe import Computation
from references.small_models import DECODERS, HEALTHY, one_in_three, small_model


def layers_of(model):
    decoder = decoder_of(model)
    return attention_layers(decoder, FAMILIES[decoder.config.model_type])


def code_of(model):
    """The module of transformers with the attention of a model."""
    return sys.modules[type(layers_of(model)[0].module).__module__]


def one(model):
    (finding,) = doctor(model).findings
    return finding


def in_half_precision(model, dtype):
    """With its frequencies in float32, as from_pretrained leaves them."""
    tables = {name: x for name, x in model.named_buffers() if "inv_freq" in name}
    model.to(dtype)
    for name, x in tables.items():
        owner, _, last = name.rpartition(".")
        setattr(model.get_submodule(owner), last, x)
    return model


@pytest.mark.parametrize("model_type", one_in_three(DECODERS))
def test_every_layer_is_computed_or_named_as_unchecked(model_type):
    model = small_model(model_type)
    computed, count = doctor(model).model.computed, len(layers_of(model))
    assert computed.layers == count
    assert not computed.unchecked


@pytest.mark.parametrize("model_type", one_in_three(sorted(DECODERS)))
def test_another_scale_in_one_layer(model_type):
    model = small_model(model_type)
    layer = layers_of(model)[-1].module
    layer.scaling = 1.5 * layer.scaling
    finding = one(model)
    assert finding.name == "softmax_scale_differs"
    assert finding.measured == pytest.approx(1.5)
    assert "layer" in finding.evidence.partition(":")[0]
    assert f"scores are multiplied by {layer.scaling:.10g}, " in finding.evidence


# ------------------------------------------------------------------------------------------ mistakes of all kinds


def attend(module, query, key, value, attention_mask, scaling, *, repeat="groups", cap=None, sinks=None, **_):
    groups = query.shape[1] // key.shape[1]
    shared = (lambda x: x.repeat(1, groups, 1, 1)) if repeat == "turns" else (lambda x: x.repeat_interleave(groups, 1))
    scores = query @ shared(key).mT * scaling
    scores = scores if cap is None else cap * (scores / cap).tanh()
    return ((scores + attention_mask).softmax(-1) @ shared(value)).transpose(1, 2).contiguous(), None


def attending(model, name, function):
    AttentionInterface.register(name, function)
    AttentionMaskInterface.register(name, transformers.masking_utils.eager_mask)
    model.config._attn_implementation = name


def rotated(turn):
    """A mistake in transformers' code of a model type. turn(rotate, q, k, cos, sin) -> q, k, where `rotate` is its own function."""

    def mistake(model, monkeypatch):
        original = code_of(model).apply_rotary_pos_emb

        def mistaken(q, k, cos, sin, *rest, **named):
            return turn(lambda *given: original(*given, *rest, **named), q, k, cos, sin)

        monkeypatch.setattr(code_of(model), "apply_rotary_pos_emb", mistaken)

    return mistake


def one_ahead(rotate, q, k, cos, sin):
    turned, k = rotate(q, k, cos, sin)
    step = [table[:, 1:2].expand_as(table) for table in (cos, sin)]
    return rotate(turned, k, *step)[0], k


def other_pairs(rotate, q, k, cos, sin):
    """Interleaved pairs, each by its own angle."""
    order = torch.arange(q.shape[-1]).view(-1, 2).T.flatten()  # evens, then odds
    return tuple(x[..., order.argsort()] for x in rotate(q[..., order], k[..., order], cos, sin))


ROTATIONS = {  # f: the model's own rotation of queries and keys by cos and sin
    "nothing rotated": (lambda f, q, k, c, s: (q, k), "not_rotated", "nothing is rotated"),
    "rotated twice": (lambda f, q, k, c, s: f(*f(q, k, c, s), c, s), "rotated_twice", "queries and keys are rotated twice"),
    "keys not rotated": (lambda f, q, k, c, s: (f(q, k, c, s)[0], k), "rotated_alone", "queries are rotated and keys are not"),
    "queries not rotated": (lambda f, q, k, c, s: (q, f(q, k, c, s)[1]), "rotated_alone", "keys are rotated and queries are not"),
    "keys twice": (lambda f, q, k, c, s: (f(q, k, c, s)[0], f(q, f(q, k, c, s)[1], c, s)[1]), "rotated_twice", "keys are rotated twice"),
    "backwards": (lambda f, q, k, c, s: f(q, k, c, -s), "rotated_backwards", "queries and keys are rotated the other way round"),
    "queries backwards": (
        lambda f, q, k, c, s: (f(q, k, c, -s)[0], f(q, k, c, s)[1]), "rotated_backwards", "queries are rotated the other way round",
    ),
    "keys backwards": (
        lambda f, q, k, c, s: (f(q, k, c, s)[0], f(q, k, c, -s)[1]), "rotated_backwards", "keys are rotated the other way round",
    ),
    "one ahead": (one_ahead, "positions_shifted", "queries are one position ahead of their keys"),
    "rolled by one": (
        lambda f, q, k, c, s: f(q, k, c.roll(1, 1), s.roll(1, 1)), "positions_shifted", "the first token has the last position",
    ),
    "other pairs": (other_pairs, "wrong_pairs", "pairs are interleaved, and half in this model type"),
}  # fmt: skip


def edited(path, value):
    """A mistake in an attribute of a model, `value` of what it was."""

    def mistake(model, monkeypatch):
        *owners, name = path.split(".")
        owner = model
        for each in owners:
            owner = owner[int(each)] if each.isdigit() else getattr(owner, each)
        setattr(owner, name, value(getattr(owner, name)))

    return mistake


def attention_with(**named):
    return lambda model, _: attending(model, "mistaken", partial(attend, **named))


def base_in_the_code(model, monkeypatch):
    """A rotary module that does not read rope_theta."""
    kind = type(model.model.rotary_emb)
    original = kind.compute_default_rope_parameters

    def fixed(config, *given, **named):
        config = copy.deepcopy(config)
        config.rope_parameters["rope_theta"] = 5e5
        return original(config, *given, **named)

    monkeypatch.setattr(kind, "compute_default_rope_parameters", staticmethod(fixed))
    model.model.rotary_emb = kind(model.config)


def counted_from_one(model, _):
    """Without position_ids, what follows a cache is one position too far."""
    plain = model.model.forward

    def forward(input_ids, position_ids=None, **named):
        cache = named.get(cache_name())
        if position_ids is None and cache is not None and (past := cache.get_seq_length()):
            position_ids = torch.arange(past + 1, past + 1 + input_ids.shape[1])[None]
        return plain(input_ids=input_ids, position_ids=position_ids, **named)

    model.model.forward = forward


def at_other_positions(change):
    return edited(TURN + "forward", lambda f: lambda x, position_ids: f(x, change(position_ids)))


TURN = "model.rotary_emb."
MISTAKES = {  # in a Llama; those of other types are below
    **{name: (rotated(turn), finding) for name, (turn, finding, _) in ROTATIONS.items()},
    "cos for sin": (rotated(lambda f, q, k, c, s: f(q, k, s, c)), "rotated_backwards"),
    "no scale in one layer": (edited("model.layers.1.self_attn.scaling", lambda _: 1.0), "softmax_scale_differs"),
    "a cap that nobody declared": (attention_with(cap=1.0), "attention_differs"),
    "heads in turn": (attention_with(repeat="turns"), "heads_mixed"),
    "not causal": (lambda model, _: attending(model, "all", lambda *given, **named: attend(*given[:4], 0 * given[4], **named)),
                   "sees_the_future"),
    "frequencies of zero": (edited(TURN + "inv_freq", torch.zeros_like), "config_not_applied"),
    "frequencies halved": (edited(TURN + "inv_freq", lambda x: x / 2), "config_not_applied"),
    "frequencies rounded": (edited(TURN + "inv_freq", lambda x: x.bfloat16().float()), "frequencies_rounded"),
    "frequencies cut": (edited(TURN + "inv_freq", lambda x: torch.where(torch.arange(8) < 4, x, 0.0)), "config_not_applied"),
    "an attention factor": (edited(TURN + "attention_scaling", lambda _: 1.2), "config_not_applied"),
    "a configuration that was changed": (
        edited("config.rope_parameters", lambda x: x | {"rope_theta": 5e5}), "config_not_applied",
    ),
    "a base that was lost": (edited("config.rope_parameters", lambda x: x | {"rope_theta": None}), "config_not_applied"),
    "swapped sine": (
        edited(TURN + "forward", lambda f: lambda *given, **named: (f(*given, **named)[0], -f(*given, **named)[1])),
        "rotated_backwards",
    ),
    "twice the positions": (at_other_positions(lambda at: 2 * at), "rotated_twice"),
    "positions cut off": (at_other_positions(lambda at: at.clamp(max=30)), "far_positions_differ"),
    "positions rounded": (at_other_positions(lambda at: torch.where(at < 32, at, at // 8 * 8)), "far_positions_differ"),
    "a base in the code": (base_in_the_code, "config_not_computed"),
    "a cache that is counted from one": (counted_from_one, "text_positions_differ"),
}  # fmt: skip


def test_the_page_counts_the_mistakes_and_the_healthy_models():
    page = (Path(__file__).parents[2] / "docs" / "doctor.md").read_text(encoding="utf-8")
    assert f"plant {len(MISTAKES)} deliberate mistakes in a small Llama" in page
    assert f"Of {len(HEALTHY)} small models of different types without a mistake, none" in page


@pytest.mark.parametrize(("mistake", "name"), MISTAKES.values(), ids=MISTAKES)
def test_a_deliberate_mistake_is_named_and_nothing_else_is(mistake, name, monkeypatch):
    model = small_model("llama")
    mistake(model, monkeypatch)
    assert one(model).name == name


def test_a_length_that_was_edited_after_loading(tmp_path):
    small_model("llama").save_pretrained(tmp_path)
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    assert doctor(model).findings == ()
    model.config.max_position_embeddings = 256
    finding = one(model)
    assert (finding.name, finding.measured) == ("length_edited", 4)
    posenc.extend(small := transformers.AutoModelForCausalLM.from_pretrained(tmp_path).eval(), "yarn", factor=4)
    assert doctor(small).findings == ()


@pytest.mark.parametrize("mistake", ["nothing rotated", "rotated twice", "keys not rotated", "queries backwards"])
def test_a_mistake_in_a_trained_model_is_named_and_nothing_else_is(demo, mistake, monkeypatch):
    model, _ = demo
    plant, name = MISTAKES[mistake]
    plant(model, monkeypatch)
    (finding,) = doctor(model).findings
    assert finding.name == name
    assert finding.evidence.startswith("layers 0 to 29 of 30: ")


# ------------------------------------------------------------------------------------------ far positions, moving frequencies


@pytest.mark.parametrize(
    "model_type", ["gemma3_text", "gpt_neox", "deepseek_v2", "cohere2", "qwen2_vl_text", "gpt_oss"]
)
def test_positions_that_a_rotary_module_of_any_kind_cuts_off(model_type, monkeypatch):
    model = small_model(model_type)
    kind = type(decoder_of(model).rotary_emb)
    original, before = kind.forward, [finding.name for finding in doctor(model).findings]

    def cut_off(self, x, position_ids, *rest, **named):
        return original(self, x, position_ids.clamp(max=50), *rest, **named)

    monkeypatch.setattr(kind, "forward", cut_off)
    found = doctor(model).findings
    assert "far_positions_differ" in [finding.name for finding in found]
    assert {finding.name for finding in found} <= {"far_positions_differ", *before}


@pytest.mark.parametrize("name", ["o_proj", "v_proj"])
def test_a_layer_that_adds_nothing_is_not_judged(name):
    """As new layers are that leave a trained model as it was."""
    model = small_model("llama")
    with torch.no_grad():
        getattr(model.model.layers[1].self_attn, name).weight.zero_()
    diagnosis = doctor(model)
    assert diagnosis.findings == ()
    assert diagnosis.model.computed.layers == 1
    assert "attention of layer 1: its output is the same for all tokens" in diagnosis.model.computed.unchecked[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_rotation_that_rounding_hides_is_not_called_checked(dtype, monkeypatch):
    """Weights as they are made show in float32 that nothing rotates; in half precision, or where queries are nearly zero, the report
    says that it would not be seen."""
    config = small_model("llama").config
    config.initializer_range = 0.02
    model = in_half_precision(transformers.AutoModelForCausalLM.from_config(config).eval(), dtype)
    MISTAKES["nothing rotated"][0](model, monkeypatch)
    if dtype == torch.float32:
        assert one(model).name == "not_rotated"
        with torch.no_grad():
            for layer in layers_of(model):
                layer.module.q_proj.weight.mul_(1e-4)
    diagnosis = doctor(model)
    assert diagnosis.findings == ()
    assert "its output without a rotation differs by rounding alone" in diagnosis.model.computed.unchecked[0]


STRETCHED = {
    "dynamic": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0},
    "longrope": {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 8, "factor": 4.0,
                 "long_factor": [1.0 + pair for pair in range(8)], "original_max_position_embeddings": 30},
}  # fmt: skip


@pytest.mark.parametrize("model_type", ["mistral", "gemma2", "qwen2", "cohere2"])
@pytest.mark.parametrize("kind", STRETCHED)
def test_a_window_beyond_the_length_where_frequencies_move(kind, model_type):
    model = small_model(model_type, sliding_window=130, max_position_embeddings=120, rope_parameters=STRETCHED[kind])
    assert one(model).name == "cache_differs"
    assert doctor(model).model.computed.windows == (130,)


@pytest.mark.parametrize("window", [8, 16, 40])
@pytest.mark.parametrize("model_type", ["mistral", "qwen2"])
def test_a_window_that_no_layer_heeds(model_type, window):
    model = small_model(model_type, sliding_window=window)

    def all_before(*given, mask_function, **named):
        mask_function = transformers.masking_utils.causal_mask_function
        return transformers.masking_utils.sdpa_mask(*given, mask_function=mask_function, **named)

    AttentionInterface.register("unlimited", transformers.integrations.sdpa_attention.sdpa_attention_forward)
    AttentionMaskInterface.register("unlimited", all_before)
    decoder_of(model).config._attn_implementation = "unlimited"
    (finding,) = (each for each in doctor(model).findings if each.severity == "wrong")
    assert finding.name == "window_differs"
    assert f"the window of {window} " in finding.evidence


@pytest.mark.parametrize(
    "parameters", [None, *STRETCHED.values(), {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}]
)
@pytest.mark.parametrize("buffer", ["inv_freq", "original_inv_freq"])
def test_a_table_that_was_overwritten_is_taken_by_nobody(buffer, parameters, tmp_path):
    """But where the module never reads it."""
    model = small_model("llama", **{"rope_parameters": parameters} if parameters else {})
    kind = model.config.rope_parameters["rope_type"]
    ids = torch.arange(3, 23)[None]
    with torch.no_grad():
        getattr(model.model.rotary_emb, buffer).data.div_(8)
        found = [finding.name for finding in doctor(model).findings]
        before = model(ids).logits
        if buffer == (
            "original_inv_freq" if kind in ("default", "linear") else "inv_freq" if kind == "longrope" else ""
        ):
            assert "config_not_applied" not in found  # longrope's module fills it anew at each pass
            posenc.to_hf(model, tmp_path / "saved")
            plain = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "saved").eval()
            assert torch.allclose(plain(ids).logits, before, atol=1e-4)
            return
    assert found[0] == "config_not_applied"
    for use in (lambda: posenc.extend(model, "ntk", factor=4), lambda: posenc.to_hf(model, tmp_path / "hf")):
        with pytest.raises(InputError, match=r"inverse frequencies are not those"):
            use()
    assert not list(tmp_path.iterdir())


# ------------------------------------------------------------------------------------------ the rotation


HALVES = ("qwen3", "phi3", "gpt_oss", "smollm3")
PARTIAL = ("gpt_neox", "phi")
INTERLEAVED = ("glm", "cohere", "ernie4_5", "helium")


@pytest.mark.parametrize(
    ("model_type", "mistake"),
    [
        (kind, mistake)
        for mistake in ROTATIONS
        for kind in (HALVES if mistake == "other pairs" else HALVES + PARTIAL + INTERLEAVED)
    ],
)
def test_a_rotation_that_is_not_the_declared_one(model_type, mistake, monkeypatch):
    model, (turn, name, text) = small_model(model_type), ROTATIONS[mistake]
    rotated(turn)(model, monkeypatch)
    finding = one(model)
    assert finding.name == name
    assert text in finding.evidence
    assert finding.severity == "wrong"
    assert finding.measured > 0.01
    rotating_layers = sum(layer.rotates for layer in layers_of(model))
    assert finding.evidence.startswith("layers 0" if rotating_layers > 1 else "layer 0")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "mistake", ["nothing rotated", "rotated twice", "queries not rotated", "backwards", "one ahead"]
)
def test_a_rotation_in_half_precision(mistake, dtype, monkeypatch):
    model, (mistaken, name) = in_half_precision(small_model("llama"), dtype), MISTAKES[mistake]
    mistaken(model, monkeypatch)
    assert one(model).name == name


@pytest.mark.parametrize("model_type", ["llama", "cohere", "glm", "ernie4_5", "phi3"])
def test_a_rotation_of_other_pairs_than_its_tables_are_for(model_type, monkeypatch):
    model = small_model(model_type)
    code = code_of(model)
    x = torch.arange(4.0)
    turned = code.rotate_half(x)

    def halves(x):
        first, second = x.chunk(2, -1)
        return torch.cat((-second, first), -1)

    def neighbours(x):
        return torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)

    monkeypatch.setattr(code, "rotate_half", neighbours if torch.equal(turned, halves(x)) else halves)
    assert one(model).name == "wrong_pairs"


@pytest.mark.parametrize("model_type", ["deepseek_v3", "minicpm3"])
def test_latent_attention_that_rotates_nothing(model_type, monkeypatch):
    model = small_model(model_type)
    for name in ("apply_rotary_pos_emb", "apply_rotary_pos_emb_interleave"):
        if hasattr(code_of(model), name):
            monkeypatch.setattr(code_of(model), name, lambda q, k, cos, sin, *_, **__: (q, k))
    assert one(model).name == "not_rotated"


def test_a_layer_without_positions_that_rotates():
    model = small_model("smollm3")
    free = next(at for at, each in enumerate(model.config.no_rope_layers) if not each)
    model.model.layers[free].self_attn.use_rope = 1
    finding = one(model)
    assert finding.name == "rotated_undeclared"
    assert finding.evidence.startswith(f"layer {free} of 4: ")
    model.model.layers[free].self_attn.use_rope = 0
    model.model.layers[0].self_attn.use_rope = 0
    assert one(model).name == "not_rotated"


def test_the_frequencies_of_another_layer_type():
    model = small_model("gemma3_text", rope_parameters={
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        "full_attention": {"rope_type": "default", "rope_theta": 1e6},
    })  # fmt: skip
    rotary = model.model.rotary_emb
    original = type(rotary).forward
    model.model.rotary_emb.forward = lambda x, position_ids, layer_type=None: original(
        rotary, x, position_ids, "sliding_attention"
    )
    finding = one(model)
    assert finding.name == "wrong_frequencies"
    assert "by the frequencies of sliding_attention" in finding.evidence


# ------------------------------------------------------------------------------------------ attention


def test_an_attention_that_ignores_padding():
    def causal(module, query, key, value, attention_mask, scaling, **_):
        unseen = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool).triu(1 + key.shape[2] - query.shape[2])
        return attend(module, query, key, value, torch.zeros(unseen.shape).masked_fill(unseen, -torch.inf), scaling)

    model = small_model("llama")
    attending(model, "causal_only", causal)
    assert {each.name for each in doctor(model).findings} == {"padding_differs", "packing_leaks"}


def test_sinks_that_are_dropped():
    model = small_model("gpt_oss")
    for layer in model.model.layers:
        torch.nn.init.normal_(layer.self_attn.sinks)
    attending(model, "no_sinks", attend)
    assert one(model).name == "sinks_dropped"


@pytest.mark.parametrize("model_type", ["gemma2", "vaultgemma"])
def test_a_cap_that_is_dropped(model_type):
    model = small_model(model_type, attn_logit_softcapping=2.0)
    attending(model, "no_cap", attend)
    assert one(model).name == "softcap_dropped"
    attending(model, "cap", partial(attend, cap=2.0))
    assert doctor(model).findings == ()


WINDOWS = ("gemma2", "gemma3_text", "gpt_oss", "cohere2", "olmo3", "exaone4", "cwm", "ministral")


@pytest.mark.parametrize("model_type", WINDOWS)
def test_a_window_that_is_not_applied(model_type, monkeypatch):
    model = small_model(model_type)
    code = code_of(model)
    monkeypatch.setattr(code, "create_sliding_window_causal_mask", code.create_causal_mask)
    model.set_attn_implementation("eager")  # others read the window from the call
    found = {finding.name: finding for finding in doctor(model).findings}
    assert found.keys() == {"window_differs"}
    assert "the window of 24 keys is not applied" in found["window_differs"].evidence


@pytest.mark.parametrize("model_type", ["gemma2", "gpt_oss"])
def test_a_window_that_is_one_key_too_narrow(model_type, monkeypatch):
    model = small_model(model_type)
    code = code_of(model)
    original = code.create_sliding_window_causal_mask

    def narrow(config, **named):
        other = type(config)(**config.to_dict() | {"sliding_window": 23})
        other._attn_implementation = "eager"
        return original(other, **named)

    monkeypatch.setattr(code, "create_sliding_window_causal_mask", narrow)
    model.set_attn_implementation("eager")
    assert "queries see 23 keys, and 24 by the configuration" in one(model).evidence


def test_a_factor_that_the_attention_adds():
    model = small_model("llama")
    attending(model, "colder", lambda *given, scaling, **named: attend(*given, scaling=0.7 * scaling, **named))
    finding = one(model)
    assert finding.name == "softmax_scale_differs"
    assert finding.measured == pytest.approx(0.7, rel=1e-3)


def test_what_is_not_known_is_no_health():
    model = small_model("llama")

    def by_position(module, query, *given, **named):
        at = torch.arange(query.shape[2])
        return attend(module, query * (2 + at)[:, None].log(), *given, **named)

    attending(model, "by_position", by_position)
    finding = one(model)
    assert finding.name == "attention_differs"
    assert "none that is known here" in finding.evidence


def test_positions_that_come_before_the_rotation_are_not_called_healthy():
    """A layer that rotates in its projection."""
    model = small_model("llama")

    def turn(_, __, output):
        return output * torch.linspace(0.5, 2, output.shape[1])[:, None]

    model.model.layers[1].self_attn.k_proj.register_forward_hook(turn)
    computed = doctor(model).model.computed
    assert computed.layers == 1
    assert computed.unchecked == ("attention of layer 1: positions change its queries or keys before their rotation",)


def test_the_report_says_what_was_computed():
    text = str(doctor(small_model("gemma2")))
    what = "computed: attention of 2 layers with 24 tokens, the window of 24 with 48, against the declared formula"
    assert what in text


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_report_says_how_finely_logits_were_compared(dtype):
    is_there = "to 20% of that of the logits, since the model is in" in str(
        doctor(in_half_precision(small_model("llama"), dtype))
    )
    assert is_there == (dtype != torch.float32)


@pytest.mark.parametrize("kind", ["llama", "glm", "deepseek_v3"])
def test_the_frequencies_that_a_model_uses(kind):
    """Where queries and keys have no other channels than those of a pair, that one is used."""
    model = small_model(kind)
    shares = posenc.doctor(model).model.computed.used
    assert sum(shares) == pytest.approx(1)
    assert max(shares) < 0.9
    if kind == "llama":
        for layer in model.model.layers:
            for projection in (layer.self_attn.q_proj, layer.self_attn.k_proj):
                others = [at for at in range(projection.out_features) if at % 16 not in (6, 14)]
                projection.weight.data[others] = 0
        diagnosis = posenc.doctor(model)
        assert diagnosis.model.computed.used[6] == pytest.approx(1)
        assert "half of the norms of queries times keys is in the 2 slowest of 8 pairs" in str(diagnosis)
    for used, count in (((0.1, 0.2, 0.7), 1), ((0.2, 0.4, 0.4), 2), ((1.0, 0.0, 0.0), 3), ((0.0, 0.0, 1.0), 1)):
        assert f"in the {count} slowest of 3 pairs" in str(Computation(2, 24, (), (), used))
