"""Training steps of `posenc compare`, captured as CUDA graphs and eager: whether they compute the same, and how long they take."""

import statistics
import time
from functools import cache
from typing import Any

import torch

from gpu_stages.compare import TINY, standard_library
from gpu_stages.stage import Case, Row, Stage
from gpu_stages.timing import device, markdown
from posenc.lab.experiment import Dataset, Execution, Experiment, Run, executing
from posenc.lab.synthetic.tasks import TASKS
from posenc.lab.text import PRESETS
from posenc.lab.train import Training

OF_TASK = "rope", "alibi", "learned", "t5", "fox", "stick_breaking"
"""Encodings that train on batches of many lengths, too."""
WARM_UP, STEPS = 20, 40


@cache
def _data(task: str, dry: bool) -> tuple[Dataset, Experiment]:
    if task == "text":
        return standard_library(TINY if dry else PRESETS["leaderboard"].settings)
    settings = TASKS[task]()
    return settings.load("generated")[0], settings


class Steps(Stage):
    SHARE = 1.0
    TIMED = False
    """All at once, as `posenc compare --workers` trains."""

    def cases(self, dry: bool) -> list[Case]:
        if dry:
            return [{"task": "text", "encoding": "rope"}, {"task": "recall", "encoding": "none"}]
        text = [{"task": "text", "encoding": each} for each in PRESETS["leaderboard"].encodings]
        return [{"task": "recall", "encoding": each} for each in OF_TASK] + text

    def measure(self, case: Case, dry: bool) -> dict[str, Any]:
        corpus, settings = _data(case["task"], dry)
        run = Run.of(case["encoding"], 0, settings, corpus.digest, Execution(device()))
        found = {way: self._trained(run, corpus, way, dry) for way in ("eager", "eager again", "captured")}
        losses = {way: torch.tensor(each["losses"]) for way, each in found.items()}
        return {
            "eager_ms": found["eager"]["ms"], "captured_ms": found["captured"]["ms"],
            "refused": found["captured"]["refused"],
            "difference": float((losses["captured"] - losses["eager"]).abs().max()),
            "difference_of_two_eager": float((losses["eager again"] - losses["eager"]).abs().max()),
        }  # fmt: skip

    def _trained(self, run: Run, corpus: Dataset, way: str, dry: bool) -> dict[str, Any]:
        """Losses of the first steps, and milliseconds of one: the median of those after the warm-up."""
        warm_up, steps = (1, 1) if dry else (WARM_UP, STEPS)
        with executing(run.execution):
            training = Training(run, corpus.train)
            repeated = training.repeated
            if way != "captured":
                training.repeated = None
            took = []
            for _ in range(warm_up + steps):
                begin = time.perf_counter()
                training.advance()
                if repeated:
                    torch.cuda.synchronize()
                took.append(time.perf_counter() - begin)
            refused = repeated.refused if repeated else "not on a GPU"
            return {"losses": training.losses, "ms": 1e3 * statistics.median(took[warm_up:]), "refused": refused}

    def table(self, rows: list[Row]) -> str:
        lines = [
            [*row["case"].values(), f"{r['eager_ms']:.2f}", f"{r['captured_ms']:.2f}", f"{r['difference']:.2g}",
             f"{r['difference_of_two_eager']:.2g}", r["refused"]] for row in rows for r in [row["result"]]
        ]  # fmt: skip
        head = [
            "task",
            "encoding",
            "eager, ms",
            "captured, ms",
            "largest difference of losses",
            "of two eager trainings",
            "not captured, because",
        ]
        return markdown(head, lines)
