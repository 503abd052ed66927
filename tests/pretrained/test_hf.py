# SPDX-License-Identifier: Apache-2.0
"""Models of transformers with another encoding, against the formula, plain transformers, and themselves: in every way that a
model is trained, saved and run."""

import copy
import json
import pickle
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    CompileConfig,
    GPT2Config,
    LlamaForCausalLM,
    StaticCache,
    Trainer,
    TrainingArguments,
)

import posenc
from posenc import InputError, Positions
from posenc.encoding import augmented_by, gates_of
from posenc.pretrained.encoded_pass import NAME
from posenc.pretrained.families import FAMILIES
from posenc.pretrained.hf import Unrotated, kinds
from references.small_models import close, small_model, stepwise, tokens

posenc.hf.register()

KINDS = (
    "alibi", "t5", "rope/rope/none", "rope+alibi", "sinusoidal", "learned", "shaw", "deberta_v2", "fox", "selective_attention",
    "selective_rope", "rope@rerope:window=8", "prefix_kv", "sink", "local_nope:window=8", "stick_breaking", "floater", "rove",
    "wall", "dape+alibi", "fox/t5/fox",
)  # fmt: skip
"""Every hook, alone and beside others."""
FEW = ("alibi", "t5", "learned", "alibi/t5/alibi", "rope/rope/none")
"""Relative, learned, absolute, and by layer."""
STEPS = (9, 1, 1, 6, 1)
"""A prompt, single tokens and a chunk."""


def encoded(encoding: str, kind: str = "llama", seed: int = 0, **settings: Any) -> Any:
    """A small model, in evaluation mode, whose learned positions are none of the zeros that some begin with."""
    config = small_model(kind, **({"num_hidden_layers": 3} if kind == "llama" else {}) | settings).config
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, encoding=encoding).eval()
    with torch.no_grad():
        for parameter in model.encoding.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return model


def by_hand(model: Any, x: Tensor) -> Tensor:
    """The logits of a Llama, its layers written out, with attention by posenc's reference backend."""
    encoding, at = model.encoding, Positions.arange(x.shape[1], causal=True)
    at = augmented_by(encoding, at, len(x))
    h, layers = model.model.embed_tokens(x), model.model.layers
    encoding.share([(layer.self_attn.q_proj, layer.self_attn.k_proj) for layer in layers])
    for number, layer in enumerate(layers):
        h, attends = encoding.effects(at, number).embedded(h), layer.self_attn
        y = layer.input_layernorm(h)
        q, k, v = (
            p(y).unflatten(-1, (-1, attends.head_dim)).transpose(1, 2)
            for p in (attends.q_proj, attends.k_proj, attends.v_proj)
        )
        gates = gates_of(encoding, y, number)
        out = posenc.attention(q, k, v, encoding, at, layer=number, gates=gates, backend="reference")
        h = h + attends.o_proj(out.transpose(1, 2).flatten(2))
        h = h + layer.mlp(layer.post_attention_layernorm(h))
    logits: Tensor = model.lm_head(model.model.norm(h))
    return logits


# ------------------------------------------------------------------------------------------ what is computed


@pytest.mark.parametrize("encoding", KINDS)
@torch.no_grad()
def test_logits_are_those_of_the_formula(encoding: str) -> None:
    model, x = encoded(encoding), tokens(2, 19)
    close(model(x).logits, by_hand(model, x))


@pytest.mark.parametrize("kind", kinds())
@torch.no_grad()
def test_rope_is_what_the_model_had(kind: str) -> None:
    plain, x = small_model(kind), tokens(2, 40)
    text = "rope:rope_theta=10000/rope:rope_theta=1000000" if kind == "gemma3_text" else "rope"  # sliding, full
    model = AutoModelForCausalLM.from_config(plain.config, encoding=text)
    model.load_state_dict(plain.state_dict())
    close(model.eval()(x).logits, plain(x).logits, 1e-3)


@pytest.mark.parametrize("kind", [kind for kind in kinds() if kind not in ("gemma2", "vaultgemma")])
@torch.no_grad()
def test_alibi_is_an_additive_mask_of_plain_transformers(kind: str) -> None:
    """In layers that rotate, under the layer's window. Gemma 2 and VaultGemma add a mask to scores that have been capped."""
    n, window = 40, 24
    plain, x = small_model(kind, attn_implementation="eager"), tokens(2, n)
    model = AutoModelForCausalLM.from_config(plain.config, encoding="alibi").eval()
    assert not [key for key in model.state_dict() if "encoding" in key]
    model.load_state_dict(plain.state_dict())
    distance = torch.arange(n)[:, None] - torch.arange(n)
    bias = -(2.0 ** -torch.tensor([2, 4, 6, 8]))[None, :, None, None] * distance
    masks = {
        "full_attention": bias.masked_fill(distance < 0, -1e30),
        "sliding_attention": bias.masked_fill((distance < 0) | (distance >= window), -1e30),
    }
    if not FAMILIES[kind].full_rotates:
        masks["full_attention"] -= bias
    types = getattr(plain.config, "layer_types", None) or ["full_attention"]
    plain.base_model.rotary_emb = Unrotated(plain.base_model.rotary_emb)
    if kind == "smollm3":  # its second layer has no position
        for layer, found in enumerate((masks["full_attention"], masks["full_attention"] - bias) * 2):
            attention = plain.base_model.layers[layer].self_attn
            forward = attention.forward
            attention.forward = lambda *a, _f=forward, _m=found, **k: _f(*a, **k | {"attention_mask": _m})
        wanted = plain(x).logits
    else:
        wanted = plain(x, attention_mask=masks if "sliding_attention" in types else masks["full_attention"]).logits
    close(model(x).logits, wanted, 1e-3)


@torch.no_grad()
def test_the_models_factor_of_scores_acts_beside_the_encodings() -> None:
    model, x = encoded("t5"), tokens(1, 12)  # T5 does not divide by the root of the width
    assert model.encoding.scale(16) == 1.0
    close(model(x).logits, by_hand(model, x))
    plain = small_model("granite", attention_multiplier=0.7)
    its = AutoModelForCausalLM.from_config(plain.config, encoding="rope").eval()
    its.load_state_dict(plain.state_dict())
    close(its(x).logits, plain(x).logits)


# ------------------------------------------------------------------------------------------ caches, padding, packing


@pytest.mark.parametrize("encoding", KINDS)
@torch.no_grad()
def test_cached_padded_and_packed_tokens_are_read_as_alone(encoding: str) -> None:
    model, x = encoded(encoding), tokens(2, 18)
    full = model(x).logits
    if "gates" not in model.encoding.sites():
        close(stepwise(model, x, STEPS), full)
    mask = torch.ones_like(x)
    mask[0, :7] = 0
    padded = model(x, attention_mask=mask).logits
    close(padded[0, 7:], model(x[:1, 7:]).logits[0])
    close(padded[1], full[1])
    ids = torch.cat((torch.arange(7), torch.arange(11))).expand(2, -1)
    for given in ({}, {"attention_mask": torch.ones_like(x)}, {"use_cache": True}):
        packed = model(x, position_ids=ids, **given).logits
        close(packed[:, :7], full[:, :7])
        close(packed[:, 7:], model(x[:, 7:]).logits)


class OwnLogN(posenc.Encoding):
    """A user's encoding, which reads how many keys a query sees."""

    shift_invariant = True

    def rotate(self, q: Tensor, k: Tensor, positions: Positions, layer: int = 0) -> tuple[Tensor, Tensor]:
        return q * positions.visible_counts().to(q.dtype).log1p()[:, None, :, None], k


@pytest.mark.parametrize(
    "encoding",
    [*KINDS, "cope", "log_n:train_length=4+rope", "path", "normalized+alibi", OwnLogN(), OwnLogN() + posenc.ALiBi(4)],
)
@torch.no_grad()
def test_documents_packed_by_a_mask_are_read_as_alone_or_refused(encoding: Any) -> None:
    if isinstance(encoding, str):
        model = encoded(encoding)
    else:
        model = encoded("alibi")
        model.model.encoding = encoding
    x, ids = tokens(1, 18), torch.cat((torch.arange(7), torch.arange(11)))[None]
    mask = torch.block_diag(torch.ones(7, 7).tril(), torch.ones(11, 11).tril()).bool()[None, None]
    try:
        packed = model(x, position_ids=ids, attention_mask=mask, use_cache=False).logits
    except InputError as refused:
        if "4-D mask" not in str(refused):
            raise
        return
    close(packed[:, :7], model(x[:, :7], use_cache=False).logits)
    close(packed[:, 7:], model(x[:, 7:], use_cache=False).logits)


@pytest.mark.parametrize("encoding", FEW)
@torch.no_grad()
def test_generation_writes_what_a_pass_over_the_text_predicts(encoding: str) -> None:
    model, x = encoded(encoding), tokens(2, 12)
    mask = torch.ones_like(x)
    mask[0, :5] = 0
    settings = {"max_new_tokens": 8, "do_sample": False, "eos_token_id": None}
    for cache in (None, "static"):
        written = model.generate(x, attention_mask=mask, cache_implementation=cache, disable_compile=True, **settings)
        for row, start in ((written[:1, 5:], 7), (written[1:], 12)):
            assert torch.equal(model(row).logits[0, start - 1 : -1].argmax(-1), row[0, start:])
    beams = model.generate(x, attention_mask=mask, num_beams=3, **settings)
    assert torch.equal(beams, model.generate(x, attention_mask=mask, num_beams=3, use_cache=False, **settings))


@pytest.mark.parametrize("encoding", FEW)
@torch.no_grad()
def test_a_static_cache_and_given_positions(encoding: str) -> None:
    model, x = encoded(encoding), tokens(2, 18)
    full = model(x).logits
    close(stepwise(model, x, STEPS, StaticCache(config=model.config, max_cache_len=30)), full)
    later = model(x, position_ids=torch.arange(20, 38)[None]).logits
    close(later, by_hand(_Later(model), x) if encoding == "learned" else full)


class _Later:
    """A model whose learned table begins at row 20."""

    def __init__(self, model: Any) -> None:
        self.model, self.lm_head = model.model, model.lm_head
        self.encoding = copy.deepcopy(model.encoding)
        self.encoding.table.data = model.encoding.table.roll(-20, 0)


@pytest.mark.parametrize("encoding", ["alibi", "learned", "cape+alibi"])
@torch.no_grad()
def test_sliding_layers_that_forget_keys(encoding: str) -> None:
    """Layers of both kinds, whose caches have different keys; also where no layer has all."""
    for kind, settings in (("gemma3_text", {}), ("mistral", {"sliding_window": 6})):
        model, x = encoded(encoding, kind, **settings), tokens(2, 40)
        close(stepwise(model, x, (30, 1, 1, 7, 1)), model(x).logits)
        mask = torch.ones_like(x)
        mask[0, :4] = 0
        steps = [model(x[:, :34], attention_mask=mask[:, :34], use_cache=True)]
        for end in range(35, 41):
            given = {"attention_mask": mask[:, :end], "past_key_values": steps[-1].past_key_values}
            steps.append(model(x[:, end - 1 : end], **given))
        close(torch.cat([step.logits for step in steps], 1)[0, 4:], model(x[:1, 4:]).logits[0])


# ------------------------------------------------------------------------------------------ saved and loaded


@pytest.mark.parametrize("encoding", KINDS)
@torch.no_grad()
def test_a_saved_model_is_read_again(encoding: str, tmp_path: Path) -> None:
    model, x = encoded(encoding), tokens(2, 12)
    wanted = model(x).logits
    model.save_pretrained(tmp_path)
    assert torch.equal(AutoModelForCausalLM.from_pretrained(tmp_path).eval()(x).logits, wanted)
    assert torch.equal(posenc.load(tmp_path)[0](x).logits, wanted)
    half = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16).eval()
    assert torch.equal(half(x).logits, model.to(torch.bfloat16)(x).logits)


@pytest.mark.parametrize("encoding", FEW)
@torch.no_grad()
def test_a_plain_checkpoint_gets_another_encoding(encoding: str, tmp_path: Path) -> None:
    plain, x = small_model("llama", num_hidden_layers=3), tokens(2, 12)
    plain.save_pretrained(tmp_path)
    model = AutoModelForCausalLM.from_pretrained(tmp_path, encoding=encoding).eval()
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in plain.state_dict().items())
    assert all(parameter.isfinite().all() and parameter.abs().max() < 10 for parameter in model.encoding.parameters())
    close(model(x).logits, by_hand(model, x))
    model.save_pretrained(tmp_path / "again")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "again", encoding="sinusoidal")
    assert again.config.encoding == "sinusoidal"


@pytest.mark.parametrize("kind", ["mixtral", "gpt_neox"])
@torch.no_grad()
def test_weights_are_stored_as_transformers_stores_them(kind: str, tmp_path: Path) -> None:
    """Experts, and queries, keys and values in one matrix."""
    model, x = encoded("alibi", kind), tokens(1, 9)
    model.save_pretrained(tmp_path)
    assert torch.equal(AutoModelForCausalLM.from_pretrained(tmp_path).eval()(x).logits, model(x).logits)
    plain = small_model(kind)
    plain.save_pretrained(tmp_path / "plain")
    of_plain = AutoModelForCausalLM.from_pretrained(tmp_path / "plain", encoding="rope").eval()
    close(of_plain(x).logits, plain(x).logits)


def test_plain_calls_do_what_they_did(tmp_path: Path) -> None:
    config = small_model("llama").config
    model = AutoModelForCausalLM.from_config(config)
    assert type(model) is LlamaForCausalLM
    model.save_pretrained(tmp_path)
    assert type(AutoModelForCausalLM.from_pretrained(tmp_path)) is LlamaForCausalLM
    assert json.loads((tmp_path / "config.json").read_text())["model_type"] == "llama"
    posenc.hf.register()  # again
    assert type(AutoModelForCausalLM.from_config(config)) is LlamaForCausalLM


def test_a_configuration_says_it_in_one_field(tmp_path: Path) -> None:
    settings = small_model("llama", rope_parameters={"rope_type": "default", "rope_theta": 5e5}).config.to_dict()
    del settings["model_type"]
    config = AutoConfig.for_model("llama", **settings, encoding="rope/none")
    model = AutoModelForCausalLM.from_config(config)
    assert model.config.encoding == "rope:rope_theta=500000.0/none"
    assert (type(model).__name__, model.config.model_type) == ("PosencLlamaForCausalLM", "posenc_llama")
    model.config.save_pretrained(tmp_path)
    again = AutoConfig.from_pretrained(tmp_path)
    assert (again.encoding, again.rope_parameters) == (model.config.encoding, model.config.rope_parameters)
    layout = AutoModelForCausalLM.from_config(small_model("glm").config, encoding="rope")
    assert layout.config.encoding == "rope:layout=interleaved:rotary_dim=8"


PLAIN = """
import sys, torch
from transformers import AutoModelForCausalLM, LlamaForCausalLM, Qwen2ForCausalLM
for cls, more in ((AutoModelForCausalLM, {}), (LlamaForCausalLM, {}), (LlamaForCausalLM, {"attn_implementation": "sdpa"}), (Qwen2ForCausalLM, {})):
    try:
        cls.from_pretrained(sys.argv[1], **more)
    except Exception as error:
        print(type(error).__name__, str(error).replace(chr(10), " "))
    else:
        print("loaded")
import posenc
print(type(posenc.load(sys.argv[1])[0]).__name__)
"""


def test_transformers_alone_does_not_take_it_for_a_llama(tmp_path: Path) -> None:
    encoded("alibi").save_pretrained(tmp_path)
    done = subprocess.run([sys.executable, "-c", PLAIN, str(tmp_path)], capture_output=True, text=True, check=True)
    auto, *direct, loaded = done.stdout.splitlines()
    assert loaded == "PosencLlamaForCausalLM"
    assert re.match("ValueError .*posenc_llama", auto)
    assert len(direct) == 3
    assert all("posenc.hf.register()" in line for line in direct)


def test_other_classes_of_transformers_do_not_take_it_for_a_llama(tmp_path: Path) -> None:
    scaled = {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}
    for settings in ({}, {"rope_parameters": scaled}):
        model = encoded("alibi", **settings)
        model.save_pretrained(tmp_path)
        with pytest.raises(KeyError, match=r"posenc\.hf\.register"):
            LlamaForCausalLM.from_pretrained(tmp_path)
        assert AutoConfig.from_pretrained(tmp_path).rope_parameters == model.config.rope_parameters


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
@pytest.mark.parametrize("encoding", ["t5", "fox/t5/fox"])
@torch.no_grad()
def test_copies(encoding: str, copied: Any) -> None:
    model, x = encoded(encoding), tokens(1, 9)
    other = copied(model)
    other.load_state_dict(model.state_dict())
    assert torch.equal(other(x).logits, model(x).logits)
    for parameter in other.parameters():
        parameter.zero_()
    assert model(x).logits.abs().max() > 0


# ------------------------------------------------------------------------------------------ training


def gradients(model: Any, loss: Tensor) -> dict[str, Tensor]:
    loss.backward()
    found = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    return found


@pytest.mark.parametrize("encoding", ["t5", "fox", "learned", "shape+rope", "selective_attention"])
def test_gradients_are_those_of_the_formula_and_of_checkpointing(encoding: str) -> None:
    model, x = encoded(encoding).double(), tokens(2, 15)
    its = gradients(model, model(x, labels=x).loss)
    wanted = gradients(model, F.cross_entropy(by_hand(model, x)[:, :-1].flatten(0, 1), x[:, 1:].flatten()))
    assert its.keys() == wanted.keys()
    for name in its:
        close(its[name], wanted[name], 1e-5)  # transformers' norm is float32
    model.train()
    torch.manual_seed(3)
    plainly = gradients(model, model(x, labels=x).loss)
    model.gradient_checkpointing_enable()
    torch.manual_seed(3)
    losses = [model(x, labels=x).loss, model(x[:, :9], labels=x[:, :9]).loss]  # another pass before the backward one
    again = gradients(model, losses[0])
    for name in again:
        close(again[name], plainly[name], 1e-7)


class Texts(torch.utils.data.Dataset[dict[str, Tensor]]):
    def __len__(self) -> int:
        return 12

    def __getitem__(self, at: int) -> dict[str, Tensor]:
        x = tokens(1, 24, seed=at)[0]
        return {"input_ids": x, "labels": x}


@pytest.mark.parametrize("encoding", ["alibi", "t5"])
def test_a_trainer_trains_saves_resumes_and_the_model_writes(encoding: str, tmp_path: Path) -> None:
    def trainer(steps: int) -> Any:
        arguments = TrainingArguments(
            str(tmp_path), max_steps=steps, per_device_train_batch_size=4, learning_rate=0.05, save_steps=3, use_cpu=True,
            report_to=[], disable_tqdm=True, seed=1, data_seed=1,
        )  # fmt: skip
        return Trainer(model=encoded(encoding), args=arguments, train_dataset=Texts())

    first = trainer(3)
    before = copy.deepcopy(first.model.state_dict())
    first.train()
    after = first.model.state_dict()
    assert not [
        name for name in after if after[name].dtype.is_floating_point and torch.equal(after[name], before[name])
    ]
    first.save_model(tmp_path / "model")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "model").eval()
    x = tokens(2, 9)
    with torch.no_grad():
        assert torch.equal(again(x).logits, first.model.eval()(x).logits)
        settings = {"max_new_tokens": 5, "do_sample": False}
        assert torch.equal(again.generate(x, **settings), first.model.generate(x, **settings))
    second = trainer(5)
    second.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    assert second.state.global_step == 5


def test_label_smoothing_shifts_labels(tmp_path: Path) -> None:
    model, x = encoded("alibi"), tokens(2, 9)
    arguments = TrainingArguments(str(tmp_path), label_smoothing_factor=0.1, use_cpu=True, report_to=[])
    trainer = Trainer(model=model, args=arguments)
    with torch.no_grad():
        found = trainer.compute_loss(model, {"input_ids": x, "labels": x.clone()})
        wanted = F.cross_entropy(model(x).logits[:, :-1].flatten(0, 1), x[:, 1:].flatten(), label_smoothing=0.1)
    close(found, wanted)


@pytest.mark.parametrize(("encoding", "targets"), [("t5", ["q_proj", "v_proj"]), ("fox", "all-linear")])
def test_peft_trains_the_encoding_beside_its_adapters(encoding: str, targets: Any, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    model, x = encoded(encoding), tokens(2, 12)
    with torch.no_grad():
        before = model(x).logits
    config = peft.LoraConfig(r=2, target_modules=targets, modules_to_save=["encoding"], init_lora_weights=False)
    adapted = peft.get_peft_model(copy.deepcopy(model), config)
    loss = adapted(x, labels=x).loss
    loss.backward()
    trained = [name for name, p in adapted.named_parameters() if p.grad is not None and p.grad.abs().max() > 0]
    assert any("encoding.modules_to_save" in name for name in trained)
    torch.optim.SGD(adapted.parameters(), 1.0).step()
    with torch.no_grad():
        after = adapted.eval()(x).logits
        assert (after - before).abs().max() > 0.01
        with adapted.disable_adapter():
            close(adapted(x).logits, before)
        adapted.save_pretrained(tmp_path)
        close(peft.PeftModel.from_pretrained(copy.deepcopy(model), tmp_path).eval()(x).logits, after)
        merged = adapted.merge_and_unload()
        close(merged(x).logits, after, 1e-3)
        merged.save_pretrained(tmp_path / "merged")
        close(AutoModelForCausalLM.from_pretrained(tmp_path / "merged").eval()(x).logits, after, 1e-3)


COMPILED = [(each, "aot_eager") for each in ("learned", "fox", "rope/none", "alibi")] + [("t5", "inductor")]


@pytest.mark.parametrize(("encoding", "backend"), COMPILED)
def test_compiled_models_are_one_graph(encoding: str, backend: str) -> None:
    model, x = encoded(encoding, num_hidden_layers=2), tokens(2, 20)
    compiled = torch.compile(model, fullgraph=True, backend=backend)
    mask = torch.ones_like(x)
    mask[0, :7] = 0
    with torch.no_grad():
        close(compiled(x, attention_mask=mask, use_cache=False).logits[0, 7:], model(x[:1, 7:]).logits[0])
    its = gradients(model, compiled(x, labels=x, use_cache=False).loss)
    wanted = gradients(model, model(x, labels=x).loss)
    for name in wanted:
        close(its[name], wanted[name], 1e-3)
    torch._dynamo.reset()


@pytest.mark.parametrize("encoding", ["alibi", "t5"])
@torch.no_grad()
def test_generation_compiles_its_steps_to_one_graph(encoding: str) -> None:
    model, x = encoded(encoding, num_hidden_layers=2), tokens(2, 12)
    mask = torch.ones_like(x)
    mask[0, :5] = 0
    settings = {"attention_mask": mask, "max_new_tokens": 6, "do_sample": False, "eos_token_id": None}
    compiling = CompileConfig(fullgraph=True, backend="aot_eager", mode=None)
    compiling._compile_all_devices = True  # by itself, generate compiles on GPUs alone
    written = model.generate(x, cache_implementation="static", compile_config=compiling, **settings)
    assert model._compiled_call is not None
    assert torch.equal(written, model.generate(x, **settings))
    torch._dynamo.reset()


# ------------------------------------------------------------------------------------------ refused


@pytest.mark.parametrize(
    ("encoding", "kind", "message"),
    [
        ("banana", "llama", r"encoding='banana': in a llama: unknown encoding 'banana'"),
        ("", "llama", r"encoding='': pass a text"),
        (7, "llama", r"encoding=7: pass a text"),
        ("swin:columns=3", "llama", r"encoding='swin:columns=3': in a llama: "),
        ("fade.py:Fade", "llama", r"fade\.py:Fade names a class to import"),
        (
            "selective_attention",
            "gpt_neox",
            r"selective_attention puts vectors through the query and the key projection",
        ),
        ("sink", "gpt_oss", r"sink has a sink, and so has the model's attention"),
        ("stick_breaking", "gpt_oss", r"stick_breaking"),
        ("t5+tupe", "llama", r"different scales"),
        ("rope", "gemma3_text", r"rope is without rope_theta, and the model's rotation has 2 bases"),
    ],
)
def test_refusals_name_the_encoding_and_the_reason(encoding: Any, kind: str, message: str) -> None:
    config = small_model(kind).config
    with pytest.raises(InputError, match=message):
        AutoModelForCausalLM.from_config(config, encoding=encoding)


def test_what_only_transformers_attention_does_is_refused(tmp_path: Path) -> None:
    model, x = encoded("alibi"), tokens(1, 9)
    with pytest.raises(InputError, match=r"attn_implementation='sdpa': computes no encoding of posenc: leave it out"):
        AutoModelForCausalLM.from_config(small_model("llama").config, encoding="alibi", attn_implementation="sdpa")
    with pytest.raises(InputError, match="output_attentions=True"):
        model(x, output_attentions=True)
    model.config._attn_implementation = "sdpa"
    with pytest.raises(InputError, match=rf"attn_implementation='sdpa': computes no encoding .*'{NAME}'"):
        model(x)
    model.config._attn_implementation = NAME
    assert model(x).logits.isfinite().all()
    scaled = small_model("llama", rope_parameters={"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}).config
    with pytest.raises(
        InputError, match=r"rope is without rope_theta, and the model's rotation has rope_type='linear'"
    ):
        AutoModelForCausalLM.from_config(scaled, encoding="rope")
    plain = small_model("llama")
    plain.set_attn_implementation(NAME)
    with pytest.raises(InputError, match=r"is for models with an encoding"):
        plain(x)


def test_a_cache_is_refused_to_codes_that_depend_on_the_length() -> None:
    model, x = encoded("normalized"), tokens(1, 9)
    with torch.no_grad():
        close(model(x).logits, by_hand(model, x))
        cache = model(x, use_cache=True).past_key_values
        with pytest.raises(InputError, match=r"normalized.*pass use_cache=False"):
            model(x[:, :1], past_key_values=cache)


@pytest.mark.parametrize("change", [
    lambda model: posenc.extend(model, "yarn", factor=4), posenc.doctor,
])  # fmt: skip
def test_what_acts_on_a_rotation_refuses_a_model_without(change: Any) -> None:
    with pytest.raises(InputError, match=r"model has the encoding 'rope' in place of a rotation \(posenc\.hf\)"):
        change(encoded("rope"))


@torch.no_grad()
def test_losses_by_position_need_no_rotation() -> None:
    from posenc.pretrained import loss_by_position

    model, x = encoded("alibi"), tokens(1, 40)
    wanted = F.cross_entropy(model(x).logits[0, :-1], x[0, 1:], reduction="none")
    close(loss_by_position(model, x[0], chunk=16)[1:], wanted)


# ------------------------------------------------------------------------------------------ model types


@pytest.mark.parametrize("kind", ["gemma2", "cohere2", "olmo3", "gpt_oss"])
@pytest.mark.parametrize("encoding", ["alibi", "t5"])
@torch.no_grad()
def test_a_static_cache_with_sliding_and_full_layers(kind: str, encoding: str) -> None:
    config = small_model(kind).config
    config.sliding_window = 6
    torch.manual_seed(0)
    model, x = AutoModelForCausalLM.from_config(config, encoding=encoding).eval(), tokens(2, 12)
    for parameter in model.parameters():
        parameter.normal_(0, 0.2)
    cache = StaticCache(config=model.config, max_cache_len=30)
    read = [
        model(x[:, :8], past_key_values=cache).logits,
        *(model(x[:, n : n + 1], past_key_values=cache).logits for n in range(8, 12)),
    ]
    close(torch.cat(read, 1), model(x, use_cache=False).logits)


def test_a_model_made_from_another_ones_configuration_leaves_that_alone() -> None:
    first = encoded("alibi")
    second = AutoModelForCausalLM.from_config(first.config, encoding="t5")
    assert (first.config.encoding, second.config.encoding) == ("alibi", "t5")


def test_a_plain_class_with_such_a_configuration_refuses_to_run(tmp_path: Path) -> None:
    encoded("alibi").save_pretrained(tmp_path)
    model = LlamaForCausalLM.from_pretrained(tmp_path, config=AutoConfig.from_pretrained(tmp_path))
    with pytest.raises(InputError, match="posenc"):
        model(tokens(1, 12))


def test_a_family_that_is_not_served_is_refused_by_transformers() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'encoding'"):
        AutoModelForCausalLM.from_config(GPT2Config(n_layer=1, n_embd=8, n_head=2), encoding="alibi")


@pytest.mark.parametrize("kind", ["qwen3_next", "deepseek_v3"])
def test_types_that_take_no_encoding_refuse_it(kind: str) -> None:
    config = small_model(kind).config
    with pytest.raises(InputError, match=f"encoding='alibi': models of type '{kind}' take no encoding"):
        AutoModelForCausalLM.from_config(config, encoding="alibi")
    assert type(AutoModelForCausalLM.from_config(config)).__name__ == type(small_model(kind)).__name__


@pytest.mark.parametrize("encoding", ["fox", "fox/t5/fox"])
def test_gates_are_in_no_cache(encoding: str) -> None:
    model, x = encoded(encoding), tokens(1, 12)
    settings = {"max_new_tokens": 3, "do_sample": False, "eos_token_id": None}
    with torch.no_grad():
        written = model.generate(x, use_cache=False, **settings)
        assert torch.equal(model(written).logits[0, 11:-1].argmax(-1), written[0, 12:])
        for cache in (None, "static"):
            with pytest.raises(InputError, match=r"its gates are in no KV cache.*pass use_cache=False"):
                model.generate(x, cache_implementation=cache, disable_compile=True, **settings)
