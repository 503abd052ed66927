# SPDX-License-Identifier: Apache-2.0
"""Numbers handed to the trackers that accelerate knows: TensorBoard, Weights & Biases, MLflow and others."""

import re
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from posenc.errors import InputError, first_line, unknown
from posenc.lab.config import Run
from posenc.lab.results import Cell
from posenc.lab.train import schedule

Values = Mapping[str, float]
FOLDER = "track"


class Tracking:
    """Trackers by name, writing under `directory`/track. A tracker that fails is warned of and left out; nothing else
    is lost by it.

    Raises:
        InputError: a tracker that accelerate does not know, or one that is not installed here.
    """

    def __init__(self, names: Sequence[str], directory: str | Path) -> None:
        self.directory: Path = Path(directory) / FOLDER
        self.classes: dict[str, Any] = {name: _tracker(name) for name in names}

    def finished(self, run: Run, cell: Cell) -> None:
        """Write a finished run: loss and learning rate of every step, what was measured by arm and condition, settings."""
        s = run.settings
        steps: list[tuple[int, Values]] = [
            (step, {"loss": loss, "learning_rate": s.learning_rate * schedule(step, s.steps)})
            for step, loss in enumerate(cell.losses)
        ]
        held_out = {
            f"{what}/{arm.name}/{s.size_at(int(condition))}": sum(values) / len(values)
            for arm in cell.arms
            for what, measured in {"held_out": arm.paired, **arm.also}.items()
            for condition, values in measured.items()
        }
        settings = {name: str(v) if isinstance(v, list) else v for name, v in s.said().items()}
        config = {"encoding": run.encoding, "seed": run.seed, "run": run.id, **settings}
        self.write(f"{run.encoding}-seed-{run.seed}", config, [*steps, (s.steps, held_out)])

    def evaluated(self, results: Mapping[str, Any]) -> None:
        """Write an evaluation: exact, accuracy and loss by task and method, the length as the step."""
        for task in results["tasks"]:
            for method in task["methods"]:
                found = [
                    (row["length"], {f"{task['task']}/{key}": row[key]["mean"] for key in ("accuracy", "loss")})
                    for row in method["by_length"]
                ]
                name = str(method["method"])
                self.write(f"{name}-{task['task']}", {"model": results["model"]["name"], "method": name}, found)

    def write(self, name: str, config: Mapping[str, Any], values: Sequence[tuple[int, Values]]) -> None:
        """One run of every tracker: its settings, and numbers by step."""
        safe = re.sub(r"[^\w.+=-]+", "_", name)
        for tracker, cls in list(self.classes.items()):
            try:
                where = {"logging_dir": str(self.directory)} if cls.requires_logging_directory else {}
                writer = cls(safe, **where)
                if hasattr(writer, "start"):
                    writer.start()
                writer.store_init_configuration(dict(config))
                for step, numbers in values:
                    writer.log(dict(numbers), step=step)
                writer.finish()
            except Exception as error:  # a tracker raises what its service raises
                del self.classes[tracker]
                said = f"--track {tracker}: {first_line(error)}; going on without it"
                print(f"posenc: warning: {said}", file=sys.stderr)


def _tracker(name: str) -> Any:
    try:
        known = import_module("accelerate.tracking")
    except ImportError:
        raise InputError(
            f"--track {name}: needs accelerate, which is not installed: pip install 'posenc[tensorboard]'"
        ) from None
    if name not in known.LOGGER_TYPE_TO_CLASS:
        raise unknown("--track", name, known.LOGGER_TYPE_TO_CLASS)
    if name not in {str(tracker) for tracker in known.get_available_trackers()}:
        package = "'posenc[tensorboard]'" if name == "tensorboard" else name.replace("_", "-")
        raise InputError(f"--track {name}: it is not installed: pip install {package}")
    return known.LOGGER_TYPE_TO_CLASS[name]
