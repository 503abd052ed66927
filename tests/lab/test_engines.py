"""Engines of this machine, and what is refused before any engine starts."""

import importlib.util
from concurrent.futures import wait
from contextlib import closing

import pytest
import torch

from lab.engine_jobs import die, mapped, refuse, times
from posenc import InputError
from posenc.cli import main
from posenc.lab.engines import InProcess, ProcessPool, Ray, Work, create


def done(engine, work, ticks=lambda *_: None):
    with closing(engine.run(work, ticks)) as results:
        return dict(results)


@pytest.mark.parametrize("engine", [InProcess(), ProcessPool(2)], ids=lambda engine: engine.name)
def test_every_task_with_its_result_and_its_work(engine):
    ticks = []
    assert done(engine, Work(times, 7, (1, 2, 3)), lambda *tick: ticks.append(tick)) == {1: 7, 2: 14, 3: 21}
    assert set(ticks) <= {(job - 1, *tick) for job in (1, 2, 3) for tick in ((1, f"begun {job}"), (2, ""))}
    assert engine.name != "here" or len(ticks) == 6
    assert done(engine, Work(times, 7, ())) == {}


def test_tensors_that_jobs_share_are_mapped_into_the_memory_of_workers():
    assert done(ProcessPool(1), Work(mapped, torch.arange(4), (2,))) == {2: (12, True)}


@pytest.mark.parametrize("engine", [InProcess(), ProcessPool(1)], ids=lambda engine: engine.name)
def test_a_tasks_own_error_stops_the_work(engine):
    found = []
    with (
        pytest.raises(InputError, match=r"^task 2: too hot$"),
        closing(engine.run(Work(refuse, 2, (1, 2, 3)))) as results,
    ):
        found.extend(results)
    # task 3 may have finished in the moment in which the error of task 2 is read
    assert found in ([(1, 1)], [(1, 1), (3, 3)])


def test_a_dead_worker_is_named():
    with pytest.raises(RuntimeError, match=r"a worker process died .* what had finished is stored"):
        done(ProcessPool(1), Work(die, None, (1,)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "rey"}, r"unknown engine 'rey': did you mean 'ray'"),
        (
            {"name": "local", "address": "auto"},
            r"address='auto': is an option of engine ray; give it with engine=ray",
        ),
        ({"name": "here", "workers": 2}, r"workers=2: is an option of engine local and ray"),
        ({"name": "local", "workers": 0}, r"workers=0: must be at least 1"),
        ({"name": "local", "gpus_per_cell": 0.5}, r"gpus_per_cell=0\.5: is an option of engine ray"),
        ({"name": "ray", "workers": 0}, r"workers=0: must be at least 1"),
        ({"name": "ray", "workers": 2, "address": "auto"}, r"workers=2: the cluster at auto decides"),
        ({"name": "ray", "cpus_per_cell": 0}, r"cpus_per_cell=0: must be at least 1"),
        ({"name": "ray", "gpus_per_cell": 1.5}, r"gpus_per_cell=1\.5: must be a share such as 0\.25, or an integer"),
        ({"name": "ray", "gpus_per_cell": float("nan")}, r"gpus_per_cell=nan: must be"),
    ],
)
def test_options_that_do_not_serve(options, message, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with pytest.raises(InputError, match=message):
        create(**options)


def test_where_ray_is_looked_for(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    assert create("ray").address == "10.0.0.1:6379"
    assert create("ray", address="auto").address == "auto"
    monkeypatch.delenv("RAY_ADDRESS")
    assert create("ray", workers=3) == Ray(address="local", workers=3)


def test_the_command_refuses_before_it_begins(monkeypatch, tmp_path, capsys):
    out = tmp_path / "out"

    def error(*flags):
        assert main(["compare", "--preset", "quick", "--out", str(out), *flags]) == 2
        assert not out.exists()
        return capsys.readouterr().err

    assert "--address auto: is an option of engine ray" in error("--address", "auto")
    assert "unknown choice 'here'" in error("--engine", "here")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert "--engine ray: needs Ray, which is not installed: pip install 'posenc[ray]'" in error("--engine", "ray")


def test_what_has_finished_is_not_lost_to_an_error_of_the_same_moment(monkeypatch):
    def all_at_once(pending, timeout, return_when):
        return sorted(wait(pending).done, key=lambda future: future.exception() is None), ()

    monkeypatch.setattr("posenc.lab.engines.wait", all_at_once)
    found = []
    with pytest.raises(InputError, match=r"^task 2: too hot$"):
        found.extend(ProcessPool(1).run(Work(refuse, 2, (2, 1, 3))))
    assert sorted(found) == [(1, 1), (3, 3)]
