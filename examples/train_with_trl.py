# SPDX-License-Identifier: Apache-2.0
"""A Llama with another encoding, trained by TRL's SFTTrainer in packed rows, then saved, loaded and writing.

    pip install trl
    python examples/train_with_trl.py t5

The texts are the help topics of Python's standard library, in bytes, in documents of at most 128, which TRL packs into rows of
128 and flattens to one row a batch: no document sees another. TRL warns that this needs FlashAttention; posenc's attention
takes the documents from the same position_ids. The second argument is the number of training steps.
"""

import sys
import tempfile
from pydoc_data.topics import topics

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, ByT5Tokenizer, LlamaConfig
from trl import SFTConfig, SFTTrainer

import posenc

SIZES = {"hidden_size": 96, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4}


def main(encoding="t5", steps=60, folder=None, seed=0):
    torch.manual_seed(seed)
    posenc.hf.register()
    tokenizer, folder = ByT5Tokenizer(), folder or tempfile.mkdtemp()
    config = LlamaConfig(
        **SIZES, vocab_size=len(tokenizer), max_position_embeddings=128, eos_token_id=1, pad_token_id=0
    )
    texts = [{"text": part} for text in topics.values() for part in text.split("\n\n") if part.strip()]
    arguments = SFTConfig(
        folder, max_steps=int(steps), per_device_train_batch_size=8, max_length=128, packing=True,
        logging_steps=10, use_cpu=True, bf16=False, report_to=[], disable_tqdm=True, save_strategy="no",
    )  # fmt: skip
    model = AutoModelForCausalLM.from_config(config, encoding=encoding)
    optimizer = torch.optim.AdamW(posenc.parameter_groups(model, lr=3e-3))  # the SFTTrainer's own has one rate for all
    trainer = SFTTrainer(
        model,
        arguments,
        train_dataset=Dataset.from_list(texts[:2000]),
        processing_class=tokenizer,
        optimizers=(optimizer, None),
    )
    trainer.train()
    trainer.save_model(folder)
    loss = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry][-1]
    print(f"{encoding}: {loss:.2f} nats a byte after {steps} steps")
    model, prompt = (
        AutoModelForCausalLM.from_pretrained(folder),
        tokenizer("The", return_tensors="pt").input_ids[:, :-1],
    )
    print(tokenizer.decode(model.generate(prompt, max_new_tokens=40, do_sample=False)[0]))
    return loss


if __name__ == "__main__":
    main(*sys.argv[1:])
