# SPDX-License-Identifier: Apache-2.0
"""The tasks by name."""

from typing import Any

from posenc.lab.config import Recipe
from posenc.lab.task import Task
from posenc.lab.text import TextTask
from posenc.lab.vision.task import VisionTask

TASKS: dict[str, Task[Any, Any]] = {task.name: task for task in (TextTask(), VisionTask())}


def task_of(settings: Recipe) -> Task[Any, Any]:
    """The task that settings are of."""
    return TASKS[settings.task]
