"""Engines of this machine, and what is refused before any engine starts."""

from concurrent.futures import wait
from contextlib import closing

import pytest
import torch

from lab.engine_jobs import die, mapped, refuse, times
from posenc import InputError
from posenc.lab.engines import InProcess, ProcessPool


def done(engine, *work):
    with closing(engine.run(*work)) as results:
        return dict(results)


@pytest.mark.parametrize("engine", [InProcess(), ProcessPool(2)], ids=lambda engine: engine.name)
def test_every_task_with_its_result_and_its_work(engine):
    ticks = []
    assert done(engine, times, 7, (1, 2, 3), lambda size, what="": ticks.append(size)) == {1: 7, 2: 14, 3: 21}
    assert ticks == ([1, 2] * 3 if engine.name == "here" else [])
    assert done(engine, times, 7, ()) == {}


def test_tensors_that_jobs_share_are_mapped_into_the_memory_of_workers():
    assert done(ProcessPool(1), mapped, torch.arange(4), (2,)) == {2: (12, True)}


@pytest.mark.parametrize("engine", [InProcess(), ProcessPool(1)], ids=lambda engine: engine.name)
def test_a_tasks_own_error_stops_the_work(engine):
    found = []
    with pytest.raises(InputError, match=r"^task 2: too hot$"), closing(engine.run(refuse, 2, (1, 2, 3))) as results:
        found.extend(results)
    # task 3 may have finished in the moment in which the error of task 2 is read
    assert sorted(found) in ([(1, 1)], [(1, 1), (3, 3)])


def test_a_dead_worker_is_named_and_none_is_refused():
    with pytest.raises(RuntimeError, match=r"a worker process died .* what had finished is stored"):
        done(ProcessPool(1), die, None, (1,))
    with pytest.raises(InputError, match=r"workers=0: must be at least 1"):
        ProcessPool(0)


def test_what_has_finished_is_not_lost_to_an_error_of_the_same_moment(monkeypatch):
    def all_at_once(pending, timeout, return_when):
        return sorted(wait(pending).done, key=lambda future: future.exception() is None), ()

    monkeypatch.setattr("posenc.lab.engines.wait", all_at_once)
    found = []
    with pytest.raises(InputError, match=r"^task 2: too hot$"):
        found.extend(ProcessPool(1).run(refuse, 2, (2, 1, 3)))
    assert sorted(found) == [(1, 1), (3, 3)]
