"""Extended models against plain transformers and brute force, in every way that a model is run."""

import copy
import gc
import pickle
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache, StaticCache
from transformers.masking_utils import create_masks_for_generate

import posenc
from posenc import InputError
from posenc.pretrained.families import FAMILIES
from posenc.pretrained.models import model_structure
from posenc.testing.oracles.rotations import frequencies as ladder
from references.mapped_attention import MAPPED, use_mapped_attention
from references.small_models import DECODERS, TRAINED, close, settings_of, small_model, stepwise, tokens

Run = Callable[..., Tensor]
LENGTH = 100
STEPS = (60, 1, 1, 17, 1)
"""A prompt, then single tokens and a chunk."""
THETA = {"rope_theta": 10000.0}
METHODS = (
    "ntk", "yarn", "dynamic", *(m for m in MAPPED if m != "none"), "log_n", "llama3+log_n+softmax_n",
    "rerope:window=12+log_n", "self_extend:window=12:group=4+linear+softmax_n",
)  # fmt: skip
SCHEDULES = ("ntk", "yarn", "dynamic")
SCHEDULES_ONLY = {kind for kind, family in FAMILIES.items() if family.schedules_only or "_vl_" in kind}


def methods(at: int, kind: str) -> Iterator[str]:
    """Three for a model type, other ones for the next."""
    served = SCHEDULES if kind in SCHEDULES_ONLY else METHODS
    for step in range(3):
        method = served[(3 * at + step) % len(served)]
        if kind != "gpt_oss" or "softmax_n" not in method:  # which is refused beside its learned sinks
            yield method


SERVED = [(kind, method) for at, kind in enumerate(FAMILIES) for method in methods(at, kind)]
"""Every method on many types, every type with several methods."""
FIRST = [
    pytest.param(*pair, marks=() if at == 0 or SERVED[at - 1][0] != pair[0] else pytest.mark.slow)
    for at, pair in enumerate(SERVED)
]
"""The same, of which the fast tests take one method for each type."""


pytestmark = pytest.mark.usefixtures("no_gradients")


def reached(method: str) -> int:
    """A new length that the options of the maps here reach."""
    return (2 if "window" in method else 4) * TRAINED


def extended(kind: str, method: str, **settings: Any) -> Any:
    model = small_model(kind, **settings)
    posenc.extend(model, method, target_length=reached(method))
    return model


# ------------------------------------------------------------------------------------------ frequencies alone


@pytest.mark.parametrize(
    ("kind", "method"), [pair for pair in FIRST if pair.values[1] in SCHEDULES and "gemma4" not in pair.values[0]]
)
def test_the_saved_configuration_gives_plain_transformers_the_same(kind: str, method: str, tmp_path: Any) -> None:
    model, x = extended(kind, method), tokens(2, LENGTH)
    model.save_pretrained(tmp_path)
    plain = type(model).from_pretrained(tmp_path, attn_implementation=model.config._attn_implementation).eval()
    assert plain.config.get_text_config().max_position_embeddings == 4 * TRAINED
    close(plain(x).logits, model(x).logits)


@pytest.mark.parametrize("method", ["abf:new_base=10000", "log_n", "softmax_n"])
def test_angles_stay_exact_in_half_precision(method: str) -> None:
    """The trap: .to(bfloat16) rounds a plain model's frequencies, which is radians at position 16000."""
    plain, model = small_model("llama").to(torch.bfloat16), extended("llama", method).to(torch.bfloat16)
    ids, x = torch.tensor([[16000]]), torch.zeros(1, 1, 64)  # asked in float32, so that only the angles are rounded
    inv_freq = ladder(16)
    exact = (16000 * inv_freq).cos().repeat(2)
    ours, theirs = (m.model.rotary_emb(x, ids)[0][0, 0].double() for m in (model, plain))
    assert (ours - exact).abs().max() < 1e-6
    assert (theirs - exact).abs().max() > 0.1
    model.to(torch.float32).to("cpu").half()
    assert torch.equal(model.model.rotary_emb(x, ids)[0][0, 0].double(), ours)
    assert not [name for name in model.state_dict() if "rotary" in name]


# ------------------------------------------------------------------------------------------ through attention


LATER = ("glm4_moe", "lfm2", "ministral3", "ernie4_5", "qwen3_5_text", "deepseek_v2", "deepseek_v3", "mistral4")


@pytest.mark.parametrize(
    ("kind", "method"),
    [(kind, method) for kind in ("llama", "gpt_neox", "glm") for method in MAPPED]
    + [
        pytest.param(kind, method, marks=() if at % len(MAPPED) == step else pytest.mark.slow)
        for at, kind in enumerate(LATER, 1)
        for step, method in enumerate(MAPPED)
    ],
)
def test_maps_are_those_of_brute_force(kind: str, method: str) -> None:
    dense = (
        {"first_k_dense_replace": 2} if "first_k_dense_replace" in settings_of(kind) else {}
    )  # experts take no float64
    model = small_model(kind, **dense).double()
    brute = copy.deepcopy(model)
    body = model_structure(model)
    use_mapped_attention(
        brute, method, body.rope.frequencies().inv_freq, body.layout, TRAINED, 1.5, trailing=body.rope.latent
    )
    posenc.extend(model, f"{method}+log_n+softmax_n:n=1.5".removeprefix("none+"), target_length=reached(method))
    x = tokens(2, LENGTH)
    # models of these types turn in float32
    single = method == "none" or kind in ("deepseek_v2", "ernie4_5")
    close(model(x).logits, brute(x).logits, 1e-4 if single else 1e-9)


@pytest.mark.parametrize("cap", [50.0, 0.5])
@pytest.mark.parametrize("method", ["temperature:beta=1", "rerope:window=62"])
def test_capped_scores_are_those_of_eager_attention(cap: float, method: str) -> None:
    """Gemma 2, whose layers are sliding and full: methods that change nothing within the context length."""
    model = small_model("gemma2", attn_logit_softcapping=cap, attn_implementation="eager")
    x = tokens(2, 60)
    mask = torch.ones_like(x)
    mask[0, :9] = 0
    wanted, padded = model(x).logits, model(x, attention_mask=mask).logits
    posenc.extend(model, method, factor=4)
    torch.testing.assert_close(model(x).logits, wanted, atol=1e-5, rtol=0)
    torch.testing.assert_close(model(x, attention_mask=mask).logits[:, 9:], padded[:, 9:], atol=1e-5, rtol=0)
    assert posenc.restore(model)
    assert torch.equal(model(x).logits, wanted)


COUNTS_IDS = ("ministral3", "mistral4")
"""Types whose temperature counts position_ids, which without padding's must be passed."""


@pytest.mark.parametrize(("kind", "method"), [pair for pair in FIRST if pair.values[0] in DECODERS])
def test_however_it_is_run_the_logits_are_the_same(kind: str, method: str) -> None:
    """A full pass, against steps with a cache, a static cache, and left padding with and without position_ids."""
    model, x = extended(kind, method), tokens(2, LENGTH)
    wanted = model(x).logits
    ran = 80
    close(stepwise(model, x, STEPS), wanted[:, :ran])
    close(stepwise(model, x, STEPS, StaticCache(config=model.config, max_cache_len=LENGTH + 7)), wanted[:, :ran])
    pads = 13
    short = torch.cat((torch.zeros(1, pads, dtype=torch.long), x[:1, : LENGTH - pads]), 1)
    batch = torch.cat((short, x[1:]))
    mask = torch.ones_like(batch)
    mask[0, :pads] = 0
    ids = {"position_ids": (mask.cumsum(1) - 1).clamp(min=0)}
    for given in (ids,) if kind in COUNTS_IDS else ({}, ids):
        logits = model(batch, attention_mask=mask, **given).logits
        close(logits[0, pads:], wanted[0, : LENGTH - pads])
        close(logits[1], wanted[1])


@pytest.mark.parametrize(
    ("kind", "method"),
    [
        pytest.param(*pair, marks=pytest.mark.slow if at % 3 else ())
        for at, pair in enumerate(SERVED[::3])
        if pair[0] in DECODERS
    ],
)
def test_generation(kind: str, method: str) -> None:
    """Greedy, with padding, with a static cache, by beams and by prompt lookup."""
    model, x = extended(kind, method), tokens(1, 80)
    other = tokens(1, 93, seed=2)
    batch = torch.cat((torch.cat((torch.zeros(1, 13, dtype=torch.long), x), 1), other))
    mask = torch.ones_like(batch)
    mask[0, :13] = 0
    options: dict[str, Any] = {"max_new_tokens": 8, "min_new_tokens": 8, "do_sample": False}
    alone = model.generate(x, **options)
    for further in ({}, {"cache_implementation": "static"}, {"use_cache": False}):
        both = model.generate(batch, attention_mask=mask, **options, **further)
        assert torch.equal(both[0, 13:], alone[0]), further
    if "linear_attention" not in getattr(model.config, "layer_types", ()):  # whose state cannot be taken back
        assert torch.equal(model.generate(x, prompt_lookup_num_tokens=3, **options), alone)
    beams, lone = (
        model.generate(i, attention_mask=m, num_beams=3, **options) for i, m in ((batch, mask), (x, torch.ones_like(x)))
    )
    assert torch.equal(beams[0, 13:], lone[0])


@pytest.mark.parametrize(
    "method",
    [
        "rerope:window=12",
        "dual_chunk:chunk=24:local=4+log_n",
        "streaming:sinks=3:recent=9",
        "jet_long:window=6:trained=16",
    ],
)
def test_a_short_text_in_a_large_cache(method: str) -> None:
    """Where most keys are padding or not there yet, and the first chunk is padding alone."""
    model, x = extended("llama", method), tokens(1, 25)
    wanted = model(x).logits[0]
    padded = torch.cat((torch.zeros(1, 10, dtype=torch.long), x), 1)
    mask = (padded > 0).long()
    for cache in (StaticCache(config=model.config, max_cache_len=120), DynamicCache()):
        logits = [
            model(padded[:, a:b], attention_mask=mask[:, :b], past_key_values=cache).logits
            for a, b in ((0, 8), (8, 14), (14, 34), (34, 35))
        ]
        close(torch.cat(logits, 1)[0, 10:], wanted)


def test_beams_score_what_a_full_pass_scores() -> None:
    model, x = extended("llama", "rerope:window=12"), tokens(1, 80)
    out = model.generate(
        x, num_beams=4, max_new_tokens=6, min_new_tokens=6, do_sample=False, length_penalty=0.0,
        return_dict_in_generate=True, output_scores=True,
    )  # fmt: skip
    logits = model(out.sequences).logits[0, 79:-1]
    found = logits.log_softmax(-1).gather(1, out.sequences[0, 80:, None]).sum()
    close(out.sequences_scores[0], found)


# ------------------------------------------------------------------------------------------ masks


def test_our_attention_without_extending_is_refused() -> None:
    extended("llama", "log_n")  # after which transformers knows the name
    model = small_model("llama")
    model.set_attn_implementation("posenc")
    with pytest.raises(InputError, match=r"posenc.extend sets it"):
        model(tokens(1, 20))


@pytest.mark.parametrize("loaded", ["default", "dynamic"])
@pytest.mark.parametrize("method", ["rerope:window=12", "dual_chunk", "log_n", "softmax_n"])
def test_another_attention_set_after_extending_is_never_silent(method: str, loaded: str) -> None:
    parameters = THETA | {"rope_type": loaded} | ({"factor": 2.0} if loaded == "dynamic" else {})
    model, x = extended("llama", method, rope_parameters=parameters), tokens(1, LENGTH)
    wanted, twin = model(x).logits, pickle.loads(pickle.dumps(copy.deepcopy(model)))
    for one in (model, twin):
        for name in ("sdpa", "eager"):
            one.set_attn_implementation(name)
            runs = [one, partial(one.generate, max_new_tokens=2)]
            if one is twin and name == "eager":  # tracing takes seconds
                runs.append(torch.compile(one, backend="eager"))
            for run in runs:
                with pytest.raises(InputError, match=rf"attn_implementation='{name}': was set on a model .*{method}"):
                    run(x)
            torch._dynamo.reset()
        one.set_attn_implementation("posenc")
        assert torch.equal(one(x).logits, wanted)
        one.set_attn_implementation("eager")
        posenc.restore(one)
        assert one.config._attn_implementation == "sdpa"
        assert torch.equal(one(x).logits, small_model("llama", rope_parameters=parameters)(x).logits)
    posenc.extend(model, "yarn", factor=4)  # frequencies alone go with any attention
    model.set_attn_implementation("eager")
    model(x)


@pytest.mark.parametrize("kind", ["llama", "gemma3_text"])
@pytest.mark.parametrize("method", ["self_extend:window=12:group=4", "log_n", "rerope:window=12+log_n"])
def test_packed_documents_are_apart(kind: str, method: str) -> None:
    model, x = extended(kind, method), tokens(1, LENGTH)
    lengths = 30, 70
    ids = torch.cat([torch.arange(n) for n in lengths])[None]
    found = model(x, position_ids=ids, use_cache=False).logits
    wanted = torch.cat([model(part).logits for part in x.split(lengths, 1)], 1)
    close(found, wanted)


@pytest.mark.parametrize("kind", ["llama", "gpt_neox"])
def test_a_users_masks_are_applied(kind: str) -> None:
    """Four dimensions, bool or additive, with a prefix that sees both ways: as the model's own attention has it."""
    plain, model = small_model(kind), small_model(kind)
    posenc.extend(model, "softmax_n:n=0")  # which is softmax
    x = tokens(1, 40)
    allowed = torch.ones(40, 40, dtype=torch.bool).tril()
    allowed[20:, 5:9] = False
    prefix = allowed.clone()
    prefix[:6, :6] = True
    for mask in (allowed, prefix):
        additive = torch.zeros(40, 40).masked_fill(~mask, torch.finfo(torch.float32).min)[None, None]
        wanted = plain(x, attention_mask=additive).logits
        close(model(x, attention_mask=additive).logits, wanted)
        close(model(x, attention_mask=mask[None, None]).logits, wanted)
    mapped = extended(kind, "rerope:window=12")
    assert (mapped(x, attention_mask=allowed[None, None]).logits - mapped(x).logits).abs().max() > 0.1
    with pytest.raises(InputError, match=r"the keys before a query"):
        mapped(x, attention_mask=prefix[None, None])
    with pytest.raises(InputError, match=r"counts what is visible, which a 4-D mask hides"):
        extended(kind, "log_n")(x, attention_mask=allowed[None, None])


def test_no_mask_is_alive_after_a_pass() -> None:
    model, x = extended("llama", "rerope:window=12"), tokens(1, 40)
    running = posenc.pretrained.attach.attached(model).running
    mask = torch.ones(1, 1, 40, 40, dtype=torch.bool).tril()
    alive = weakref.ref(mask)
    with torch.no_grad():
        model(x, attention_mask=mask)
    del mask
    gc.collect()
    assert alive() is None
    assert running.here is None
    with pytest.raises(InputError, match=r"the keys before a query"):
        model(x, attention_mask=torch.ones(1, 1, 40, 40, dtype=torch.bool))
    assert running.here is None, "nor after one that failed"


def test_a_model_made_to_see_both_ways_does() -> None:
    plain, model, mapped = small_model("llama"), small_model("llama"), extended("llama", "rerope")
    posenc.extend(model, "softmax_n:n=0")
    x, mask = tokens(2, 40), torch.ones(2, 40, dtype=torch.long)
    mask[0, :9] = 0
    for each in (plain, model, mapped):
        each.config.is_causal = False
    for given in ({}, {"attention_mask": mask}):
        close(model(x, **given).logits[:, 9:], plain(x, **given).logits[:, 9:])
        with pytest.raises(InputError, match=r"the keys before a query"):
            mapped(x, **given)


def test_positions_with_gaps() -> None:
    """Position ids that jump, as PoSE trains with, are honoured; with a cache they are refused."""
    x = tokens(1, 60)
    ids = torch.cat((torch.arange(30), torch.arange(30) + 500))[None]
    mask = torch.ones_like(x)
    wanted = small_model("llama")(x, attention_mask=mask, position_ids=ids).logits
    model = small_model("llama", max_position_embeddings=1024)
    posenc.extend(model, "rerope:window=600", factor=2)
    close(model(x, attention_mask=mask, position_ids=ids).logits, wanted)
    cache = model(x[:, :20], use_cache=True).past_key_values
    with pytest.raises(InputError, match=r"position_ids that jump while keys are cached"):
        model(x[:, 20:], past_key_values=cache, position_ids=ids[:, 20:])


def test_padding_between_tokens() -> None:
    """Rows padded on the right and then continued, as several turns of a batch are: positions as generate counts them."""
    model, x = extended("llama", "self_extend:window=12:group=4+log_n"), tokens(1, 60)
    hole = torch.cat((x[:, :30], torch.zeros(1, 7, dtype=torch.long), x[:, 30:]), 1)
    mask = (hole > 0).long()
    found = model(hole, attention_mask=mask, position_ids=(mask.cumsum(1) - 1).clamp(min=0)).logits
    close(found[mask.bool()][None], model(x).logits)


def test_no_mask_of_queries_times_keys_is_made() -> None:
    from posenc.pretrained import masks

    made: list[Any] = []
    model = extended("llama", "rerope:window=12")
    from transformers import AttentionMaskInterface

    def watched(**given: Any) -> Any:
        made.append(masks.token_index(**given))
        return made[-1]

    x, mask = tokens(2, LENGTH), torch.ones(2, LENGTH, dtype=torch.long)
    mask[0, :9] = 0
    AttentionMaskInterface.register("posenc", watched)
    try:
        model(x)
        model(x, attention_mask=mask)
        model(x, position_ids=torch.arange(LENGTH).expand(2, -1) % 50, use_cache=False)
    finally:
        AttentionMaskInterface.register("posenc", masks.token_index)
    assert [None if m is None else tuple(m.shape) for m in made] == [None, (2, 1, 1, 200), (2, 1, 1, 300)]


# ------------------------------------------------------------------------------------------ training, compiling


@pytest.mark.parametrize(
    "method",
    ["rerope:window=12", "self_extend:window=12:group=4", "jet_long:window=6:trained=16:groups=9:least=1", "none"],
)
def test_gradients_and_checkpointing(method: str) -> None:
    """Those of brute force, also where layers are computed again in the backward pass."""
    model, x = small_model("llama").double().train(), tokens(2, LENGTH)
    brute = copy.deepcopy(model)
    use_mapped_attention(brute, method, model_structure(model).rope.frequencies().inv_freq, "half", TRAINED, 1.5)
    posenc.extend(model, f"{method}+log_n+softmax_n:n=1.5".removeprefix("none+"), target_length=reached(method))

    def gradients(model: Any) -> list[Tensor]:
        with torch.enable_grad():
            loss = torch.nn.functional.cross_entropy(model(x, use_cache=False).logits.flatten(0, 1), x.flatten())
            return list(torch.autograd.grad(loss, list(model.parameters())))

    wanted, found = gradients(brute), gradients(model)
    model.gradient_checkpointing_enable()
    for ours, again, theirs in zip(found, gradients(model), wanted, strict=True):
        close(ours, theirs, 1e-5)
        close(again, ours, 1e-12)


def test_dropout_is_the_configured_one() -> None:
    model, x = extended("llama", "rerope:window=12", attention_dropout=0.5), tokens(1, 40)
    still = model(x).logits
    model.train()
    assert (model(x).logits - still).abs().max() > 0.1
    assert torch.equal(model.eval()(x).logits, still)


@pytest.mark.parametrize("method", ["rerope:window=12", "log_n"])
def test_under_autocast(method: str) -> None:
    """Where plain attention would cast queries, keys and values alike, and the rotation has left them apart."""
    model, x = extended("llama", method), tokens(1, 80)
    wanted = model(x).logits
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = model(x).logits
    assert (found.float() - wanted).pow(2).mean() < 0.01 * wanted.pow(2).mean()


def test_a_decoding_step_is_one_graph() -> None:
    """With a static cache and the mask that generate prepares beforehand, as it does before it compiles."""
    model, x = extended("llama", "rerope:window=12+log_n", num_hidden_layers=1), tokens(2, 64)
    wanted = model(x).logits
    cache = StaticCache(config=model.config, max_cache_len=80)
    model(x[:, :60], past_key_values=cache, use_cache=True)
    step = torch.compile(model.forward, fullgraph=True, backend="eager")
    for at in range(60, 64):
        ids = torch.full((2, 1), at)
        embedded = model.get_input_embeddings()(x[:, at : at + 1])
        mask = create_masks_for_generate(model.config, embedded, None, cache, position_ids=ids)
        found = step(x[:, at : at + 1], attention_mask=mask, position_ids=ids, past_key_values=cache, use_cache=True)
        close(found.logits[:, 0], wanted[:, at])
    torch._dynamo.reset()


@pytest.mark.parametrize(
    "method",
    ["yarn", *(pytest.param(name, marks=pytest.mark.slow) for name in ("self_extend:window=12:group=4", "log_n"))],
)
def test_compiled(method: str) -> None:
    model, x = extended("llama", method, num_hidden_layers=1), tokens(2, LENGTH)
    mask = torch.ones_like(x)
    mask[0, :9] = 0
    compiled = torch.compile(model, backend="eager")
    close(compiled(x).logits, model(x).logits)
    close(compiled(x, attention_mask=mask).logits[mask.bool()], model(x, attention_mask=mask).logits[mask.bool()])
    torch._dynamo.reset()


def test_what_is_not_served_is_refused() -> None:
    model, x = extended("llama", "rerope:window=12"), tokens(1, 20)
    with pytest.raises((InputError, ValueError), match=r"output_attentions|attention weights"):
        model(x, output_attentions=True)


@pytest.mark.parametrize("method", ["yarn", "rerope:window=16"])
@pytest.mark.parametrize("inside", [False, True])
def test_rope_parameters_that_are_set_on_an_extended_model_are_refused(method, inside, tmp_path):
    model = small_model("llama")
    before = dict(model.config.rope_parameters)
    posenc.extend(model, method, factor=4)
    if inside:
        model.config.rope_parameters["factor"] = 8.0
    else:
        with pytest.warns(FutureWarning):
            model.config.rope_scaling = {"rope_type": "linear", "factor": 8.0}
    for use in (lambda: posenc.to_hf(model, tmp_path / "a"), lambda: posenc.extend(model, "linear", factor=8)):
        with pytest.raises(InputError, match=r"was set after posenc\.extend, .* call posenc\.restore\(model\)"):
            use()
    assert "set_after_extending" in [each.name for each in posenc.doctor(model).findings]
    posenc.restore(model)
    assert model.config.rope_parameters == before
    posenc.extend(model, "linear", factor=8)
