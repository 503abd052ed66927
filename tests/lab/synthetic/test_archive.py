# SPDX-License-Identifier: Apache-2.0
"""Archives of finished runs: what they hold, more seeds from them, and encodings placed among them."""

import gzip
import re
import shutil
from dataclasses import asdict, replace

import pytest

from posenc import InputError, cli
from posenc.lab.archive import read, write
from posenc.lab.compare import Comparison, experiment
from posenc.lab.engines import InProcess
from posenc.lab.experiment import Execution
from posenc.lab.leaderboard import against, archive, compare_tasks
from posenc.lab.records import RunRecord
from posenc.lab.store import ARCHIVE as SUFFIX
from posenc.lab.store import Store, decoded, encoded, identity
from posenc.report.leaderboard import files, show_tasks

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


def archived(folder):
    return {identity(cell.facts): cell for cell in read(folder)}


def changed(path, change):
    """Rewrite the cells of a file."""
    cells = decoded(path.read_bytes(), dict)
    path.write_bytes(gzip.compress(encoded(each for cell in cells if (each := change(cell)) is not None)))


def close(a, b, digits):
    if isinstance(a, float):
        assert a == pytest.approx(b, abs=digits)
    elif isinstance(a, dict):
        assert a.keys() == b.keys()
        for key in a:
            close(a[key], b[key], digits)
    elif isinstance(a, list):
        assert len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            close(x, y, digits)
    else:
        assert a == b


def test_an_archive_has_the_runs(trained, archives, tmp_path):
    store, ids = Store(trained[0]), archived(archives)
    runs = [run for comparison, corpus in comparisons() for run in comparison.runs(corpus)]
    assert ids.keys() == {run.id for run in runs}
    for run_ in runs:
        stored, there = store.load(run_.id, RunRecord), ids[run_.id]
        assert (there.facts, there.behaviour) == (stored.facts, stored.behaviour)
        there, here = asdict(stored.record), asdict(there.record)
        curve = [there.pop("losses"), here.pop("losses")]
        assert len(curve[0]) == len(curve[1]) == 60
        for at in range(0, 60, 2):  # means of two steps
            assert curve[1][at] == curve[1][at + 1] == pytest.approx(sum(curve[0][at : at + 2]) / 2, abs=6e-4)
        close(there, here, 6e-4)
        for variant, other in zip(there["variants"], here["variants"], strict=True):
            assert variant["extra"] == other["extra"]
    again = tmp_path / "again"
    run(tmp_path / "from archive", comparisons(), merge=[archives])
    for path in archive(comparisons(), tmp_path / "from archive", again):
        assert path.read_bytes() == (archives / path.name).read_bytes()


def test_seeds_and_encodings_add_up(trained, archives, tmp_path):
    more = run(tmp_path / "more", comparisons(3, (*ENCODINGS, "alibi"), ("sort",)), merge=[archives])
    assert more["runs"] == {"planned": 9, "finished": 9, "kept_from_before": 4}
    before = (archives / f"sort-0{SUFFIX}").read_bytes()
    archive(comparisons(3, (*ENCODINGS, "alibi"), ("sort",)), tmp_path / "more", archives)
    runs = [(cell.facts["seed"], cell.facts["encoding"]) for cell in read(archives, ["sort"])]
    assert runs == [(seed, encoding) for seed in range(3) for encoding in ("alibi", "none", "rope")]
    assert (archives / f"sort-0{SUFFIX}").read_bytes() != before


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


def test_the_version_alone_makes_no_difference(trained, archives, tmp_path, monkeypatch):
    monkeypatch.setattr("posenc.lab.study.version", lambda: "9.9")
    assert run(tmp_path / "out", comparisons(), merge=[archives])["runs"]["kept_from_before"] == 8
    before = read(archives)
    archive(comparisons(), tmp_path / "out", archives)
    assert read(archives) == before


def on_a_gpu(runs, directory, folder):
    """Archives as of a machine with a GPU."""
    stored = {replace(run, execution=Execution("cuda")): Store(directory).load(run.id, RunRecord) for run in runs}
    return write(folder, stored, {"cpu": "some CPU", "gpu": "some GPU"})


def test_archives_know_what_trained_their_runs(trained, archives, tmp_path):
    runs = [run for comparison, corpus in comparisons() for run in comparison.runs(corpus)]
    on_a_gpu(runs, trained[0], tmp_path)
    placed, table = against(tmp_path, ["alibi"])
    assert {comparison.execution for comparison, _ in placed} == {Execution("cuda")}
    assert {run.execution for run in table.runs} == {Execution("cuda")}
    assert all("trained on some GPU by" in note for note in table.notes.values())
    assert {run.id for run in table.runs} == archived(tmp_path).keys()
    assert not {run.id for run in table.runs} & archived(archives).keys()  # other runs than those of a CPU
    shutil.copy(archives / f"text-1{SUFFIX}", tmp_path)
    with pytest.raises(InputError, match=rf"text-1{SUFFIX} has device=None, not cuda"):
        against(tmp_path, ["alibi"])


def test_seconds_of_a_gpu_and_a_cpu_stand_in_one_archive_nowhere(trained, archives):
    runs = [run for comparison, corpus in comparisons() for run in comparison.runs(corpus)]
    with pytest.raises(InputError, match=rf"-0{SUFFIX} has device=None, not cuda; give another folder"):
        on_a_gpu(runs, trained[0], archives)
    for path in archives.glob("text-*"):
        path.unlink()
    on_a_gpu([run for run in runs if run.settings.name == "text"], trained[0], archives)
    with pytest.raises(InputError, match="its tasks are of a GPU and of a CPU"):
        against(archives, ["alibi"])


def test_an_archive_has_no_code(trained, tmp_path):
    comparison, corpus = comparisons()[0]
    first = comparison.runs(corpus)[0]
    record = Store(trained[0]).load(first.id, RunRecord)
    with pytest.raises(InputError, match="an archive has no code"):
        write(tmp_path, {replace(first, code="0"): record}, {})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:-9],
        lambda data: data[:20] + b"?" + data[21:],
        lambda data: gzip.compress(b"{}"),
        lambda data: b"",
    ],
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


FADE = """
from posenc import Encoding
class Fade(Encoding):
    '''Nothing.'''
"""


def test_an_encoding_is_placed_in_the_table(trained, archives, tmp_path, capsys):
    file = tmp_path / "fade.py"
    file.write_text(FADE)
    placed, table = against(archives, [f"{file}:Fade"])
    results = run(tmp_path / "out", placed, table=table, pages=files)
    assert results["runs"] == {"planned": 12, "finished": 12, "kept_from_before": 8}
    assert len(list((tmp_path / "out/cells").iterdir())) == 4  # those of the table are not trained here
    assert {row["encoding"] for row in results["table"]} == {*ENCODINGS, f"{file}:Fade"}
    for task in TASKS:
        of = {variant["name"]: variant for variant in results["tasks"][task]["variants"]}
        before = {variant["name"]: variant for variant in trained[1]["tasks"][task]["variants"]}
        for name in ENCODINGS:
            for point, other in zip(of[name]["lengths"], before[name]["lengths"], strict=True):
                assert point["loss"]["mean"] == pytest.approx(other["loss"]["mean"], abs=5e-4)
        for point, same in zip(of[f"{file}:Fade"]["lengths"], of["none"]["lengths"], strict=True):
            assert point["loss"]["mean"] == pytest.approx(same["loss"]["mean"], abs=5e-4)  # it is none
        answer = results["tasks"][task]["answer"][0]
        assert re.match(
            rf"{re.escape(str(file))}:Fade: [\d.]+( %)? at .*, place \d of 3, within (5 points|0.05 nats) of", answer
        )
        assert "those of a table of finished runs, trained on" in results["tasks"][task]["limits"][-1]
    assert results["answer"][0].startswith(f"{file}:Fade has the mean score ")
    assert "has the mean score" in (tmp_path / "out/report.html").read_text()
    show_tasks(results, str(tmp_path / "out"))
    assert "has the mean score" in capsys.readouterr().out
    again = run(tmp_path / "out", placed, table=table)
    assert again["runs"]["kept_from_before"] == 12


def test_a_table_of_another_version_is_compared(archives, monkeypatch, tmp_path):
    monkeypatch.setattr("posenc.lab.study.version", lambda: "9.9")
    placed, table = against(archives, ["alibi"], ["sort"], seeds=1)
    results = run(tmp_path, placed, table=table)
    assert results["runs"] == {"planned": 3, "finished": 3, "kept_from_before": 2}
    assert re.search(r"by posenc \d\S+, torch \S+\.$", results["tasks"]["sort"]["limits"][-1])


def test_a_row_of_a_table_keeps_its_own_seeds(archives, tmp_path):
    """Before, a seed that one row lacked was dropped for all."""
    for task in TASKS:
        changed(archives / f"{task}-1{SUFFIX}", lambda cell: None if cell.facts["encoding"] == "rope" else cell)
    placed, table = against(archives, ["alibi"], ["sort"])
    assert sorted((run.encoding, run.seed) for run in table.runs) == [("none", 0), ("none", 1), ("rope", 0)]
    results = run(tmp_path / "out", placed, table=table)
    assert results["runs"] == {"planned": 5, "finished": 5, "kept_from_before": 3}
    of = {variant["name"]: variant["seeds"] for variant in results["tasks"]["sort"]["variants"]}
    assert (of["alibi"], of["none"], of["rope"]) == ([0, 1], [0, 1], [0])
    assert {row["encoding"] for row in results["table"]} == {"alibi", "none", "rope"}


def test_a_task_with_other_data_is_left_out(archives):
    for path in archives.glob("text-*"):
        changed(path, lambda cell: replace(cell, facts=cell.facts | {"data": "0" * 64}))
    with pytest.warns(UserWarning, match="text is left out: the data of text are others here"):
        placed, _ = against(archives, ["alibi"])
    assert [comparison.settings.name for comparison, _ in placed] == ["sort"]
    with pytest.raises(InputError, match="task='text': the data of text are others here"):
        against(archives, ["alibi"], ["text"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--encodings", "rope"], "--encodings rope: is in the table; name encodings that are not"),
        (["--encodings", "alibi", "--seeds", "3"], "--seeds 3: the table has 2; ask for at most so many"),
        (["--encodings", "alibi", "--task", "srot"], "unknown task 'srot': did you mean 'sort'"),
        (["--encodings", "alibi", "--steps", "3"], "--steps: --against takes it from the table; leave it out"),
        (["--encodings", "alibi", "--preset", "quick"], "--preset: --against takes it from the table"),
        (["--encodings", "alibi", "--data", "pydoc"], "--data: --against takes it from the table"),
        ([], "--encodings: name those to place in the table"),
        (["--encodings", "alibii"], "--encodings alibii: unknown encoding"),
    ],
)
def test_the_command_refuses_and_writes_nothing(arguments, message, archives, tmp_path, capsys):
    out = tmp_path / "out"
    assert cli.main(["compare", "--against", str(archives), *arguments, "--out", str(out)]) == 2
    assert message in capsys.readouterr().err
    assert not out.exists()


def test_folders_that_are_no_table_are_refused(tmp_path, monkeypatch):
    with pytest.raises(InputError, match="has no files TASK-SEED"):
        against(tmp_path, ["alibi"])
    monkeypatch.setattr("posenc.lab.leaderboard.__file__", str(tmp_path / "site-packages/posenc/lab/leaderboard.py"))
    with pytest.raises(InputError, match="against='leaderboard': is in posenc's repository alone"):
        against("leaderboard", ["alibi"])
