"""doctor finds each trap where it is set, raises no alarm where none is, and leaves the model as it was."""

import copy
import json
import math

import pytest
import torch
import transformers

import posenc
from posenc import cli
from posenc.errors import InputError
from posenc.pretrained.attach import attached
from posenc.pretrained.doctor import FrequencyTable, doctor
from posenc.pretrained.families import FAMILIES
from posenc.pretrained.findings import FINDINGS
from posenc.pretrained.models import decoder_of
from posenc.pretrained.parameters import ROPE_PARAMETERS
from posenc.pretrained.programs import PROGRAMS
from posenc.pretrained.readers import ConfigFile, compare, read_config
from references.small_models import ENCODERS, HEALTHY, edit, small_model


def names(model):
    return [finding.name for finding in doctor(model).findings]


def one(model, name):
    """The only finding."""
    (finding,) = doctor(model).findings
    assert finding.name == name
    assert finding.severity == FINDINGS[name].severity
    return finding


@torch.no_grad()
def leaks(model):
    """Whether the second of two packed sequences reads the first: some types get no borders from some versions of transformers,
    and other layers of some read across them."""
    at = torch.arange(12)[None]
    ids = (7 * torch.arange(24) + 3)[None] % 50
    packed = model(ids, position_ids=torch.cat((at, at), 1), use_cache=False).logits[:, 12:]
    alone = model(ids[:, 12:], position_ids=at, use_cache=False).logits
    return float((packed - alone).abs().max()) > 0.02 * float(alone.abs().max())


@pytest.mark.parametrize(
    ("model_type", "dtype"),
    [pytest.param(kind, torch.float32, marks=[pytest.mark.slow] * (kind not in HEALTHY)) for kind in FAMILIES]
    + [(kind, torch.bfloat16) for kind in ("llama", "olmo", "glm", "gpt_oss")],
)
def test_no_alarm_at_a_clean_model_of_each_type(model_type, dtype):
    model = small_model(model_type)
    decoder = decoder_of(model)
    model.to(dtype)
    decoder.rotary_emb = type(decoder.rotary_emb)(decoder.config)  # as from_pretrained(dtype=...) keeps it
    true = model_type not in (*HEALTHY, *ENCODERS) and leaks(model)
    assert names(model) == ["packing_leaks"] * true


ORIGINAL = "original_max_position_embeddings"
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, ORIGINAL: 16}
LINEAR = {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}
LLAMA3 = LINEAR | {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, ORIGINAL: 32}


@pytest.mark.parametrize("method", ["yarn", "ntk+log_n", "rerope:window=8", "self_extend:window=8"])
def test_no_alarm_at_an_extended_model(method, llama):
    posenc.extend(llama, method, target_length=256)
    diagnosis = doctor(llama)
    assert [finding.name for finding in diagnosis.findings] == []
    assert diagnosis.model.extended.startswith(method.partition("+")[0].partition(":")[0])
    assert diagnosis.model.length == 256


def test_trap_1_a_configuration_edited_after_loading(llama):
    llama.config.rope_parameters = llama.config.rope_parameters | {"rope_type": "linear", "factor": 4.0}
    finding = one(llama, "config_not_applied")
    assert finding.measured > 0.1
    error = 0.75 * 63  # the fastest pair turns by 1 rad a token, and by a quarter of that under the configuration
    assert f"{error:.3g} rad at position 63" in finding.evidence
    llama.model.rotary_emb = type(llama.model.rotary_emb)(llama.config)
    assert names(llama) == []


def test_trap_2_rope_theta_lost(llama):
    llama.config.rope_parameters = {"rope_type": "linear", "factor": 4.0, "rope_theta": None}
    finding = one(llama, "config_not_applied")
    assert "'rope_theta': None}: was set after the model was made, which changes no frequencies" in finding.evidence
    assert doctor(llama).wrong
    del llama.config.rope_parameters["rope_theta"]
    one(llama, "config_not_applied")


def test_trap_3_truncate_of_a_layer_type():
    model = small_model("gemma3_text")
    model.config.max_position_embeddings = 16384
    parameters = model.config.rope_parameters["full_attention"]
    parameters |= YARN | {"original_max_position_embeddings": 4096, "truncate": False}
    model.model.rotary_emb = type(model.model.rotary_emb)(model.config)
    finding = one(model, "config_not_computed")
    asked = posenc.frequencies.yarn(16, base=10000.0, factor=4.0, original_max_positions=4096, truncate=False)
    off = (model.model.rotary_emb.full_attention_inv_freq.double() - asked.inv_freq).abs().max() * 16383
    assert finding.measured == pytest.approx(float(off), rel=1e-4)
    parameters["truncate"] = True
    assert names(model) == []


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_trap_4_frequencies_in_half_precision(dtype):
    model = small_model("llama", max_position_embeddings=16384)
    exact = model.model.rotary_emb.inv_freq.clone()
    model.to(dtype)
    finding = one(model, "frequencies_rounded")
    off = (model.model.rotary_emb.inv_freq.double() - exact.double()).abs().max() * 16383
    assert finding.measured == pytest.approx(float(off))
    assert f"{finding.measured:.3g} rad at position 16383" in finding.evidence
    model.float()  # the damage stays
    one(model, "frequencies_rounded")


def longrope():
    table = {
        "rope_type": "longrope",
        "rope_theta": 1e4,
        "short_factor": [1.0] * 8,
        "long_factor": [1.5] * 4 + [4.0] * 4,
    }
    return small_model("llama", rope_parameters=table | {ORIGINAL: 64}, max_position_embeddings=256)


@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
def test_trap_5_a_cache_across_a_length_where_frequencies_move(kind):
    dynamic = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 8.0}
    model = small_model("llama", rope_parameters=dynamic) if kind == "dynamic" else longrope()
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    finding = one(model, "cache_differs")
    assert "across position 64" in finding.evidence
    # the same by hand, with as many tokens as it takes
    ids = torch.randint(97, (1, 72), generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        logits = model(ids).logits[:, -1]
        cache = model(ids[:, :60]).past_key_values
        for token in ids[0, 60:]:
            output = model(token.view(1, 1), past_key_values=cache)
    assert (output.logits[:, -1] - logits).abs().max() > 0.1 * finding.measured
    model = small_model("llama", rope_parameters=dynamic) if kind == "dynamic" else longrope()
    doctor(model)
    assert all(torch.equal(buffer, before[name]) for name, buffer in model.named_buffers())
    posenc.extend(model, "ntk", factor=8)
    assert names(model) == []


def test_trap_6_head_dim_none(llama):
    model = small_model("llama", rope_parameters=YARN)
    assert names(model) == []
    model.config.head_dim = None
    one(model, "config_not_buildable")
    llama.config.head_dim = None  # which the default schedule stands
    assert names(llama) == []


def test_trap_8_a_length_that_is_not_declared(llama):
    posenc.extend(llama, "yarn", factor=4)
    assert names(llama) == []
    llama.config.max_position_embeddings = 64
    assert one(llama, "length_not_declared").measured == 4


def test_positions_that_count_the_padding():
    """Ministral 3 multiplies queries by a number that grows with their positions."""
    growing = {"rope_type": "default", "rope_theta": 1e4, "llama_4_scaling_beta": 1.0}
    model = small_model("ministral3", rope_parameters=growing | {"original_max_position_embeddings": 4})
    assert "positions_from_padding" in names(model)
    assert not {"padding_differs", "sees_the_future", "attention_differs"} & {*names(model)}
    assert not doctor(model).model.computed.unchecked


@pytest.mark.parametrize("method", ["rerope:window=8", "log_n"])
def test_an_extension_that_was_bypassed(llama, method):
    posenc.extend(llama, method)
    llama.set_attn_implementation("sdpa")
    finding = one(llama, "attention_bypassed")  # and nothing else: a pass would raise
    exec(finding.remedy.partition(", or ")[0], {"model": llama})
    assert names(llama) == []
    llama.model.rotary_emb = copy.deepcopy(attached(llama).structure.rotary)
    one(llama, "attention_bypassed")


@pytest.mark.parametrize("method", ["dual_chunk", "rerope+ntk", "yarn+log_n"])
def test_an_extension_that_was_saved_and_is_not_applied(llama, method, tmp_path):
    posenc.extend(llama, method, factor=4)
    llama.save_pretrained(tmp_path / "saved")
    posenc.to_hf(llama, tmp_path / "exported")
    for folder in ("saved", "exported"):
        plain = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / folder).eval()
        finding = one(plain, "extension_not_applied")
        assert method.partition("+")[0] in finding.evidence
        exec(finding.remedy.partition(", or ")[2], {"model": plain, "posenc": posenc})
        assert names(plain) == []
        assert names(posenc.load(tmp_path / folder)[0]) == []
    posenc.extend(llama, "yarn", factor=4)
    llama.save_pretrained(tmp_path / "plain")
    assert names(transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "plain").eval()) == []


def edited(model, folder, remove=(), **changes):
    """A model saved, its config.json edited, and loaded by transformers."""
    model.save_pretrained(folder)
    edit(folder, remove, **changes)
    return transformers.AutoModelForCausalLM.from_pretrained(folder).eval()


@pytest.mark.parametrize("kind", [{"rope_type": "default"}, {"rope_type": "linear", "factor": 2.0}])
def test_a_base_that_was_lost_in_the_file(llama, kind, tmp_path):
    finding = one(edited(llama, tmp_path, rope_parameters=kind), "base_not_stated")
    assert "config.json has no rope_theta; transformers took 10000" in finding.evidence


def test_an_older_configuration_needs_no_base(llama, tmp_path):
    """Llama 2's configuration has no rope_theta and means 10000."""
    assert names(edited(llama, tmp_path, remove=("rope_parameters", "rope_theta"))) == []
    scaled = edited(llama, tmp_path, rope_scaling={"type": "linear", "factor": 2.0}, remove=("rope_parameters",))
    assert names(scaled) == []


@pytest.mark.parametrize("length", [64, 256])
def test_yarn_without_its_original_length(llama, length, tmp_path):
    scaling = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4}
    finding = one(
        edited(llama, tmp_path, rope_parameters=scaling, max_position_embeddings=length), "original_length_missing"
    )
    assert finding.evidence == (
        f"factor=4 without original_max_position_embeddings in config.json; max_position_embeddings is {length}"
    )
    assert {each.name for each in compare(read_config(tmp_path)).findings} == {"original_length_missing"}
    scaling |= {ORIGINAL: length // 4}
    assert names(edited(llama, tmp_path, rope_parameters=scaling, max_position_embeddings=length)) == []


@pytest.mark.parametrize(
    ("parameters", "length", "name", "measured"),
    [
        (YARN | {"attn_factor": 1.1}, 64, "parameter_ignored", None),
        (LINEAR | {"beta_fast": 16}, 64, "parameter_ignored", None),
        (LINEAR | {"beta_fast": 32}, 64, "parameter_unread", None),
        (LINEAR | {"rope_type": "default"}, 64, "parameter_ignored", None),
        (LINEAR | {"factor": 0.5}, 64, "factor_below_one", 0.5),
        (YARN | {"attention_factor": -1.0}, 64, "parameter_impossible", -1),
        (YARN | {"attention_factor": 1.2}, 64, "attention_factor_differs", 1.2),
        (YARN, 16, "length_not_declared", 4),
        (YARN | {ORIGINAL: 32}, 64, "length_not_declared", 2),
        (YARN, 256, "declared_longer_than_stretched", 4),
        (LLAMA3 | {ORIGINAL: 64}, 64, "llama3_without_effect", None),
    ],
)
def test_parameters_that_nobody_meant(parameters, length, name, measured):
    """Also of the configuration without weights."""
    model = small_model("llama", rope_parameters=parameters, max_position_embeddings=length)
    finding = one(model, name)
    assert finding.measured == measured
    assert compare(ConfigFile("config.json", model.config.to_dict())).findings == (finding,)
    if measured == 2:
        assert f"4 times {ORIGINAL}=32 is 128, and max_position_embeddings is 64" in finding.evidence
        assert ORIGINAL in finding.remedy


IMPOSSIBLE = [
    YARN | {key: value} for key in ("factor", "attention_factor", "beta_fast", "rope_theta", ORIGINAL)
    for value in (math.nan, math.inf, 0, -1.0)
] + [
    YARN | {"beta_fast": 1.0, "beta_slow": 32.0},
    YARN | {"factor": 1e30},
    YARN | {"partial_rotary_factor": 1.5},
    YARN | {"rope_theta": "1e4"},
    YARN | {"rope_type": "yarm"},
    *(LINEAR | {"factor": value} for value in (None, math.nan, 0.0, -2.0, 1e308, True, "4")),
    *({"rope_type": "yarn", "rope_theta": 1e4, "factor": wrong, "attention_factor": 1 / wrong} for wrong in (1e-300, 1e300)),
    *(LLAMA3 | {"low_freq_factor": low, "high_freq_factor": high} for low, high in ((4.0, 1.0), (math.nan, 4.0), (1.0, 0.0))),
    *(
        {"rope_type": kind, "rope_theta": 1e4, "factor": 4.0, ORIGINAL: 16, "short_factor": [1.0] * 8, "long_factor": wrong}
        for kind, wrong in (*(("longrope", wrong) for wrong in ([0.0] * 8, [math.nan] * 8, [1.0] * 7, 2.0, ["1"] * 8)), ("su", [1.0] * 8))
    ),
]  # fmt: skip


@pytest.mark.parametrize("parameters", IMPOSSIBLE, ids=str)
def test_numbers_that_cannot_be(parameters, llama, tmp_path):
    """A finding in doctor, with a configuration alone too, by the names of either transformers, and a refusal everywhere else: by
    the same rule."""
    plain = llama.config.rope_parameters
    llama.save_pretrained(tmp_path)
    llama.config.rope_parameters = parameters
    diagnosis = doctor(llama)
    assert {finding.name for finding in diagnosis.findings} == {"parameter_impossible"}
    assert diagnosis.wrong
    for refuses in (lambda: posenc.extend(llama, "yarn", factor=4), lambda: posenc.to_hf(llama, tmp_path / "new")):
        with pytest.raises(InputError, match=r"in rope_parameters: "):
            refuses()
    assert not (tmp_path / "new").exists()
    beside = {key: value for key, value in parameters.items() if key != "rope_theta"}
    for fields in ({"rope_parameters": parameters}, {"rope_scaling": beside, "rope_theta": parameters["rope_theta"]}):
        edit(tmp_path, ("rope_parameters",), **fields)
        with pytest.raises(InputError) as refused:
            posenc.load(tmp_path)
        assert len(str(refused.value).splitlines()) == 1
        comparison = compare(read_config(tmp_path))
        assert {finding.name for finding in comparison.findings} == {"parameter_impossible"}
        if parameters["rope_type"] in ROPE_PARAMETERS:
            assert {each.program for each in comparison.not_known} >= {*PROGRAMS} - {"transformers 5"}
        assert "compute the same positions" not in str(comparison)
    llama.config.rope_parameters = plain
    assert names(llama) == []


@pytest.mark.parametrize("scaling", [{"type": "linear", "factor": 4.0}, {"factor": 2.0}, {}])
def test_a_scaling_that_is_set_after_loading(scaling, llama, tmp_path):
    llama.config.rope_scaling = scaling
    assert "was set after the model was made" in one(llama, "config_not_applied").evidence
    for refuses in (lambda: posenc.extend(llama, "yarn", factor=4), lambda: posenc.to_hf(llama, tmp_path / "new")):
        with pytest.raises(InputError, match="was set after the model was made, which changes no frequencies"):
            refuses()


def test_advice_on_attn_factor_is_computed():
    """DeepSeek-R1-0528-Qwen3-8B, whose authors switch the temperature off."""
    parameters = YARN | {"attn_factor": 0.8782488562869419}
    finding = one(small_model("llama", rope_parameters=parameters), "parameter_ignored")
    assert finding.evidence.endswith("multiplies 1.1386 by it: write attention_factor=1 in its place")
    assert names(small_model("llama", rope_parameters=YARN | {"attention_factor": 1.0})) == []


def test_parameters_that_are_meant():
    mscale = {"mscale": 1.0, "mscale_all_dim": 1.0, "beta_fast": 32.0, "beta_slow": 1.0}
    mscale |= {"truncate": True, "finetuned": True, "type": "yarn"}
    for more in (mscale, {"attention_factor": 1.1386}, {"attention_factor": None, "attn_factor": None}):
        assert names(small_model("llama", rope_parameters=YARN | more)) == []
    assert names(small_model("llama", rope_parameters=LLAMA3, max_position_embeddings=1024)) == []  # as Llama 3.1


def test_llama_4s_scaling_is_served(tmp_path):
    """Llama 4 Scout has equal low and high frequency factors."""
    scout = LLAMA3 | {"rope_theta": 5e5, "factor": 16.0, "high_freq_factor": 1.0, ORIGINAL: 64}
    model = small_model("llama", rope_parameters=scout, max_position_embeddings=1024)
    assert names(model) == []
    assert posenc.extend(model, "rerope", factor=2).new_length == 2048
    posenc.restore(model)
    posenc.extend(model, "yarn", factor=32)
    posenc.to_hf(model, tmp_path / "model")
    assert names(posenc.load(tmp_path / "model")[0]) == []


def test_partial_rotation_is_reported_and_so_is_its_absence():
    model = small_model("gpt_neox")
    (rotation,) = doctor(model).model.rotations.values()
    assert rotation.rotary_dim == 4
    assert doctor(model).model.head_dim == 16
    model = small_model(
        "llama", rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}
    )
    assert one(model, "partial_rotary_ignored").measured == 1


def test_a_table_of_another_size_is_recognised_by_sizes():
    model = small_model("gpt_neox")  # which rotates as many channels as its table has pairs for
    model.config.rope_parameters = {"rope_type": "default", "rope_theta": 10000.0}  # partial_rotary_factor lost
    finding = one(model, "config_not_applied")
    assert finding.evidence == "2 frequencies, where the configuration asks for 8"
    assert finding.measured == 0.25


def test_evidence_is_a_number_where_logits_are_none(llama):
    torch.nn.init.constant_(llama.lm_head.weight, math.nan)
    llama.config.rope_parameters |= {"rope_type": "linear", "factor": 4.0}
    found = doctor(llama)
    assert [finding.name for finding in found.findings] == ["config_not_applied", "not_finite"]
    assert found.findings[0].measured == pytest.approx(0.75 * 63)
    json.dumps(found.to_dict(), allow_nan=False)


@pytest.mark.parametrize("method", ["none", "log_n", "softmax_n"])
def test_a_cast_rounds_the_table_that_an_extension_leaves_and_none_of_ours(llama, method):
    posenc.extend(llama, method, factor=4)
    assert names(llama) == []
    llama.bfloat16()
    if method == "none":
        one(llama, "frequencies_rounded")
    else:
        assert names(llama) == []


@pytest.mark.parametrize("model_type", ["llama", "qwen3", "gpt_neox"])
def test_the_remedy_for_a_table_heals(model_type):
    model = small_model(model_type).bfloat16()
    remedy = one(model, "frequencies_rounded").remedy
    assert remedy.endswith("as for config_not_applied")
    exec(FINDINGS["config_not_applied"].remedy.partition(": ")[2], {"model": model})
    assert names(model) == []


def test_the_remedy_for_an_ignored_truncate_heals():
    model = small_model("gemma3_text")
    posenc.extend(model, "yarn", factor=4, truncate=False)
    assert names(model) == []


@pytest.mark.parametrize("kind", ["longrope", "extended", "gpt_oss"])
def test_the_model_is_left_as_it_was(kind):
    model = small_model("gpt_oss") if kind == "gpt_oss" else longrope()
    model._compiled_call_impl = None
    model.train()
    model.model.layers[1].eval()
    if kind == "extended":
        posenc.extend(model, "rerope:window=8", target_length=512)
    attributes_of = [{*vars(module)} for module in model.modules()]
    config, rotary = copy.deepcopy(model.config.to_dict()), model.model.rotary_emb
    state = {name: tensor.clone() for name, tensor in (*model.named_parameters(), *model.named_buffers())}
    modes, rng = [module.training for module in model.modules()], torch.get_rng_state()
    implementation, attributes = model.config._attn_implementation, dict(vars(rotary))
    hooks = [list(module._forward_hooks) for module in model.modules()]
    doctor(model)
    assert torch.equal(torch.get_rng_state(), rng)
    assert [module.training for module in model.modules()] == modes
    assert model.config.to_dict() == config
    assert model.config._attn_implementation == implementation
    assert model.model.rotary_emb is rotary
    assert {k: v for k, v in vars(rotary).items() if k[0] != "_"} == {
        k: v for k, v in attributes.items() if k[0] != "_"
    }
    after = dict((*model.named_parameters(), *model.named_buffers()))
    assert after.keys() == state.keys()
    assert all(torch.equal(after[name], tensor) for name, tensor in state.items())
    assert [list(module._forward_hooks) for module in model.modules()] == hooks
    assert [{*vars(module)} for module in model.modules()] == attributes_of


def test_an_error_while_examining_leaves_the_model_as_it_was(llama, monkeypatch):
    rotary = llama.model.rotary_emb

    def stopped(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(type(llama), "forward", stopped)
    with pytest.raises(KeyboardInterrupt):
        doctor(llama.train())
    assert llama.model.rotary_emb is rotary
    assert llama.training


def test_the_distances_of_layers_with_a_window_end_there():
    local, full = doctor(small_model("gemma3_text")).model.rotations.values()
    assert (local.tokens, full.tokens) == (24, 64)
    text = str(doctor(small_model("mistral", sliding_window=16)))
    assert "never complete a rotation in the window of 16 tokens\n" in text
    assert "never complete a rotation in 64 tokens\n" in str(doctor(small_model("mistral")))


def test_pairs_that_never_turn():
    wavelengths = torch.tensor([10.0, 63.0, 65.0, 1000.0])
    assert FrequencyTable(2 * math.pi / wavelengths, 1.0, {}).described(64).slow_pairs == 2


def test_what_cannot_be_examined_is_refused(llama):
    with pytest.raises(InputError, match=r"learned table of 1024 rows.*rows_of_table.*hierarchical"):
        doctor(transformers.GPT2LMHeadModel(transformers.GPT2Config(n_layer=1, n_embd=8, n_head=2, vocab_size=9)))
    with pytest.raises(InputError, match=r"no weights"):
        doctor(llama.to("meta"))


def test_the_list_explains_each_finding(capsys):
    assert cli.main(["list", "--json", "--kind", "findings"]) == 0
    out = capsys.readouterr().out
    for name, known in FINDINGS.items():
        assert f'"{name}"' in out
        assert json.dumps(known.meaning, ensure_ascii=False) in out


def test_a_model_that_cannot_run_says_what_it_raised():
    latent = small_model("deepseek_v3", num_key_value_heads=2)
    finding = one(latent, "does_not_run")
    assert "RuntimeError: The size of tensor a" in finding.evidence
    with pytest.raises(InputError, match=r"model: none of its layers has attention \(linear_attention\)"):
        doctor(small_model("qwen3_next", layer_types=["linear_attention"] * 2))


@pytest.mark.parametrize("method", ["yarn", "ntk+log_n", "rerope:window=8"])
def test_frequencies_that_were_overwritten_after_an_extension(method, llama, tmp_path):
    posenc.extend(llama, method, factor=4)
    for buffer in llama.model.rotary_emb.buffers():
        buffer.data.div_(8)
    one(llama, "set_after_extending")
    for use in (lambda: posenc.to_hf(llama, tmp_path / "hf"), lambda: posenc.extend(llama, "ntk", factor=2)):
        with pytest.raises(InputError, match=r"inv_freq .* was overwritten after posenc.extend: call posenc.restore"):
            use()
    assert not list(tmp_path.iterdir())
    posenc.restore(llama)
    assert names(llama) == []


@pytest.mark.parametrize("head", ["AutoModel", "AutoModelForSequenceClassification", "AutoModelForTokenClassification"])
def test_a_model_without_logits_of_the_next_token(head, llama):
    model = getattr(transformers, head).from_config(llama.config).eval()
    with pytest.raises(InputError, match=r"has no logits for each token, .*: pass the causal language model"):
        doctor(model)


def test_a_length_of_no_tokens(llama):
    llama.config.max_position_embeddings = 0
    assert one(llama, "parameter_impossible").measured == 0
    with pytest.raises(InputError, match=r"max_position_embeddings=0: must be at least 1"):
        posenc.extend(llama, "yarn", factor=2)
