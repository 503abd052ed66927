# SPDX-License-Identifier: Apache-2.0
"""What each part of an encoding contributes, how much the learning rate decides, and whether the order holds in larger
models: train the models, and write benchmarks/ablations.json and the tables of docs/ablations.md.

    python benchmarks/ablations.py --list
    python benchmarks/ablations.py --train text copy [--seeds 2] [--out DIR]     # finished models are not trained again
    python benchmarks/ablations.py --collect [--out DIR]                         # what has been trained, into the .json
    python benchmarks/ablations.py                                               # the page's tables, from the .json

Run from the root of the repository.
"""

import argparse
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

import torch

from posenc.lab.compare import Comparison, compare, experiment
from posenc.lab.experiment import versions
from posenc.lab.machine import describe
from posenc.lab.results import Aggregate, Ranking, RunRecord, collect
from posenc.lab.statistics import Estimate, estimate
from posenc.lab.store import Store
from posenc.report.terminal import Display

NUMBERS, PAGE = Path(__file__).with_suffix(".json"), Path(__file__).parents[1] / "docs/ablations.md"
MARK = "<!-- {}: written by python benchmarks/ablations.py -->"
PARTS = "benchmarks/ablated.py:"
TEN = ("none", "sinusoidal", "learned", "rope", "alibi", "t5", "rope+alibi", "shaw", "fire", "fox")

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
    "text": Models("text", 8, 2),
    "copy": Models("copy", 2, 2),
    "places": Models("vision", 64, 2),
    "rate/3": Models("text", 8, 2, {name: rate / 3 for name, rate in RATES.items()}),
    "rate*3": Models("text", 8, 2, {name: rate * 3 for name, rate in RATES.items()}),
    "size*4": Models("text", 8, 1, {"dim": 256, "num_heads": 8}),
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
    """Every subset of the four terms; the first is the content alone."""
    subsets = {"content": "none", "nothing": f"{PARTS}Uniform"}
    for count in (1, 2, 3):
        for terms in combinations(("c2p", "p2c", "p2p"), count):
            text = f"{PARTS}FourTerms:terms={'|'.join(terms)}"
            subsets[", ".join(("content", *terms))] = text
            subsets[", ".join(terms)] = f"{text}:content=false"
    return subsets


ABLATIONS = {
    "merge": Ablation(
        ("text", "copy"),
        {"added": "sinusoidal", "concatenated": "sinusoidal:merge=concat", "x (1 + p)": "sinusoidal:merge=multiply",
         "x p": "sinusoidal:merge=product", "no positions": "none"},
    ),
    "learned": Ablation(("text", "copy"), _named("sinusoidal", "learned", "floater", "none")),
    "learned_frequencies": Ablation(("text", "copy"), _named("rope", "learned_rope", "fope")),
    "terms": Ablation(("text",), _terms()),
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
    "xl": Ablation(
        ("text",),
        {"u and v": "transformer_xl", "u": f"{PARTS}XLBiases:biases=u", "v": f"{PARTS}XLBiases:biases=v",
         "neither": f"{PARTS}XLBiases:biases=neither"},
    ),
    "images": Ablation(
        ("places",),
        _named("axial_rope", "mixed_rope", "rope", "grid_sinusoidal", "sinusoidal", "grid_table", "axial_table", "swin", "grid_alibi", "none"),
    ),
}  # fmt: skip


def encodings_of(models: str) -> tuple[str, ...]:
    """Of all ablations that these models are for, and the ten, each once."""
    texts = [text for each in ABLATIONS.values() if models in each.models for text in each.encodings.values()]
    ten = TEN if MODELS[models].task == "text" else ()
    return tuple(dict.fromkeys((*ten, *texts)))


def planned(name: str, seeds: int | None) -> tuple[Comparison, Any]:
    """The comparison of some models, and its data."""
    models = MODELS[name]
    kind = experiment(models.task)
    settings = kind.presets["standard"].settings.changed(**models.changes)
    corpus, settings = settings.load(kind.data)
    return Comparison(encodings_of(name), seeds or models.seeds, settings), corpus


def train(name: str, out: Path, seeds: int | None) -> None:
    """Train and test the models that are missing in the folder."""
    comparison, corpus = planned(name, seeds)
    with Display() as display:
        compare(comparison, corpus, folder(out, name), workers=1, progress=display, command=f"ablations, {name}")


def folder(out: Path, name: str) -> Path:
    return out / name.replace("/", "_over_").replace("*", "_times_")


# ---------------------------------------------------------------- numbers


def collected(name: str, out: Path) -> Json | None:
    """The numbers of some models: levels, and differences from the first encoding of each ablation; None before a seed of
    all encodings has finished."""
    comparison, corpus = planned(name, 100)
    store, models = Store(folder(out, name)), MODELS[name]
    done = {run: cell for run in comparison.runs(corpus) if (cell := store.load(run.id, RunRecord)) is not None}
    seeds = comparison.seeds_in(done)
    if not seeds:
        return None
    ranking = Ranking(
        collect({run: cell for run, cell in done.items() if run.seed < seeds}), comparison.settings, corpus
    )
    of = {variant.name: variant for variant in ranking.trained}
    conditions = (comparison.settings.trained_at, models.far)
    ablations = {
        each: {at: differences(ranking, of, list(ablation.encodings.values()), at) for at in conditions}
        for each, ablation in ABLATIONS.items()
        if name in ablation.models
    }
    return {
        "task": models.task,
        "settings": comparison.settings.to_dict(),
        "seeds": seeds,
        "data": corpus.digest,
        "criterion": ranking.criterion.key,
        "chance": ranking.chance,
        "conditions": list(conditions),
        "size": {at: comparison.settings.spelled(at) for at in conditions},
        "levels": {text: {at: asdict(ranking.level(variant, at)) for at in conditions} for text, variant in of.items()},
        "seconds": {text: median([cell.training_seconds for cell in variant.cells.values()]) for text, variant in of.items()},
        "parameters": {text: next(iter(variant.cells.values())).parameters for text, variant in of.items()},
        "ablations": ablations,
    }  # fmt: skip


def median(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 2]


def differences(ranking: Ranking, of: Mapping[str, Aggregate], texts: Sequence[str], at: int) -> Json:
    """Each encoding minus the first, on the same examples and seeds, with intervals that hold together."""
    key = ranking.criterion.key
    first, *others = (of[text] for text in texts)
    seeds = sorted(first.scores)
    gaps = {each.name: each.values(at, seeds, key) - first.values(at, seeds, key) for each in others}
    return {name: asdict(estimate(gap, comparisons=len(gaps))) for name, gap in gaps.items()}


def rank_correlation(a: Sequence[float], b: Sequence[float]) -> Estimate:
    """Spearman's, with its interval (Bonett and Wright 2000)."""
    n = len(a)
    ranks = [torch.tensor(values).argsort().argsort().double() for values in (a, b)]
    rho = float(torch.corrcoef(torch.stack(ranks))[0, 1])
    error = math.sqrt((1 + rho**2 / 2) / (n - 3))
    z = math.atanh(min(max(rho, -0.999999), 0.999999))
    return Estimate(rho, error, math.tanh(z - 1.96 * error), math.tanh(z + 1.96 * error))


# ---------------------------------------------------------------- tables


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def level(found: Json, text: str, at: int) -> str:
    mean = found["levels"][text][str(at)]["mean"]
    return f"{mean:.3f}" if found["criterion"] == "loss" else f"{100 * mean:.1f}"


def gap(found: Json, e: Json) -> str:
    """With the half interval; bold where the interval is on one side of 0."""
    scale, digits = (1, 3) if found["criterion"] == "loss" else (100, 1)
    shown = f"{scale * e['mean']:+z.{digits}f} ± {scale * (e['high'] - e['low']) / 2:.{digits}f}".replace("-", "−")
    return f"**{shown}**" if e["low"] > 0 or e["high"] < 0 else shown


def of_ablation(name: str, numbers: Json) -> str:
    """The tables of an ablation, one for each kind of models."""
    ablation, tables = ABLATIONS[name], []
    for models in ablation.models:
        if (found := numbers["models"].get(models)) is None:
            continue
        unit = "loss" if found["criterion"] == "loss" else "accuracy in %"
        head = [f"{found['task']}: {unit} at"]
        for at in found["conditions"]:
            head += [found["size"][str(at)], "difference"]
        rows = []
        for label, text in ablation.encodings.items():
            row = [label]
            for at in found["conditions"]:
                e = found["ablations"][name][str(at)].get(text)
                row += [level(found, text, at), "" if e is None else gap(found, e)]
            rows.append(row)
        tables.append(f"{table(head, rows)}\n\n{seeds_in_words(found)}")
    return "\n\n".join(tables)


def seeds_in_words(found: Json) -> str:
    return f"{found['seeds']} seed{'s' if found['seeds'] > 1 else ''}."


def of_rates(numbers: Json) -> str:
    """The ten at three learning rates."""
    names = ("rate/3", "text", "rate*3")
    if not all(name in numbers["models"] for name in names):
        return ""
    found = [numbers["models"][name] for name in names]
    rows = []
    for text in sorted(TEN, key=lambda text: min(each["levels"][text]["1"]["mean"] for each in found)):
        row = [f"`{text}`"]
        for at in found[0]["conditions"]:
            means = [each["levels"][text][str(at)]["mean"] for each in found]
            row += [f"**{mean:.3f}**" if mean == min(means) else f"{mean:.3f}" for mean in means]
        rows.append(row)
    sizes = [found[0]["size"][str(at)] for at in found[0]["conditions"]]
    return table(["", *(f"{size}, {rate}" for size in sizes for rate in ("a third", "standard", "three times"))], rows)


def of_sizes(numbers: Json) -> str:
    """The ten at larger sizes, and how far their order agrees."""
    found = {name: numbers["models"][name] for name in ("text", "size*4", "size*16") if name in numbers["models"]}
    if len(found) < 2:
        return ""
    conditions = found["text"]["conditions"]
    head = ["", *(f"{each['size'][str(at)]}, {_millions(each)}" for at in conditions for each in found.values())]
    order = sorted(TEN, key=lambda text: found["text"]["levels"][text][str(conditions[-1])]["mean"])
    rows = [[f"`{text}`", *(level(each, text, at) for at in conditions for each in found.values())] for text in order]
    last = ["order against the smallest"]
    for at in conditions:
        first = [found["text"]["levels"][text][str(at)]["mean"] for text in TEN]
        for name, each in found.items():
            e = rank_correlation(first, [each["levels"][text][str(at)]["mean"] for text in TEN])
            last.append("" if name == "text" else f"{e.mean:.2f} ({e.low:.2f} to {e.high:.2f})")
    return table(head, [*rows, last])


def _millions(found: Json) -> str:
    return f"{found['parameters']['none'] / 1e6:.1f} M"


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--list", action="store_true", help="show models and ablations")
    parser.add_argument("--train", nargs="+", choices=MODELS, default=[], help="models to train")
    parser.add_argument("--seeds", type=int, help="trainings per encoding")
    parser.add_argument("--collect", action="store_true", help="write the .json from what has been trained")
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
        found = {name: numbers for name in MODELS if (numbers := collected(name, options.out)) is not None}
        numbers = {**versions(), "machine": describe(torch.device("cpu")), "models": found}
        NUMBERS.write_text(json.dumps(numbers, indent=1) + "\n", encoding="utf-8")
    if not options.train:
        page = written(PAGE.read_text(encoding="utf-8"), json.loads(NUMBERS.read_text(encoding="utf-8")))
        PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
