"""Work on a real Ray cluster of this machine: the same numbers, deaths of workers, of the driver, other versions."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path

import pytest

from lab import engine_jobs
from lab.conftest import TEXT, TINY
from lab.engine_jobs import mishaps, refuse, times
from lab.evals.conftest import VOCABULARY
from posenc import InputError
from posenc.lab import data, engines
from posenc.lab.compare import Comparison, compare
from posenc.lab.engines import Ray, Work
from posenc.lab.evals.study import evaluate
from references.small_models import small_model
from references.tokenizers import small_tokenizer

ray = pytest.importorskip("ray")
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def address():
    """A cluster that posenc did not start and must not stop."""
    os.environ["RAY_AUTH_MODE"] = "disabled"  # no token in the home folder
    scratch = tempfile.mkdtemp(prefix="ray")  # short: the paths of sockets have a limit
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    flags = [f"--port={port}", "--num-cpus=2", "--include-dashboard=false", "--disable-usage-stats", "--block"]
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", f"--temp-dir={scratch}", *flags]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    for line in process.stdout:
        if "--address='" in line:
            break
    ray.cloudpickle.register_pickle_by_value(engine_jobs)  # workers have posenc, and not these tests
    yield line.split("'")[1]
    ray.cloudpickle.unregister_pickle_by_value(engine_jobs)
    process.terminate()
    process.communicate()
    shutil.rmtree(scratch, ignore_errors=True)
    del os.environ["RAY_AUTH_MODE"]


def lasting(value):
    """Results without times, memory and the machine's description."""
    if isinstance(value, dict):
        fleeting = ("created", "command", "machine", "peak_bytes")
        return {k: lasting(v) for k, v in value.items() if k not in fleeting and "second" not in k}
    return [lasting(each) for each in value] if isinstance(value, list) else value


def test_a_comparison_measures_the_same(address, tmp_path):
    comparison, text = Comparison(("none", "rope"), 2, TINY), data.corpus(TEXT, "numbered lines")
    here = compare(comparison, text, tmp_path / "local", workers=2)
    there = compare(comparison, text, tmp_path / "ray", engine=Ray(address))
    assert lasting(json.loads(json.dumps(there))) == lasting(json.loads(json.dumps(here)))
    assert there["machine"]["engine"] == "ray"
    again = compare(comparison, text, tmp_path / "ray", engine=Ray(address))  # the cluster is still there
    assert again["runs"]["kept_from_before"] == 4


def test_an_evaluation_measures_the_same(address, tmp_path):
    model, tokenizer = small_model("llama", vocab_size=VOCABULARY), small_tokenizer(VOCABULARY)
    folder = tmp_path / "model"
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    small = {"tasks": ("copying:segment=8", "passkey"), "methods": ("ntk:factor=2",), "lengths": (320,), "samples": 2}
    here = evaluate(model, tokenizer, name=str(folder), **small)
    there = evaluate(model, tokenizer, name=str(folder), engine=Ray(address), directory=tmp_path / "out", **small)
    assert lasting(json.loads(json.dumps(there))) == lasting(json.loads(json.dumps(here)))
    model.model.embed_tokens.weight.data[0] += 1
    with pytest.raises(InputError, match=r"differs on a worker in .*weights"):
        evaluate(model, tokenizer, name=str(folder), engine=Ray(address), **small)
    with pytest.raises(InputError, match=r"name='mine': .* workers load the model"):
        evaluate(model, tokenizer, name="mine", engine=Ray(address), **small)


def test_dead_workers_are_replaced_and_nothing_is_done_twice(address, tmp_path):
    work = Work(mishaps, str(tmp_path), ("is well", "dies once", "is well, too"))
    with closing(Ray(address).run(work)) as results:
        assert dict(results) == {"is well": 0, "dies once": 1, "is well, too": 0}
    begun = {name: len(list(tmp_path.glob(f"{name}-*"))) for name in work.jobs}
    assert begun == {"is well": 1, "dies once": 2, "is well, too": 1}
    with (
        pytest.raises(RuntimeError, match=r"^dies always: its worker died 4 times, .* the same command continues$"),
        closing(Ray(address).run(Work(mishaps, str(tmp_path), ("dies always",)))) as results,
    ):
        dict(results)
    assert len(list(tmp_path.glob("dies always-*"))) == 4


def test_errors_come_as_they_are(address, monkeypatch):
    def done(work):
        with closing(Ray(address).run(work)) as results:
            return dict(results)

    assert done(Work(times, 7, (1, 2))) == {1: 7, 2: 14}
    with pytest.raises(InputError, match=r"^task 2: too hot$"):
        done(Work(refuse, 2, (1, 2)))
    with pytest.raises(Exception, match=r"No module named 'references'"):
        done(Work(small_model, 7, (1,)))
    with pytest.raises(InputError, match=r"no machine of the cluster has what a job needs: .*'GPU': 1"):
        done(Work(times, 7, (1,), gpu=True))
    monkeypatch.setattr(engines, "versions", lambda: "torch 0.1")
    with pytest.raises(InputError, match=r"the worker on \S+ has posenc .* instead of torch 0\.1"):
        done(Work(times, 7, (1,)))


@pytest.mark.parametrize("address", ["head", "127.0.0.1:port", "127.0.0.1:1", "ray://head:10001"])
def test_an_address_without_a_cluster_is_refused(address):
    with pytest.raises(InputError, match=rf"address={address!r}: no Ray cluster answers there: .*HOST:PORT"):
        next(Ray(address).run(Work(times, 7, (1,))))


FLAGS = [
    "--length", "16", "--factors", "1", "2", "--batch-size", "2", "--dim", "8", "--num-layers", "1", "--num-heads", "2",
    "--windows", "4", "--targets", "8",
]  # fmt: skip


def command(out, *more):
    line = [sys.executable, "-m", "posenc.cli", "compare", "--out", str(out), *FLAGS, "--engine", "ray", *more]
    return subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_a_killed_driver_goes_on_where_it_was(address, tmp_path):
    more = ["--encodings", "none", "--seeds", "4", "--steps", "400", "--address", address]
    first = command(tmp_path, *more)
    while not list((tmp_path / "cells").glob("*.json")):
        assert first.poll() is None, first.communicate()
        time.sleep(0.05)
    first.kill()
    first.communicate()
    finished = {path: path.stat().st_mtime_ns for path in (tmp_path / "cells").glob("*.json")}
    second = command(tmp_path, *more)
    _, err = second.communicate()
    assert second.returncode == 0, err
    assert json.loads((tmp_path / "results.json").read_text())["runs"]["kept_from_before"] == len(finished) < 4
    assert {path: path.stat().st_mtime_ns for path in finished} == finished


def test_ctrl_c_in_a_local_cluster(address, tmp_path):
    process = command(tmp_path, "--encodings", "none", "--seeds", "40", "--steps", "400", "--workers", "1")
    while not list((tmp_path / "cells").glob("*.json")):
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate()
    assert process.returncode == 1
    assert "Traceback" not in err
    assert "runs are stored and reported, run the same command again to continue" in err
    assert json.loads((tmp_path / "results.json").read_text())["machine"]["workers"] == 1
    assert children
    assert not [pid for pid in children if Path(f"/proc/{pid}").exists()]
