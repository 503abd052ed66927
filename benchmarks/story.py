# SPDX-License-Identifier: Apache-2.0
"""Write a story on the page of docs/story.md and record it, and draw the moving picture of README from the record.

    PYTHONPATH=docs:tests python benchmarks/story.py [--draw | --rates]

With npm and Chromium: half a minute of one core for each of seven seeds. benchmarks/story.json then holds the text and the surprise
of each token of one of them, the mean surprise of all, and how many of ten names each method finds. --draw only draws docs/images/story.svg from it; --rates only measures the page's tokens a
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
from itertools import takewhile
from pathlib import Path
from typing import Any

RECORD = Path("benchmarks/story.json")
PICTURE = Path("docs/images/story.svg")
METHOD, FACTOR, SEED, SEEDS = "yarn", 4, 4, range(1, 8)
FIRST = {"method": METHOD, "factor": FACTOR, "seed": SEED}
WIDTH, COLUMN, LEFT, LINE, SIZE, LETTER = 720, 338, (10, 370), 27, 20.5, 12.3
"""Of the picture, in its own units: at 360 pixels a letter is 10 high."""
BEGUN, ENDING = 3, 150
"""Lines of the beginning that are shown, and tokens of each ending."""
ENGINES, RATED = ("WebAssembly", "JavaScript", "WebGPU"), 64
"""What may compute on the page, and the tokens over which each is timed."""
LINES = 8
"""Of an ending; what does not fit scrolls out at the top."""
SECONDS, PAUSE = 12.0, 5.0
LEAST, MOST = 3.0, 8.0
"""Nats of the first and the full colour, as on the page."""


def record() -> dict[str, Any]:
    """Drive the page: stories, and by posenc's Python, with the same weights, ten names by each method."""
    stories = {}
    with opened() as (tab, address, _):
        for seed in SEEDS:
            written = generated(tab, f"{address.replace(f'seed={SEED}', f'seed={seed}')}&path=WebAssembly")
            surprise = [[round(one, 2) for one in column] for column in written["surprise"]]
            stories[seed] = {"text": written["text"], "surprise": surprise}
            print(seed, written["rate"], [means(stories[seed], which) for which in range(2)], flush=True)
            print(*("".join(column[256:]) for column in written["text"]), sep="\n---\n", flush=True)
    seeds = {
        seed: [[round(one, 2) for one in means(story, which)] for which in range(2)] for seed, story in stories.items()
    }
    before = json.loads(RECORD.read_text(encoding="utf-8"))
    asked = before["asked"] if "--stories" in sys.argv else names_found()
    return {**FIRST, **stories[SEED], "seeds": seeds, "asked": asked, "rates": before.get("rates")}


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


def placed(tokens: list[str], wide: float) -> list[tuple[int, float, str]]:
    """(line, left edge, characters) of each token; a word of several tokens is not cut at the end of a line."""
    found: list[tuple[int, float, str]] = []
    most, line, x = int(wide / LETTER), 0, 0
    for at, token in enumerate(tokens):
        word = token + "".join(takewhile(lambda one: one.strip() and one[0] != " ", tokens[at + 1 :]))
        if "\n" in token or (token[:1] == " " and x + len(word) > most) or x + len(token) > most:
            line, x = line + (x > 0), 0
        shown = (token if x else token.lstrip(" ")).replace("\n", "")
        found.append((line, LETTER * x, shown))
        x += len(shown)
    return found


def drawn(recorded: dict[str, Any], trained: int = 256) -> str:
    """The picture: the end of the beginning, then two endings whose tokens appear in their order; then it begins again. Its letters
    are as wide as each other, so that words stand where they are reckoned to."""
    whole = SECONDS + PAUSE
    time = lambda at: 100 * SECONDS / whole * at / ENDING  # noqa: E731
    styles: list[str] = []
    still: list[str] = []
    top = 62 + LINE * BEGUN
    high = top + 62 + LINE * LINES + 8

    def words(
        tokens: list[str], cost: list[float], left: float, y: float, wide: float, hidden: int = 0
    ) -> tuple[str, list[int]]:
        """Tokens as text over their colour, and the line of each. hidden: lines at the top that are left out."""
        body, on = [], []
        for at, (line, x, shown) in enumerate(placed(tokens, wide)):
            on.append(line)
            if line < hidden or not shown.strip():
                continue
            strength = min(1.0, (cost[at] - LEAST) / (MOST - LEAST))
            where, length = f"{left + x:.1f}", f"{LETTER * len(shown):.1f}"
            below = y + LINE * (line - hidden)
            colour = f'<rect x="{where}" y="{below - 20:.1f}" width="{length}" height="26" opacity="{0.25 + 0.35 * strength:.2f}"/>'
            text = f'<text x="{where}" y="{below}" textLength="{length}" xml:space="preserve">{escape(shown)}</text>'
            body.append(
                f'<g class="t{at}">{colour * (strength > 0)}{text}</g>'
                if not hidden
                else colour * (strength > 0) + text
            )
        return "".join(body), on

    begun, cost = recorded["text"][0][:trained], recorded["surprise"][0]
    last = placed(begun, WIDTH - 2 * LEFT[0])[-1][0]
    beginning, _ = words(begun, cost, LEFT[0], 66, WIDTH - 2 * LEFT[0], hidden=max(1, last - BEGUN + 1))
    columns = []
    for which, text in enumerate(recorded["text"]):
        tokens = text[trained : trained + ENDING]
        ending, on = words(tokens, recorded["surprise"][which][trained:], LEFT[which], top + 88, COLUMN)
        first = {line: at for at, line in reversed(list(enumerate(on)))}
        scroll = [(first[line], LINE * (line - LINES + 1)) for line in sorted(first) if line >= LINES]
        steps = "".join(f"{time(at):.2f}%{{transform:translateY({-by}px)}}" for at, by in scroll)
        still.append(f"#s{which}{{transform:translateY({-scroll[-1][1] if scroll else 0}px)}}")
        styles.append(
            f"@keyframes s{which}{{0%{{transform:none}}{steps}}}#s{which}{{animation:s{which} {whole}s step-end infinite}}"
        )
        columns.append(
            f'<svg y="{top + 68}" width="{WIDTH}" height="{high - top - 68}" viewBox="0 {top + 68} {WIDTH} {high - top - 68}">'
            f'<g id="s{which}">{ending}</g></svg>'
        )
    shown = "".join(
        f"@keyframes k{at}{{0%{{opacity:0}}{time(at):.2f}%{{opacity:1}}}}.t{at}{{animation:k{at} {whole}s step-end infinite}}"
        for at in range(1, ENDING)
    )
    heads = "as trained", f"with {recorded['method'].replace('yarn', 'YaRN')}, factor {recorded['factor']}"
    heading = "".join(
        f'<text x="{left}" y="{top + 58}" class="head">{head}</text>' for left, head in zip(LEFT, heads, strict=True)
    )
    style = (
        f"text{{font:{SIZE}px ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace;fill:#1f2328}}"
        ".title{font:600 26px system-ui,sans-serif}.head{font:600 21px system-ui,sans-serif}.soft text{fill:#59636e}"
        ".mark{font:600 20px system-ui,sans-serif;fill:#bc4c00}.limit{stroke:#bc4c00;stroke-width:2;stroke-dasharray:6 5}rect{fill:#bc4c00}.ground{fill:#fff}"
        "@media(prefers-color-scheme:dark){text{fill:#e6edf3}.soft text{fill:#9198a1}.mark{fill:#ff8f4d}.limit{stroke:#ff8f4d}rect{fill:#ff8f4d}.ground{fill:#0d1117}}"
        f"{''.join(still)}@media(prefers-reduced-motion:no-preference){{{''.join(styles)}{shown}}}"
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{high}" viewBox="0 0 {WIDTH} {high}"><style>{style}</style><rect class="ground" width="{WIDTH}" height="{high}"/>'
        f'<text x="{LEFT[0]}" y="32" class="title">The story that falls apart</text><g class="soft">{beginning}</g>'
        f'<path d="M{LEFT[0]} {top + 2}H{WIDTH - LEFT[0]}" class="limit"/><text x="{LEFT[0]}" y="{top + 26}" class="mark">{trained} tokens: the context length it was trained on</text>'
        f"{heading}{''.join(columns)}</svg>\n"
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
