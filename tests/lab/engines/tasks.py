"""Functions that engines run in other processes, where they are found by this module's name."""

import os
import signal
import time
from pathlib import Path

from posenc import InputError


class InFolder:
    """Something that goes to workers through a folder, and says so."""

    def __init__(self, number):
        self.number = number

    def write(self, folder):
        (folder / "number").write_text(str(self.number))

    @classmethod
    def read(cls, folder):
        found = cls(int((folder / "number").read_text()))
        found.was_read = True
        return found


def times(shared, task, tick):
    tick(1, f"begun {task}")
    tick(2)
    return shared * task


def times_in_folder(shared, task, tick):
    return shared.number * task, getattr(shared, "was_read", False)


def refuse(shared, task, tick):
    if task == shared:
        raise InputError(f"task {task}: too hot")
    return task


def die(shared, task, tick):
    os.kill(os.getpid(), signal.SIGKILL)


def mishaps(folder, task, tick):
    """What may befall a worker, by the task's name; every beginning leaves a file in the folder."""
    begun = len(list(Path(folder).glob(f"{task}-*")))
    (Path(folder) / f"{task}-{begun}").touch()
    if task == "dies always" or (task == "dies once" and not begun):
        die(folder, task, tick)
    if task == "is shot once" and not begun:
        while True:
            time.sleep(0.3)
            tick(1, str(os.getpid()))
    return begun
