# SPDX-License-Identifier: Apache-2.0
"""Does a short training predict a long one? What 100 steps tell of the losses after 1600.

    python benchmarks/early.py run known    # trains the encodings whose runs choose the rule; run again, it goes on
    python benchmarks/early.py freeze       # chooses the rule from them, into benchmarks/early/rule.json, which is then committed
    python benchmarks/early.py run new      # trains encodings that posenc had never trained, to judge the rule
    python benchmarks/early.py check        # was the rule committed before each of their trainings began, and is it unchanged?
    python benchmarks/early.py judge        # what came of it; --write: into benchmarks/early.md

A cell is one encoding, in benchmarks/early/cells. Model, batch, optimizer and rates are compare's default, on prose. The trunk's branches
at 50 and 100 steps cool down, and the trunk itself at 1600. Commit the cells as they come: `run` commits nothing.
"""

import argparse
import copy
import hashlib
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from rule import losses as of_compare

HERE = Path(__file__).parent / "early"
CELLS, RULE = HERE / "cells", HERE / "rule.json"
KNOWN: dict[str, tuple[str, ...]] = {
    "rotary": ("rope", "rope:rope_theta=100", "xpos"),
    "bias": ("alibi", "kerple", "t5", "fire"),
    "absolute": ("sinusoidal", "learned"),
    "scores": ("shaw", "transformer_xl"),
    "gates": ("fox", "cope"),
    "none": ("none",),
}
"""By family: what the rule is chosen on, each family predicted by the others."""
NEW = ("tisa", "repo", "tapa", "xlnet", "tupe_r", "decoupled_rope", "grape_ap", "rope+kerple")
"""None of them is in any training of this repository before the rule."""
HALF, EARLY, LATE = 50, 100, 1600
SEED, TEXT = 0, "prose"
CONTEXTS, FAR, TARGETS, PASSAGES = (8, 32, 128), 8, 64, 96
FAR_LOSS = "loss at 8 times the length"
APART = 0.02
"""Nats: pairs nearer than that are in no order."""
Cell = Mapping[str, Any]
MEASURES: dict[str, Callable[[Cell], float]] = {
    "loss": lambda cell: cell["100"]["loss"],
    FAR_LOSS: lambda cell: cell["100"]["far"],
    "loss's fall from 50 steps": lambda cell: cell["50"]["loss"] - cell["100"]["loss"],
    "line through 50 and 100 steps": lambda cell: cell["100"]["loss"] - 4 * (cell["50"]["loss"] - cell["100"]["loss"]),
    "gain from 8 to 32 bytes of context": lambda cell: cell["100"]["context"]["8"] - cell["100"]["context"]["32"],
    "gain from 32 to 128 bytes": lambda cell: cell["100"]["context"]["32"] - cell["100"]["context"]["128"],
    "mean attention distance": lambda cell: cell["100"]["distance"],
    "induction score": lambda cell: cell["100"]["induction"],
    "recall": lambda cell: cell["100"]["copied"],
    "jump of it from 50 steps": lambda cell: cell["100"]["copied"] - cell["50"]["copied"],
}
"""What a cell tells after 100 steps; a line goes through the losses over the logarithm of the steps, to 1600."""
TRUTHS: dict[str, Callable[[Cell], float]] = {
    "loss": lambda cell: cell["1600"]["loss"],
    FAR_LOSS: lambda cell: cell["1600"]["far"],
}


def path_of(encoding: str) -> Path:
    return CELLS / f"{encoding.replace(':', '_')}.json"


def cells(names: Sequence[str]) -> dict[str, Any]:
    return {name: json.loads(path_of(name).read_text()) for name in names if path_of(name).exists()}


# ---------------------------------------------------------------- training and measuring


def run(names: Iterable[str], part: str) -> None:
    import torch

    from posenc.lab.machine import describe
    from posenc.lab.text import Settings

    if part == "new" and (not RULE.exists() or _git("status", "--porcelain", "--", str(RULE))):
        sys.exit(f"{RULE} is not committed: freeze it first")
    torch.set_num_threads(1)
    commit = _git("rev-parse", "HEAD")
    CELLS.mkdir(exist_ok=True, parents=True)
    settings = Settings(steps=LATE, factors=(1, FAR), windows=PASSAGES, targets=TARGETS, contexts=CONTEXTS)
    corpus, settings = settings.load(TEXT)
    for name in names:
        claimed = path_of(name).with_suffix(".claim")
        if path_of(name).exists() or claimed.exists():
            continue
        claimed.touch()  # by one of two processes
        begun, used = time.time(), time.process_time()
        found = trained(name, settings, corpus)
        facts = {"encoding": name, "part": part, "commit": commit, "corpus": corpus.digest, "start": round(begun)}
        facts |= {"seconds": round(time.process_time() - used, 1), "machine": describe(torch.device("cpu"))}
        path_of(name).write_text(json.dumps({**facts, **found}) + "\n")
        claimed.unlink()
        print(
            time.strftime("%H:%M:%S"),
            name,
            facts["seconds"],
            *(found[str(LATE)][k] for k in ("loss", "far", "copied")),
            flush=True,
        )


def trained(encoding: str, settings: Any, corpus: Any) -> dict[str, Any]:
    from posenc.lab import budgets
    from posenc.lab.experiment import Run
    from posenc.lab.train import Training

    training, found = Training(Run.of(encoding, SEED, settings, corpus.digest), corpus.train), {}
    for budget in (HALF, EARLY, LATE):
        while training.steps < budgets.cooldown_start(budget):
            training.advance(budgets.rate(training.steps, LATE))
        branch = copy.deepcopy(training) if budget < LATE else training
        while branch.steps < budget:
            branch.advance(budgets.rate(branch.steps, budget))
        found[str(budget)] = measured(branch.model.eval(), encoding, settings, corpus)
    return found


def measured(model: Any, encoding: str, settings: Any, corpus: Any) -> dict[str, Any]:
    """The loss in nats per byte of 96 passages by context, and what the model does with a text that is there twice."""
    import torch

    from posenc.lab.records import CONTEXT

    variant = settings.variants(encoding, model.encoding)[0]  # as trained
    scores = settings.evaluate(model, variant, corpus.test)
    random = torch.Generator().manual_seed(1)
    starts = torch.randint(len(corpus.test.tokens) - 64, (64,), generator=random)
    once = torch.stack([corpus.test.tokens[at : at + 64] for at in starts.tolist()]).long()
    twice = torch.cat((once, once), 1)
    with torch.no_grad(), weights_of(model) as layers:
        guessed = model(twice[:, :-1]).argmax(-1)
    with torch.no_grad():
        after_another = model(torch.cat((once.roll(1, 0), once), 1)[:, :-1]).argmax(-1)
    right, without = ((each[:, 64:] == once[:, 1:]).double().mean().item() for each in (guessed, after_another))
    weights = torch.stack(layers).double()  # (layers, batch, heads, q, k)
    q, k = torch.arange(127)[:, None], torch.arange(127)
    distance = (weights * (q - k)).sum(-1)[..., 63:].mean()
    after = weights[..., torch.arange(64, 127), torch.arange(1, 64)].mean(
        (1, 3)
    )  # what followed the same byte in the first copy
    return {
        "loss": round(scores.paired[1].mean().item(), 5),
        "far": round(scores.paired[FAR].mean().item(), 5),
        "passages": [round(v, 4) for v in scores.paired[1].tolist()],
        "context": {str(c): round(v.mean().item(), 5) for c, v in scores.extra[CONTEXT].items()},
        "distance": round(distance.item(), 4),
        "induction": round(after.max().item(), 5),
        "copied": round(right - without, 5),
    }


class weights_of:
    """While it is open, the weights (batch, heads, q, k) of each layer's attention are put into the list that it gives: attention
    to values that are the unit vectors, less that to none, since Shaw's has values of its distances."""

    def __init__(self, model: Any) -> None:
        self.layers = [block.attention for block in model.blocks]

    def __enter__(self) -> list[Any]:
        import torch
        from torch.nn import functional as F

        found: list[Any] = []
        for layer in self.layers:

            def noting(q, k, v, here, at, of=layer, **options):  # type: ignore[no-untyped-def]
                units = torch.eye(k.shape[-2]).split(v.shape[-1], 1)
                given = [F.pad(unit, (0, v.shape[-1] - unit.shape[1])).expand_as(v) for unit in (units[0] * 0, *units)]
                none, *some = (here.attention(q, k, unit, layer=at, backend=of.backend, **options) for unit in given)
                found.append(torch.cat([each - none for each in some], -1)[..., : k.shape[-2]])
                return type(of)._attended(of, q, k, v, here, at, **options)

            layer._attended = noting
        return found

    def __exit__(self, *_: object) -> None:
        for layer in self.layers:
            del layer._attended


# ---------------------------------------------------------------- the rule


def ranks(values: Any) -> np.ndarray:
    """Ranks, ties shared."""
    values = np.asarray(values)
    return np.array([(values < v).sum() + ((values == v).sum() - 1) / 2 for v in values])


def spearman(one: Any, other: Any) -> float:
    return float(np.corrcoef(ranks(one), ranks(other))[0, 1])


def values(found: Mapping[str, Any], measure: str) -> np.ndarray:
    return np.array([MEASURES[measure](cell) for cell in found.values()])


def late(found: Mapping[str, Any], truth: str) -> np.ndarray:
    return np.array([TRUTHS[truth](cell) for cell in found.values()])


def families() -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """The cells of each family, and those of the other known encodings."""
    for family, own in KNOWN.items():
        yield cells(own), cells([name for other, names in KNOWN.items() if other != family for name in names])


def without_a_family(measure: str, truth: str) -> list[float]:
    """Spearman's correlation of a measure with a late loss, each family left out."""
    return [spearman(values(others, measure), late(others, truth)) for _, others in families()]


def error(measure: str, truth: str) -> float:
    """The mean absolute error of a line by least squares from a measure to a late loss, on the families that it was not fitted to."""
    errors: list[float] = []
    for own, others in families():
        line = np.polynomial.Polynomial.fit(values(others, measure), late(others, truth), 1)
        errors += np.abs(line(values(own, measure)) - late(own, truth)).tolist()
    return float(np.mean(errors))


def freeze() -> dict[str, Any]:
    """For each late loss the measure whose order is nearest to its own, on average over the families left out, and the sign of it."""
    rules = {}
    for truth in TRUTHS:
        rank = {measure: float(np.mean(without_a_family(measure, truth))) for measure in MEASURES}
        best = max(rank, key=lambda measure: abs(rank[measure]))
        rules[truth] = {"measure": best, "sign": int(np.sign(rank[best])), "spearman": round(rank[best], 3)}
    known = [name for names in KNOWN.values() for name in names]
    digest = {name: _sha256(path_of(name).read_bytes()) for name in known}
    return {"rules": rules, "cells": digest, "predictions": PREDICTIONS}


PREDICTIONS = (
    "loss: Spearman's correlation of the rule with the loss after 1600 steps, over the new encodings, is at least 0.6",
    "loss: it is above that of the loss after 100 steps",
    "loss: at least 75 % of the pairs more than 0.02 nats apart after 1600 steps are in the rule's order",
    "loss at 8 times the length: Spearman's correlation of its rule with it after 1600 steps is at least 0.5",
)
"""Registered with the rules. The rule of the loss holds if the first three are right."""


def predicted(rule: Mapping[str, Any], found: Mapping[str, Any]) -> np.ndarray:
    """In the order of a late loss, and not its level."""
    return int(rule["sign"]) * values(found, str(rule["measure"]))


def ordered(predictions: np.ndarray, truth: np.ndarray) -> tuple[int, int]:
    """Pairs that are apart and in order, and those that are apart."""
    pairs = [(a, b) for a, b in combinations(range(len(truth)), 2) if abs(truth[a] - truth[b]) > APART]
    return sum((predictions[a] > predictions[b]) == (truth[a] > truth[b]) for a, b in pairs), len(pairs)


def verdicts() -> list[tuple[str, str, bool]]:
    frozen, found = json.loads(RULE.read_text()), cells(NEW)
    truth, last = late(found, "loss"), values(found, "loss")
    guess = predicted(frozen["rules"]["loss"], found)
    rank, of_last = spearman(guess, truth), spearman(last, truth)
    right, pairs = ordered(guess, truth)
    far = spearman(predicted(frozen["rules"][FAR_LOSS], found), late(found, FAR_LOSS))
    came = [
        (f"{rank:.2f}", rank >= 0.6),
        (f"{rank:.2f} against {of_last:.2f}", rank > of_last),
        (f"{right} of {pairs} (the loss after 100 steps: {ordered(last, truth)[0]})", right >= 0.75 * pairs),
        (f"{far:.2f}", far >= 0.5),
    ]
    return [(text, words, ok) for text, (words, ok) in zip(frozen["predictions"], came, strict=True)]


# ---------------------------------------------------------------- the page


def afterwards(rule: Mapping[str, Any], known: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """What nobody has registered: the rule without the encodings that learned no more than `none`."""
    least = TRUTHS["loss"](known["none"])
    learned = {name: cell for name, cell in new.items() if TRUTHS["loss"](cell) < least}
    truth, guess, last = late(learned, "loss"), predicted(rule, learned), values(learned, "loss")
    right, pairs = ordered(guess, truth)
    *some, one = (f"`{name}`" for name in new if name not in learned)
    return (
        f"{', '.join(some)} and {one} have learned no more than `none` ([why](#why-three-learned-no-more-than-none)). Of the {len(learned)} others the correlation is "
        f"{spearman(guess, truth):.2f} ({right} of {pairs} pairs), that of the loss after {EARLY} steps {spearman(last, truth):.2f} "
        f"({ordered(last, truth)[0]} of {pairs}). It is one seed, one text and one size; with the size the order changes ([the law](law.md))."
    )


def elsewhere() -> str:
    """The same line in the trainings of rule.py, which end after 800 steps; `local_nope`, which is `rope` there, is left out."""
    found = []
    for (text, seed), each in of_compare().items():
        of = [{at: float(v.mean()) for at, v in row.items()} for name, row in each.items() if name != "local_nope"]
        line = [row["100"] - 3 * (row["50"] - row["100"]) for row in of]
        last, truth = ([row[at] for row in of] for at in ("100", "800"))
        found.append(f"{text}, seed {seed}: {spearman(line, truth):.2f} ({spearman(last, truth):.2f})")
    return (
        "In the trainings of [the rule's test](rule.md), seven encodings and 800 steps, the line through 50 and 100 steps has these rank "
        f"correlations, the loss after 100 steps those in brackets: {'; '.join(found)}."
    )


def why(known: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """What early_rates.py found of those, as lines of the page."""
    rates = json.loads((HERE.parent / "early_rates.json").read_text())
    result = {(cell["task"], cell["encoding"], cell["change"]): cell["result"] for cell in rates}
    moved = {
        cell["encoding"]: cell["moved"].values() for cell in rates if (cell["task"], cell["change"]) == ("prose", "")
    }
    before = "projections x5"

    def shown(encoding: str, change: str = "", task: str = "prose") -> str:
        found = result.get((task, encoding, change))
        return "" if found is None else f"{100 * found:.0f} %" if task == "back" else f"{found:.2f}"

    alone = "none", "rope", "t5", "alibi", "tupe_r", "tapa", "tapa:alpha=1", "repo", "rope/repo", "rope/none"
    rows = [(name, f"`{name}`", "") for name in alone]
    rows += [("tupe_r", "`tupe_r` as it was", before), ("tapa", "`tapa`, phases x0.16", "phase x0.16")]
    table = ["| encoding | loss | all rates x0.25 | x4 | the token three before |", "|---|" + 4 * "--:|"]
    for encoding, title, change in sorted(rows, key=lambda row: alone.index(row[0])):
        swept = [shown(encoding, f"all x{factor}") if not change else "" for factor in ("0.25", "4")]
        table.append(f"| {title} | {' | '.join((shown(encoding, change), *swept, shown(encoding, change, 'back')))} |")
    pairs = [
        f"{shown(name)} in place of {shown(name, before)} (`{name}`)" for name in ("tupe", "transformer_xl", "xlnet")
    ]
    weights = [shown("tupe_r", change, "weight") for change in (before, "")]
    distances = [values({"": cell}, "mean attention distance")[0] for cell in (new["tupe_r"], known["none"])]
    return [
        "### Why three learned no more than `none`",
        "",
        "Shorter trainings by the same model and schedule, one seed ([early_rates.json](early_rates.json), by [early_rates.py](early_rates.py)): the",
        "loss on prose after 300 steps, and after 200 the share of right answers where each target is the token three before, one of 16.",
        "",
        *table,
        "",
        "- `tupe_r` by a fault of `posenc compare`, which is mended. Its projections of positions had the rate of tables, five times that of other "
        f"projections, and its scores saturated: after 10 steps positions alone gave one key a weight of {weights[0]} (now {weights[1]}), after {EARLY} "
        f"it attended {distances[0]:.0f} bytes back on average, `none` {distances[1]:.0f}. The losses at the rate that they have now: {', '.join(pairs)}. "
        f"In a training as above it comes to {result['long', 'tupe_r', '']:.3f}, `t5` to {TRUTHS['loss'](known['t5']):.3f}. The registered test is of the trainings as they were.",
        f"- `repo` learns, its three maps moved by {min(moved['repo']):.1f} to {max(moved['repo']):.1f} times their norm, but it does not read a token's "
        "index: its authors have it above layers with RoPE, in a model that was trained with RoPE. At ten times the rate of its maps the loss is "
        f"{shown('repo', 'encoding x10')}.",
        "- `tapa` has no parameters, and its phases at distances 1 and 2 differ by the factor 2^0.1, 7 %. Smaller phases (`x0.16` of those that the "
        f"formula gives) and lower rates give little, all rates at 0.06 times {shown('tapa', 'all x0.06')}. A setting at which it comes near `rope` is not "
        "known.",
        f"- `fire`, whose perceptron has the tables' rate, gains nothing at a fifth of it ({shown('fire', 'encoding x0.2')}, and {shown('fire')} as it is).",
    ]


def page() -> str:
    known, new = cells([name for names in KNOWN.values() for name in names]), cells(NEW)
    everything = [*known.values(), *new.values()]
    most = max(cell[str(LATE)]["copied"] for cell in everything)
    lines = [
        "# Does a short training predict a long one?",
        "",
        "Generated by `python benchmarks/early.py judge --write` from [early/cells](early/cells): compare's default model and rates on",
        f"English prose, one seed, {LATE} steps of 12 x 128 bytes, which read the text 1.6 times. Measures are of a branch that ends after {EARLY}",
        f"steps, a sixteenth. {len(known)} encodings chose a rule for each loss; {len(new)} that had never been trained here judge it.",
        f"{sum(cell['seconds'] for cell in everything) / 3600:.1f} hours of one core.",
    ]
    for truth in TRUTHS:
        lines += ["", f"## {truth[0].upper()}{truth[1:]}, nats per byte, after {LATE} steps", ""]
        lines += [
            "| measure after 100 steps | Spearman's correlation | a family left out: mean | least | error of a line |"
        ]
        lines += ["|---|" + 4 * "--:|"]
        for measure in sorted(MEASURES, key=lambda m: -abs(float(np.mean(without_a_family(m, truth))))):
            rank, out = spearman(values(known, measure), late(known, truth)), without_a_family(measure, truth)
            least = min(out, key=abs)
            lines.append(
                f"| {measure} | {rank:+.2f} | {np.mean(out):+.2f} | {least:+.2f} | {error(measure, truth):.3f} |"
            )
        y = late(known, truth)
        lines += [
            "",
            f"The mean of the encodings errs by {np.abs(y - y.mean()).mean():.3f}; a line that errs by more predicts no level.",
        ]
    lines += ["", "## Recall", ""]
    lines += [
        "The share of bytes that are right in the second of two copies of 64, less that of the same bytes after another text, is at most",
        f"{most:.3f} after {LATE} steps, of all encodings: models of this size and budget recall nothing, and nothing can be predicted of it.",
    ]
    rules = json.loads(RULE.read_text())["rules"] if RULE.exists() else {}
    if rules:
        lines += ["", "## The rules, frozen before the new encodings were trained", ""]
        for truth, rule in rules.items():
            way = "least" if rule["sign"] > 0 else "most"
            lines.append(f"- The lowest {truth} after {LATE} steps has what has the {way} of: {rule['measure']}.")
    if len(new) == len(NEW):
        lines += ["", "| registered prediction | what came | |", "|---|---|---|"]
        lines += [f"| {text} | {came} | {'right' if ok else '**wrong**'} |" for text, came, ok in verdicts()]
        holds = all(ok for *_, ok in verdicts()[:3])
        verdict = (
            "holds, and `posenc compare` says so" if holds else "does not hold, and `posenc compare` does not print it"
        )
        lines += [
            "",
            f"The rule of the loss {verdict}.",
            "",
            "### Afterwards",
            "",
            afterwards(rules["loss"], known, new),
            "",
            elsewhere(),
            "",
            *why(known, new),
        ]
    shown = (
        "loss",
        FAR_LOSS,
        "line through 50 and 100 steps",
        "gain from 8 to 32 bytes of context",
        "gain from 32 to 128 bytes",
        "mean attention distance",
    )
    gains = ("8", "32"), ("32", "128")
    head = [f"{m}, {EARLY}" for m in shown] + [f"{t}, {LATE}" for t in TRUTHS]
    head += [f"gain from {near} to {far} bytes, {LATE}" for near, far in gains]
    lines += ["", "## Trainings", "", f"| encoding | {' | '.join(head)} |", "|---|" + len(head) * "--:|"]
    for part, found in (("", known), (", new", new)):
        for name, cell in sorted(found.items(), key=lambda item: TRUTHS["loss"](item[1])):
            row = [f"{MEASURES[m](cell):.3f}" for m in shown] + [f"{of(cell):.3f}" for of in TRUTHS.values()]
            of_late = cell[str(LATE)]["context"]
            row += [f"{of_late[near] - of_late[far]:.3f}" for near, far in gains]
            lines.append(f"| `{name}`{part} | " + " | ".join(row) + " |")
    return "\n".join(lines) + "\n"


def check() -> int:
    """Each training of a new encoding names a commit that has this rule and is older than its start; the rule's cells are unchanged."""
    bad = [
        name
        for name, sha in json.loads(RULE.read_text())["cells"].items()
        if _sha256(path_of(name).read_bytes()) != sha
    ]
    for name, cell in cells(NEW).items():
        when = _git("show", "-s", "--format=%ct", cell["commit"])
        command = ["git", "-C", str(HERE.parent), "show", f"{cell['commit']}:benchmarks/early/rule.json"]
        registered = subprocess.run(command, capture_output=True).stdout
        if not (when and int(when) <= cell["start"] and registered == RULE.read_bytes()):
            bad.append(name)
    print(
        f"not registered first, or changed: {', '.join(bad)}"
        if bad
        else "the rule was committed before each training that judges it"
    )
    return bool(bad)


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _git(*arguments: str) -> str:
    return subprocess.run(["git", "-C", HERE.parent, *arguments], capture_output=True, text=True).stdout.strip()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["run", "freeze", "check", "judge"])
    parser.add_argument("part", nargs="?", choices=["known", "new"], help="of run")
    parser.add_argument("--write", action="store_true", help="write benchmarks/early.md")
    given = parser.parse_args()
    if given.command == "run":
        if given.part is None:
            parser.error("run: say known or new")
        run([name for names in KNOWN.values() for name in names] if given.part == "known" else NEW, given.part)
    elif given.command == "freeze":
        RULE.write_text(json.dumps(freeze(), indent=1) + "\n")
    elif given.command == "check":
        return check()
    elif given.write:
        (HERE.parent / "early.md").write_text(page())
    else:
        print(page(), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
