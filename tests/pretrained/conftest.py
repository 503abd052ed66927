"""Small models with random weights: what a method does is the same at any size."""

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


@pytest.fixture
def folder(llama, tokenizer, tmp_path):
    """A checkpoint of both."""
    llama.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture(scope="session")
def demo():
    """SmolLM2-135M-Instruct in float32, and its tokenizer."""
    smollm2.require()
    return load("demo", dtype="float32")
