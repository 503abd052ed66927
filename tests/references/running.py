"""Running text for tests: words that are a token each, and what scripts of others do with windows, token by token."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tokenizers
import transformers
from tokenizers import models, pre_tokenizers, processors
from torch import Tensor

SPECIAL = ["<unk>", "<s>", "</s>"]


def word_tokenizer(words: int, bos: bool = False) -> Any:
    """Words w0, w1, ... with ids from 3 on; with `bos` every text begins with <s>, as under Llama."""
    vocabulary = {token: id_ for id_, token in enumerate((*SPECIAL, *(f"w{word}" for word in range(words))))}
    tokenizer = tokenizers.Tokenizer(models.WordLevel(vocabulary, "<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if bos:
        tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>", eos_token="</s>"
    )


def word_file(path: Path, words: int, count: int) -> Path:
    """A text of `count` random words."""
    draws = random.Random(0)
    path.write_text(" ".join(f"w{draws.randrange(words)}" for _ in range(count)), encoding="utf-8")
    return path


def yarn_windows(count: int, window: int, stride: int) -> list[tuple[int, int, int]]:
    """(begin, first new token, end) of each window that jquesnelle/yarn, eval/perplexity.py, makes of a text."""
    found, reached = [], 0
    for begin in range(0, count, stride):
        end = min(begin + window, count)
        found.append((begin, reached, end))
        if end == count:
            break
        reached = end
    return found


def yarn_loss(loss_of: Callable[[Tensor, int], float], ids: Tensor, window: int, stride: int) -> float:
    """The logarithm of that script's perplexity: the mean over windows of the mean over each window's new tokens, but for
    the very first, which nothing precedes. loss_of: context and token -> nats."""
    means = []
    for begin, new, end in yarn_windows(len(ids), window, stride):
        losses = [loss_of(ids[begin:at], int(ids[at])) for at in range(new, end) if at > begin]
        means.append(sum(losses) / len(losses))
    return sum(means) / len(means)
