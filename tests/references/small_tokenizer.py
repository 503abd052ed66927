"""A byte-level BPE tokenizer of 512 tokens, learnt from Python's language reference: any text comes back as it went in."""

from functools import cache
from typing import Any

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from posenc.tasks.haystack import read


@cache
def small_tokenizer(vocabulary: int = 512) -> Any:
    from transformers import PreTrainedTokenizerFast

    bpe = tokenizers.Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    special = ["<pad>", "<s>", "</s>"]  # 0, 1 and 2, as the small models have them
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    bpe.train_from_iterator([read("pydoc")[:200_000]], trainer)
    return PreTrainedTokenizerFast(tokenizer_object=bpe, pad_token="<pad>", bos_token="<s>", eos_token="</s>")
