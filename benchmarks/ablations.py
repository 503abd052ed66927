# SPDX-License-Identifier: Apache-2.0
"""What each part of an encoding contributes, how much the learning rate decides, and whether the order holds in larger
models: train the models, and write benchmarks/ablations.json and the tables of benchmarks/ablations.md.

    python benchmarks/ablations.py --list
    python benchmarks/ablations.py --train text copy [--seeds 4] [--out DIR]     # finished models are not trained again
    python benchmarks/ablations.py --collect [--out DIR]                         # what has been trained, into the .json
    python benchmarks/ablations.py --board                                       # differences of the leaderboard's runs as it has them
    python benchmarks/ablations.py --time                                        # processor time of a training step
    python benchmarks/ablations.py                                               # the tables, from the .json

Run from the root of the repository.
"""

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

import torch

from posenc.lab.compare import Comparison, compare, experiment
from posenc.lab.experiment import TEN, Run
from posenc.lab.machine import flushed_denormals
from posenc.lab.records import RunRecord, level
from posenc.lab.results import collect
from posenc.lab.statistics import Estimate, estimate
from posenc.lab.store import Store, Stored, identity
from posenc.lab.train import Training
from posenc.report.terminal import Display

sys.path.append(str(Path(__file__).parent))
from archives import read

NUMBERS, PAGE = Path(__file__).with_suffix(".json"), Path(__file__).with_suffix(".md")
MARK = "<!-- {}: written by python benchmarks/ablations.py -->"
PARTS = "benchmarks/ablated.py:"
LEADERBOARD = Path(__file__).parent / "leaderboard"
NOT_YET = "Not trained yet."
TIMED = ("sinusoidal", "learned", "floater", "none", "benchmarks/recurrent_codes.py:Recurrent")
MOST_SEEDS = 8

Json = dict[str, Any]


@dataclass(frozen=True)
class Models:
    """Models that share everything but encoding and seed. changes: from the settings of the standard preset. far: the
    condition, beside that of training, that the tables show."""

    task: str
    far: int
    seeds: int
    changes: Mapping[str, Any] = field(default_factory=dict)


RATES = {"learning_rate": 0.05, "adamw_learning_rate": 0.01, "position_learning_rate": 0.05}
MODELS = {
    "text": Models("text", 8, 4),
    "copy": Models("copy", 2, 4),
    "rate/3": Models("text", 8, 2, {name: rate / 3 for name, rate in RATES.items()}),
    "rate*3": Models("text", 8, 2, {name: rate * 3 for name, rate in RATES.items()}),
    "size*4": Models("text", 8, 2, {"dim": 256, "num_heads": 8}),
    "size*16": Models("text", 8, 1, {"dim": 512, "num_heads": 16}),
}


@dataclass(frozen=True)
class Ablation:
    """Encodings that differ in one part: what a table calls each -> its text; the first is what the others are compared with."""

    models: tuple[str, ...]
    encodings: Mapping[str, str]


def _named(*texts: str) -> dict[str, str]:
    return {f"`{text}`": text for text in texts}


def _terms() -> dict[str, str]:
    """Every subset of the four terms; the first is all of them."""
    subsets: dict[str, str] = {}
    for count in (3, 2, 1):
        for terms in combinations(("c2p", "p2c", "p2p"), count):
            text = f"{PARTS}FourTerms:terms={'|'.join(terms)}"
            subsets[", ".join(("content", *terms))] = text
            subsets[", ".join(terms)] = f"{text}:content=false"
    return subsets | {"content": "none", "nothing": f"{PARTS}Uniform"}


ABLATIONS = {
    "merge": Ablation(
        ("text", "copy"),
        {"added": "sinusoidal", "concatenated": "sinusoidal:merge=concat", "x (1 + p)": "sinusoidal:merge=multiply",
         "x p": "sinusoidal:merge=product", "no positions": "none"},
    ),
    "learned": Ablation(("text", "copy"), _named("sinusoidal", "learned", "floater", "none")),
    "recurrent": Ablation(
        ("text", "copy"), {"sinusoidal": "sinusoidal", "FLOATER": "floater", "recurrent": "benchmarks/recurrent_codes.py:Recurrent"}
    ),
    "learned_frequencies": Ablation(("text", "copy"), _named("rope", "learned_rope", "fope")),
    "xl": Ablation(
        ("text",),
        {"u and v": "transformer_xl", "u": f"{PARTS}XLBiases:biases=u", "v": f"{PARTS}XLBiases:biases=v",
         "neither": f"{PARTS}XLBiases:biases=neither"},
    ),
    "shaw": Ablation(("text", "copy"), {f"clip {n}": f"shaw:clip={n}" if n != 16 else "shaw" for n in (16, 4, 8, 32, 64, 128)}),
    "t5": Ablation(
        ("text",),
        {"32 buckets to 128": "t5", "8 to 128": "t5:num_buckets=8", "16 to 128": "t5:num_buckets=16", "64 to 128": "t5:num_buckets=64",
         "32 to 32": "t5:max_distance=32", "32 to 512": "t5:max_distance=512"},
    ),
    "rope_base": Ablation(
        ("text", "copy"), {"base 10000": "rope", **{f"base {n}": f"rope:rope_theta={n}" for n in (30, 100, 1000, 100000, 1000000)}}
    ),
    "rope_fraction": Ablation(
        ("text",), {"all channels": "rope", **{f"{n} of them": f"rope:rotary_dim={n}" for n in (0.25, 0.5, 0.75)}, "none": "none"}
    ),
    "terms": Ablation(("text",), _terms()),
}  # fmt: skip


def encodings_of(models: str) -> tuple[str, ...]:
    """Of all ablations that these models are for, and the ten, each once."""
    texts = [text for each in ABLATIONS.values() if models in each.models for text in each.encodings.values()]
    return tuple(dict.fromkeys((*(TEN if MODELS[models].task == "text" else ()), *texts)))


def planned(name: str, seeds: int | None) -> tuple[Comparison, Any]:
    """The comparison of some models, and its data."""
    models = MODELS[name]
    kind = experiment(models.task)
    settings = kind.presets["leaderboard"].settings.changed(**models.changes)
    corpus, settings = settings.load(kind.data)
    return Comparison(encodings_of(name), seeds or models.seeds, settings), corpus


def folder(out: Path, name: str) -> Path:
    return out / name.replace("/", "_over_").replace("*", "_times_")


def train(name: str, out: Path, seeds: int | None) -> None:
    """Train and test the models that are missing in the folder, and neither in the leaderboard."""
    comparison, corpus = planned(name, seeds)
    for run, stored in finished(name, out).items():
        Store(folder(out, name)).save(run.id, stored)
    with Display() as display:
        compare(
            comparison, corpus, folder(out, name), workers=1, progress=display, command=f"ablations, {name}",
        )  # fmt: skip


def finished(name: str, out: Path) -> dict[Run, Stored[RunRecord]]:
    """The models in the folder, and those of the leaderboard that are the same."""
    comparison, corpus = planned(name, MOST_SEEDS)
    runs = {run.id: run for run in comparison.runs(corpus)}
    done = {runs[id]: stored for stored in read(LEADERBOARD) if (id := identity(stored.facts)) in runs}
    store = Store(folder(out, name))
    return done | {run: stored for id, run in runs.items() if (stored := store.load(id, RunRecord)) is not None}


# ---------------------------------------------------------------- numbers


def collected(name: str, out: Path, before: Json) -> Json:
    """The numbers of some models: levels, and in each ablation differences from its first encoding, on the seeds that all of its
    encodings have, with the programs that trained them. before: as of this; an ablation stays as it is there if one of its
    encodings is neither in the folder nor in the leaderboard."""
    comparison, corpus = planned(name, None)
    models, s = MODELS[name], comparison.settings
    done = finished(name, out)
    conditions = (s.trained_at, models.far)
    key = s.criterion.key

    def of(texts: Sequence[str], earlier: Json | None) -> Json | None:
        found = numbers_of(texts, {run: stored.record for run, stored in done.items()}, conditions, key)
        programs = sorted({stored.program for run, stored in done.items() if run.encoding in texts})
        return earlier if found is None else found | {"programs": programs}

    return {
        "task": models.task,
        "settings": s.to_dict(),
        "data": corpus.digest,
        "criterion": key,
        "conditions": list(conditions),
        "size": {at: s.spelled(at) for at in conditions},
        "ten": of(TEN, before["ten"]) if models.task == "text" else None,
        "ablations": {
            each: of(tuple(ablation.encodings.values()), before["ablations"].get(each))
            for each, ablation in ABLATIONS.items()
            if name in ablation.models
        },
    }


def of_board(models: Json) -> Json:
    """Models whose levels of encodings of the leaderboard, and differences of two of them, are those that its pages have."""
    from replication import Board, compared

    rankings, changed = Board.read(LEADERBOARD).rankings, deepcopy(models)
    for name in (name for name in models if not MODELS[name].changes):
        ranking = rankings[MODELS[name].task]
        there = {variant.name: variant for variant in ranking.trained}
        for of in filter(None, (*changed[name]["ablations"].values(), changed[name].get("ten"))):
            for text, levels in of["levels"].items():
                if text in there:
                    of["levels"][text] = {at: asdict(ranking.level(there[text], int(at))) for at in levels}
        for ablation, of in changed[name]["ablations"].items():
            first = next(iter(ABLATIONS[ablation].encodings.values()))
            for at, gaps in of["differences"].items() if first in there else ():
                gaps |= {
                    each: asdict(compared(ranking, int(at), each, first).estimate) for each in gaps if each in there
                }
    return changed


def seconds_of_a_step(text: str) -> float:
    """Processor time of a training step on text, in one thread: the median of ten."""
    torch.set_num_threads(1)
    comparison, corpus = planned("text", None)
    training = Training(Run.of(text, 0, comparison.settings, corpus.digest), corpus.train)
    seconds = []
    with flushed_denormals():
        for _ in range(12):
            begin = time.process_time()
            training.advance()
            seconds.append(time.process_time() - begin)
    return statistics.median(seconds[2:])


def numbers_of(texts: Sequence[str], done: Mapping[Run, RunRecord], conditions: Sequence[int], key: str) -> Json | None:
    """None before every encoding has finished a seed."""
    has = {(run.encoding, run.seed) for run in done}
    seeds = [seed for seed in range(MOST_SEEDS) if all((text, seed) in has for text in texts)]
    if not seeds:
        return None
    chosen = {run: record for run, record in done.items() if run.encoding in texts and run.seed in seeds}
    of = {variant.name: variant for variant in collect(chosen) if variant.trained}
    first, *others = (of[text] for text in texts)
    gaps = {
        at: {each.name: each.values(at, seeds, key) - first.values(at, seeds, key) for each in others}
        for at in conditions
    }
    return {
        "seeds": seeds,
        "parameters": {text: next(iter(variant.cells.values())).parameters for text, variant in of.items()},
        "levels": {text: {at: asdict(level(variant, at, key)) for at in conditions} for text, variant in of.items()},
        "differences": {
            at: {name: asdict(estimate(gap, comparisons=len(others))) for name, gap in each.items()} for at, each in gaps.items()
        },
    }  # fmt: skip


def spearman(a: Sequence[float], b: Sequence[float]) -> float:
    """The rank correlation of two sequences without ties."""
    ranks = [torch.tensor(values).argsort().argsort().double() for values in (a, b)]
    return float(torch.corrcoef(torch.stack(ranks))[0, 1])


def rank_correlation(a: Sequence[float], b: Sequence[float]) -> Estimate:
    """Spearman's, with its interval (Bonett and Wright 2000)."""
    n, rho = len(a), spearman(a, b)
    error = math.sqrt((1 + rho**2 / 2) / (n - 3))
    z = math.atanh(min(max(rho, -0.999999), 0.999999))
    return Estimate(rho, error, math.tanh(z - 1.96 * error), math.tanh(z + 1.96 * error))


# ---------------------------------------------------------------- tables


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def shown(found: Json, of: Json, text: str, at: int) -> str:
    mean = of["levels"][text][str(at)]["mean"]
    return f"{mean:.3f}" if found["criterion"] == "loss" else f"{100 * mean:.1f}"


def gap(found: Json, e: Json) -> str:
    """With the half interval; bold where the interval is on one side of 0."""
    scale, digits = (1, 3) if found["criterion"] == "loss" else (100, 1)
    text = f"{scale * e['mean']:+z.{digits}f} ± {scale * (e['high'] - e['low']) / 2:.{digits}f}".replace("-", "−")
    return f"**{text}**" if e["low"] > 0 or e["high"] < 0 else text


def of_ablation(name: str, numbers: Json) -> str:
    """The tables of an ablation, one for each kind of models."""
    ablation, made = ABLATIONS[name], []
    for models in ablation.models:
        found = numbers["models"][models]
        of = found["ablations"][name]
        if of is None:
            continue
        unit = "loss" if found["criterion"] == "loss" else "accuracy in %"
        head = [f"{found['task']}: {unit} at"]
        for at in found["conditions"]:
            head += [found["size"][str(at)], "difference"]
        timed = models == "text" and all(text in numbers["seconds"] for text in ablation.encodings.values())
        if timed:
            head.append("ms a step")
        rows = []
        for label, text in ablation.encodings.items():
            row = [label]
            for at in found["conditions"]:
                e = of["differences"][str(at)].get(text)
                row += [shown(found, of, text, at), "" if e is None else gap(found, e)]
            if timed:
                row.append(f"{1000 * numbers['seconds'][text]:.0f}")
            rows.append(row)
        made.append(f"{table(head, rows)}\n\nSeeds: {len(of['seeds'])}.")
    return "\n\n".join(made) or NOT_YET


def tens(numbers: Json, names: Sequence[str]) -> dict[str, Json]:
    """The numbers of the ten for models that have finished."""
    return {name: numbers["models"][name] for name in names if numbers["models"][name]["ten"] is not None}


def of_rates(numbers: Json) -> str:
    """The ten at three learning rates."""
    found = tens(numbers, ("rate/3", "text", "rate*3"))
    if len(found) < 3:
        return NOT_YET
    conditions, sizes = found["text"]["conditions"], found["text"]["size"]

    def means(text: str, at: int) -> list[float]:
        return [each["ten"]["levels"][text][str(at)]["mean"] for each in found.values()]

    rows = []
    for text in sorted(TEN, key=lambda text: min(means(text, conditions[0]))):
        cells = [(f"{mean:.3f}", mean == min(means(text, at))) for at in conditions for mean in means(text, at)]
        rows.append([f"`{text}`", *(f"**{cell}**" if best else cell for cell, best in cells)])
    head = [f"{sizes[str(at)]}, {rate}" for at in conditions for rate in ("a third", "standard", "three times")]
    standard = [means(text, conditions[0])[1] for text in TEN]
    e = rank_correlation(standard, [min(means(text, conditions[0])) for text in TEN])
    rank = f"Order at the standard rates against that at each encoding's best: {_correlation(e)}."
    return f"{table(['', *head], rows)}\n\n{_seeds(found)} {rank}"


def of_sizes(numbers: Json) -> str:
    """The ten at larger sizes, and how far their order agrees."""
    found = tens(numbers, ("text", "size*4", "size*16"))
    if len(found) < 2:
        return NOT_YET
    conditions, sizes = found["text"]["conditions"], found["text"]["size"]

    def means(name: str, at: int) -> list[float]:
        return [found[name]["ten"]["levels"][text][str(at)]["mean"] for text in TEN]

    columns = [(at, name) for at in conditions for name in found]
    head = ["", *(f"{sizes[str(at)]}, {found[name]['ten']['parameters']['none'] / 1e6:.1f} M" for at, name in columns)]
    order = sorted(TEN, key=lambda text: found["text"]["ten"]["levels"][text][str(conditions[-1])]["mean"])
    rows = [
        [f"`{text}`", *(shown(found[name], found[name]["ten"], text, at) for at, name in columns)] for text in order
    ]
    agree = ["order against the smallest"]
    for at, name in columns:
        agree.append("" if name == "text" else _correlation(rank_correlation(means("text", at), means(name, at))))
    return f"{table(head, [*rows, agree])}\n\n{_seeds(found)}"


def _seeds(found: Mapping[str, Json]) -> str:
    counts = (str(len(each["ten"]["seeds"])) for each in found.values())
    return f"Seeds, in the order of the columns: {', '.join(counts)}."


def _correlation(e: Estimate) -> str:
    return f"{e.mean:.2f} ({e.low:.2f} to {e.high:.2f})" if e.mean < 1 - 1e-9 else "1.00"


def tables(numbers: Json) -> dict[str, str]:
    """Every table of the page, by name."""
    made = {name: of_ablation(name, numbers) for name in ABLATIONS}
    return made | {"rates": of_rates(numbers), "sizes": of_sizes(numbers)}


def written(text: str, numbers: Json) -> str:
    """The page with its tables replaced."""
    for name, made in tables(numbers).items():
        begin, end = MARK.format(name), f"<!-- end of {name} -->"
        before, rest = text.split(begin)
        text = f"{before}{begin}\n{made}\n{end}{rest.split(end)[1]}"
    return text


def stored() -> Json:
    """The committed numbers."""
    found: Json = json.loads(NUMBERS.read_text(encoding="utf-8"))
    return {"seconds": {}} | found


def save(numbers: Json) -> None:
    NUMBERS.write_text(json.dumps(numbers, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--list", action="store_true", help="show models and ablations")
    parser.add_argument("--train", nargs="+", choices=MODELS, default=[], help="models to train")
    parser.add_argument("--seeds", type=int, help="trainings per encoding")
    parser.add_argument("--time", action="store_true", help="measure how long a training step takes")
    parser.add_argument("--collect", action="store_true", help="write the .json from what has been trained")
    parser.add_argument("--board", action="store_true", help="take the differences that the leaderboard has from there")
    parser.add_argument(
        "--out", type=Path, default=Path("posenc-compare/ablations"), help="folder of the trained models"
    )
    options = parser.parse_args()
    if options.list:
        for name, models in MODELS.items():
            print(
                f"{name}: {models.task}, {len(encodings_of(name))} encodings, {models.seeds} seeds, {dict(models.changes)}"
            )
        for name, ablation in ABLATIONS.items():
            print(f"{name} ({', '.join(ablation.models)}): {', '.join(ablation.encodings)}")
        return
    for name in options.train:
        train(name, options.out, options.seeds)
    if options.collect:
        found = {name: collected(name, options.out, stored()["models"][name]) for name in MODELS}
        save(stored() | {"models": found})
    if options.collect or options.board:
        save(stored() | {"models": of_board(stored()["models"])})
    if options.time:
        save(stored() | {"seconds": {text: seconds_of_a_step(text) for text in TIMED}})
    if not options.train:
        page = written(PAGE.read_text(encoding="utf-8"), stored())
        PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
