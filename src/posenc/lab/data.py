"""Real text as bytes: the default that every Python carries, files and folders, Hugging Face datasets."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from posenc.errors import InputError
from posenc.lab.config import Settings
from posenc.tasks.haystack import pydoc

TEXT_SUFFIXES = {".txt", ".md", ".rst", ".tex", ".py", ".html", ".xml", ".csv", ".json", ".jsonl", ".c", ".h", ".js"}
HELD_OUT = 0.1
"""The share at the end of the text that is kept for testing."""
HF_BYTES = 50_000_000
"""How much of a Hugging Face dataset is read."""


@dataclass(frozen=True, eq=False)
class Corpus:
    """A text as bytes. train and test are uint8 tensors; digest is the SHA-256 of the whole text."""

    name: str
    digest: str
    train: Tensor
    test: Tensor

    def write(self, folder: Path) -> None:
        """Put the text where other processes can `read` it."""
        for part in ("train", "test"):
            tokens: Tensor = getattr(self, part)
            (folder / part).write_bytes(tokens.numpy().tobytes())
        (folder / "corpus.json").write_text(json.dumps({"name": self.name, "digest": self.digest}), encoding="utf-8")

    @classmethod
    def read(cls, folder: Path) -> "Corpus":
        """The text that another process wrote, mapped into memory rather than loaded."""

        def tokens(part: str) -> Tensor:
            return torch.from_file(str(folder / part), size=(folder / part).stat().st_size, dtype=torch.uint8)

        facts = json.loads((folder / "corpus.json").read_text(encoding="utf-8"))
        return cls(facts["name"], facts["digest"], tokens("train"), tokens("test"))


def load(source: str) -> Corpus:
    """The text behind a name: "pydoc" (the language reference inside Python's standard library), the path of a text
    file or of a folder of text files, or "hf:NAME[:CONFIG]" for the text column of a Hugging Face dataset.

    Raises:
        InputError: no such text, no text in it, or the `datasets` package is missing for an "hf:" name.
    """
    if source == "pydoc":
        return corpus(pydoc().encode(), "pydoc_data.topics, the language reference in Python's standard library")
    if source.startswith("hf:"):
        return corpus(_hugging_face(source[3:]), source)
    if not source:
        raise InputError("--data '': name a text file, a folder, or hf:NAME")
    path = Path(source)
    try:
        if path.is_file():
            return corpus(path.read_bytes(), str(path))
        if path.is_dir():
            texts = [
                p.read_bytes() for p in sorted(path.rglob("*")) if p.suffix.lower() in TEXT_SUFFIXES and p.is_file()
            ]
            if not texts:
                raise InputError(f"--data {source}: no text files there (looked for {' '.join(sorted(TEXT_SUFFIXES))})")
            return corpus(b"\n\n".join(texts), str(path))
    except OSError as error:
        raise InputError(f"--data {source}: {error.strerror}; give a readable text file or folder") from None
    raise InputError(f"--data {source}: no such file or folder; a Hugging Face dataset is written hf:{source}")


def corpus(text: bytes, name: str) -> Corpus:
    """Split a text: the last tenth is held out."""
    if len(text) < 2:
        raise InputError(f"--data {name}: the text is empty")
    tokens = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    cut = int(len(tokens) * (1 - HELD_OUT))
    return Corpus(name, hashlib.sha256(text).hexdigest(), tokens[:cut], tokens[cut:])


def with_copies(tokens: Tensor, longest: int, seed: int = 0) -> Tensor:
    """A text to learn copying from: by turns a piece of 4 to `longest` of its bytes, another piece twice, and as many
    random bytes twice (of 64 values), which nothing but copying predicts."""
    draws = torch.Generator().manual_seed(seed)
    found: list[Tensor] = []
    while len(tokens):
        piece, tokens = tokens.tensor_split([int(torch.randint(4, longest + 1, (), generator=draws))])
        noise = torch.randint(64, piece.shape, generator=draws, dtype=torch.uint8)
        found.append((piece, piece.repeat(2), noise.repeat(2))[len(found) % 3])
    return torch.cat(found)


def check_long_enough(corpus: Corpus, settings: Settings) -> None:
    """Refuse a text in which the windows would not fit.

    Raises:
        InputError: with the number of bytes that the settings need.
    """
    need_test = settings.longest + settings.windows * settings.targets + 1
    need_train = settings.length * settings.batch_size + 1
    need = max(round(need_test / HELD_OUT), round(need_train / (1 - HELD_OUT)))
    have = len(corpus.train) + len(corpus.test)
    if len(corpus.test) < need_test or len(corpus.train) < need_train:
        raise InputError(
            f"--data {corpus.name}: {have} bytes are too short to test at {settings.longest} tokens with "
            f"{settings.windows} windows; needs about {need} bytes: give a longer text, a smaller --length, fewer "
            "--factors, --windows or --batch-size"
        )


def _hugging_face(name: str) -> bytes:
    try:
        import datasets
    except ImportError:
        raise InputError(f"--data hf:{name}: needs the datasets package: pip install 'posenc[data]'") from None
    path, _, config = name.partition(":")
    if not path:
        raise InputError("--data hf:: name a dataset, as in hf:roneneldan/TinyStories")
    parts: list[bytes] = []
    size = 0
    try:
        rows = datasets.load_dataset(path, config or None, split="train", streaming=True)
        for row in rows:
            parts.append(str(row["text"] if "text" in row else next(iter(row.values()))).encode())
            size += len(parts[-1]) + 2
            if size >= HF_BYTES:
                break
    except Exception as error:  # datasets raises what its many back ends raise
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(f"--data hf:{name}: {reason}") from None
    return b"\n\n".join(parts)[:HF_BYTES]
