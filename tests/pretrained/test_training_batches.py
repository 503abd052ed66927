"""doctor on the first batch of a training: what is wrong with it, and that training goes on as without."""

import pytest
import torch
from transformers import DataCollatorWithFlattening, Trainer, TrainingArguments

import posenc
from posenc import InputError
from posenc.pretrained.training import DoctorCallback, examine_batch
from references.small_models import small_model, tokens

PACKED = {
    "input_ids": tokens(1, 40),
    "position_ids": torch.cat([torch.arange(15), torch.arange(25)])[None],
    "use_cache": False,
}


def names(model, batch):
    return [finding.name for finding in examine_batch(model, batch).findings]


def test_a_batch_in_order(llama):
    state = {name: tensor.clone() for name, tensor in (*llama.named_parameters(), *llama.named_buffers())}
    llama.train()
    rng = torch.get_rng_state()
    for batch in ({"input_ids": tokens(2, 64)}, PACKED, PACKED | {"labels": PACKED["input_ids"]}):
        assert names(llama, batch) == []
    assert llama.training
    assert torch.equal(torch.get_rng_state(), rng)
    assert all(torch.equal(value, state[name]) for name, value in (*llama.named_parameters(), *llama.named_buffers()))


@pytest.mark.parametrize("more", [{"attention_mask": torch.ones(1, 40, dtype=torch.int64)}, {"use_cache": None}])
@pytest.mark.parametrize("model_type", ["llama", "qwen3", "gemma3_text"])
def test_packed_texts_that_see_each_other(model_type, more):
    """transformers looks for packed sequences only in a call without a cache and without a mask; a cache is the default."""
    model = small_model(model_type)
    (finding,) = examine_batch(model, PACKED | more).findings
    assert (finding.name, finding.severity) == ("batch_leaks", "wrong")
    assert finding.evidence.startswith("other tokens before 15 move the logits of the text that begins there")
    assert finding.measured > 0.1
    assert names(model, PACKED) == []
    document = torch.arange(40) >= 15
    allowed = (document[:, None] == document) & torch.ones(40, 40).tril().bool()
    mask = torch.zeros(1, 1, 40, 40).masked_fill(~allowed, torch.finfo(torch.float32).min)
    if model_type != "gemma3_text":  # whose windows would be in it
        assert names(model, PACKED | {"attention_mask": mask, "use_cache": None}) == []


def test_a_later_row_that_is_packed(llama):
    positions = torch.stack([torch.arange(40), PACKED["position_ids"][0]])
    mask = torch.ones(2, 40, dtype=torch.int64)
    batch = {"input_ids": tokens(2, 40), "position_ids": positions, "use_cache": False}
    assert names(llama, batch) == []
    assert names(llama, batch | {"attention_mask": mask}) == ["batch_leaks"]


def test_padding(llama):
    mask = torch.ones(2, 20, dtype=torch.int64)
    mask[1, :7] = 0
    batch = {"input_ids": tokens(2, 20), "attention_mask": mask}
    assert names(llama, batch) == []
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import eager_mask

    def unpadded(*given, attention_mask=None, **named):
        return eager_mask(*given, attention_mask=None, **named)

    AttentionInterface.register("unpadded", AttentionInterface()["sdpa"])
    AttentionMaskInterface.register("unpadded", unpadded)
    llama.set_attn_implementation("unpadded")
    assert names(llama, batch) == ["padding_differs"]


def test_a_text_beyond_the_models_length(llama):
    (finding,) = examine_batch(llama, {"input_ids": tokens(1, 80)}).findings
    assert (finding.name, finding.measured) == ("positions_beyond_length", 80 / 64)
    posenc.extend(llama, "yarn", target_length=128)
    assert names(llama, {"input_ids": tokens(1, 80)}) == []
    assert names(llama, {"input_ids": tokens(1, 80)[:, :64]}) == []


def test_frequencies_of_the_model(llama):
    llama.bfloat16()
    assert names(llama, {"input_ids": tokens(1, 20)}) == ["frequencies_rounded"]
    llama.model.rotary_emb.inv_freq.zero_()
    assert names(llama, {"input_ids": tokens(1, 20)}) == ["frequencies_uninitialised"]


@pytest.mark.parametrize("batch", [{}, {"input_ids": [1, 2]}, {"input_ids": torch.arange(3)}])
def test_what_is_no_batch(llama, batch):
    with pytest.raises(InputError, match=r"has no input_ids \(batch, n\)"):
        examine_batch(llama, batch)
    with pytest.raises(InputError, match="pass a transformers model"):
        examine_batch(torch.nn.Linear(2, 2), PACKED)


# -------------------------------------------------------------------- Trainer

TEXTS = [{"input_ids": row} for row in tokens(8, 12).tolist()]


def trainer(model, folder, *callbacks, collator=None, **arguments):
    given = {
        "max_steps": 2,
        "per_device_train_batch_size": 4,
        "report_to": "none",
        "use_cpu": True,
        "disable_tqdm": True,
    }
    arguments = TrainingArguments(str(folder), **given | arguments, save_strategy="no", logging_strategy="no")
    collator = collator or DataCollatorWithFlattening()
    return Trainer(model, arguments, data_collator=collator, train_dataset=TEXTS, callbacks=[*callbacks])


def test_training_is_the_same_with_the_callback(tmp_path):
    callback = DoctorCallback()
    losses = []
    for callbacks in ((), (callback,)):
        model = small_model("llama", attention_dropout=0.2)
        losses.append(trainer(model, tmp_path, *callbacks).train().training_loss)
        assert not model._forward_pre_hooks
    assert losses[0] == losses[1]
    assert callback.diagnosis.findings == ()
    assert callback.diagnosis.model.model_type == "llama"


class WithMask(DataCollatorWithFlattening):
    """As scripts do that go from padding to packing."""

    def __call__(self, *given, **named):
        batch = super().__call__(*given, **named)
        return batch | {"attention_mask": torch.ones_like(batch["input_ids"])}


def test_packed_texts_with_a_mask_stop_the_training(llama, tmp_path):
    before = llama.lm_head.weight.clone()
    with pytest.raises(InputError, match=r"(?s)the first batch.*batch_leaks.*without attention_mask"):
        trainer(llama, tmp_path, DoctorCallback(), collator=WithMask()).train()
    assert torch.equal(llama.lm_head.weight, before)
    with pytest.warns(UserWarning, match="batch_leaks"):
        trainer(llama, tmp_path, DoctorCallback(raises="none"), collator=WithMask()).train()
    trainer(llama, tmp_path, DoctorCallback()).train()  # its remedy


def test_a_cache_in_training_stops_it(llama, tmp_path):
    with pytest.raises(InputError, match="batch_leaks"):
        trainer(llama, tmp_path, DoctorCallback(), use_cache=True).train()


def test_a_hazard_is_raised_where_that_was_asked(tmp_path):
    model = small_model("llama", max_position_embeddings=10)
    with pytest.warns(UserWarning, match="positions_beyond_length"):
        trainer(model, tmp_path, DoctorCallback()).train()
    with pytest.raises(InputError, match="positions_beyond_length"):
        trainer(model, tmp_path, DoctorCallback("hazard")).train()
    with pytest.raises(InputError, match="raises"):
        DoctorCallback("always")


def test_padding_at_position_0_is_no_document():
    model = small_model("llama")
    mask = torch.ones(2, 12, dtype=torch.long)
    mask[:, 8:] = 0
    ids = torch.randint(3, 90, (2, 12))
    batch = {"input_ids": ids, "attention_mask": mask, "position_ids": torch.arange(12)[None] * mask}
    assert "batch_leaks" not in [finding.name for finding in examine_batch(model, batch).findings]
