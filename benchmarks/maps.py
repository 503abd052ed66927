# SPDX-License-Identifier: Apache-2.0
"""Variants of Jet-Long beyond the context length of stories15M, 256 tokens, on texts of its own.

    PYTHONPATH=tests python benchmarks/maps.py

One pass over the first 512, 1024 and 2048 tokens of each of 6 texts; each method is extended to just that length. "cut off"
is the unmodified model on windows of 256 tokens that advance by 128. The loss is that of the tokens past the 256th, compared
text by text with "cut off"; intervals are 95 %, of Student's t over the texts. Methods in the file are not measured again. The
table is written to maps.md, beside the file.
"""

import json
import sys
from pathlib import Path

import torch

import posenc
from posenc.lab.statistics import estimate
from posenc.pretrained import loss_by_position

METHODS = {
    "cut off": "none", "jet_long": "jet_long", "jet_long, one group": "jet_long:least={factor}",
    "jet_long:window=16": "jet_long:window=16", "jet_long:window=16, one group": "jet_long:window=16:least={factor}",
}  # fmt: skip
"""Name in the table -> method. One group: as the authors read a prompt."""
FACTORS = (2, 4, 8)
TRAINED = 256


def table(results: dict) -> str:
    """Markdown: for each method and length, nats per token and the difference from "cut off"."""
    lengths = [str(factor * TRAINED) for factor in FACTORS]
    rows = [["method", *(f"{n} tokens" for n in lengths)], ["---", *["---:"] * len(lengths)]]
    for name in (name for name in METHODS if name in results["methods"]):
        by_length = results["methods"][name]
        cells = []
        for n in lengths:
            loss, base = (torch.tensor(of[n]) for of in (by_length, results["methods"]["cut off"]))
            gap = estimate((loss - base)[None])
            cells.append(f"{loss.mean():.3f} ({gap.mean:+.3f} ± {gap.high - gap.mean:.3f})")
        rows.append([name, *cells])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def page(results: dict) -> str:
    """All of maps.md."""
    return f"""# Jet-Long beyond the context length

Written by `PYTHONPATH=tests python benchmarks/maps.py`. stories15M, trained at {results["trained"]} tokens, {results["texts"]} of its texts in one pass,
{results["dtype"].removeprefix("torch.")}: nats per token past the {results["trained"]}th, and the difference from "cut off", the unmodified model on windows of {results["trained"]} tokens, with 95 %
intervals over the texts. One group: a prompt is read with one group for all queries (`least` equal to `groups`), as by the authors, whose window is 2048 of
32768 tokens, here 16; the default is half the context length, at most 2048. One thread of an AMD EPYC with AVX-512, shared with other work.

{table(results)}
"""


def main(file: str = "benchmarks/maps.json", texts: int = 6) -> None:
    """Measure the methods that `file` does not have yet."""
    from references import stories15m

    model, read, path = stories15m.load(), stories15m.texts()[: int(texts)], Path(file)
    new: dict = {"trained": TRAINED, "dtype": str(model.dtype), "texts": len(read), "methods": {}}
    results = json.loads(path.read_text()) if path.exists() else new
    for name, method in METHODS.items():
        if name in results["methods"]:
            continue
        row = {}
        for factor in FACTORS:
            posenc.extend(model, method.format(factor=factor), factor=factor)
            window = TRAINED if name == "cut off" else None
            losses = [loss_by_position(model, text[: factor * TRAINED], chunk=2048, window=window) for text in read]
            posenc.restore(model)
            row[str(factor * TRAINED)] = [round(loss[TRAINED:].mean().item(), 5) for loss in losses]
        results["methods"][name] = row
        path.write_text(json.dumps(results, indent=1) + "\n")
        print(name, {n: round(sum(x) / len(x), 3) for n, x in row.items()}, flush=True)
    path.with_suffix(".md").write_text(page(results), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
