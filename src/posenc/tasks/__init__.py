# SPDX-License-Identifier: Apache-2.0
"""Tasks that measure what a model retrieves from a long input: each makes prompts of a length in tokens, deterministically,
and scores the model's answers.

    create("key_value:keys=digits") -> Task
    task.sample(tokenizer, 2048, depth=0.5, seed=0, index=3) -> Sample
    task.score(generated, sample) -> 0 .. 1
"""

from posenc.tasks.create_task import TASKS, create
from posenc.tasks.task import Sample, Task

__all__ = ["TASKS", "Sample", "Task", "create"]
