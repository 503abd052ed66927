# SPDX-License-Identifier: Apache-2.0
"""Draw the pictures of README.md and README.zh.md from the committed results, for light and dark pages.

    python benchmarks/pictures.py

A row or line has its numbers as `<title>`, which tests read. Run from the root of the repository.
"""

import gzip
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from html import escape
from itertools import product
from math import ceil, log10
from pathlib import Path
from typing import Any

from law_gpu import losses as measured_losses
from law_gpu import widest
from law_lease import by_cell

TASKS = Path("benchmarks/leaderboard.json.gz")
BUDGETS = Path("benchmarks/budgets.json")
LAW = Path("benchmarks/law")
LONGER, SPEED, FINDINGS = (
    Path("benchmarks/evaluations/longer_SmolLM2.json"),
    Path("benchmarks/results/cpu.json"),
    Path("benchmarks/conform.md"),
)
FOLDER = Path("docs/images/readme")
WIDTH = 560
THEMES = {
    "": {
        "ink": "#1f2328", "soft": "#59636e", "grid": "#d9dee3", "page": "#ffffff", "blue": "#0a5fc2", "orange": "#bc4c00",
        "green": "#0a7a66", "purple": "#8a3ba8", "ochre": "#7d5a00", "pale": "#cfe2fb", "deep": "#0a5fc2", "on": "#ffffff",
    },
    "-dark": {
        "ink": "#e6edf3", "soft": "#9aa5b1", "grid": "#30363d", "page": "#0d1117", "blue": "#5eb1ff", "orange": "#ff8f4d",
        "green": "#3fc9ab", "purple": "#d492f0", "ochre": "#e0b03c", "pale": "#17375e", "deep": "#5eb1ff", "on": "#0d1117",
    },
}  # fmt: skip
"""What a picture calls its colours, by the end of its file's name."""
CHINESE = {
    "{} and {}": "{} 与 {}", ", ": "、", "none": "没有编码",
    "RoPE": "RoPE", "ALiBi": "ALiBi",
    "sinusoidal": "正弦", "learned": "可学习",
    "After {:,} training steps {} encodings are": "训练 {:,} 步后，有 {} 种编码",
    "measurably ahead of RoPE, after {:,} {}": "明显领先于 RoPE；{:,} 步后{}",
    "none is": "一种也没有", "{} are": "有 {} 种",
    "loss at the training length above that of RoPE, nats per byte": "训练长度上的损失，高出 RoPE 的奈特/字节",
    "training steps ({:.1f} M parameters, {} bytes, {} seeds)": "训练步数（{:.1f} M 参数，{} 字节，{} 个种子）",
    "With {:g} M weights {} of {} encodings are clearly below": "{0:g} M 权重的 {2} 种编码中，有 {1} 种明显低于",
    "RoPE after {:g} MB of text, and {} after {:g} MB": "RoPE（{0:g} MB 文本后）；{2:g} MB 后：{1}",
    "KERPLE": "KERPLE", "loss at 512 tokens, nats per byte, over the FLOPs of training": "512 个 token 处的损失（奈特/字节），按训练的 FLOP 数",
    "{:g} M": "{:g} M", "{:g} M weights": "{:g} M 权重",
    "dots: {} MB of text; clearly: by more than a seed's {:.3f}": "圆点：{} MB 文本；明显：差距大于种子之间的 {:.3f}", "bars: registered for {:g} M weights, by a fit and (dashes) by a plane": "竖条：为 {:g} M 权重登记的预测，按拟合与（虚线）平面", "RoPE + ALiBi": "RoPE + ALiBi",
    "stick-breaking": "折棒注意力", "FoX": "遗忘门 FoX", "Shaw": "Shaw 向量", "projected": "投影的相对偏置",
    "{} leads": "{} 领先：", "{} lead": "{} 领先：", "by mean score of {} tasks at {} times the length": "{1} 倍长度上 {0} 项任务的平均得分",
    "right answers in %, and loss of text, at {} times the training length": "答对的百分比与文本的损失，{} 倍训练长度",
    "right answers in % at {} times the training length": "答对的百分比，{} 倍训练长度",
    "text": "文本", "copy": "复制", "addition": "加法", "recall": "检索", "sort": "排序", "dyck": "括号", "induction": "归纳",
    "mean": "平均分", "at {}×": "{} 倍", "probably near the best": "很可能接近最佳", "possibly": "可能接近",
    "YaRN": "YaRN", "Self-Extend": "Self-Extend", "dual chunks": "双块注意力", "truncated input": "截断输入", "unmodified": "不作改动",
    "At {:,} tokens SmolLM2, trained at {:,},": "训练长度 {1:,} 的 SmolLM2，到 {0:,} 个 token 处，",
    "reads on with {} or {}": "用 {} 或{}仍能读下去",
    "passkey": "密钥（passkey）", "found in {} documents": "在 {} 篇文档中找到", "running text": "正文",
    "nats per token above truncated input": "比截断输入高出的奈特/token",
    "Biases in {:.0f} to {:.0f} MiB of memory;": "各种偏置占内存 {:.0f} 至 {:.0f} MiB；",
    "the best of the others take {:.0f} to {:,.0f}": "其他实现中最省的占 {:.0f} 至 {:,.0f}",
    "other packages, and the formula on all pairs": "其他软件包，以及对所有位置对套用公式",
    "textbook rotation": "教科书式旋转", "dense bias": "稠密偏置",
    "time × no position": "时间，无位置时的倍数", "MiB of memory": "内存，MiB",
    "forward, one CPU thread; time at {:,} tokens, memory at {:,}": "前向，单个 CPU 线程；时间：{:,} 个 token，内存：{:,} 个",
    "{} of {} functions in {} packages": "{2} 个软件包的 {1} 个函数中，{0} 个",
    "match the papers' formulas; {} differ or fail": "符合论文的公式，{} 个不符或出错",
    "matches": "符合", "right in float32 alone ({})": "仅 float32 正确（{}）", "differs or fails ({})": "不符或出错（{}）",
}  # fmt: skip
"""Every label of the pictures, {} for each name and number in it."""
KNOWN = ("rope", "alibi", "t5", "sinusoidal", "learned", "none")
SHOWN = 12
PROBABLE, POSSIBLE = 0.5, 0.05
"""Probabilities of being near the best, from which on a score is marked."""
"""Encodings of several tasks that are drawn, beside the known ones."""
LENGTH, MEMORY_LENGTH = 2048, 4096
SHORT = {"textbook rotation, then SDPA": "textbook rotation", "SDPA with a dense bias": "dense bias"}
"""What `speed` calls a candidate that is as good as posenc."""

Results = dict[str, Any]


@dataclass(frozen=True)
class Look:
    """What a picture is drawn with. colours: by their names. words: its labels by the English ones; none: in English."""

    colours: Mapping[str, str]
    words: Mapping[str, str] = field(default_factory=dict)

    def say(self, label: str, *values: object) -> str:
        """A label with its values.

        Raises:
            KeyError: the language lacks the label.
        """
        return (self.words[label] if self.words else label).format(*values)

    def listed(self, names: Sequence[str]) -> str:
        """Names in a sentence."""
        return self.say("{} and {}", self.say(", ").join(names[:-1]), names[-1]) if names[1:] else names[0]


LOOKS = {
    f"{end}{language}": Look(colours, words)
    for language, words in (("", {}), (".zh", CHINESE))
    for end, colours in THEMES.items()
}
"""Every look, by the end of its files' names."""


class Drawing:
    """SVG of a fixed width, with a finding above and a line on what is measured."""

    def __init__(self, height: float, finding: Sequence[str], about: str, look: Look) -> None:
        self.height, self.colours, self.parts = height, look.colours, list[str]()
        self.name, self.language = ("".join(finding), "zh-Hans") if look.words else (" ".join(finding), "en")
        for number, line in enumerate(finding):
            self.text(0, 20 + 25 * number, line, size=20, weight=700)
        if about:
            self.text(0, 23 + 25 * len(finding), about, colour="soft")

    def text(
        self, x: float, y: float, words: object, *, size: float = 15, colour: str = "ink", anchor: str = "start",
        weight: int = 400, turn: int = 0, about: str = "",
    ) -> None:  # fmt: skip
        more = f' transform="rotate({turn} {x:.1f} {y:.1f})"' if turn else ""
        more += f' font-weight="{weight}"' if weight != 400 else ""
        more += f' text-anchor="{anchor}"' if anchor != "start" else ""
        place = f'x="{x:.1f}" y="{y:.1f}" font-size="{size}" fill="{self.colours[colour]}"'
        self.parts.append(f"<text {place}{more}>{_title(about)}{escape(str(words))}</text>")

    def line(
        self, points: Sequence[tuple[float, float]], *, colour: str = "grid", width: float = 1, dash: str = "", about: str = ""
    ) -> None:  # fmt: skip
        path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
        more = f' stroke-dasharray="{dash}"' if dash else ""
        self.parts.append(
            f'<path d="{path}" fill="none" stroke="{self.colours[colour]}" stroke-width="{width}" '
            f'stroke-linejoin="round" stroke-linecap="round"{more}>{_title(about)}</path>'
        )

    def dot(self, x: float, y: float, *, radius: float, colour: str, hollow: bool = False, about: str = "") -> None:
        shade = self.colours[colour]
        look = f'fill="{self.colours["page"]}" stroke="{shade}" stroke-width="2"' if hollow else f'fill="{shade}"'
        self.parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius}" {look}>{_title(about)}</circle>')

    def diamond(self, x: float, y: float, *, radius: float, colour: str, about: str = "") -> None:
        path = f"M{x - radius:.1f} {y:.1f}L{x:.1f} {y - radius:.1f}L{x + radius:.1f} {y:.1f}L{x:.1f} {y + radius:.1f}Z"
        self.parts.append(f'<path d="{path}" fill="{self.colours[colour]}">{_title(about)}</path>')

    def box(self, x: float, y: float, width: float, height: float, colour: str) -> None:
        size = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="3"'
        self.parts.append(f'<rect {size} fill="{self.colours[colour]}"/>')

    def svg(self) -> str:
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" xml:lang="{self.language}" viewBox="0 0 {WIDTH} {self.height:.0f}" role="img" '
            f"font-family=\"-apple-system,'Segoe UI','Noto Sans',Helvetica,Arial,sans-serif\" "
            f'aria-label="{escape(self.name)}">'
        )
        return "\n".join([head, *self.parts, "</svg>", ""])


def _title(about: str) -> str:
    return f"<title>{escape(about)}</title>" if about else ""


def apart(wanted: Sequence[float], gap: float, least: float, most: float) -> list[float]:
    """Heights of labels, at least `gap` between two and none outside, in the order and near the heights that are wanted."""
    order, last = sorted(range(len(wanted)), key=lambda number: wanted[number]), len(wanted) - 1
    found, down, up = [0.0] * len(wanted), least - gap, most + gap
    for rank, number in enumerate(
        order
    ):  # the mean of two ways to make room: downwards from the first, upwards from the last
        down = max(wanted[number], down + gap)
        found[number] += min(down, most - gap * (last - rank)) / 2
    for rank, number in enumerate(reversed(order)):
        up = min(wanted[number], up - gap)
        found[number] += max(up, least + gap * (last - rank)) / 2
    return found


NAMED = {
    "stick_breaking": ("stick-breaking", "purple"), "alibi": ("ALiBi", "orange"), "fox": ("FoX", "green"), "shaw": ("Shaw", "ochre"),
    "projected_relative": ("projected", "soft"), "rope": ("RoPE", "blue"),
}  # fmt: skip
"""What `budget` names, and in which colours; the others are grey."""
OFF = 0.3
"""Nats above RoPE from which `budget` does not draw an encoding."""


def budget(results: Results, look: Look) -> str:
    """How far the losses of encodings are from RoPE's, by the number of training steps."""
    made = [of for of in results["worlds"] if of["text"] == "code"]
    made = [of for of in made if all(of[key] == made[0][key] for key in ("parameters", "length"))]
    steps, say = [of["steps"] for of in made], look.say
    gaps = {name: [of["losses"][name][0] - of["losses"]["rope"][0] for of in made] for name in made[0]["losses"]}
    gaps = {name: row for name, row in gaps.items() if max(row) < OFF}
    ahead = [sum(gap["high"] < 0 for gap in of["behind_rope"].values()) for of in made]
    after = say("{} are", ahead[-1]) if ahead[-1] else say("none is")
    finding = [
        say("After {:,} training steps {} encodings are", steps[0], ahead[0]),
        say("measurably ahead of RoPE, after {:,} {}", steps[-1], after),
    ]
    about = say("loss at the training length above that of RoPE, nats per byte")
    top, bottom, left, right = 96, 388, 44, 404
    drawing = Drawing(440, finding, about, look)
    low, high = (edge(value for row in gaps.values() for value in row) for edge in (min, max))

    def x(at: int) -> float:
        return left + 12 + (right - left - 12) * log10(steps[at] / steps[0]) / log10(steps[-1] / steps[0])

    def y(value: float) -> float:
        return bottom - 8 - (bottom - top - 16) * (value - low) / (high - low)

    for tenth in range(int(low * 10), int(high * 10) + 1):
        drawing.line([(left, y(tenth / 10)), (right, y(tenth / 10))])
        drawing.text(left - 6, y(tenth / 10) + 5, f"{tenth / 10:+.1f}".replace("-", "−"), colour="soft", anchor="end")
    for at, number in enumerate(steps):
        drawing.text(x(at), bottom + 20, f"{number:,}", colour="soft", anchor="middle")
    s = say(
        "training steps ({:.1f} M parameters, {} bytes, {} seeds)",
        made[0]["parameters"] / 1e6,
        made[0]["length"],
        max(made[-1]["seeds"].values()),
    )
    drawing.text(left, bottom + 44, s, colour="soft")
    heights = dict(zip(NAMED, apart([y(gaps[name][-1]) for name in NAMED], 20, top + 4, bottom - 4), strict=True))
    for name in sorted(gaps, key=lambda name: name in NAMED):
        label, colour = NAMED.get(name, ("", "grid"))
        points = [(x(at), y(value)) for at, value in enumerate(gaps[name])]
        values = ", ".join(f"{value:+.3f} after {number}" for value, number in zip(gaps[name], steps, strict=True))
        drawing.line(points, colour=colour, width=3 if label else 1.5, about=f"{name}: {values}".replace("-", "−"))
        if label:
            for point in points:
                drawing.dot(*point, radius=3.5, colour=colour)
            drawing.line([(right + 6, points[-1][1]), (right + 16, heights[name])], colour=colour)
            drawing.text(right + 20, heights[name] + 5, say(label), colour=colour, weight=600)
    return drawing.svg()


TRAINED = {
    "rope": ("RoPE", "ink"), "rope+alibi": ("RoPE + ALiBi", "blue"), "kerple": ("KERPLE", "green"), "shaw": ("Shaw", "ochre"),
    "alibi": ("ALiBi", "orange"), "stick_breaking": ("stick-breaking", "soft"), "fox": ("FoX", "purple"), "none": ("none", "soft"),
}  # fmt: skip
"""How `law` names and draws encodings. Two that were trained at one size alone are left out."""
AT_SIZE, HELD_OUT = "3M", ("28M", 16)
"""The size that most encodings had, and what was held out: its size, and MB."""
RAISED = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")


def law(
    cells: Mapping[tuple[str, str, int], tuple[float, float]], noise: float, predictions: Sequence[Results], look: Look
) -> str:
    """The loss over the compute of training, by size and encoding, and what was registered of the size that was held out.

    cells: the loss and the FLOPs of a training, by size, encoding and MB of text. noise: what a seed moves a loss by."""
    say, base = look.say, "rope"
    by_size: dict[str, dict[str, dict[int, tuple[float, float]]]] = {}
    for (size, name, budget), made in cells.items():
        by_size.setdefault(size, {}).setdefault(name, {})[budget] = made
    at, measured = HELD_OUT[1], {name: of[HELD_OUT[1]][0] for name, of in by_size[HELD_OUT[0]].items()}
    bars = {}
    for p in predictions:
        way, _, what = p["id"].removeprefix("GPU, ").partition(f", {HELD_OUT[0]}, {at} MB: loss at 512 tokens, ")
        name, _, other = what.partition(" minus ")
        if name in measured and other in ("", base):
            bars[name, way] = tuple(p[end] + (measured[base] if other else 0) for end in ("low", "high")), other
    curve = by_size[AT_SIZE][base]
    others, budgets = [of for name, of in by_size[AT_SIZE].items() if name != base], sorted(curve)
    below = [sum(curve[mb][0] - of[mb][0] > noise for of in others) for mb in (budgets[0], budgets[-1])]
    by_size = {size: {name: of for name, of in names.items() if name in TRAINED} for size, names in by_size.items()}
    finding = [
        say("With {:g} M weights {} of {} encodings are clearly below", float(AT_SIZE[:-1]), below[0], len(others)),
        say("RoPE after {:g} MB of text, and {} after {:g} MB", budgets[0], below[1] or say("none"), budgets[-1]),
    ]
    drawing = Drawing(612, finding, say("loss at 512 tokens, nats per byte, over the FLOPs of training"), look)
    left, right, top, bottom = 40, 430, 124, 530
    points = [of for sizes in by_size.values() for each in sizes.values() for of in each.values()]
    ends = [loss for loss, _ in points] + [end for pair, _ in bars.values() for end in pair]
    low, high, least, most = min(ends), max(ends), min(flops for _, flops in points), max(flops for _, flops in points)

    def y(loss: float) -> float:
        return bottom - 8 - (bottom - top - 16) * (loss - low) / (high - low)

    def x(flops: float) -> float:
        return left + 16 + (right - left - 32) * log10(flops / least) / log10(most / least)

    for tenth in range(ceil(low * 10), int(high * 10) + 1):
        drawing.line([(left, y(tenth / 10)), (right, y(tenth / 10))])
        drawing.text(left - 6, y(tenth / 10) + 5, f"{tenth / 10:.1f}", colour="soft", anchor="end")
    for power, lead in product(range(10, 20), (1, 2, 5)):
        if least <= lead * 10**power <= most:
            label = f"{lead}·10{str(power).translate(RAISED)}".removeprefix("1·")
            drawing.text(x(lead * 10**power), bottom + 20, label, colour="soft", anchor="middle")
    for size, names in by_size.items():
        first = min((of for each in names.values() for of in each.values()), key=lambda of: of[1])
        label = "{:g} M weights" if first[1] == least else "{:g} M"
        drawing.text(x(first[1]), top - 12, say(label, float(size[:-1])), colour="soft", anchor="middle")
        for name in sorted(names, key=lambda name: name == base):
            of, (_, colour) = dict(sorted(names[name].items())), TRAINED[name]
            places = [(x(flops), y(loss)) for loss, flops in of.values()]
            about = f"{name}, {size}: " + ", ".join(f"{loss:.3f} after {mb} MB" for mb, (loss, _) in of.items())
            drawing.line(places, colour=colour, width=2.5, dash="2 4" if name == "none" else "", about=about)
            for place in places:
                drawing.dot(*place, radius=3.5, colour=colour)
    order = list(dict.fromkeys(name for name, _ in sorted(bars)))
    for (name, way), ((start, end), other) in bars.items():
        along = x(by_size[HELD_OUT[0]][name][at][1]) + 9 * (order.index(name) - 1) + (6 if way == "plane" else 3)
        bar = f"{name}, {HELD_OUT[0]}, by the {way}: {start:.3f} to {end:.3f} was registered"
        bar += f", as {start - measured[other]:+.3f} to {end - measured[other]:+.3f} from {other}" if other else ""
        bar = bar.replace("-", "−")
        dash = "3 4" if way == "plane" else ""
        drawing.line([(along, y(start)), (along, y(end))], colour=TRAINED[name][1], width=2.5, dash=dash, about=bar)
    listed = say(", ").join(map(str, budgets))
    drawing.text(
        0, bottom + 46, say("dots: {} MB of text; clearly: by more than a seed's {:.3f}", listed, noise), colour="soft"
    )
    legend = "bars: registered for {:g} M weights, by a fit and (dashes) by a plane"
    drawing.text(0, bottom + 68, say(legend, float(HELD_OUT[0][:-1])), colour="soft")
    lowest = {name: min(of[0] for names in by_size.values() for of in names.get(name, {}).values()) for name in TRAINED}
    heights = dict(zip(TRAINED, apart([y(lowest[name]) for name in TRAINED], 20, top + 4, bottom - 4), strict=True))
    for name, (label, colour) in TRAINED.items():
        drawing.text(right + 8, heights[name] + 5, say(label), colour=colour, weight=600)
    return drawing.svg()


def tasks(results: Results, look: Look) -> str:
    """The best encodings of several tasks and the known ones: the score of each task at the longest length, and the mean score."""
    names, table = list(results["tasks"]), results["table"]
    rows = [row for number, row in enumerate(table) if number < SHOWN or row["encoding"] in KNOWN]

    def mean(row: Results, at: str) -> str:
        return "–" if row[at] is None else f"{100 * row[at]['mean']:.0f}"

    factor = results["tasks"][names[0]]["settings"]["factors"][-1]
    say = look.say
    first = [row["encoding"].partition(":")[0] for row in table if row["longest"]["mean"] >= table[0]["longest"]["low"]]
    who = look.listed(first)
    finding = [
        say("{} leads" if len(first) == 1 else "{} lead", who if len(who) < 45 else say("{} encodings", len(first))),
        say("by mean score of {} tasks at {} times the length", len(names), factor),
    ]
    steep = -35 * (len(names) > 4)
    top, step = 150 if steep else 122, 25
    left = 16 + 9 * max(len(row["encoding"].partition(":")[0]) for row in rows)
    about = say(
        "right answers in %, and loss of text, at {} times the training length"
        if "text" in names
        else "right answers in % at {} times the training length",
        factor,
    )
    drawing = Drawing(top + step * len(rows) + 36, finding, about, look)
    count = 46
    width = (WIDTH - left - 2 * count - 12) / len(names)
    for number, name in enumerate(names):
        x = left + width * (number + 0.5)
        drawing.text(
            x - 12 * bool(steep), top - 10, say(name), anchor="start" if steep else "middle", turn=steep, colour="soft"
        )
    for number, times in enumerate((factor, 1)):
        for above, words in ((28, say("mean")), (10, say("at {}×", times))):
            drawing.text(WIDTH - count * (1.5 - number), top - above, words, anchor="middle", colour="soft")
    for line, row in enumerate(rows):
        y, name = top + step * line, row["encoding"]
        scores = {task: _longest(results["tasks"][task], name) for task in names}
        shown = {
            task: f"{value:.2f}" if unit == "loss" else f"{100 * value:.0f}" for task, (unit, value) in scores.items()
        }
        about = f"{name}: {', '.join(f'{task} {shown[task]}' for task in names)}; mean score {mean(row, 'longest')}"
        weight = 600 if name in KNOWN else 400
        drawing.text(left - 10, y + 17, name.partition(":")[0], anchor="end", weight=weight, about=about)
        for number, task in enumerate(names):
            near = 0 if "longest" in results["not_learned"][task] else row["near_best"][task]["longest"]
            x = left + width * number
            if near >= POSSIBLE:
                drawing.box(x + 1.5, y + 1.5, width - 3, step - 3, "deep" if near >= PROBABLE else "pale")
            ink = "on" if near >= PROBABLE else "ink" if near >= POSSIBLE else "soft"
            drawing.text(
                x + width / 2,
                y + 17,
                shown[task],
                size=14,
                anchor="middle",
                colour=ink,
                weight=600 if near >= PROBABLE else 400,
            )
        for number, at in enumerate(("longest", "trained")):
            drawing.text(WIDTH - count * (1.5 - number), y + 17, mean(row, at), anchor="middle")
    end = top + step * len(rows)
    for x, colour, words in ((120, "deep", "probably near the best"), (400, "pale", "possibly")):
        drawing.box(x, end + 12, 14, 14, colour)
        drawing.text(x + 21, end + 24, say(words), colour="soft")
    return drawing.svg()


def _longest(task: Results, name: str) -> tuple[str, float]:
    """What an encoding scores at the longest length, and what kind of number that is."""
    point = next(row for row in task["variants"] if row["name"] == name)["lengths"][-1]
    unit = "accuracy" if "accuracy" in point else "loss"
    return unit, point[unit]["mean"]


METHODS = {
    "yarn": "YaRN",
    "self_extend": "Self-Extend",
    "dual_chunk": "dual chunks",
    "truncation": "truncated input",
    "none": "unmodified",
}
"""How `longer` names methods, from top to bottom."""


def longer(results: Results, look: Look) -> str:
    """What a pretrained model makes of texts past its training length: a passkey at a quarter of the text, and running text."""
    part = results["longer"][0]
    passkey, text = ({row["method"]: row for row in task["rows"]} for task in part["tasks"])
    trained, texts = results["model"]["trained_length"], passkey["none"]["exact"]["n"]
    say = look.say
    found = [say(METHODS[name]) for name in METHODS if passkey[name]["exact"]["hits"] == texts]
    finding = [
        say("At {:,} tokens SmolLM2, trained at {:,},", part["length"], trained),
        say("reads on with {} or {}", say(", ").join(found[:-1]), found[-1]),
    ]
    top, left, keys, step = 118, 146, 22, 42
    bottom = top + step * len(METHODS)
    drawing = Drawing(bottom + 40, finding, "", look)
    start, end = left + texts * keys + 46, WIDTH - 16
    low, high = -0.25, 1.05

    def x(value: float) -> float:
        return start + (end - start) * (value - low) / (high - low)

    drawing.text(left, top - 42, say("passkey"), weight=600)
    drawing.text(left, top - 22, say("found in {} documents", texts), colour="soft", size=14)
    drawing.text(start, top - 42, say("running text"), weight=600)
    drawing.text(start, top - 22, say("nats per token above truncated input"), colour="soft", size=14)
    for value in (0, 0.5, 1):
        drawing.line([(x(value), top - 8), (x(value), bottom)], colour="grid" if value else "soft")
        drawing.text(x(value), bottom + 20, value, colour="soft", anchor="middle")
    for number, (name, label) in enumerate(METHODS.items()):
        y, hits = top + step * (number + 0.5), passkey[name]["exact"]["hits"]
        colour = "blue" if hits == texts else "orange"
        drawing.text(left - 16, y + 5, say(label), anchor="end", weight=600 if hits == texts else 400)
        for each in range(texts):
            drawing.dot(left + 8 + keys * each, y, radius=7, colour=colour, hollow=each >= hits)
        more = text[name].get("against_truncation") or {"mean": 0.0, "low": 0.0, "high": 0.0}
        about = f"{name}: passkey {hits} of {texts}, running text {more['mean']:+.2f} ({more['low']:+.2f} to {more['high']:+.2f})"
        drawing.line([(x(more["low"]), y), (x(more["high"]), y)], colour=colour, width=3)
        drawing.dot(x(more["mean"]), y, radius=6, colour=colour, about=about)
    return drawing.svg()


def speed(results: Results, look: Look) -> str:
    """Time and memory of attention with each encoding over attention without position: posenc and every other candidate."""
    time = dict(_trials(results, "time", "forward", LENGTH))
    memory = dict(_trials(results, "memory", "forward", MEMORY_LENGTH))
    ours = [rows["posenc"] for case, rows in memory.items() if case != "rope"]
    best = [
        min(value for name, value in rows.items() if name != "posenc")
        for case, rows in memory.items()
        if case != "rope"
    ]
    say = look.say
    finding = [
        say("Biases in {:.0f} to {:.0f} MiB of memory;", min(ours), max(ours)),
        say("the best of the others take {:.0f} to {:,.0f}", min(best), max(best)),
    ]
    top, left, half, step = 128, 92, 204, 27
    drawing = Drawing(top + step * len(time) + 58, finding, "", look)
    drawing.dot(7, 68, radius=7, colour="blue")
    drawing.text(20, 73, "posenc", colour="soft")
    drawing.dot(88, 68, radius=5, colour="orange", hollow=True)
    drawing.text(99, 73, say("other packages, and the formula on all pairs"), colour="soft")
    panels = ((left + 14, time, 0.8, 6.0, (1, 2, 4), "time × no position"), (left + half + 44, memory, 32, 8192, (64, 512, 4096), "MiB of memory"))  # fmt: skip
    bottom = top + step * len(time)
    for start, trials, low, high, marks, words in panels:

        def x(value: float, start: float = start, low: float = low, high: float = high) -> float:
            return start + half * log10(value / low) / log10(high / low)

        drawing.text(start, top - 18, say(words), weight=600)
        for mark in marks:
            drawing.line([(x(mark), top - 6), (x(mark), bottom)])
            drawing.text(x(mark), bottom + 20, f"{mark:,}", colour="soft", anchor="middle")
        for number, (case, rows) in enumerate(trials.items()):
            y = top + step * (number + 0.5)
            drawing.line([(x(min(rows.values())), y), (x(max(rows.values())), y)], width=1.5)
            order = sorted(rows, key=lambda name: (name != "posenc", rows[name]))
            heights = dodged([x(rows[name]) for name in order])
            for name, height in zip(order, heights, strict=True):
                value = rows[name]
                exact = f"{value:.2f}" if value < 10 else f"{value:.0f}"
                about = f"{case}, {name}: {exact}{' MiB' * (value >= 10)}"
                if name == "posenc":
                    drawing.dot(x(value), y, radius=7, colour="blue", about=about)
                    continue
                drawing.dot(x(value), y + height, radius=5, colour="orange", hollow=True, about=about)
                if height and abs(x(value) - x(rows["posenc"])) < 12:
                    words = f"{say(SHORT[name]) if name in SHORT else name} {exact}"
                    drawing.text(x(value) + 10, y + 16, words, size=12, colour="soft")
    for number, case in enumerate(time):
        drawing.text(left, top + step * (number + 0.5) + 5, case, anchor="end")
    about = say("forward, one CPU thread; time at {:,} tokens, memory at {:,}", LENGTH, MEMORY_LENGTH)
    drawing.text(0, bottom + 48, about, colour="soft", size=14)
    return drawing.svg()


def dodged(places: Sequence[float]) -> list[float]:
    """How far below its row each mark stands, so that none covers an earlier one: the first is on the row."""
    placed: list[tuple[float, float]] = []
    for x in places:
        free = [y for y in (0, 8, -8, 16) if all(abs(x - a) >= 10 or abs(y - b) >= 8 for a, b in placed)]
        placed.append((x, free[0] if free else 0))
    return [y for _, y in placed]


def _trials(results: Results, what: str, mode: str, length: int) -> Iterator[tuple[str, dict[str, float]]]:
    """Ratios or mebibytes of each case of attention: posenc as it is by default, and all that is not posenc."""
    for trial in results["trials"]:
        key = (trial["what"], trial["mode"], trial["length"], trial["dtype"], trial["family"])
        if key != (what, mode, length, "float32", "attention"):
            continue
        rows = {}
        for row in trial["rows"]:
            value = row["bytes"] / 2**20 if row["bytes"] else row["ratio"]["median"] if row["ratio"] else None
            if value is not None and row["name"] != trial["limit"] and not row["name"].startswith("posenc,"):
                rows[row["name"]] = value
        yield trial["case"], rows


def verdicts(page: str) -> dict[str, list[tuple[str, str]]]:
    """Packages of benchmarks/conform.md: each function with "conforms", "dtype" (right in float32 alone) or "differs"."""
    table = page.split("<!-- findings:")[1].split("<!-- end of findings")[0]
    found: dict[str, list[tuple[str, str]]] = {}
    for verdict, package, function, kind in re.findall(
        r"^\| (.+?) \| (\S+) \S+ \| (.+?) \| (\w+) \|$", table, re.MULTILINE
    ):
        right = "conforms" if verdict.startswith("conforms") else "dtype" if verdict.startswith("float32 values conform") else "differs"  # fmt: skip
        found.setdefault(package, []).append((f"{function} as {kind}", right))
    return found


def conformance(packages: Mapping[str, list[tuple[str, str]]], look: Look) -> str:
    """A row for each package, a mark for each of its functions."""
    order = sorted(packages, key=lambda name: (-len(packages[name]), name))
    every = [right for functions in packages.values() for _, right in functions]
    differ, dtypes = every.count("differs"), every.count("dtype")
    say = look.say
    finding = [
        say("{} of {} functions in {} packages", len(every) - differ - dtypes, len(every), len(packages)),
        say("match the papers' formulas; {} differ or fail", differ),
    ]
    top, left, step = 104, 186, 21
    across = min(13, (WIDTH - left - 8) / max(map(len, packages.values())))
    drawing = Drawing(top + step * len(order) + 16, finding, "", look)
    drawing.dot(7, 68, radius=5, colour="blue")
    drawing.text(18, 73, say("matches"), colour="soft")
    drawing.dot(104, 68, radius=4.5, colour="ochre", hollow=True)
    drawing.text(115, 73, say("right in float32 alone ({})", dtypes), colour="soft")
    drawing.diamond(311, 68, radius=6.5, colour="orange")
    drawing.text(322, 73, say("differs or fails ({})", differ), colour="soft")
    for line, name in enumerate(order):
        y = top + step * line
        drawing.text(left - 8, y + 5, name, anchor="end")
        row = sorted(packages[name], key=lambda one: ("differs", "dtype", "conforms").index(one[1]))
        for number, (function, right) in enumerate(row):
            x, about = left + 6 + across * number, f"{name}: {function}: {right}"
            if right == "conforms":
                drawing.dot(x, y, radius=5, colour="blue", about=about)
            elif right == "dtype":
                drawing.dot(x, y, radius=4.5, colour="ochre", hollow=True, about=about)
            else:
                drawing.diamond(x, y, radius=6.5, colour="orange", about=about)
    return drawing.svg()


def read(path: Path) -> Any:
    data = path.read_bytes()
    return json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)


def pictures(root: Path) -> dict[str, Callable[[Look], str]]:
    """How each picture is drawn from the results below `root`, by its name."""
    cells = by_cell()
    return {
        "tasks": partial(tasks, read(root / TASKS)),
        "budget": partial(budget, read(root / BUDGETS)),
        "law": partial(
            law,
            {key: (float(row.mean()), cells[key][0]["flops"]) for key, row in measured_losses(cells, seed=0).items()},
            widest().noise[0],
            read(root / LAW / "registration4.json")["predictions"],
        ),
        "longer": partial(longer, read(root / LONGER)),
        "speed": partial(speed, read(root / SPEED)),
        "conformance": partial(conformance, verdicts((root / FINDINGS).read_text(encoding="utf-8"))),
    }


def main() -> None:
    for name, draw in pictures(Path()).items():
        for end, look in LOOKS.items():
            path = FOLDER / f"{name}{end}.svg"
            path.write_text(draw(look), encoding="utf-8")
            print(path)


if __name__ == "__main__":
    main()
