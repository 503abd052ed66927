# SPDX-License-Identifier: Apache-2.0
"""What ways to extend a model are worth that the other tables lack: DroPE, Ms-PoE, band scaling and APE, beside others.

    cd benchmarks && python quality.py [--folder FOLDER]

stories15M past its 256 tokens, and SmolLM2 on questions about sentences of one form. Results go to quality.json cell by cell and
the tables to quality.md; finished cells are not measured again. FOLDER has the drawn texts and the fine-tuned weights.
"""

import argparse
import json
import sys
import time
from functools import cache
from pathlib import Path

import torch

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "tests")]

import bands  # noqa: E402
import ms_poe  # noqa: E402
from ape import ape_generate  # noqa: E402

import posenc  # noqa: E402
from posenc.lab.statistics import estimate  # noqa: E402
from posenc.pretrained import loss_by_position, nbce_generate  # noqa: E402
from posenc.tasks import create  # noqa: E402
from references import stories15m  # noqa: E402

RESULTS, PAGE = HERE / "quality.json", HERE / "quality.md"
TRAINED, LENGTHS, PASSAGES, REPEATED, PERIOD = 256, (512, 1024), 8, 4, 128
TUNING = {"steps": 100, "batch_size": 4, "length": TRAINED, "learning_rate": 3e-4}
SHARPER = (0.0, 0.05, 0.1, 0.2)
"""The c of DroPE's 1 + c ln s that are tried on two texts that are not measured."""
LOSSES = (
    "truncation", "none", "yarn", "self_extend", "ms_poe", "band_scale", "nope", "nope, tuned", "nope, tuned, temperature",
)  # fmt: skip
DEPTHS, QUESTIONS, ASKED, WEAK = (0.0, 0.5, 1.0), 16, 24, 0.1
ANSWERS = ("none", "ms_poe", "band_scale", "yarn:factor=2", "self_extend:window=128:group=2")
CONTEXTS, SENTENCES = 4, 6
READERS = ("APE", "APE, T = S = 1", "NBCE", "concatenated", "the last context alone")


def drawn(folder: Path) -> torch.Tensor:
    """Texts to fine-tune on, (texts, tokens), none of which is measured; the last two choose a temperature."""
    path = folder / "texts.pt"
    if not path.exists():
        torch.save(stories15m.sample(stories15m.load(), 32, 1024, seed=42), path)
    return torch.load(path)


def tuned(folder: Path) -> torch.nn.Module:
    """stories15M, fine-tuned at its old length without rotation (DroPE)."""
    model, path = stories15m.load(), folder / "nope.pt"
    if not path.exists():
        posenc.extend(model, "nope", target_length=TRAINED)
        print(posenc.finetune(model, drawn(folder)[:-2], **TUNING), flush=True)
        torch.save(model.state_dict(), path)
        posenc.restore(model)
    model.load_state_dict(torch.load(path))
    return model


def chosen(model: torch.nn.Module, method: str, ids: torch.Tensor, length: int | None, folder: Path) -> dict:
    """Extend the model by a method, to a length if it is one beyond the trained; what was chosen for it."""
    reaches = {} if length is None else {"target_length": length}
    if method == "truncation" or (method == "none" and length is None):
        return {}
    if method == "ms_poe":
        ms_poe.extend(model, ms_poe.head_scales(model, ids))
        return {}
    if method == "band_scale":
        semantic, _ = bands.head_scores(model, ids)
        heads = semantic.flatten().argsort()[: round(WEAK * semantic.numel())].tolist()
        bands.extend(model, bands.BandScale(model.config.max_position_embeddings, high=0.5, heads=heads))
        return {"heads": heads}
    if method.endswith("temperature"):
        texts, losses = drawn(folder)[-2:, :length], {}
        for c in SHARPER:
            beta = 1 + c * torch.tensor(length / TRAINED).log().item()
            posenc.extend(model, f"nope+temperature:beta={beta:.4f}", target_length=length)
            losses[beta] = loss_by_position(model, texts)[:, TRAINED:].mean().item()
        beta = min(losses, key=losses.get)
        posenc.extend(model, f"nope+temperature:beta={beta:.4f}", target_length=length)
        return {"beta": beta}
    posenc.extend(model, method.split(",")[0], **reaches)
    return {}


def losses(method: str, length: int, folder: Path) -> dict:
    """Nats a token past the context length, for each passage and for each that repeats, and within it."""
    model = tuned(folder) if "tuned" in method else stories15m.load()
    passages = stories15m.texts()[:PASSAGES, :length]
    repeated = stories15m.texts()[:REPEATED, :PERIOD].repeat(1, length // PERIOD)
    found = chosen(model, method, drawn(folder)[-1:, :TRAINED], length, folder)
    window = TRAINED if method == "truncation" else None
    for name, texts in (("text", passages), ("repeated", repeated)):
        nats = loss_by_position(model, texts, window=window)
        found[name] = [round(x, 4) for x in nats[:, TRAINED:].mean(1).tolist()]
        found[f"{name} within"] = [round(x, 4) for x in nats[:, 1:TRAINED].mean(1).tolist()]
    return found


@cache
def smollm2() -> tuple:
    return posenc.load("demo", dtype=torch.bfloat16)


def answers(method: str) -> dict:
    """SmolLM2 on facts in 512 tokens: nats of the answer, and whether each of its tokens is the likeliest, by depth."""
    model, tokenizer = smollm2()
    task, found = create("facts:items=25"), {}
    chosen(model, method, task.sample(tokenizer, 512, depth=0.5, index=1000).ids[None], None, Path())
    for depth in DEPTHS:
        rows = []
        for index in range(QUESTIONS):
            sample = task.sample(tokenizer, 512, depth=depth, index=index)
            first = sample.prompt_tokens
            with torch.no_grad():
                logits = model(sample.ids[None], logits_to_keep=len(sample.ids) - first + 1).logits[0, :-1].float()
            nats = torch.nn.functional.cross_entropy(logits, sample.ids[first:]).item()
            rows.append([round(nats, 4), bool((logits.argmax(-1) == sample.ids[first:]).all())])
        found[f"{depth:.0%}"] = rows
    posenc.restore(model)
    return found


def reading(method: str) -> dict:
    """SmolLM2 asked for one of the facts in several contexts: which questions it answers."""
    model, tokenizer = smollm2()
    task, right = create(f"facts:items={CONTEXTS * SENTENCES}"), []
    for index in range(ASKED):
        sample = task.sample(tokenizer, 512, depth=index / (ASKED - 1), index=index)
        text, question = sample.prompt.split("\n")
        facts = [f"{fact.strip().rstrip('.')}." for fact in text.split(". ")]
        contexts = [" ".join(facts[at : at + SENTENCES]) for at in range(0, len(facts), SENTENCES)]
        options = {"template": "{context}\n{question}", "max_new_tokens": 6}
        if method == "NBCE":
            answer = nbce_generate(model, tokenizer, contexts, question, **options)
        elif method.startswith("APE"):
            factors = {} if method == "APE" else {"temperature": 1.0, "scale": 1.0}
            answer = ape_generate(model, tokenizer, contexts, question, **options, **factors)
        else:
            text = " ".join(contexts) if method == "concatenated" else contexts[-1]
            answer = nbce_generate(model, tokenizer, [text], question, beta=0, top_p=1.0, **options)
        right.append(bool(task.score(answer.text, sample)))
    return {"right": right}


def interval(values: list, digits: int = 3, sign: str = "") -> str:
    found = estimate(torch.tensor(values, dtype=torch.float64)[None])
    return f"{found.mean:{sign}.{digits}f} ± {found.high - found.mean:.{digits}f}"


def difference(one: list, other: list) -> str:
    return interval([a - b for a, b in zip(one, other, strict=True)], sign="+")


def markdown(rows: list[list[str]]) -> str:
    rows.insert(1, ["---", *["---:"] * (len(rows[0]) - 1)])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def page(results: dict) -> str:
    parts = [PAGE.read_text(encoding="utf-8").split("<!-- tables -->")[0].rstrip() if PAGE.exists() else "# Quality"]
    parts.append("<!-- tables -->")
    for length in LENGTHS:
        base = results.get(f"none at {length}"), results.get(f"truncation at {length}")
        rows = [
            ["method", "past 256", "against none", "against truncation", "within 256", "repeated", "against truncation"]
        ]
        for method in LOSSES if None not in base else ():
            found = results.get(f"{method} at {length}")
            if found:
                text, again = found["text"], found["repeated"]
                rows.append([
                    method, interval(text), difference(text, base[0]["text"]), difference(text, base[1]["text"]),
                    interval(found["text within"]), interval(again), difference(again, base[1]["repeated"]),
                ])  # fmt: skip
        parts += [f"## stories15M, {length} tokens", markdown(rows)]
    rows = [["method", *(f"{depth:.0%}" for depth in DEPTHS), "all", "nats", "against none"]]
    for method in ANSWERS:
        found, base = results.get(f"facts, {method}"), results.get("facts, none")
        if found and base:
            hits = [sum(hit for _, hit in found[f"{depth:.0%}"]) for depth in DEPTHS]
            nats, before = (
                [
                    sum(rows[i][0] for rows in (of[f"{depth:.0%}"] for depth in DEPTHS)) / len(DEPTHS)
                    for i in range(QUESTIONS)
                ]
                for of in (found, base)
            )
            rows.append(
                [
                    method,
                    *map(str, hits),
                    f"{sum(hits)} of {len(DEPTHS) * QUESTIONS}",
                    interval(nats),
                    difference(nats, before),
                ]
            )
    parts += ["## SmolLM2, facts by depth", markdown(rows)]
    rows = [["method", "right", "against concatenated"]]
    for method in READERS:
        found, base = results.get(f"contexts, {method}"), results.get("contexts, concatenated")
        if found and base:
            right = found["right"]
            rows.append([method, f"{sum(right)} of {len(right)}", difference(right, base["right"])])
    parts += ["## SmolLM2, several contexts", markdown(rows)]
    return "\n\n".join(parts) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("quality"))
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    cells = {f"{m} at {n}": (losses, m, n, options.folder) for n in LENGTHS for m in LOSSES}
    cells |= {f"facts, {m}": (answers, m) for m in ANSWERS} | {f"contexts, {m}": (reading, m) for m in READERS}
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for name, (measure, *given) in cells.items():
        if name not in results:
            began = time.process_time()
            results[name] = measure(*given)
            RESULTS.write_text(json.dumps(results) + "\n", encoding="utf-8")
            print(f"{name}: {time.process_time() - began:.0f} s", flush=True)
        PAGE.write_text(page(results), encoding="utf-8")


if __name__ == "__main__":
    main()
