"""The table of benchmarks/reading_data.md on speed and memory: python benchmarks/reading_data.py.

JSON lines of a thousand words each, drawn from pydoc's with a seed, are read, cut and tokenised as `posenc compare --data`
does it, each file in a separate process; the peak is the memory of that process above that after its imports.
"""

import json
import multiprocessing
import random
import re
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from datetime import date
from importlib.metadata import version
from pathlib import Path
from pydoc_data.topics import topics

import torch

from posenc.lab.data import load
from posenc.lab.machine import cores, cpu, peak

PAGE = Path(__file__).with_suffix(".md")
START, END = "<!-- speed: made by benchmarks/reading_data.py -->", "<!-- speed ends -->"
MEASURED = [("bytes", 200), ("bytes", 400), ("bpe:4096", 20), ("bpe:4096", 40), ("demo", 20)]
"""Tokenizer, and megabytes of the file."""


def write(path: Path, megabytes: int) -> None:
    """Lines until the file is that large."""
    words, draw = " ".join(topics.values()).split(), random.Random(0)
    with path.open("w", encoding="utf-8") as file:
        while file.tell() < megabytes * 10**6:
            file.write(json.dumps({"text": " ".join(draw.choices(words, k=1000))}) + "\n")


def measure(path: Path, tokenizer: str) -> tuple[float, int, int]:
    """Seconds, peak in bytes, and size of the vocabulary."""
    load("pydoc", tokenizer if not tokenizer.startswith("bpe") else "bpe:512", data_tokens=1000)  # imports
    found = []

    def work() -> None:
        start = time.perf_counter()
        corpus = load(str(path), tokenizer, data_tokens=10**9)
        found.extend((time.perf_counter() - start, corpus.vocab_size))

    taken = peak(work, torch.device("cpu"))
    return found[0], taken, found[1]


def rows() -> list[str]:
    lines = ["| tokenizer | file | speed | peak |", "|---|---|---|---|"]
    with tempfile.TemporaryDirectory() as folder:
        for tokenizer, megabytes in MEASURED:
            path = Path(folder) / f"{megabytes}.jsonl"
            if not path.exists():
                write(path, megabytes)
            given = tokenizer
            if tokenizer == "demo":
                given = f"{folder}/tokenizer"
                _save_tokenizer(given)
            with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
                seconds, taken, ids = pool.submit(measure, path, given).result()
            name = {"demo": f"SmolLM2's, {ids} ids"}.get(tokenizer, f"`{tokenizer}`, learning included")
            name = "`bytes`" if tokenizer == "bytes" else name
            speed = path.stat().st_size / 1e6 / seconds
            lines.append(f"| {name} | {megabytes} MB | {speed:.1f} MB/s | {taken / 1e6:.0f} MB |")
            print(lines[-1], flush=True)
    return lines


def _save_tokenizer(folder: str) -> None:
    import posenc

    posenc.load("demo")[1].save_pretrained(folder)


def main() -> None:
    table = "\n".join(rows())
    libraries = ", ".join(f"{name} {version(name)}" for name in ("datasets", "tokenizers"))
    head = f"{cpu()}, {cores()} cores, {libraries}, {date.today()}. Peak is the memory of the process above that after its imports."
    text = PAGE.read_text(encoding="utf-8")
    new = f"{START}\n{head}\n\n{table}\n\n{END}"
    PAGE.write_text(re.sub(f"{re.escape(START)}.*?{re.escape(END)}", lambda _: new, text, flags=re.S), encoding="utf-8")


if __name__ == "__main__":
    main()
