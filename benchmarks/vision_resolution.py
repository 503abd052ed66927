"""Accuracy of every encoding of images at other resolutions than in training: the tables of benchmarks/vision_resolution.md.

Both data sets that come with posenc, the encodings of the standard preset, 3 seeds, longer training. The folder has the
finished runs; the same command resumes.

python benchmarks/vision_resolution.py [--out DIR] [--workers N] [--write benchmarks/vision_resolution.md]
"""

import argparse
import json
from pathlib import Path

from posenc.lab.compare import Comparison, compare
from posenc.lab.vision.experiment import CORE, PRESETS
from posenc.report.compare import page
from posenc.report.terminal import Display

DATA = ("places", "digits")
SEEDS = 3
CHANGED = {"steps": 240, "images": 320}
"""From the settings of the standard preset."""
KEPT = ("name", "encoding", "trained", "seeds", "verdict", "verdict_smaller", "sizes", "shuffled")
NUMBERS = Path(__file__).with_suffix(".json")
START, END = "<!-- resolution: start -->", "<!-- resolution: end -->"


def measured(data: str, folder: Path, workers: int) -> dict:
    """results.json of one data set, without what is not in the tables."""
    corpus, settings = PRESETS["standard"].settings.changed(**CHANGED).load(data)
    with Display() as display:
        found = compare(
            Comparison(CORE, SEEDS, settings),
            corpus,
            folder / data,
            workers=workers,
            progress=display,
            pages=lambda results: {"report.html": page(results)},
        )
    if not found["complete"]:
        raise SystemExit(f"{data}: interrupted; the same command goes on from there")
    facts = {name: found["data"][name] for name in ("name", "sha256", "train_images", "held_out_images", "chance")}
    variants = [{name: variant[name] for name in KEPT} for variant in found["variants"]]
    return {"settings": found["settings"], "machine": found["machine"], "data": facts, "variants": variants}


def table(found: dict) -> str:
    """One data set as Markdown: accuracy by size, in percent, and half a 95 % interval of its change."""
    trained = found["settings"]["image_size"]
    sizes = [point["size"] for point in found["variants"][0]["sizes"]]
    heads = [f"{size} px" + (" (trained)" if size == trained else "") for size in sizes]
    rows = [f"| | {' | '.join(heads)} | shuffled |", f"|---|{'---:|' * (len(sizes) + 1)}"]
    for variant in found["variants"]:
        cells = [_cell(point, point["size"] == trained) for point in variant["sizes"]]
        rows.append(
            f"| {variant['name']} | {' | '.join(cells)} | {100 * variant['shuffled']['accuracy']['mean']:.1f} |"
        )
    return "\n".join(rows)


def _cell(point: dict, trained: bool) -> str:
    accuracy, change = point["accuracy"], point["change"]
    if trained:
        return f"{100 * accuracy['mean']:.1f}"
    return f"{100 * accuracy['mean']:.1f} ({100 * change['mean']:+.1f} ± {50 * (change['high'] - change['low']):.1f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("posenc-compare/vision-resolution"), help="folder of the runs")
    parser.add_argument("--workers", type=int, default=2, help="models trained at a time")
    parser.add_argument("--write", type=Path, help="page whose tables to replace")
    options = parser.parse_args()
    found = {data: measured(data, options.out, options.workers) for data in DATA}
    NUMBERS.write_text(json.dumps(found, indent=1) + "\n")
    tables = "\n\n".join(f"**{data}**: {found[data]['data']['train_images']} images to train on, "
                         f"{found[data]['settings']['images']} tested; the commonest class has "
                         f"{100 * found[data]['data']['chance']:.1f} % of them.\n\n{table(found[data])}" for data in DATA)  # fmt: skip
    print(tables)
    if options.write:
        before, rest = options.write.read_text().split(START)
        options.write.write_text(f"{before}{START}\n{tables}\n{END}{rest.split(END)[1]}")


if __name__ == "__main__":
    main()
