# SPDX-License-Identifier: Apache-2.0
"""Measurements that outlive a run: JSON files with a checksum. What is damaged is set aside, named and made again.

DIR/set-aside/NAME.1            a file that could not be used, as it was found
DIR/set-aside/NAME.1.why.json   what it was, and what is wrong with it
"""

import contextlib
import hashlib
import json
import os
import stat
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from itertools import count
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from posenc.errors import InputError
from posenc.files import Folder, make_folder, sync

T = TypeVar("T")
MOST_BYTES = 2**28
"""A file that is longer is none of ours."""
FLOAT_MOST = sys.float_info.max
ASIDE, WHY = "set-aside", ".why.json"


class Damaged(ValueError):
    """A file that does not hold what it should; says why."""


class Records(Folder):
    """A folder of measurements. tell: a file that is set aside is warned of at once."""

    def __init__(self, directory: str | Path, *, tell: bool = True) -> None:
        super().__init__(directory)
        self.tell = tell
        self.told: set[str] = {entry["kept_as"] for entry in self.set_aside()}

    @contextlib.contextmanager
    def writing(self, command: str, kind: str, schema: int) -> Iterator[None]:
        """Be the only run that writes here. A results.json of something else, or that cannot be read, is set aside.

        Raises:
            InputError: another run is writing here.
        """
        with self.lock(command):

            def check(content: bytes) -> None:
                results = parsed(content)
                if results.get("kind") != kind:
                    raise Damaged(f"it is not a result of posenc {kind}")
                if not isinstance(results.get("schema"), int) or not 1 <= results["schema"] <= schema:
                    raise Damaged(f"its schema is {results.get('schema')!r:.40}, and this version knows {schema}")

            self.read("results.json", check)
            yield

    def keep(self, name: str, content: Mapping[str, Any]) -> None:
        """Write a measurement."""
        rest = json.dumps(content, allow_nan=False)[1:].encode()
        self.write(name, b'{"sha256": "%s", %s' % (hashlib.sha256(rest).hexdigest().encode(), rest))

    def kept(self, name: str, make: Callable[[dict[str, Any]], T]) -> T | None:
        """What `make` finds in a measurement; None where there is none, or none that can be used.

        make: raises ValueError, TypeError or KeyError where that is not what it should be.
        """
        return self.read(name, lambda content: make(parsed(_verified(content))))

    def read(self, name: str, make: Callable[[bytes], T], most_bytes: int = MOST_BYTES) -> T | None:
        """What `make` finds in a file; a damaged one is set aside and counts as none.

        Raises:
            InputError: the file is there and cannot be read, or not be set aside.
        """
        try:
            return make(_bytes(self.directory / name, most_bytes))
        except FileNotFoundError:
            return None
        except RecursionError:
            self.put_aside(name, "it is nested too deeply")
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
            said = f"{type(error).__name__}: {error}" if isinstance(error, KeyError) else str(error)
            self.put_aside(name, said.splitlines()[0][:200] if said else type(error).__name__)
        except OSError as error:
            raise InputError(
                f"--out {self.directory}: {error.strerror} while reading {name}; make it readable or give another folder"
            ) from None
        return None

    def put_aside(self, name: str, why: str) -> None:
        """Move a file away that cannot be used, and say so.

        Raises:
            InputError: it cannot be moved.
        """
        place = self.directory / ASIDE
        try:
            make_folder(place)
            names = (place / f"{Path(name).name}.{n}" for n in count(1))
            target = next(path for path in names if not os.path.lexists(path))
            os.rename(self.directory / name, target)
            sync(place)
        except OSError as error:
            raise self.refusal(error, f"while setting the damaged {name} aside") from None
        self.write(f"{ASIDE}/{target.name}{WHY}", json.dumps({"file": name, "why": why}))
        if self.tell:
            self.warn()

    def set_aside(self) -> list[dict[str, str]]:
        """Every file that was set aside here, by this run or an earlier one: what it was, what it is called now, and
        why."""
        found = []
        with contextlib.suppress(OSError):
            for path in sorted((self.directory / ASIDE).iterdir()):
                if not path.name.endswith(WHY):
                    found.append(_explained(path))
        return found

    def warn(self) -> None:
        """Warn of files that were set aside and not told of yet, by whichever process of this run."""
        for entry in self.set_aside():
            if entry["kept_as"] not in self.told:
                self.told.add(entry["kept_as"])
                warnings.warn(
                    f"posenc: {self.directory / entry['file']} cannot be used: {entry['why']}; it is kept as "
                    f"{entry['kept_as']}, and made again",
                    stacklevel=2,
                )


def _explained(path: Path) -> dict[str, str]:
    said: Mapping[str, Any] = {}
    with contextlib.suppress(OSError, ValueError, RecursionError):
        said = parsed(_bytes(path.with_name(path.name + WHY), 2**16))
    file, why = (said.get(key) for key in ("file", "why"))
    return {
        "file": file if isinstance(file, str) else path.name.rpartition(".")[0],
        "kept_as": f"{ASIDE}/{path.name}",
        "why": why if isinstance(why, str) else "unknown",
    }


def _bytes(path: Path, most: int) -> bytes:
    """A file's content.

    Raises:
        Damaged: it is no file, or far too long. OSError.
    """
    if path.is_dir():
        raise Damaged("it is no file")
    with open(os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)), "rb") as file:
        about = os.fstat(file.fileno())
        if not stat.S_ISREG(about.st_mode):
            raise Damaged("it is no file")
        if about.st_size > most:
            raise Damaged(f"it has {about.st_size} bytes, more than {most}")
        return file.read(most)


def _verified(content: bytes) -> bytes:
    """A record whose checksum is right.

    Raises:
        Damaged: it is not.
    """
    before, length = b'{"sha256": "', 64
    said, rest = content[len(before) : len(before) + length], content[len(before) + length + 3 :]
    if not content:
        raise Damaged("it is empty")
    if not content.startswith(before) or content[len(before) + length :][:3] != b'", ':
        raise Damaged("it does not begin with a checksum")
    if hashlib.sha256(rest).hexdigest().encode() != said:
        raise Damaged("its checksum is wrong: it was cut off or changed")
    return b"{" + rest


def parsed(content: bytes) -> dict[str, Any]:
    """The object in a JSON file.

    Raises:
        Damaged: it is none, or holds NaN or infinities.
    """

    def refuse(constant: str) -> None:
        raise Damaged(f"it holds {constant}")

    try:
        found = json.loads(content, parse_constant=refuse)
    except Damaged:
        raise
    except ValueError as error:
        raise Damaged(f"it is not JSON ({error})") from None
    if not isinstance(found, dict):
        raise Damaged("it is not a JSON object")
    return found


def typed(kind: type[T], raw: object) -> T:
    """Plain data as a dataclass whose fields have exactly the types that it declares; numbers are finite.

    Raises:
        Damaged: naming what does not fit.
    """
    found: T = _typed(kind, raw, kind.__name__)
    return found


def _typed(kind: Any, raw: Any, where: str) -> Any:
    origin, inner = get_origin(kind), get_args(kind)
    if kind is Any:
        return raw
    if is_dataclass(kind) and isinstance(kind, type) and isinstance(raw, dict):
        hints = get_type_hints(kind)
        wanted = {field.name for field in fields(kind)}
        if wanted != raw.keys():
            raise Damaged(f"{where} has the fields {', '.join(raw)[:200]}, not {', '.join(wanted)}")
        return kind(**{name: _typed(hints[name], value, f"{where}.{name}") for name, value in raw.items()})
    if origin is UnionType:
        if raw is None and NoneType in inner:
            return None
        return _typed(next(each for each in inner if each is not NoneType), raw, where)
    if origin in (list, tuple) and isinstance(raw, list):
        return origin(_typed(inner[0], each, f"{where}[{at}]") for at, each in enumerate(raw))
    if origin is dict and isinstance(raw, dict):
        return {key: _typed(inner[1], each, f"{where}.{key}") for key, each in raw.items()}
    if kind is float and type(raw) in (int, float) and -FLOAT_MOST <= raw <= FLOAT_MOST:
        return raw
    if kind in (int, str, bool) and type(raw) is kind:
        return raw
    raise Damaged(f"{where} is {raw!r:.40}, not {getattr(kind, '__name__', kind)}")
