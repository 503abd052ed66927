"""Finding a function by the words MODULE:FUNCTION."""

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from posenc.errors import InputError, unknown


def find(target: str) -> Callable[..., Any]:
    """The function of "package.module:function" or "path/to/file.py:function" (function may have dots); modules of the
    current folder can be imported.

    Raises:
        InputError: no such module or function, or an error while it is imported.
    """
    module_name, colon, name = target.rpartition(":")
    if not (colon and module_name and name):
        raise InputError(f"{target!r}: write MODULE:FUNCTION, such as mypackage.rope:apply or rope.py:apply")
    found: Any = _module(module_name)
    for part in name.split("."):
        if not hasattr(found, part):
            raise unknown(
                f"function in {module_name}", part, [n for n, value in vars(found).items() if inspect.isfunction(value)]
            )
        found = getattr(found, part)
    if not callable(found):
        raise InputError(f"{target!r}: is a {type(found).__name__}, not a function")
    return found


def _module(name: str) -> ModuleType:
    path = Path(name)
    here = path.parent if path.suffix == ".py" else Path()
    sys.path.insert(0, str(here.resolve()))
    try:
        if path.suffix != ".py":
            return importlib.import_module(name)
        if not path.is_file():
            raise InputError(f"{name}: no such file")
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None  # the suffix is Python's
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[path.stem] = module  # dataclasses and pickle look their module up
        spec.loader.exec_module(module)
        return module
    except InputError:
        raise
    except (Exception, SystemExit) as error:
        text = " ".join(str(error).split())
        raise InputError(f"importing {name} failed: {type(error).__name__}{': ' + text if text else ''}") from None
