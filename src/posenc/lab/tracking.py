# SPDX-License-Identifier: Apache-2.0
"""Results for the trackers that accelerate supports: TensorBoard, Weights & Biases, MLflow and others."""

import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from posenc.errors import InputError, unknown
from posenc.lab.experiment import Run
from posenc.lab.messages import first_line
from posenc.lab.records import RunRecord
from posenc.lab.train import schedule

Values = Mapping[str, float]
FOLDER = "track"


class Tracking:
    """Trackers by name, writing under `directory`/track. A tracker that fails is left out with a warning.

    Raises:
        InputError: a tracker that accelerate does not support, or one that is not installed here.
    """

    def __init__(self, names: Sequence[str], directory: str | Path) -> None:
        self.directory: Path = Path(directory) / FOLDER
        self.classes: dict[str, Any] = {name: _tracker(name) for name in names}

    def finished(self, run: Run, cell: RunRecord) -> None:
        """Write a finished run: settings, loss and learning rate of each step, held-out measures of each variant."""
        s = run.settings
        steps: list[tuple[int, Values]] = [
            (step, {"loss": loss, "learning_rate": s.learning_rate * schedule(step, s.steps)})
            for step, loss in enumerate(cell.losses)
        ]
        held_out = {
            f"{measure}/{variant.name}/{s.size_at(int(condition))}": sum(values) / len(values)
            for variant in cell.variants
            for measure, by_condition in {"held_out": variant.paired, **variant.extra}.items()
            for condition, values in by_condition.items()
        }
        settings = {name: str(v) if isinstance(v, list) else v for name, v in s.to_dict().items()}
        config = {"encoding": run.encoding, "seed": run.seed, "run": run.id, **settings}
        self.write(f"{run.encoding}-seed-{run.seed}", config, [*steps, (s.steps, held_out)])

    def evaluated(self, results: Mapping[str, Any]) -> None:
        """Write an evaluation: accuracy and loss by task and method, the length as the step."""
        for task in results["tasks"]:
            for method in task["methods"]:
                values = [
                    (row["length"], {f"{task['task']}/{key}": row[key]["mean"] for key in ("accuracy", "loss")})
                    for row in method["by_length"]
                ]
                name = str(method["method"])
                self.write(f"{name}-{task['task']}", {"model": results["model"]["name"], "method": name}, values)

    def write(self, name: str, config: Mapping[str, Any], values: Sequence[tuple[int, Values]]) -> None:
        """One run of every tracker: its settings, and numbers by step."""
        safe = re.sub(r"[^\w.+=-]+", "_", name)
        for tracker, cls in list(self.classes.items()):
            try:
                writer = cls(safe, **({"logging_dir": str(self.directory)} if cls.requires_logging_directory else {}))
                if hasattr(writer, "start"):
                    writer.start()
                writer.store_init_configuration(dict(config))
                for step, numbers in values:
                    writer.log(dict(numbers), step=step)
                writer.finish()
            except Exception as error:  # a tracker raises what its service raises
                del self.classes[tracker]
                print(
                    f"posenc: warning: tracker {tracker}: {first_line(error)}; continuing without it", file=sys.stderr
                )


def _tracker(name: str) -> Any:
    try:
        from accelerate import tracking
    except ImportError:
        raise InputError("needs accelerate: pip install 'posenc[tensorboard]'", track=name) from None
    classes: dict[str, Any] = tracking.LOGGER_TYPE_TO_CLASS
    if name not in classes:
        raise unknown("tracker", name, classes)
    if name not in map(str, tracking.get_available_trackers()):
        package = "'posenc[tensorboard]'" if name == "tensorboard" else name.replace("_", "-")
        raise InputError(f"it is not installed: pip install {package}", track=name)
    return classes[name]
