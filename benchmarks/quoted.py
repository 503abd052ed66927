# SPDX-License-Identifier: Apache-2.0
"""Numbers that sentences of the pages quote, put in from the results that they link: python benchmarks/quoted.py, from anywhere."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

from law_gpu import widest

from posenc.lab.budgets import spread

ROOT = Path(__file__).parents[1]


def cells(page: str, first: str) -> list[str]:
    """Of benchmarks/PAGE.md, the numbers of the row that begins with `first`, without its first cell."""
    lines = (ROOT / f"benchmarks/{page}.md").read_text(encoding="utf-8").splitlines()
    (row,) = (line for line in lines if line.startswith(f"| {first}"))
    return re.findall(r"-?\d+(?:\.\d+)?", row.split("|", 2)[2])


def quoted() -> Iterator[tuple[str, str, list[str]]]:
    """A page, a piece of a sentence with {} for each number, and these."""
    compare = "docs/compare.md"
    line, last = cells("rule", "2.")[:2]
    (held, _), (right, _) = cells("rule", "4."), cells("rule", "5.")
    rest = [f"{spread(steps):.2f}" for steps in (480, 200)]
    errors = [f"{float(cells('rule', share)[0]):.2f}" for share in ("0.25 |", "1 |")]
    yield compare, "(mean rank correlation {}, and {} for the last loss)", [line, last]
    yield compare, "had {} % of the differences, and {} % of what it called decided was right", [held, right]
    yield compare, "As registered, the interval is now ±{}.", [rest[1]]
    yield compare, "±{} nats from 480 steps on (1.96 times the error of two encodings) and ±{} below", rest
    yield compare, "the mean error is {} nats in place of {},", errors

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
    (held,) = re.findall(r"guesses: (\d+) of (\d+) within", law)
    yield "docs/guides/choose.md", "{} of {} guesses fell into an interval that was to hold 80 %", list(held)

    largest = widest()
    behind = [
        f"{largest.losses[one][at] - largest.losses[other][at]:.2f}"
        for one, other, at in (
            ("stick_breaking", "rope", 0),
            ("alibi", "kerple", 1),
            ("stick_breaking", "rope+alibi", 0),
        )
    ]
    yield "docs/guides/choose.md", "after {} MB the first is {} behind `rope`", [str(largest.budget), behind[0]]
    yield "docs/guides/choose.md", "the second at 8 times the length {} behind `kerple`", [behind[1]]
    yield (
        "docs/leaderboard.md",
        "After {} MB, `stick_breaking` is {} behind `rope+alibi`",
        [str(largest.budget), behind[2]],
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

    lines = (ROOT / "benchmarks/gpu" / timed for timed in ("h200.jsonl", "h100.jsonl"))  # the newer one
    rows = map(json.loads, next(path for path in lines if path.exists()).read_text(encoding="utf-8").splitlines())
    at = {"shape": "1x32x128", "length": 2048, "pass": "forward"}
    found = {row["case"]["encoding"]: row["result"]["candidates"] for row in rows if at.items() <= row["case"].items()}
    for name, encoding in {"ALiBi": "alibi", "T5": "t5", "Shaw, keys": "shaw"}.items():
        times = [f"{found[encoding][backend]['ms']:.2f}" for backend in ("sdpa", "flex", "triton")]
        yield "docs/gpu.md", f"| {name} | {{}} ms | {{}} ms | {{}} ms |", times


def main() -> None:
    for name, piece, numbers in quoted():
        path = ROOT / name
        text = path.read_text(encoding="utf-8")
        pattern = re.escape(piece).replace(r"\{\}", r"[\d.e-]+")
        written, count = re.subn(pattern, lambda _, piece=piece, numbers=numbers: piece.format(*numbers), text)
        if count != 1:
            raise SystemExit(f"{name} has {count} times: {piece}")
        path.write_text(written, encoding="utf-8")


if __name__ == "__main__":
    main()
