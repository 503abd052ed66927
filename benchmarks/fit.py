# SPDX-License-Identifier: Apache-2.0
"""Learned stretches beside other ways to read past the context length: stories15M, trained at 256 tokens, reading 1024 and 2048.

    cd benchmarks && python fit.py [--lengths 1024 2048] [--texts FILE] [--smollm2 BOOK]

Results go to fit.json cell by cell, one method at one length, and the tables to fit.md; finished cells are not measured
again. FILE has the texts to fit on, (texts, tokens) as a .npy file; where there is none, stories15M draws them and they are
written there: a minute of processor time. No passage that is measured is among them. --smollm2 measures SmolLM2 as
well, on the text file BOOK.
"""

import argparse
import json
import os
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy
import torch

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "tests")]

from learned_stretch import learn  # noqa: E402

import posenc  # noqa: E402
from posenc.encodings.augment import skipped_positions  # noqa: E402
from posenc.lab.statistics import estimate  # noqa: E402
from posenc.pretrained import loss_by_position  # noqa: E402
from posenc.tasks import create  # noqa: E402
from references import stories15m  # noqa: E402

RESULTS, PAGE = HERE / "fit.json", HERE / "fit.md"
TRAINED, BLOCK, PERIOD = 256, 128, 256
FITS = {
    "fit": {},
    "fit, temperature": {"temperature": True},
    "fit, evolution": None,
    "fit, repeated text too": None,
}
"""Settings; None: it is in fit.json, from a program that left (`posenc.pretrained.fit`, last in commit 0c1fb2cf)."""
METHODS = ("truncation", "none", "linear", "ntk", "yarn", "llama3", "self_extend", "dual_chunk", *FITS)
STEPS, PASSAGES, REPEATED = 30, 8, 4
FAR, FAR_WINDOW, FAR_WINDOWS, FAR_METHODS = 16384, 1024, 16, ("fit", "yarn", "none")
FAR_SETTINGS = {"steps": 20, "batch_size": 1}
SKILLS = ("passkey", "facts", "key_value:keys=words:values=digits")


def losses(model, method: str, texts: torch.Tensor, length: int) -> torch.Tensor:
    """Nats of each token, (texts, tokens); texts are read one after the other, since logits of several take gigabytes."""
    window = TRAINED if method == "truncation" else None
    return torch.stack([loss_by_position(model, text[:length], chunk=512, window=window) for text in texts])


def cell(method: str, length: int, to_fit: torch.Tensor) -> dict:
    """One method at one length: nats a token by blocks, for each passage, on running text and on text that repeats."""
    model, passages = stories15m.load(), stories15m.texts()[:PASSAGES]
    began, found = time.process_time(), {}
    if method in FITS:
        small = {"batch_size": 1} if length > 1024 else {}
        options = {"steps": STEPS, "held_out": 1 / 6, **small, **FITS[method]}
        fit = learn(model, to_fit[:, :length], length, **options)
        posenc.extend(
            model, "explicit", target_length=length, stretch=fit.stretch, attention_factor=fit.attention_factor
        )
        found = {"held_out": fit.losses, "stretch": fit.stretch, "start": fit.start, "settings": options}
        found["attention_factor"] = fit.attention_factor
        found["fit_seconds"] = round(time.process_time() - began, 1)
    elif method != "truncation":
        posenc.extend(model, method, target_length=length)
    repeated = passages[:REPEATED, :PERIOD].repeat(1, length // PERIOD)
    for name, texts in (("text", passages), ("repeated", repeated)):
        blocks = losses(model, method, texts, length).reshape(len(texts), -1, BLOCK).nanmean(-1)
        found[name] = [[round(x, 4) for x in row] for row in blocks.tolist()]
    return found


def skills(samples: int = 8) -> dict:
    """The share of answers that the unmodified model finds within its 256 tokens."""
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast(tokenizer_object=stories15m.tokenizer(), bos_token="<s>", eos_token="</s>")
    model, found = stories15m.load(), {}
    for name in SKILLS:
        task, hits = create(name), 0
        for index in range(samples):
            sample = task.sample(tokenizer, TRAINED, depth=0.5, index=index)
            with torch.no_grad():
                guesses = model(sample.ids[None]).logits[0, sample.prompt_tokens - 1 : -1].argmax(-1)
            hits += bool((guesses == sample.ids[sample.prompt_tokens :]).all())
        found[name] = f"{hits} of {samples}"
    return found


def smollm2(method: str, book: Path) -> None:
    """SmolLM2 (8192 tokens) set up for 16384 tokens, bfloat16, on a book: nats a token in windows of 1024 tokens whose positions
    skip up to there, on its first part; fits learn on the rest. Each window is stored as it is read."""
    name = f"smollm2 {method}"
    model, tokenizer = posenc.load("demo", dtype="bfloat16")
    ids = torch.tensor(tokenizer(book.read_text(encoding="utf-8"))["input_ids"])
    first, rest = ids[: FAR_WINDOWS * FAR_WINDOW].view(FAR_WINDOWS, -1), ids[FAR_WINDOWS * FAR_WINDOW :]
    found = read().get(name, {"text": []})
    if method == "fit" and "method" not in found:
        began = time.process_time()
        rows = rest[: len(rest) // FAR_WINDOW * FAR_WINDOW].view(-1, FAR_WINDOW)
        fit = learn(model, rows, FAR, length=FAR_WINDOW, **FAR_SETTINGS)
        factors = {"stretch": fit.stretch, "attention_factor": fit.attention_factor}
        report = posenc.extend(model, "explicit", target_length=FAR, **factors)
        found |= {"method": report.method, "fit_seconds": round(time.process_time() - began, 1)}
        found |= {"held_out": fit.losses, "stretch": fit.stretch, "start": fit.start}
        store(name, found)
    else:
        posenc.extend(model, found.get("method", method), target_length=FAR)
    draws = torch.rand(2, FAR_WINDOWS, 1, generator=torch.Generator().manual_seed(3))
    positions = skipped_positions(torch.arange(FAR_WINDOW), FAR_WINDOW, FAR, *draws)
    for number in range(len(found["text"]), FAR_WINDOWS):
        window, at = first[number], positions[number : number + 1]
        with torch.no_grad():
            logits = model(window[None], position_ids=at, use_cache=False).logits[0, :-1].float()
        found["text"].append(round(torch.nn.functional.cross_entropy(logits, window[1:]).item(), 4))
        store(name, found)


def read() -> dict:
    return json.loads(RESULTS.read_text()) if RESULTS.exists() else {}


def store(name: str, found: dict) -> None:
    """Add a cell to the results, which another process may have changed."""
    results = read()
    temporary = RESULTS.with_suffix(f".{os.getpid()}")
    temporary.write_text(json.dumps(results | {name: found}, indent=1) + "\n", encoding="utf-8")
    os.replace(temporary, RESULTS)


def table(results: dict, length: int) -> str:
    """Markdown: nats by quarters of the text, the second half against YaRN's, and repeated text."""
    cells = {
        name: SimpleNamespace(**results[f"{name} at {length}"]) for name in METHODS if f"{name} at {length}" in results
    }
    half = length // BLOCK // 2

    def second(rows: list) -> torch.Tensor:
        return torch.tensor(rows, dtype=torch.float64)[:, half:].mean(1)

    titles = [f"{i * length // 4} to {(i + 1) * length // 4}" for i in range(4)]
    head = [
        "method",
        "0 to 256",
        *titles[length <= 1024 :],
        "second half",
        "against YaRN",
        "repeated, second half",
        "processor time",
    ]
    rows = [head, ["---", *["---:"] * (len(head) - 1)]]
    for name, found in cells.items():
        blocks = torch.tensor(found.text, dtype=torch.float64)
        quarters = [f"{part.mean():.3f}" for part in blocks.chunk(4, 1)][length <= 1024 :]
        gap = estimate((second(found.text) - second(cells["yarn"].text))[None])
        mean, again = estimate(second(found.text)[None]), estimate(second(found.repeated)[None])
        cost = f"{found.fit_seconds:.0f} s" if name in FITS else ""
        rows.append([
            name, f"{blocks[:, : TRAINED // BLOCK].mean():.3f}", *quarters, f"{mean.mean:.3f} ± {mean.high - mean.mean:.3f}",
            "" if name == "yarn" else f"{gap.mean:+.3f} ± {gap.high - gap.mean:.3f}",
            f"{again.mean:.3f} ± {again.high - again.mean:.3f}", cost,
        ])  # fmt: skip
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def page(results: dict) -> str:
    """fit.md."""
    parts = [
        PAGE.read_text(encoding="utf-8").split("<!-- tables -->")[0].rstrip() if PAGE.exists() else "# Fitted stretches"
    ]
    parts.append("<!-- tables -->")
    for length in (1024, 2048):
        if f"yarn at {length}" in results:
            parts += [f"## Reading {length} tokens", table(results, length)]
    far = {name: results.get(f"smollm2 {name}", {"text": []}) for name in FAR_METHODS}
    if all(len(found["text"]) == FAR_WINDOWS for found in far.values()):
        parts += [f"## SmolLM2, positions up to {FAR}", far_table(far)]
    return "\n\n".join(parts) + "\n"


def far_table(far: dict) -> str:
    """Markdown: nats a token in windows whose positions skip up to 16384, and the difference from YaRN."""
    rows = ["| method | nats | against YaRN | processor time |", "| --- | ---: | ---: | ---: |"]
    for name, found in far.items():
        text, yarn = (torch.tensor(each["text"], dtype=torch.float64)[None] for each in (found, far["yarn"]))
        mean, gap = estimate(text), estimate(text - yarn)
        against = "" if name == "yarn" else f"{gap.mean:+.3f} ± {gap.high - gap.mean:.3f}"
        cost = f"{found['fit_seconds']:.0f} s" if name == "fit" else ""
        rows.append(f"| {name} | {mean.mean:.3f} ± {mean.high - mean.mean:.3f} | {against} | {cost} |")
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="*", default=[1024, 2048])
    parser.add_argument("--texts", type=Path, default=Path("fit-texts.npy"))
    parser.add_argument("--smollm2", type=Path, metavar="BOOK")
    parser.add_argument("--methods", nargs="+", default=METHODS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if not options.texts.exists():
        drawn = stories15m.sample(stories15m.load(), 24, 2048, seed=23)
        numpy.save(options.texts, drawn.numpy().astype("uint16"))
    to_fit = torch.from_numpy(numpy.load(options.texts).astype("int64"))

    for length in options.lengths:
        for method in options.methods:
            if f"{method} at {length}" not in read() and FITS.get(method, {}) is not None:
                store(f"{method} at {length}", cell(method, length, to_fit))
                print(f"{method} at {length}", flush=True)
    if "skills within 256" not in read():
        store("skills within 256", skills())
    for method in FAR_METHODS if options.smollm2 else ():
        smollm2(method, options.smollm2)
    PAGE.write_text(page(read()), encoding="utf-8")


if __name__ == "__main__":
    main()
