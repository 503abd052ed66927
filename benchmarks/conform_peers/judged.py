"""What each difference of benchmarks/conform.md is, from judgements.json: the table of docs/conform.md; and the reproductions of
benchmarks/upstream.md, run.

    python benchmarks/conform_peers/judged.py --write    # the table
    python benchmarks/conform_peers/judged.py --run [litgpt ...]    # the blocks whose release is installed
"""

import argparse
import importlib.metadata
import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PAGE, TEXTS = ROOT / "docs" / "conform.md", ROOT / "benchmarks" / "upstream.md"
BEGIN, END = "<!-- judged: written by benchmarks/conform_peers/judged.py -->", "<!-- end of judged -->"
NAMES = {"Liger-Kernel": "liger-kernel", "SGLang": "sglang", "OLMo-core": "ai2-olmo-core"}
"""Projects -> their packages, where they have other names."""
STUBS = {
    "fairseq2": "import peer_fairseq2",
    "sglang": "import peer_sglang",
    "OpenNMT-py": "import shared; shared.stand_in('spacy', 'ahocorasick')",
    "mmpretrain": "import shared, torch\n"
    "made = shared.stand_in('mmpretrain', 'mmpretrain.models', 'mmpretrain.models.utils')['mmpretrain.models.utils']\n"
    "made.build_2d_sincos_position_embedding = shared.taken('mmpretrain', 'mmpretrain/models/utils/position_encoding.py',"
    " 'build_2d_sincos_position_embedding', torch_meshgrid=lambda *axes: torch.meshgrid(*axes, indexing='ij'))",
}
"""Packages -> what makes stubs for native parts, or for packages that the function does not need."""
JUDGEMENTS = {"bug": "a bug", "documented": "documented", "authors": "as the authors' code", "paper": "as the paper"}


class Block(NamedTuple):
    """One reproduction."""

    package: str
    version: str
    title: str
    code: str


def judgements() -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads((HERE / "judgements.json").read_text(encoding="utf-8"))["rows"]
    return rows


def blocks() -> list[Block]:
    """The code of benchmarks/upstream.md; a heading of several releases has a block for each."""
    found = []
    for section in TEXTS.read_text(encoding="utf-8").split("\n## ")[1:]:
        title = section.partition("\n")[0]
        releases = re.findall(r"([\w-]+) (\d[\w.]*)", title.partition(":")[0])
        code = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
        if len(releases) != len(code):
            raise ValueError(f"{title}: {len(releases)} releases, {len(code)} blocks")
        found += [Block(NAMES.get(p, p), v, title, text) for (p, v), text in zip(releases, code, strict=True)]
    return found


def table() -> list[str]:
    """The lines of the page's table."""
    anchors = {block.title: re.sub(r"[^\w -]", "", block.title.lower()).replace(" ", "-") for block in blocks()}
    lines = [BEGIN, "| verdict | function | what it is |", "|---|---|---|"]
    for row in judgements():
        links = [
            f"[{number}](../benchmarks/upstream.md#{anchors[title]})" for number, title in enumerate(row["shown"], 1)
        ]
        what = JUDGEMENTS[row["judgement"]] + (f": {row['why']}" if row["why"] else "")
        shown = f" (code {', '.join(links)})" if links else ""
        lines.append(f"| {row['verdict']} | {row['functions']} | {what}{shown} |")
    return [*lines, END]


def promised(block: Block) -> str:
    """What the comments of a block say that it prints."""
    return "\n".join(
        line for line in block.code.splitlines() if line.startswith("# ") and not line.startswith("# expected")
    )


def printed(block: Block) -> str:
    """What it prints, and the last line of its error."""
    code = STUBS.get(block.package, "") + "\n" + block.code
    path = os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": path},
    )
    return done.stdout + ("" if done.returncode == 0 else done.stderr.strip().splitlines()[-1])


def essence(text: str) -> list[str]:
    """The numbers of a text to three digits after the point, True and False, and the names of errors."""
    text = re.sub(r"dtype=torch\.\w+", "", text)
    words = re.findall(r"-?\d+\.?\d*(?:e-?\d+)?|True|False|\w+Error", text)
    return [word if word[0].isalpha() else f"{float(word) + 0.0:.3f}" for word in words]


def agrees(expected: str, found: str) -> bool:
    """Whether numbers differ by no more than their last digit, and words not at all."""
    left, right = essence(expected), essence(found)
    return len(left) == len(right) and all(
        a == b or (a[-1].isdigit() and b[-1].isdigit() and abs(float(a) - float(b)) <= 0.0011)
        for a, b in zip(left, right, strict=True)
    )


def run(packages: Sequence[str] = ()) -> int:
    """Run the blocks; the number of those that print something else."""
    wrong = 0
    for block in blocks():
        if packages and block.package not in packages:
            continue
        try:
            installed = importlib.metadata.version(block.package)
        except importlib.metadata.PackageNotFoundError:
            installed = "not installed"
        if installed != block.version:
            print(f"not run, {installed}: {block.title}")
            continue
        found = printed(block)
        same = agrees(promised(block), found)
        wrong += not same
        print(f"{'as written' if same else 'DIFFERS'}: {block.title}" + ("" if same else f"\n{found}"), flush=True)
    return wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="replace the table of docs/conform.md")
    parser.add_argument("--run", nargs="*", metavar="PACKAGE", help="run the reproductions, of all packages or these")
    options = parser.parse_args()
    if options.write:
        text = PAGE.read_text(encoding="utf-8")
        before, after = text[: text.index(BEGIN)], text[text.index(END) + len(END) :]
        PAGE.write_text(before + "\n".join(table()) + after, encoding="utf-8")
    if options.run is not None:
        sys.exit(bool(run(options.run)))


if __name__ == "__main__":
    main()
