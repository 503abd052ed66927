"""What is fuzzed: each target takes bytes, and either refuses them as posenc says it does or holds a property.

`python tests/hostile/fuzz.py TARGET SECONDS` runs one under atheris; the ordinary tests run all over a small corpus.
"""

import contextlib
import hashlib
import io
import json
import tempfile
import warnings
from argparse import Namespace
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

import posenc
from posenc import cli, frequencies, position_maps
from posenc.cli.config import dump, read
from posenc.cli.refusal import MESSAGE, one_line
from posenc.conformance.kinds import the_kind
from posenc.encodings import create_map, from_spec
from posenc.errors import InputError
from posenc.evals import store as evaluation
from posenc.evals.config import Cell
from posenc.lab.checkpoint import loaded
from posenc.lab.config import Run, Settings
from posenc.lab.data import Text
from posenc.lab.store import Store
from posenc.lab.train import Training
from posenc.measuring.records import Damaged, Records
from posenc.pretrained.guards import check_folder, check_gguf
from posenc.pretrained.methods import Lengths, plan
from posenc.report.explorer import checked
from posenc.spec import Spec, literal, load_object, parse, parse_single, parse_sum
from posenc.tasks import create as create_task

SHAPE = {"dim": 8, "num_heads": 2, "head_dim": 4, "num_layers": 2, "max_positions": 16, "causal": True}
LENGTHS = Lengths(64, 256)
COMPARE = cli.build("compare")
RUN = Run(
    "learned", 0, Settings(length=8, factors=(1,), steps=3, batch_size=1, dim=4, num_layers=1, num_heads=1, head_dim=2,
                           windows=2, targets=2), "digest",
)  # fmt: skip
CELL = Cell("passkey", "none", 64, 0.5, 0)


def text_of(data: bytes) -> str:
    return data.decode("utf-8", errors="surrogateescape")


def encoding(data: bytes) -> None:
    """What is made of a text describes itself, and is made again of that."""
    made = posenc.create(text_of(data), **SHAPE)
    again = from_spec(made.spec())
    assert json.dumps(again.spec(), default=str) == json.dumps(made.spec(), default=str)


def schedule(data: bytes) -> None:
    """A schedule's data, as text and back; its frequencies are finite and not negative."""
    parsed = frequencies.parse(text_of(data))
    assert frequencies.parse(frequencies.as_text(parsed)) == parsed
    full = frequencies.complete(parsed, factor=4.0, original_max_positions=64, length=256)
    found = frequencies.create(full, 8, 10000.0).inv_freq
    assert len(found) == 4
    assert not torch.isnan(found).any()


def method(data: bytes) -> None:
    """A method that is accepted is accepted again as it is told."""
    found = plan(text_of(data), {}, LENGTHS, LENGTHS)
    if found.schedule is not None:
        frequencies.create(found.schedule, 8, 10000.0)


def position_map(data: bytes) -> None:
    """A map describes itself."""
    made = create_map(parse_single(text_of(data)))
    assert position_maps.create(made.spec()) == made


def task(data: bytes) -> None:
    """A task's text is that of the task made of it."""
    made = create_task(text_of(data))
    assert create_task(made.text) == made


def words(data: bytes) -> None:
    """Names, options and values as they are written are read as they were."""
    text = text_of(data)
    parse(text)
    parse_sum(text)
    spec = parse_single(text)
    if "\\" not in text:
        assert parse_single(str(spec)) == spec
    value = literal(text)
    if not isinstance(value, str) and "nan" not in str(value) and "inf" not in str(value):
        assert Spec.of("x", {"y": value}).values("x") == {"y": value}


def kind(data: bytes) -> None:
    the_kind(text_of(data), "--as")


def target(data: bytes) -> None:
    """MODULE:OBJECT, in the one module that may be imported here."""
    text = text_of(data)
    module = text.rpartition(":")[0]
    load_object(text if module in ("", "math") or not module.replace(".", "").isidentifier() else f"math:{module}")


def explorer(data: bytes) -> None:
    """A state that is accepted is the state."""
    name, _, value = text_of(data).partition(" ")
    state = {name: literal(value)}
    assert checked(state) == state


def line(data: bytes) -> None:
    """Whatever is told is one short line that no terminal obeys."""
    told = one_line(text_of(data))
    assert told.isprintable()
    assert len(told) <= 2 * MESSAGE


def gguf(data: bytes) -> None:
    """What the check accepts, the library reads without end neither of time nor of memory."""
    from gguf import GGUFReader

    with tempfile.NamedTemporaryFile(suffix=".gguf") as file:
        file.write(data)
        file.flush()
        check_gguf(Path(file.name))
        with contextlib.suppress(ValueError, KeyError, IndexError, TypeError, OverflowError):
            GGUFReader(file.name)


def config(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_bytes(data)
        check_folder(Path(folder))


def index(data: bytes) -> None:
    """Every file that an accepted index names lies in the folder."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.safetensors.index.json"
        file.write_bytes(data)
        check_folder(Path(folder))
        for shard in json.loads(data)["weight_map"].values():
            assert (Path(folder) / shard).parent == Path(folder)


def settings(data: bytes) -> None:
    """A file of settings, TOML where its first line has a "=": what is read is written, and read again as it was."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / ("run.toml" if b"=" in data.partition(b"\n")[0] else "run.yaml")
        file.write_bytes(data)
        found = read(file, COMPARE)
        again = Path(folder) / "config.yaml"
        told = Namespace(command="compare", typed=text_of(data), parser=COMPARE, **found)
        again.write_text(dump(told), encoding="utf-8")
        kept = {name: value for name, value in found.items() if name != "out" and value != []}
        assert not kept or repr(sorted(read(again, COMPARE).items())) == repr(sorted(kept.items()))


def cell(data: bytes) -> None:
    """What a comparison's cell is read from is set aside, or it is kept again as it was read."""
    with tempfile.TemporaryDirectory() as folder:
        store = Store(folder, tell=False)
        found = _taken(store, f"cells/{RUN.id}.json", data, lambda: store.load(RUN))
        store.save(RUN, found)
        assert store.load(RUN) == found


def measured(data: bytes) -> None:
    """The same of a cell of an evaluation."""
    with tempfile.TemporaryDirectory() as folder:
        store = evaluation.Store(folder, {"samples": 2})
        found = _taken(store, store._name("cells", asdict(CELL)), data, lambda: store.load(CELL))
        store.save(CELL, found)
        assert store.load(CELL) == found


def checkpoint(data: bytes) -> None:
    """A checkpoint that is taken is one that the training can go on from."""
    training = Training(RUN, Text.of(torch.arange(64) % 7))
    try:
        state, _ = loaded(training, training.state(), data)
    except Damaged as error:
        raise InputError(str(error)) from None
    training.restore(state)
    training.advance()


def _taken(store: Records, name: str, data: bytes, load: Callable[[], Any]) -> Any:
    """What is loaded from a record, whose checksum is right where the bytes do not begin with one."""
    body = b'{"sha256": "%s", %s' % (hashlib.sha256(data[1:]).hexdigest().encode(), data[1:])
    path = store.directory / name
    path.parent.mkdir()
    path.write_bytes(data if data.startswith(b'{"sha256"') else body)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = load()
    if found is None:
        assert not path.exists()
        assert [entry["file"] for entry in store.set_aside()] == [name]
        raise InputError("set aside")
    return found


TARGETS = {f.__name__: f for f in (
    encoding, schedule, method, position_map, task, words, kind, target, explorer, line, gguf, config, index, settings,
    cell, measured, checkpoint,
)}  # fmt: skip


def accepts(name: str, data: bytes) -> bool:
    """Whether a target took the bytes; anything but its taking or refusing them is an exception."""
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            TARGETS[name](data)
    except InputError:
        return False
    return True
