# SPDX-License-Identifier: Apache-2.0
"""Archives of finished runs: what they hold, and more seeds and encodings from them."""

import gzip
from dataclasses import asdict, replace

import pytest
from archives import archive, compared, read, write

from posenc import InputError
from posenc.lab.compare import Comparison, experiment
from posenc.lab.engines import InProcess
from posenc.lab.experiment import Execution
from posenc.lab.leaderboard import Leaderboard, compare_tasks
from posenc.lab.records import RunRecord
from posenc.lab.store import ARCHIVE as SUFFIX
from posenc.lab.store import Store, decoded, encoded, identity

SIZES = {"length": 4, "steps": 60, "batch_size": 4, "dim": 8, "num_heads": 2, "num_layers": 1, "factors": (1, 2)}
TASKS, ENCODINGS = ("sort", "text"), ("none", "rope")


def comparisons(seeds=2, encodings=ENCODINGS, tasks=TASKS, **changes):
    planned = []
    for task in tasks:
        more = {"windows": 3, "targets": 4, "length": 8} if task == "text" else {"sequences": 6}
        kind = experiment(task)
        corpus, settings = kind(**SIZES | more | changes).load(kind.data)
        planned.append((Comparison(encodings, seeds, settings), corpus))
    return planned


def run(folder, planned, **more):
    return compare_tasks(planned, folder, engine=InProcess(), **more)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    return folder, run(folder, comparisons())


@pytest.fixture
def archives(trained, tmp_path):
    folder = tmp_path / "archives"
    paths = archive(comparisons(), trained[0], folder)
    assert sorted(path.name for path in paths) == [f"{task}-{seed}{SUFFIX}" for task in TASKS for seed in (0, 1)]
    return folder


def changed(path, change):
    """Rewrite the cells of a file."""
    cells = decoded(path.read_bytes(), dict)
    path.write_bytes(gzip.compress(encoded(each for cell in cells if (each := change(cell)) is not None)))


def test_an_archive_has_the_runs(trained, archives, tmp_path):
    store, ids = Store(trained[0]), {identity(cell.facts): cell for cell in read(archives)}
    runs = [run for comparison, corpus in comparisons() for run in comparison.runs(corpus)]
    assert ids.keys() == {run.id for run in runs}
    for run_ in runs:
        stored, there = store.load(run_.id, RunRecord), ids[run_.id]
        assert (there.facts, there.program) == (stored.facts, stored.program)
        there, here = asdict(stored.record), asdict(there.record)
        for at in range(0, 60, 2):  # means of two steps
            assert here["losses"][at] == pytest.approx(sum(there["losses"][at : at + 2]) / 2, abs=6e-4)
        for variant, other in zip(there["variants"], here["variants"], strict=True):
            for of, there in (
                (variant["paired"], other["paired"]),
                *((v, other["extra"][k]) for k, v in variant["extra"].items()),
            ):
                assert there == {at: pytest.approx(losses, abs=6e-4) for at, losses in of.items()}
    again = tmp_path / "again"
    run(tmp_path / "from archive", comparisons(), merge=[archives])
    for path in archive(comparisons(), tmp_path / "from archive", again):
        assert path.read_bytes() == (archives / path.name).read_bytes()


def test_the_results_are_those_of_the_runs(trained, archives):
    planned, runs, notes = compared(archives)
    assert all("trained on" in notes[task] and " by posenc " in notes[task] for task in TASKS)
    results = Leaderboard(planned).results(runs)
    for one, other in zip(results["table"], trained[1]["table"], strict=True):
        assert one["encoding"] == other["encoding"]
        for end in ("trained", "longest"):
            assert (one[end] is None) == (other[end] is None)
            assert one[end] is None or one[end]["mean"] == pytest.approx(other[end]["mean"], abs=2e-3)


def test_seeds_and_encodings_add_up(trained, archives, tmp_path):
    more = run(tmp_path / "more", comparisons(3, (*ENCODINGS, "alibi"), ("sort",)), merge=[archives])
    assert more["runs"] == {"planned": 9, "finished": 9, "kept_from_before": 4}
    archive(comparisons(3, (*ENCODINGS, "alibi"), ("sort",)), tmp_path / "more", archives)
    runs = [(cell.facts["seed"], cell.facts["encoding"]) for cell in read(archives, ["sort"])]
    assert runs == [(seed, encoding) for seed in range(3) for encoding in ("alibi", "none", "rope")]


def test_runs_of_other_settings_are_not_mixed(trained, archives, tmp_path):
    with pytest.raises(InputError, match=r"has steps=60, not 3; nothing was merged"):
        run(tmp_path / "out", comparisons(steps=3), merge=[archives])
    with pytest.raises(InputError, match=r"has .*not copy.*; nothing was merged"):
        run(tmp_path / "out", comparisons(tasks=("copy",)), merge=[archives])
    with pytest.raises(InputError, match="has no finished run"):
        archive(comparisons(steps=3), trained[0], archives)
    other = comparisons(1, tasks=("sort",), steps=3)
    run(tmp_path / "other", other)
    with pytest.raises(InputError, match=rf"sort-0{SUFFIX} has steps=60, not 3; give another folder"):
        archive(other, tmp_path / "other", archives)


def test_runs_of_a_gpu_and_a_cpu_stand_in_one_archive_nowhere(trained, archives):
    runs = [run for comparison, corpus in comparisons() for run in comparison.runs(corpus)]
    stored = {replace(run, execution=Execution("cuda")): Store(trained[0]).load(run.id, RunRecord) for run in runs}
    with pytest.raises(InputError, match=rf"-0{SUFFIX} has device=None, not cuda; give another folder"):
        write(archives, stored, {"cpu": "some CPU", "gpu": "some GPU"})


def test_an_archive_has_no_code(trained, tmp_path):
    comparison, corpus = comparisons()[0]
    first = comparison.runs(corpus)[0]
    record = Store(trained[0]).load(first.id, RunRecord)
    with pytest.raises(InputError, match="an archive has no code"):
        write(tmp_path, {replace(first, code="0"): record}, {})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "damage",
    [lambda data: data[:-9], lambda data: data[:20] + b"?" + data[21:], lambda _: gzip.compress(b"{}"), lambda _: b""],
)
def test_damaged_archives_are_refused(archives, damage):
    path = archives / f"sort-1{SUFFIX}"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(InputError, match=rf"sort-1{SUFFIX} is damaged .*; restore it"):
        read(archives)


def test_renamed_archives_are_refused(archives):
    (archives / f"sort-1{SUFFIX}").rename(archives / f"sort-2{SUFFIX}")
    with pytest.raises(InputError, match=rf"sort-2{SUFFIX} is damaged \(it is sort-1"):
        read(archives)


def test_a_run_of_another_program_is_used_and_named(trained, archives, tmp_path, monkeypatch):
    monkeypatch.setattr("posenc.lab.study.version", lambda: "9.9")
    results = run(tmp_path / "out", comparisons(), merge=[archives])
    assert results["runs"]["kept_from_before"] == 8
    assert results["programs"] == trained[1]["programs"] != []


def test_a_row_keeps_its_own_seeds(archives):
    """Before, a seed that one row lacked was dropped for all."""
    for task in TASKS:
        changed(archives / f"{task}-1{SUFFIX}", lambda cell: None if cell.facts["encoding"] == "rope" else cell)
    planned, runs, _ = compared(archives)
    of = {
        variant["name"]: variant["seeds"] for variant in Leaderboard(planned).results(runs)["tasks"]["sort"]["variants"]
    }
    assert (of["none"], of["rope"]) == ([0, 1], [0])


def test_a_task_with_other_data_is_left_out(archives):
    for path in archives.glob("text-*"):
        changed(path, lambda cell: replace(cell, facts=cell.facts | {"data": "0" * 64}))
    planned, *_ = compared(archives)
    assert [comparison.settings.name for comparison, _ in planned] == ["sort"]
