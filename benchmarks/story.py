# SPDX-License-Identifier: Apache-2.0
"""Write a story on the page of docs/story.md and record it, and draw the moving picture of README from the record.

    PYTHONPATH=docs:tests python benchmarks/story.py [--draw | --rates]

With npm and Chromium: half a minute of one core. benchmarks/story.json then holds the text and the surprise of each token, and how
many of ten names each method finds. --draw only draws docs/images/story.svg from it; --rates only measures the page's tokens a
second by each engine, and its weight. Run from the root of the repository.
"""

import gzip
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from pathlib import Path
from typing import Any

RECORD = Path("benchmarks/story.json")
PICTURE = Path("docs/images/story.svg")
METHOD, FACTOR, SEED = "yarn", 4, 1
FIRST = {"method": METHOD, "factor": FACTOR, "seed": SEED}
WIDTH, COLUMN, LEFT, TOP, LINE, LETTER = 830, 390, (15, 425), 74, 17, 6.6
ENGINES, RATED = ("WebAssembly", "JavaScript", "WebGPU"), 64
"""What may compute on the page, and the tokens over which each is timed."""
LINES = 22
"""Of a column; what does not fit scrolls out at the top."""
SECONDS, PAUSE = 14.0, 4.0
MOST = 8.0
"""Nats of the full colour, as on the page."""


def record() -> dict[str, Any]:
    """Drive the page: a story, and by posenc's Python, with the same weights, ten names by each method."""
    with opened() as (tab, address, _):
        written = generated(tab, f"{address}&path=WebAssembly")
        print(f"{written['rate']:.1f} tokens a second in each column ({written['kind']})")
    surprise = [[round(one, 2) for one in column] for column in written["surprise"]]
    before = json.loads(RECORD.read_text(encoding="utf-8"))
    return {
        **FIRST, "text": written["text"], "surprise": surprise, "asked": names_found(), "rates": before.get("rates"),
    }  # fmt: skip


@contextmanager
def opened() -> Iterator[tuple[Any, str, dict[str, str]]]:
    """A tab, the address of the page with the model, and the files of the page."""
    from playwright.sync_api import sync_playwright
    from website import story

    with tempfile.TemporaryDirectory() as folder, sync_playwright() as play:
        files = story.files({**FIRST, "text": [[], []], "surprise": [[], []]})
        for path, text in files.items():
            target = Path(folder) / path
            target.parent.mkdir(exist_ok=True)
            target.write_text(text, encoding="utf-8")
        chromium = next(found for name in ("chromium", "google-chrome") if (found := shutil.which(name)))
        flags = ["--no-sandbox", "--disable-gpu", "--enable-unsafe-webgpu"]
        tab = play.chromium.launch(executable_path=chromium, args=flags).new_page()
        tab.set_default_timeout(600_000)
        page = (Path(folder) / "story-live.html").as_uri()
        yield tab, f"{page}#seed={SEED}&method={METHOD}&factor={FACTOR}&lang=en", files


def generated(tab: Any, address: str, tokens: int = 512) -> dict[str, Any]:
    """A story as the page has it once there are so many tokens in each column."""
    tab.goto("about:blank")
    tab.goto(address)
    tab.click("[data-do=tell]")
    tab.wait_for_function(f"posenc.story.steps() >= {tokens}")
    written: dict[str, Any] = tab.evaluate("posenc.story.written()")
    return written


def rates() -> dict[str, Any]:
    """Tokens a second in each column over the first ones of a story by each engine, with the load of the machine (of the minute
    before, and after), and the kilobytes of the page and of the model, as they are and compressed by gzip."""
    from posenc.lab.machine import cores, cpu

    found: dict[str, Any] = {"processor": cpu(), "cores": cores(), "tokens": RATED, "engines": {}}
    with opened() as (tab, address, files):
        for path in ENGINES:
            load = round(os.getloadavg()[0], 1)
            written = generated(tab, f"{address}&path={path}", RATED)
            if written["kind"] != path:
                raise SystemExit(f"{path}: this browser computes by {written['kind']}")
            found["engines"][path] = [round(written["rate"], 1), load, round(os.getloadavg()[0], 1)]
            print(path, found["engines"][path], flush=True)
    page = files.pop("story-live.html")
    for name, texts in (("page", [page]), ("model", [*files.values()])):
        data = [text.encode() for text in texts]
        found[name] = [sum(len(one) // 1000 for one in each) for each in (data, [gzip.compress(one) for one in data])]
    return found


def rates_table(measured: dict[str, Any]) -> str:
    """`rates` in Markdown."""
    names = dict.fromkeys(ENGINES, "one thread") | {"WebGPU": "SwiftShader: in software, on all cores"}
    lines = ["| engine | tokens a second in each column | load of the machine, before and after |", "|---|--:|--:|"]
    for engine, (rate, *loads) in measured["engines"].items():
        lines.append(f"| {engine} ({names[engine]}) | {rate} | {', '.join(map(str, loads))} |")
    machine = f"{measured['processor']}, {measured['cores']} cores, which others used as well"
    sizes = "; ".join(
        f"the {name}: {raw:,} kB, {packed:,} kB by gzip"
        for name in ("page", "model")
        for raw, packed in [measured[name]]
    )
    first = f"the first {measured['tokens']} tokens of a story"
    return "\n".join(
        [*lines, "", f"Measured in Chromium without a graphics processor ({machine}; {first}). Sizes: {sizes}."]
    )


def names_found() -> dict[str, Any]:
    """By method: for how many names the stated one is the likeliest of all ten, and the mean probability of the stated one."""
    import torch
    from website import story

    import posenc

    model, prompts = story.rounded_model(), story.prompts()
    ids = torch.tensor([story.stories15m().tokenizer().encode(f"a {name}").ids[-1] for name in story.NAMES])
    found = {}
    for key in story.methods():
        method, _, factor = key.partition(":")
        if method not in ("none", "truncation"):
            posenc.extend(model, method, **({"factor": int(factor)} if factor else {}))
        right, total = 0, 0.0
        for at, tokens in enumerate(prompts.values()):
            half = story.TRAINED // 2  # the page's contexts restart at every half
            begin = 0 if method != "truncation" else max(0, -(-(len(tokens) - story.TRAINED) // half) * half)
            with torch.no_grad():
                shares = model(torch.tensor([tokens[begin:]])).logits[0, -1].softmax(-1)[ids]
            right, total = right + int(shares.argmax() == at), total + float(shares[at])
        posenc.restore(model)
        found[key] = {"right": right, "probability": round(total / len(prompts), 4)}
        print(key, found[key], flush=True)
    return found


def means(recorded: dict[str, Any], which: int, trained: int = 256) -> tuple[float, float]:
    """Surprise of a column's tokens within the context length and past it, in nats per token."""
    cost = recorded["surprise"][which]
    return sum(cost[1:trained]) / (trained - 1), sum(cost[trained:]) / (len(cost) - trained)


def table(recorded: dict[str, Any], language: str = "") -> str:
    """The names that each method finds, in Markdown. language: "" or ".zh"."""
    heads = {
        "": ("method", "factor 2", "factor 4", "factor 8"), ".zh": ("方法", "2 倍", "4 倍", "8 倍"),
    }[language]  # fmt: skip
    names = {
        "none": ("as trained", "原始模型"), "truncation": ("truncation", "截断"), "rerope": ("ReRoPE", "ReRoPE"), "yarn": ("YaRN", "YaRN"),
        "linear": ("PI", "PI"), "ntk": ("NTK", "NTK"), "self_extend": ("Self-Extend", "Self-Extend"),
    }  # fmt: skip
    found = [f"| {' | '.join(heads)} |", "|---|--:|--:|--:|"]
    for name, titles in names.items():
        cells = [recorded["asked"].get(f"{name}:{factor}") for factor in (2, 4, 8)]
        single = recorded["asked"].get(name)
        cells = [single] * 3 if single else cells
        shown = [f"{cell['right']} ({100 * cell['probability']:.1f} %)" for cell in cells]
        found.append(f"| {titles[bool(language)]} | {' | '.join(shown)} |")
    return "\n".join(found)


def lines(text: list[str], trained: int) -> list[tuple[int, int, float, str]]:
    """(line, token, left edge, words) of each token that shows something."""
    found, line, x = [], 0, 0.0
    for at, token in enumerate(text):
        if at == trained:
            line, x = line + 2, 0.0
        if "\n" in token:
            line, x = line + 1, 0.0
            continue
        wide = LETTER * len(token)
        if x + wide > COLUMN:
            line, x = line + 1, 0.0
        token = token if x else token.lstrip(" ")
        if token:
            found.append((line, at, x, token))
        x += LETTER * len(token)
    return found


def drawn(recorded: dict[str, Any], trained: int = 256) -> str:
    """The picture: tokens appear in their order and stay for a while; then it begins again. Its letters are as wide as each other,
    so that words stand where they are reckoned to."""
    count = len(recorded["text"][0])
    high = TOP + LINES * LINE + 14
    heads = (
        "as trained on 256 tokens",
        f"with {recorded['method'].replace('yarn', 'YaRN')}, factor {recorded['factor']}",
    )
    whole = SECONDS + PAUSE
    frames: list[str] = []
    still: list[str] = []
    words: list[str] = []
    for which, text in enumerate(recorded["text"]):
        placed = lines(text, trained)
        last = placed[-1][0]
        shift = max(0, last - LINES + 1)
        begins = {line: at for line, at, _, _ in reversed(placed)}
        scroll = [(begins[line], line - LINES + 1) for line in sorted(begins) if line >= LINES]
        steps = "".join(
            f"{100 * SECONDS / whole * at / count:.2f}%{{transform:translateY({-LINE * by}px)}}" for at, by in scroll
        )
        still.append(f"#s{which}{{transform:translateY({-LINE * shift}px)}}")
        frames.append(
            f"@keyframes s{which}{{0%{{transform:none}}{steps}}}#s{which}{{animation:s{which} {whole}s step-end infinite}}"
        )
        body = []
        for line, at, x, token in placed:
            cost = min(1.0, max(0.0, recorded["surprise"][which][at] - 1) / (MOST - 1))
            left, y = LEFT[which] + x, TOP + 14 + LINE * line
            box = (
                f'<rect x="{left:.1f}" y="{y - 12.5:.1f}" width="{LETTER * len(token):.1f}" height="16" opacity="{cost / 2:.2f}"/>'
                if cost > 0.02
                else ""
            )
            body.append(
                f'<g class="t{at}">{box}<text x="{left:.1f}" y="{y}" textLength="{LETTER * len(token):.1f}" xml:space="preserve">{escape(token)}</text></g>'
            )
        limit = next(line for line, at, _, _ in placed if at >= trained) - 1
        y = TOP + 14 + LINE * limit
        mark = f'<g class="t{trained}"><path d="M{LEFT[which]} {y - 9}h{COLUMN}" class="limit"/><text x="{LEFT[which]}" y="{y + 4}" class="mark">{trained} tokens: all it was trained on</text></g>'
        words.append(
            f'<svg y="{TOP}" width="{WIDTH}" height="{high - TOP}" viewBox="0 {TOP} {WIDTH} {high - TOP}"><g id="s{which}">{"".join(body)}{mark}</g></svg>'
        )
    shown = "".join(
        f"@keyframes k{at}{{0%{{opacity:0}}{100 * SECONDS / whole * at / count:.2f}%{{opacity:1}}}}.t{at}{{animation:k{at} {whole}s step-end infinite}}"
        for at in range(1, count)
    )
    heading = "".join(
        f'<text x="{left}" y="58" class="head">{words_}</text>' for left, words_ in zip(LEFT, heads, strict=True)
    )
    style = (
        "text{font:11px ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace;fill:#1f2328}.title{font:600 20px system-ui,sans-serif}.head{font:600 14px system-ui,sans-serif}"
        ".mark{font-size:10.5px;fill:#bc4c00}.limit{stroke:#bc4c00;stroke-dasharray:5 4}rect{fill:#bc4c00}.ground{fill:#fff}"
        "@media(prefers-color-scheme:dark){text{fill:#e6edf3}.mark{fill:#ff8f4d}.limit{stroke:#ff8f4d}rect{fill:#ff8f4d}.ground{fill:#0d1117}}"
        f"{''.join(still)}@media(prefers-reduced-motion:no-preference){{{''.join(frames)}{shown}}}"
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{high}" viewBox="0 0 {WIDTH} {high}"><style>{style}</style><rect class="ground" width="{WIDTH}" height="{high}"/>'
        f'<text x="15" y="30" class="title">The story that falls apart</text>{heading}{"".join(words)}</svg>\n'
    )


def main() -> None:
    """Record or measure, unless asked not to, and draw."""
    if "--draw" not in sys.argv:
        found = (
            record()
            if "--rates" not in sys.argv
            else {**json.loads(RECORD.read_text(encoding="utf-8")), "rates": rates()}
        )
        RECORD.write_text(json.dumps(found, ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8")
    PICTURE.write_text(drawn(json.loads(RECORD.read_text(encoding="utf-8"))), encoding="utf-8")
    print(f"{PICTURE}: {PICTURE.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
