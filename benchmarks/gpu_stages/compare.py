"""The preset `gpu` of `posenc compare`: models of 30 and 120 million parameters trained with each encoding, on the sources of
Python's standard library, of which the machine has a copy."""

from dataclasses import replace
from functools import cache
from itertools import product
from typing import Any

from gpu_stages.stage import Case, Row, Stage
from gpu_stages.timing import device, markdown
from posenc.lab.data import Corpus
from posenc.lab.experiment import Execution, Run
from posenc.lab.measure import measure
from posenc.lab.records import RunRecord
from posenc.lab.text import PRESETS, Settings

SIZES = {"30M": PRESETS["gpu"].settings, "120M": PRESETS["gpu"].settings.changed(dim=1024, num_heads=16)}
TINY = Settings(length=16, steps=2, batch_size=2, dim=16, num_heads=2, head_dim=8, windows=2, targets=8)


@cache
def standard_library(settings: Settings) -> tuple[Corpus, Settings]:
    return settings.load("code")


class Compare(Stage):
    SHARE = 6.0

    def cases(self, dry: bool) -> list[Case]:
        encodings = PRESETS["gpu"].encodings
        sizes = list(SIZES)[: 1 if dry else None]
        return [{"size": s, "encoding": e} for s, e in product(sizes, encodings[: 2 if dry else None])]

    def measure(self, case: Case, dry: bool) -> dict[str, Any]:
        corpus, settings = standard_library(TINY if dry else SIZES[case["size"]])
        run = Run.of(case["encoding"], 0, settings, corpus.digest)
        record = measure(replace(run, execution=Execution(device(), "bfloat16", compiled=not dry)), corpus)
        return {
            "loss": {settings.length * factor: loss for factor, loss in _losses(record, settings).items()},
            "parameters": record.parameters, "tokens_per_second": record.tokens_per_second,
        }  # fmt: skip

    def table(self, rows: list[Row]) -> str:
        lengths = list(rows[0]["result"]["loss"]) if rows else []
        lines = [
            [*row["case"].values(), *(f"{loss:.3f}" for loss in row["result"]["loss"].values()),
             f"{row['result']['tokens_per_second']:.0f}"] for row in rows
        ]  # fmt: skip
        return markdown(["size", "encoding", *(f"loss at {n}" for n in lengths), "tokens a second"], lines)


def _losses(record: RunRecord, settings: Settings) -> dict[int, float]:
    """By factor: nats per byte, the mean over the passages."""
    trained = next(scores for scores in record.variants if scores.trained)
    return {f: sum(trained.paired[str(f)]) / len(trained.paired[str(f)]) for f in settings.factors}
