# SPDX-License-Identifier: Apache-2.0
"""What the programs say of errors, and results as JSON."""

import math
import os
import re
import traceback
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from posenc.errors import InputError, described

INSTALLED = (str(Path(__file__).parents[1]) + os.sep, str(Path(os.__file__).parent) + os.sep)
"""Folders of posenc and of Python's standard library."""

TRACEBACK = "POSENC_TRACEBACK"
"""The environment variable with which the command line prints the traceback of every error."""


def first_line(error: BaseException) -> str:
    """The first line of an error's message; its type where it has none."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def users_line(error: BaseException) -> str | None:
    """FILE:LINE of the last line of the caller's own code that an error came through, in a worker process too; None: it came
    through installed packages alone."""
    text = "".join(traceback.format_exception(error))
    theirs = [
        f"{file}:{line}"
        for file, line in re.findall(r'File "([^"<]+)", line (\d+)', text)
        if not file.startswith(INSTALLED) and "-packages" + os.sep not in file
    ]
    return theirs[-1] if theirs else None


def located(error: BaseException) -> str:
    """An error's type and message; of one from the caller's own code the file and line, too; of an InputError the message."""
    if isinstance(error, InputError):
        return first_line(error)
    line = users_line(error)
    return described(error) + ("" if line is None else f" (at {line}; {TRACEBACK}=1 shows the traceback)")


def as_json(value: Any, digits: int | None = None) -> Any:
    """Dataclasses, mappings, sequences and tensors of numbers as JSON has them; what is not finite becomes None. digits:
    significant ones of a fraction; None: all."""
    if is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in fields(value)}
    elif isinstance(value, Tensor):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {str(key): as_json(item, digits) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_json(item, digits) for item in value]
    if isinstance(value, float):
        if not math.isfinite(value):
            return None
        return value if digits is None else float(f"{value:.{digits}g}")
    return value
