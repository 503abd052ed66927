# SPDX-License-Identifier: Apache-2.0
"""A Llama with another encoding, trained by transformers' Trainer, saved, loaded and writing.

    python examples/train_with_trainer.py alibi
    python examples/train_with_trainer.py rope/none 500

The text is the language reference of Python's standard library, in bytes, in passages of 64 that are packed two to a row: no
token sees the other passage. The second argument is the number of training steps. The saved model is loaded again and
continues two prompts in a batch, padded on the left and with a cache: each byte is the most likely one in a pass over that
text alone. PEFT, TRL and accelerate take this model as they take any.
"""

import sys
import tempfile
from pydoc_data.topics import topics

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, Trainer, TrainingArguments

import posenc

SIZES = {"hidden_size": 96, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4}
TEXT = torch.tensor(list("".join(topics.values()).encode()))


def rows(count):
    """Rows of two passages, whose position_ids start again."""
    for passages in TEXT[torch.randint(len(TEXT) - 64, (count, 2, 1)) + torch.arange(64)]:
        row = passages.flatten()
        yield {"input_ids": row, "labels": row, "position_ids": torch.arange(64).repeat(2)}


def main(encoding="alibi", steps=150, folder=None, seed=0):
    torch.manual_seed(seed)
    posenc.hf.register()
    config = LlamaConfig(**SIZES, vocab_size=256, max_position_embeddings=64, bos_token_id=None, eos_token_id=None)
    model = AutoModelForCausalLM.from_config(config, encoding=encoding)
    folder = folder or tempfile.mkdtemp()
    arguments = TrainingArguments(
        folder, max_steps=int(steps), per_device_train_batch_size=16, lr_scheduler_type="constant",
        logging_steps=10, use_cpu=True, report_to=[], disable_tqdm=True, save_strategy="no",
    )  # fmt: skip
    optimizer = torch.optim.AdamW(posenc.parameter_groups(model, lr=3e-3))  # the Trainer's own has one rate for all
    trainer = Trainer(model, arguments, train_dataset=list(rows(16 * int(steps))), optimizers=(optimizer, None))
    trainer.train()
    trainer.save_model(folder)
    loss = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry][-1]
    print(f"{encoding}: {loss:.2f} nats a byte after {steps} steps; log 256 = 5.55 before")
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    batch = torch.tensor([list(prompt.rjust(16, b"\0")) for prompt in (b"The", b"An expression is")])
    written = model.generate(batch, attention_mask=(batch > 0).long(), max_new_tokens=40, do_sample=False)
    same = [torch.equal(model(row[None, row > 0]).logits[0, -41:-1].argmax(-1), row[-40:]) for row in written]
    print("as a pass over each text alone:", same, *(bytes(row[row > 0].tolist()) for row in written), sep="\n  ")
    return loss, same


if __name__ == "__main__":
    main(*sys.argv[1:])
