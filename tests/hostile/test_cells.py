# SPDX-License-Identifier: Apache-2.0
"""Cells and archives with a right checksum and a wrong content: one clear error, or another measurement, never a traceback."""

import contextlib
import gzip
import hashlib
import json
import time
import warnings

import pytest
from archives import archive, compared

from posenc import InputError
from posenc.lab.compare import Comparison, ComparisonStudy, experiment
from posenc.lab.engines import InProcess
from posenc.lab.leaderboard import Leaderboard
from posenc.lab.records import RunRecord
from posenc.lab.store import Store
from posenc.lab.study import run

PATIENCE = 5.0
SIZES = {"length": 4, "steps": 2, "batch_size": 2, "dim": 8, "num_heads": 2, "num_layers": 1, "factors": (1, 2)}
NESTED = "[" * 3000 + "]" * 3000
WRONG = [
    "null", "true", "-1", "0", "0.5", "1000000000", "1" + "0" * 30, "1" + "0" * 400, "1e308", "-1e308", "1e999", "NaN",
    '""', '"x"', '"rope"', '"evil.py:Evil"', '"\\ud800"', "[]", "[null]", "[[1]]", "{}", '{"1":{}}', '{"x":1}', NESTED, "\xff",
]  # fmt: skip
"""As JSON, or what looks like it."""
HOLE = "here stands the wrong value"


def planned():
    corpus, settings = experiment("copy")(**SIZES, sequences=3).load("generated")
    return Comparison(("none", "rope"), 1, settings), corpus


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The cell of `rope`, as JSON's types, and a folder with it and an archive of both."""
    folder = tmp_path_factory.mktemp("made")
    run(ComparisonStudy([planned()]), folder, engine=InProcess())
    (path,) = archive([planned()], folder, folder / "archives")
    lines = gzip.decompress(path.read_bytes()).split(b"\n")
    return lines, json.loads(lines[1])["cell"], path.name


def places(value, path=()):
    """Every field, and one element of each list."""
    yield path
    if isinstance(value, dict):
        for name, each in value.items():
            yield from places(each, (*path, name))
    elif isinstance(value, list) and value:
        yield from places(value[0], (*path, 0))


def put(value, path, other):
    if not path:
        return other
    if isinstance(value, list):
        return [put(value[0], path[1:], other), *value[1:]]
    return value | {path[0]: put(value[path[0]], path[1:], other)}


def sealed(cell, path, wrong):
    content = json.dumps(put(cell, path, HOLE)).encode().replace(json.dumps(HOLE).encode(), wrong.encode("latin-1"))
    return b'{"sha256":"%s","cell":%s}' % (hashlib.sha256(content).hexdigest().encode(), content)


def fate(attempt):
    """What comes of it, in a reasonable time: an InputError, or nothing wrong."""
    start = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            attempt()
            said = ""
        except InputError as error:
            said = str(error)
    assert time.process_time() - start < PATIENCE
    assert "\n" not in said
    return said


def of_table(folder):
    comparisons, runs, _ = compared(folder)
    results = Leaderboard(comparisons).results(runs)
    json.dumps(results, allow_nan=False)
    return results


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: wrong[:12])
def test_no_content_of_a_cell_or_an_archive_is_a_traceback(wrong, made, tmp_path):
    lines, cell, name = made
    refused = 0
    for path in places(cell):
        line = sealed(cell, path, wrong)
        (tmp_path / name).write_bytes(gzip.compress(lines[0] + b"\n" + line, 1))
        refused += bool(fate(lambda: of_table(tmp_path)))
    assert refused > 10


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: wrong[:12])
def test_a_cell_of_the_folder_is_used_or_measured_again(wrong, made, tmp_path):
    study = ComparisonStudy([planned()])
    cell = study.cells()[1]
    store = Store(tmp_path)

    def resume():
        if (stored := store.load(cell.id, RunRecord)) is not None:
            with contextlib.suppress(ValueError):
                study.check_record(cell, stored.record)
                json.dumps(study.results({cell: stored.record}), allow_nan=False)

    for place in places(made[1]):
        store.write(f"cells/{cell.id}.json", sealed(made[1], place, wrong))
        assert not fate(resume)


def test_a_run_measures_again_what_fits_no_run(made, tmp_path):
    study, (_, cell, _) = ComparisonStudy([planned()]), made
    for place, wrong in ((("record", "losses"), "[]"), (("record", "variants"), "[]"), ((), NESTED)):
        Store(tmp_path).write(f"cells/{study.cells()[1].id}.json", sealed(cell, place, wrong))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            results = run(study, tmp_path, engine=InProcess(), share=(2, 2))
        assert (results["runs"]["kept_from_before"], len(results["set_aside"])) == (0, 1)
        (tmp_path / "other/cells").mkdir(parents=True, exist_ok=True)
        (tmp_path / "other/cells/a.json").write_bytes(sealed(cell, place, wrong))
        with pytest.raises(InputError, match="nothing was merged"):
            run(study, tmp_path / "new", engine=InProcess(), merge=[tmp_path / "other"])
