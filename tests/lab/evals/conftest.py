"""Small models with random weights and a tokenizer that goes with them."""

import pytest

from references.small_models import small_model
from references.tokenizers import small_tokenizer

VOCABULARY = 512


@pytest.fixture(scope="session")
def tokenizer():
    return small_tokenizer(VOCABULARY)


@pytest.fixture
def llama():
    return small_model("llama", vocab_size=VOCABULARY)
