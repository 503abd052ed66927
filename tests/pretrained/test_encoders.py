# SPDX-License-Identifier: Apache-2.0
"""attn_implementation="posenc" in encoders and in T5's kind is what transformers' eager attention is."""

from functools import wraps
from importlib import import_module
from inspect import unwrap

import pytest
import torch

import posenc
from posenc.errors import InputError

transformers = pytest.importorskip("transformers")
SMALL = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64, "vocab_size": 100,
         "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2,
         "mask_token_id": 3}  # fmt: skip
BY_LAYER = {"local_attention": 16, "global_attn_every_n_layers": 2}
DISTIL = {"dim": 64, "n_layers": 2, "n_heads": 4, "hidden_dim": 64, "vocab_size": 100}
T5 = {"d_model": 64, "d_kv": 24, "d_ff": 64, "num_layers": 2, "num_heads": 4, "vocab_size": 100,
      "decoder_start_token_id": 0, "relative_attention_max_distance": 20, "relative_attention_num_buckets": 16}  # fmt: skip
ENCODERS = {
    "Bert": SMALL, "Roberta": SMALL, "Electra": SMALL, "DistilBert": DISTIL, "ModernBert": SMALL | BY_LAYER,
    "NomicBert": SMALL, "EuroBert": SMALL, "Esm": SMALL | {"position_embedding_type": "rotary"},
    "Esm absolute": SMALL | {"position_embedding_type": "absolute"},
}  # fmt: skip


def of_type(name, options, ending="Model"):
    posenc.hf.register()
    torch.manual_seed(0)
    name = name.split()[0]
    return getattr(transformers, name + ending)(getattr(transformers, f"{name}Config")(**options)).eval()


def with_padding(tokens=40):
    ids, mask = torch.randint(4, 100, (2, tokens)), torch.ones(2, tokens, dtype=torch.long)
    mask[0, :5] = mask[1, -9:] = 0
    return ids, mask


def check_alike(model, run, atol=1e-5, rtol=1e-5):
    """What a run gives, one tensor or several, is the same by posenc's attention as by transformers' eager one."""
    model.set_attn_implementation("eager")
    expected = run()
    model.set_attn_implementation("posenc")
    torch.testing.assert_close(run(), expected, atol=atol, rtol=rtol)


@pytest.mark.parametrize("name", ENCODERS)
def test_an_encoder_is_the_eager_one(name):
    model = of_type(name, ENCODERS[name])
    ids, mask = with_padding()
    check_alike(model, lambda: model(ids, attention_mask=mask).last_hidden_state[mask.bool()])
    check_alike(model, lambda: model(ids).last_hidden_state)


def test_who_wrapped_t5_before_does_not_keep_its_table_from_being_read(monkeypatch):
    attention = import_module("transformers.models.t5.modeling_t5").T5Attention
    given = unwrap(attention.forward)
    monkeypatch.setattr(attention, "compute_bias", unwrap(attention.compute_bias))
    monkeypatch.setattr(attention, "forward", wraps(given)(lambda *x, **y: given(*x, **y)))
    test_t5_is_the_eager_one("T5")
    patched = attention.forward
    posenc.hf.register()
    assert attention.forward is patched


@pytest.mark.parametrize("kind", ["T5", "MT5", "UMT5"])
def test_t5_is_the_eager_one(kind):
    model = of_type(kind, T5, "ForConditionalGeneration")
    tables = [weight for name, weight in model.named_parameters() if "relative_attention_bias" in name]
    for table in tables:
        torch.nn.init.normal_(table, std=2)
    (ids, mask), (targets, seen) = with_padding(), with_padding(30)
    seen[0] = 1
    given = {"input_ids": ids, "attention_mask": mask}

    def run():
        logits = model(**given, decoder_input_ids=targets, decoder_attention_mask=seen).logits[seen.bool()]
        gradients = torch.autograd.grad(logits.log_softmax(-1).square().mean(), tables)
        text = model.generate(**given, max_new_tokens=30, do_sample=False, num_beams=2)
        return logits / logits.std(), *(g / g.abs().max() for g in gradients), text

    check_alike(model, run)


def test_the_bias_is_never_made():
    """Also in cross attention, whose zeros are as large as it."""
    model = of_type("T5", T5, "ForConditionalGeneration")
    model.set_attn_implementation("posenc")
    largest = 0

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            nonlocal largest
            made = function(*args, **(kwargs or {}))
            largest = max(largest, made.numel() if isinstance(made, torch.Tensor) else 0)
            return made

    ids = torch.randint(4, 100, (1, 4096))
    with Watch(), torch.no_grad():
        model(input_ids=ids, decoder_input_ids=ids)
    assert largest < 4096**2


def test_a_decoder_is_refused():
    model = of_type("Llama", SMALL | {"cls_token_id": None, "sep_token_id": None, "mask_token_id": None})
    model.set_attn_implementation("posenc")
    with pytest.raises(InputError, match="extend it"):
        model(torch.randint(4, 100, (1, 8)))


@pytest.mark.parametrize("name", ["ModernBert", "NomicBert", "EuroBert"])
def test_a_rotary_encoder_takes_schedules(name):
    model = of_type(name, ENCODERS[name])
    ids, _ = with_padding()
    before = model(ids).last_hidden_state
    diagnosis = posenc.doctor(model)
    assert "examined without runs" in str(diagnosis)
    assert not diagnosis.findings
    length = model.config.max_position_embeddings
    assert posenc.extend(model, "yarn", factor=2).new_length == 2 * length == model.config.max_position_embeddings
    extended = model(ids).last_hidden_state
    assert not torch.equal(extended, before)
    plain = type(model)(model.config).eval()
    plain.load_state_dict(model.state_dict())
    torch.testing.assert_close(plain(ids).last_hidden_state, extended)
    with pytest.raises(InputError, match="frequency schedules"):
        posenc.extend(model, "self_extend", factor=2)
    assert posenc.restore(model)
    torch.testing.assert_close(model(ids).last_hidden_state, before)


def test_what_cannot_be_extended_says_what_to_do():
    with pytest.raises(InputError, match="reads longer inputs as it is"):
        posenc.extend(of_type("T5", T5), "yarn", factor=2)
    with pytest.raises(InputError, match="rope_theta"):
        posenc.extend(of_type("Esm", ENCODERS["Esm"]), "yarn", factor=2)


@pytest.mark.parametrize("kind", ["T5", "MT5", "UMT5"])
def test_it_is_trained_with_checkpoints(kind):
    model = of_type(kind, T5 | {"dropout_rate": 0.0}, "ForConditionalGeneration").train()
    model.gradient_checkpointing_enable({"use_reentrant": False})
    ids, mask = with_padding()

    def gradients():
        model.zero_grad()
        model(input_ids=ids, attention_mask=mask, labels=ids).loss.backward()
        return [weight.grad for weight in model.parameters() if weight.grad is not None]

    check_alike(model, gradients, rtol=1e-4)


def test_half_precision():
    model = of_type("T5", T5, "EncoderModel").to(torch.bfloat16)
    ids, mask = with_padding()
    check_alike(model, lambda: model(ids, attention_mask=mask).last_hidden_state[mask.bool()], 0.05, 0.05)


def test_trainer_at_4096_tokens(tmp_path):
    model = of_type("T5", T5, "ForConditionalGeneration")
    model.set_attn_implementation("posenc")
    table = model.encoder.block[0].layer[0].SelfAttention.relative_attention_bias.weight
    before, ids = table.detach().clone(), torch.randint(4, 100, (4096,))
    options = {"max_steps": 1, "per_device_train_batch_size": 1, "use_cpu": True, "report_to": "none"}
    arguments = transformers.TrainingArguments(tmp_path, learning_rate=1e-2, **options)
    rows = [{"input_ids": ids, "labels": ids[:512]}] * 2
    transformers.Trainer(model, arguments, train_dataset=rows).train()
    assert not torch.equal(table, before)
