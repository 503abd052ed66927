# SPDX-License-Identifier: Apache-2.0
"""Numbers that sentences of the pages quote, put in from the results that they link: python benchmarks/quoted.py, from anywhere."""

import json
import math
import re
from collections.abc import Iterable, Iterator
from itertools import chain, combinations
from pathlib import Path
from statistics import median

import early
import numpy as np
import rule
from archives import read
from law import by_cell as of_cpu_by_cell
from law import mean
from law_gpu import EIGHT_TIMES, losses, widest
from law_gpu import gain as gain_of
from law_gpu import numbers_of as cells
from law_lease import by_cell

from posenc import position_maps
from posenc.frequencies import schedules
from posenc.lab.budgets import FURTHER, SPREAD
from posenc.lab.records import CONTEXT

ROOT = Path(__file__).parents[1]


def quoted() -> Iterator[tuple[str, str, list[str]]]:
    """A page, a piece of a sentence with {} for each number, and these."""
    compare = "docs/compare.md"
    line, last = cells("rule", "2.")[:2]
    (held, _), (right, _) = cells("rule", "4."), cells("rule", "5.")
    errors = [f"{float(cells('rule', share)[0]):.2f}" for share in ("0.25 |", "1 |")]
    rule_page = (ROOT / "benchmarks/rule.md").read_text(encoding="utf-8")
    ((once, last_once),) = re.findall(r"of the line is\s+(\S+), and that of the last loss (\S+)\.", rule_page)
    chinese = re.findall(r"## chinese.*?800 steps: line (\S+), loss at 200 steps (\S+)\.", rule_page, re.DOTALL)
    yield (
        compare,
        "(mean rank correlation {}, and {} for the last loss; without a duplicate {} and {}; on Chinese the last loss was nearer in both seeds, {} and {} against {} and {})",
        [line, last, once, last_once, *(of_last for _, of_last in chinese), *(of_line for of_line, _ in chinese)],
    )
    yield compare, "had {} % of the differences, and {} % of what it called decided was right", [held, right]
    yield compare, "As registered, the interval is now ±{}.", [f"{SPREAD:.2f}"]
    yield compare, "the interval of the line, ±{} nats at every budget", [f"{SPREAD:.2f}"]
    yield compare, "{} of {} pairs of encodings that learned were decided", [str(n) for n in decided()]
    yield (
        compare,
        "a line through 120 and 480 steps needed ±{} nats at 1920, and ±0.06 held {} % of {} differences",
        from_480(),
    )
    yield compare, "the mean error is {} nats in place of {},", errors
    known = early.cells([name for names in early.KNOWN.values() for name in names])
    late, measures = early.late(known, "loss"), ("line through 50 and 100 steps", "loss")
    of_known = [f"{early.spearman(early.values(known, measure), late):.2f}" for measure in measures]
    yield compare, "after 1600 (rank correlation {}; the loss itself {})", of_known
    yield (
        compare,
        "never been trained here with {}, and the loss itself with {};",
        early.verdicts()[1][1].split(" against "),
    )
    new = early.verdicts()[1][1].split(" against ")
    of_rule = cells("rule", "3.")
    came = [once, last_once, of_rule[0], of_rule[-1], "0.02", *new]
    if re.findall(r"0\.\d+|\d+(?= %)", FURTHER) != came:
        raise SystemExit(f"posenc.lab.budgets.FURTHER has other numbers than the pages: {came}")
    of_loss = (
        "had a rank correlation of {} with the loss after 1600 in one set of 14 encodings and of {} in eight others"
    )
    yield "docs/guides/choose.md", of_loss, [of_known[1], new[1]]
    yield "docs/guides/choose.md", "that of a line through two of them, {} and {}", [of_known[0], new[0]]
    yield "docs/guides/choose.md", "at 4 times the steps it is {} against {}", [last_once, once]

    yield from _of_ablations()

    ways = len(schedules.SCHEDULES) - 1, len(position_maps.MAPS)  # without the default
    yield "docs/comparison.md", "[{} schedules](frequencies.md), [{} maps](position_maps.md)", [str(n) for n in ways]
    yield "README.md", "| ways to extend RoPE | {} |", [str(sum(ways))]
    yield "README.zh.md", "| 扩展 RoPE 的方法 | {} |", [str(sum(ways))]

    half = json.loads((ROOT / "benchmarks/bfloat16.json").read_text(encoding="utf-8"))["parts"]
    ends = {}
    for tokens, way in (("2048", "posenc"), ("2048", "sdpa"), ("512", "eager")):
        times = [half[tokens][name][way] for name in ("alibi", "t5", "kerple", "sandwich", "tisa")]
        ends[way] = [f"{min(times):.2f}", f"{max(times):.2f}"]
    page = "docs/attention.md"
    yield page, "takes {} to {} of the time of SDPA without positions at 2048 tokens", ends["posenc"]
    yield page, "and {} to {} in SDPA with a dense bias", ends["sdpa"]
    yield page, "is faster ({} to {})", ends["eager"]
    errors = [f"{half['512']['t5'][f'{way}_error']:.3f}" for way in ("eager", "posenc")]
    yield page, "largest error under T5 is {}, where posenc's is {}.", errors

    law = (ROOT / "benchmarks/law.md").read_text(encoding="utf-8")
    guesses = [[int(n) for n in found] for found in re.findall(r"guesses: (\d+) of (\d+) within", law)]
    held = [str(sum(counts)) for counts in zip(*guesses, strict=True)]
    yield "docs/guides/choose.md", "{} of {} guesses fell into an interval that was to hold 80 %", held
    missed = re.findall(r"B D\^-b misses the means by (\S+) nats", law)
    yield "docs/guides/choose.md", "the registered form misses the GPU's losses by {} nats", missed
    bars = [re.findall(rf"on the GPU, {way}[a-z ]*: (\d+) of (\d+) within", law)[0] for way in ("the fit", "a plane")]
    of_bars = list(chain(*bars))
    left = re.findall(r"the fit of the form: .*\((\d+) not measured", law)
    yield (
        "README.md",
        "the fit's bars hold {} of {} values, the plane's {} of {}; {} more were not measured",
        of_bars + left,
    )
    yield "README.zh.md", "拟合的竖条含 {}/{} 个值，平面的含 {}/{} 个；另 {} 个没有测", of_bars + left

    largest = widest()
    behind = [
        f"{largest.losses[one][at] - largest.losses[other][at]:.2f}"
        for one, other, at in (
            ("stick_breaking", "rope", 0),
            ("alibi", "kerple", 1),
        )
    ]
    yield "docs/guides/choose.md", "after {} MB the first is {} behind `rope`", [str(largest.budget), behind[0]]
    yield "docs/guides/choose.md", "the second at 8 times the length {} behind `kerple`", [behind[1]]
    yield from _by_budget_and_size()
    board, both = "docs/leaderboard.md", [gain_of(by_cell()["3M", name, 32][0]) for name in ("rope", "alibi")]
    yield board, "its loss falls by {}, {} and {} after 120, 480 and 1920 steps", gains("alibi")
    yield board, "that of `rope` by {}, {} and {} nats", gains("rope")
    yield (
        board,
        "[`rope` gains {} from 32 to 128 tokens](../benchmarks/law.md#on-a-gpu), `alibi` {} nats",
        [f"{each:.3f}" for each in both],
    )

    rows = cells("encoders", "4096 |")
    eager, sdpa, posenc = (rows[at : at + 2] for at in (0, 2, 4))
    share = f"{float(posenc[1]) / float(sdpa[1]):.2f}"
    page = "docs/huggingface.md"
    yield page, "grows the process by {} MiB where `sdpa` takes {} and `eager` {}", [posenc[0], sdpa[0], eager[0]]
    yield page, "in {} of `sdpa`'s time", [share]
    short = cells("encoders", "`interpolate`")
    tables = {alpha: cells("encoders", f"`hierarchical`, alpha {alpha} |")[1] for alpha in ("0.1", "0.4")}
    page = "docs/export.md"
    yield (
        page,
        "the right one first in {} % with `alpha` 0.05 to 0.2 or interpolated, and in {} % with",
        list(tables.values()),
    )
    yield page, "changes the embeddings of short inputs (cosine {})", [f"{float(short[-1]):.2f}"]
    forms = json.loads((ROOT / "benchmarks/written_forms.json").read_text(encoding="utf-8"))["forms"]
    off = {
        name: [form["off"][name] for form in forms if name in form["off"]] for name in ("transformers 5", "llama.cpp")
    }
    worst = {name: f"{max(values):.0e}" for name, values in off.items()}
    yield page, "Logits of {} forms of tiny models", [str(len(forms))]
    ours = [str(len(off["transformers 5"])), worst["transformers 5"]]
    yield page, "is, for {} of them in transformers 5 (5.23.0): {};", ours
    theirs = [str(len(off["llama.cpp"])), worst["llama.cpp"]]
    yield page, "for {} of them in llama.cpp (2026.10.11549): {} ", theirs

    page, of = "docs/longer_context.md", {e: cells("longer_Gemma3_text", f"`{e}`") for e in ("linear", "yarn", "ntk")}
    yield page, "a loss of {} nats per token under truncation", cells("longer_Gemma3_text", "`truncation`")[:1]
    lower = [number.removeprefix("-") for e in of.values() for number in e[1:3]]
    least, *_, most = sorted(f"{float(number):.2f}" for number in lower[::2])
    archive = json.loads((ROOT / "benchmarks/evaluations/longer_Gemma3_text.json").read_text(encoding="utf-8"))
    documents = {row["method"]: row["documents"] for row in archive["longer"][0]["tasks"][0]["rows"]}
    if any(
        loss >= truncated for e in of for loss, truncated in zip(documents[e], documents["truncation"], strict=True)
    ):
        raise SystemExit(f"{page} says that each document has a lower loss than under truncation: {documents}")
    apart = [str(archive["overlapping"][0]["apart"]), str(archive["settings"]["samples"])]
    yield page, "in each of four documents, by {} to {} nats per token", [least, most]
    yield page, "only {} of the {} do not overlap, which decides nothing", apart
    yield page, "by {} ± {} under `linear`, {} ± {} under `yarn` and {} ± {} under `ntk`.", lower
    yield page, "Only {} of the {} documents do not overlap, so these intervals are too narrow", apart
    text = (ROOT / "benchmarks/longer_Gemma3_text.md").read_text(encoding="utf-8")
    ((gap, half),) = re.findall(r"\| `yarn` \| \+(\S+) ± (\S+) \|", text)
    yield page, "`yarn` is within {} ± {} of `linear`", [gap, half]

    gemma = json.loads((ROOT / "benchmarks/evaluations/question_in_front_Gemma3.json").read_text(encoding="utf-8"))
    (row,) = gemma["question_in_front"]
    change = [f"{row['loss'][end]:.2f}" for end in ("mean", "low", "high")]
    yield "benchmarks/evaluations.md", "raises the loss of the answer by {} nats ({} to {})", change
    yield "docs/evaluate.md", "raises its loss by {} nats ({} to {})", change

    by_length = {
        tokens: [float(x) for x in cells("by_length", f"{tokens} |")] for tokens in ("64", "128", "256", "512")
    }
    costs = [by_length[tokens][1] - by_length[tokens][0] for tokens in ("64", "128", "256")]
    ends = [f"{cost:.2f}" for cost in (min(costs), max(costs))]
    gain = f"{by_length['512'][1] - by_length['512'][2]:.2f}"
    yield "docs/guides/extend.md", "stories15M loses {} to {} nats on inputs within its context length", ends
    yield "docs/guides/extend.md", "{} nats less at twice the context length", [gain]
    yield "docs/guides/extend.zh.md", "在其上下文长度之内的损失上升 {} 至 {} nats", ends
    yield "docs/guides/extend.zh.md", "两倍长度处比固定因子低 {} nats", [gain]
    yield "docs/examples.md", "where a fixed factor 4 costs {} to {} nats", ends

    yield from _of_the_gpu()


def gains(encoding: str) -> list[str]:
    """From 32 to 128 bytes of context after 120, 480 and 1920 steps on code, the mean of four seeds."""
    found = []
    for steps in (120, 480, 1920):
        runs = [
            cell.record
            for cell in read(ROOT / f"benchmarks/experiments/budget/code-{steps}")
            if cell.facts["encoding"] == encoding
        ]
        at = [next(v for v in run.variants if v.trained).extra[CONTEXT] for run in runs]
        found.append(f"{np.mean([np.mean(each['32']) - np.mean(each['128']) for each in at]):.3f}".replace("-", "−"))
    return found


def _of_ablations() -> Iterator[tuple[str, str, list[str]]]:
    """What RoPE's frequencies and Transformer-XL's vectors are worth, and copying without positions, on docs/ablations.md."""
    text = json.loads((ROOT / "benchmarks/ablations.json").read_text(encoding="utf-8"))["models"]["text"]
    of, xl = (text["ablations"][name]["differences"] for name in ("learned_frequencies", "xl"))

    def gap(e: dict[str, float]) -> list[str]:
        return [f"{abs(e['mean']):.3f}", f"{(e['high'] - e['low']) / 2:.3f}"]

    assert [of[at]["fope"]["mean"] > 0 for at in "18"] == [True, False], "docs/ablations.md: above, below"
    assert [of[at]["learned_rope"]["mean"] > 0 for at in "18"] == [False, False], "docs/ablations.md: below"
    page, rope = "docs/ablations.md", text["ablations"]["learned_frequencies"]["levels"]["rope"]["8"]["mean"]
    yield page, "have a loss {} ± {} below RoPE's ({}) at 1024 bytes", [*gap(of["8"]["fope"]), f"{rope:.3f}"]
    yield page, "and {} ± {} above it at 128.", gap(of["1"]["fope"])
    yield page, "are {} ± {} better at 1024 bytes", gap(of["8"]["learned_rope"])
    yield page, "and undecided at 128 (−{} ± {})", gap(of["1"]["learned_rope"])

    without_v = "benchmarks/ablated.py:XLBiases:biases=u"
    sure = [(at, name) for at, gaps in xl.items() for name, e in gaps.items() if e["low"] > 0 or e["high"] < 0]
    assert sure == [("8", without_v)], "docs/ablations.md: higher without v"
    most = max(xl["1"].values(), key=lambda e: abs(e["mean"]))
    yield page, "changes the loss at 128 bytes by at most {} ± {}", gap(most)
    yield page, "it is {} ± {} higher without v", gap(xl["8"][without_v])

    claims = (ROOT / "docs/claims.md").read_text(encoding="utf-8")
    (copied,) = re.findall(r"copy, 32: `none` − `sinusoidal` \+(\S+) ± (\S+) \|", claims)
    yield page, "of addition, by {} ± {} points", [*copied]


def decided() -> tuple[int, int]:
    """Of rule.py's cells, pairs of encodings that learned which the interval of compare decides, and all; `local_nope` is `rope` there."""
    names = [name for name in rule.ENCODINGS if name not in ("none", "local_nope")]
    apart = [
        abs(between.mean()) > math.hypot(SPREAD, rule.of_passages(between))
        for each in rule.losses().values()
        for a, b in combinations(names, 2)
        for between in (rule.line(each[a]) - rule.line(each[b]),)
    ]
    return sum(apart), len(apart)


def from_480() -> list[str]:
    """Of a line through the losses of separate trainings of 120 and 480 steps, at 1920: half the interval that holds 95 % of the
    differences, the percentage that ±0.06 holds, and how many they are; that of the passages is taken out."""
    found: dict[tuple[int, str, int], np.ndarray] = {}
    for steps in (120, 480, 1920):
        for cell in read(ROOT / f"benchmarks/experiments/budget/code-{steps}"):
            losses = next(scores for scores in cell.record.variants if scores.trained).paired["1"]
            found[steps, cell.facts["encoding"], cell.facts["seed"]] = np.array(losses)
    last = [key[1:] for key in found if key[0] == 1920 and key[1] != "none"]
    needed = []
    for (a, seed), (b, other) in combinations(last, 2):
        if seed == other:
            of = [2 * found[480, name, seed] - found[120, name, seed] for name in (a, b)]
            between, true = of[0] - of[1], (found[1920, a, seed] - found[1920, b, seed]).mean()
            needed.append(math.sqrt(max(0.0, (between.mean() - true) ** 2 - rule.of_passages(between) ** 2)))
    half, share = sorted(needed)[math.ceil(0.95 * len(needed)) - 1], np.mean(np.array(needed) < 0.06)
    return [f"{half:.2f}", f"{100 * share:.0f}", str(len(needed))]


def _by_budget_and_size() -> Iterator[tuple[str, str, list[str]]]:
    """How the distance to `rope` moves with the text and with the weights, and what `rope` does past its training length."""
    page, cells = "docs/guides/choose.md", by_cell()
    table = {key: float(row.mean()) for key, row in losses(cells, seed=0).items()}
    gaps = {(size, e, b): loss - table[size, "rope", b] for (size, e, b), loss in table.items() if e != "rope"}

    def moved(sign: int, start: tuple[str, int], end: tuple[str, int]) -> list[str]:
        """Of how many others the distance to `rope` moves by more than a seed moves a loss, up or down, of how many."""
        moves = [
            gaps[to] - gap for at, gap in gaps.items() if at[::2] == start and (to := (end[0], at[1], end[1])) in gaps
        ]
        return [str(sum(sign * move > widest().noise[0] for move in moves)), str(len(moves))]

    yield page, "from 8 to 32 MB of text `rope` gains on {} of {} others (3 M weights)", moved(1, ("3M", 8), ("3M", 32))
    lost = [*moved(-1, ("3M", 8), ("10M", 8)), *moved(-1, ("3M", 16), ("10M", 16))]
    yield page, "from 3 to 10 M weights {} of {} gain on it with 8 MB and {} of {} with 16", lost
    far = [f"{mean(cells[s, 'rope', b][0], *EIGHT_TIMES):.2f}" for s in ("0.6M", "3M", "10M") for b in (8, 32)]
    on_cpu = [f"{mean(of_cpu_by_cell()['0.6M', 'rope', b][0], *EIGHT_TIMES):.2f}" for b in (2, 12)]
    yield page, "it falls with little text, from {} after 2 MB to {} after 12", on_cpu
    yield page, "from 8 to 32 MB it moves from {} to {} (0.6 M), {} to {} (3 M) and {} to {} (10 M)", far
    small, usual = (cells["3M", name, 32][0] for name in ("rope:rope_theta=100", "rope"))
    ends = [mean(small, "far_context", "4096"), mean(small, "length"), mean(usual, "length")]
    yield page, "has {} there, but {} in place of {} at the training length", [f"{loss:.2f}" for loss in ends]
    yield (
        page,
        "{} % of a copy is right in place of {} %, and in one 4032 tokens away {} % in place of {} %",
        [f"{100 * mean(each, at):.0f}" for at in ("copied_near", "copied_far") for each in (small, usual)],
    )


def _of_the_gpu() -> Iterator[tuple[str, str, list[str]]]:
    """What an H200 measured of our attention kernel."""
    text = (ROOT / "benchmarks/gpu/h200.jsonl").read_text(encoding="utf-8")
    rows = [json.loads(line) for line in text.splitlines()]
    page, big, small = "docs/gpu.md", "1x32x128", "4x16x64"
    timed: dict[
        tuple[str, str, int], dict[str, dict[str, float]]
    ] = {}  # (pass, shape, tokens) -> encoding -> backend -> ms
    for row in rows:
        case, found = row["case"], row.get("result", {}).get("candidates")
        if row["stage"] == "attention" and found:
            at = timed.setdefault((case["pass"], case["shape"], case["length"]), {})
            at[case["encoding"]] = {name: each["ms"] for name, each in found.items()}

    names = {"ALiBi": "alibi", "T5": "t5", "KERPLE": "kerple", "Shaw, keys": "shaw", "Transformer-XL": "transformer_xl"}
    lengths = [timed["forward", big, tokens] for tokens in (2048, 8192, 32768)]
    for name, encoding in names.items():
        cells = [at[encoding].get(backend) for at in lengths for backend in ("triton", "flex", "sdpa")]
        places = " | ".join(" / ".join("{}" if ms else "–" for ms in cells[n : n + 3]) for n in (0, 3, 6))
        yield page, f"| {name} | {places} |", [f"{ms:.2f}" for ms in cells if ms]
    plain = [median(each["plain SDPA"] for each in at.values()) for at in lengths]
    yield page, "| no encoding, PyTorch's attention | {} | {} | {} |", [f"{ms:.2f}" for ms in plain]

    def ends(ours: str, other: str, cases: Iterable[dict[str, dict[str, float]]]) -> list[str]:
        ratios = [each[ours] / each[other] for at in cases for each in at.values() if other in each]
        return [f"{ratio:.2f}" for ratio in (min(ratios), max(ratios))]

    flex, to_plain = ([ends("triton", other, [at]) for at in lengths] for other in ("flex", "plain SDPA"))
    many = "{} to {} of its time at 2048 tokens, {} to {} at 8192 and {} to {} at 32768"
    yield page, f"FlexAttention's place: {many}", [*chain(*flex)]
    many = "{} to {} times its time at 2048 tokens, {} to {} at 8192 and {} to {} at 32768"
    yield page, f"an encoding: {many}", [*chain(*to_plain)]
    heads = ends("triton", "flex", [at for (_, shape, _), at in timed.items() if shape == small])
    yield page, "With heads of 64 (batch 4, 16 heads) it took {} to {} of FlexAttention's", heads
    short = [timed["forward", big, tokens] for tokens in (512, 1024)]
    yield page, "at 512 and 1024 tokens ours takes {} to {} times its time", ends("triton", "sdpa", short)
    decoding = [at for (way, *_), at in timed.items() if way == "decoding"]
    yield page, "among 2048 to 32768 keys ours takes {} to {} times as long", ends("triton", "sdpa", decoding)

    errors = [
        (name.split()[-1], error, row["case"]["encoding"])
        for row in rows
        if row["stage"] == "checks" and row["case"].get("backend") == "triton"
        for name, error in row["result"].get("errors", {}).items()
    ]
    worst = [f"{max(e for kind, e, _ in errors if kind == dtype):.0e}" for dtype in ("float32", "bfloat16")]
    counts = [str(len({encoding for *_, encoding in errors})), str(len(errors))]
    yield page, "under {} encodings in {} calls, off by at most {} in float32 and {} in bfloat16", counts + worst

    def tera(tokens: int, shape: str, encoding: str, backend: str = "triton") -> str:
        batch, heads, width = map(int, shape.split("x"))
        operations = 2 * batch * heads * width * tokens**2  # two products of tiles, of which the future is left out
        return f"{operations / timed['forward', shape, tokens][encoding][backend] / 1e9:.0f}"

    page = "benchmarks/gpu_prediction.md"
    at_8192 = [tera(8192, big, encoding) for encoding in ("alibi", "t5", "kerple", "shaw")]
    yield page, "ALiBi {}, T5 {}, KERPLE {} and Shaw's keys (clip 64) {} TFLOP/s", at_8192
    yield page, "at 32768 tokens ALiBi {} TFLOP/s", [tera(32768, big, "alibi")]
    yield page, "of width 64 ALiBi {} and T5 {}", [tera(8192, small, encoding) for encoding in ("alibi", "t5")]
    best = [tera(8192, big, "alibi", "plain SDPA"), tera(32768, big, "alibi", "plain SDPA")]
    yield page, "PyTorch's attention without an encoding reaches {} and {}", best


def main() -> None:
    for name, piece, numbers in quoted():
        path = ROOT / name
        text = path.read_text(encoding="utf-8")
        pattern = re.escape(piece).replace(r"\{\}", r"[−\d.e-]+")
        written, count = re.subn(pattern, lambda _, piece=piece, numbers=numbers: piece.format(*numbers), text)
        if count != 1:
            raise SystemExit(f"{name} has {count} times: {piece}")
        path.write_text(written, encoding="utf-8")


if __name__ == "__main__":
    main()
