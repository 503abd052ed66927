# SPDX-License-Identifier: Apache-2.0
"""doctor in a Trainer: the model before its training, and in its first batch whether a packed text sees the one in front.

    python examples/doctor_callback.py

`Trainer(..., callbacks=[DoctorCallback()])` ends a training that would learn something else. transformers separates packed sequences
only in a call with use_cache=False and without a two-dimensional attention_mask; the example trains with such a mask.
"""

import tempfile

import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    default_data_collator,
)

import posenc

SIZES = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}


class DoctorCallback(TrainerCallback):
    def on_train_begin(self, args, state, control, model=None, **_):
        diagnosis = posenc.doctor(model)
        if diagnosis.wrong:
            raise posenc.InputError(str(diagnosis))
        self.hook = model.register_forward_pre_hook(self.first, with_kwargs=True)

    def on_train_end(self, args, state, control, **_):
        self.hook.remove()

    @torch.no_grad()
    def first(self, model, given, batch):
        self.hook.remove()
        for row, ids in enumerate(batch.get("position_ids", ())):
            for start in (ids == 0).nonzero().flatten().tolist()[1:2]:
                other = batch["input_ids"].clone()
                other[row, :start] = (other[row, :start] == 0).long()
                one, two = (model(**batch | {"input_ids": x}).logits[row, start] for x in (batch["input_ids"], other))
                if not torch.allclose(one, two, atol=1e-3):
                    raise posenc.InputError(f"row {row}: tokens before {start} move the text that begins there")


def main(**passed):
    ids, positions = torch.randint(80, (40,)), torch.cat([torch.arange(15), torch.arange(25)])
    rows = [{"input_ids": ids, "labels": ids, "position_ids": positions}] * 4
    model = LlamaForCausalLM(LlamaConfig(**SIZES, vocab_size=80, max_position_embeddings=64, attention_dropout=0.0))
    arguments = TrainingArguments(
        tempfile.mkdtemp(), max_steps=2, per_device_train_batch_size=2, report_to=[], save_strategy="no", use_cpu=True
    )
    collator = lambda rows: default_data_collator(rows) | passed  # noqa: E731
    Trainer(model, arguments, train_dataset=rows, data_collator=collator, callbacks=[DoctorCallback()]).train()
    return model


if __name__ == "__main__":
    main(attention_mask=torch.ones(2, 40, dtype=torch.long))
