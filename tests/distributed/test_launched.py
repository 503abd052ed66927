"""What happens to a comparison under torchrun: killed and given again, interrupted, mistaken on one rank."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager

import pytest

from posenc import InputError
from posenc.lab.parallel import together
from references import PATIENCE

pytestmark = pytest.mark.slow

TEXT = "".join(f"line {n} says that {n + 1} follows.\n" for n in range(400))
FLAGS = (
    "--encodings t5 --length 16 --factors 1 2 --batch-size 3 --dim 8 --num-layers 1 --num-heads 2 --windows 4 "
    "--targets 8"
)
SCRIPT = """
import os, sys
from pathlib import Path
from posenc.cli import main
Path(__file__).with_name("rank-" + os.environ["RANK"]).write_text(str(os.getpid()))
if os.environ["RANK"] == "1":
    sys.argv += {more!r}
sys.exit(main())
"""
"""The command posenc; each rank writes its process id into a file, and rank 1 gets more arguments."""


@contextmanager
def torchrun(script, *arguments, more=()):
    """posenc compare by two processes, with a port that nobody else has. more: arguments of rank 1."""
    script.write_text(SCRIPT.format(more=list(more)))
    start = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--rdzv-backend", "c10d"]
    start += ["--rdzv-endpoint", "localhost:0", str(script), "compare", *arguments, *FLAGS.split()]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    process = subprocess.Popen(start, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    try:
        yield process
    finally:
        process.terminate()  # which it hands on to the processes that it started
        process.communicate()


def ended(process, timeout=PATIENCE):
    out, err = process.communicate(timeout=timeout)
    return process.returncode, out, err


def compare(text, folder, *arguments, more=()):
    return torchrun(folder.with_suffix(".py"), "--data", str(text), "--out", str(folder), *arguments, more=more)


def await_until(condition, process, seconds=PATIENCE):
    deadline = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    file = tmp_path_factory.mktemp("text") / "lines.txt"
    file.write_text(TEXT)
    return file


def numbers(folder):
    """Losses and scores of each cell; not how long they took."""
    found = {}
    for file in folder.glob("cells/*.json"):
        cell = json.loads(file.read_text())["cell"]["record"]
        variants = [
            {key: value for key, value in variant.items() if "per_second" not in key} for variant in cell["arms"]
        ]
        found[file.name] = cell["losses"], variants
    return found


@pytest.mark.parametrize(("parallel", "victim"), [("ddp", 0), ("fsdp", 1)])
def test_killed_while_training_it_goes_on_bit_for_bit(parallel, victim, text, tmp_path):
    flags = ("--parallel", parallel, "--steps", "100", "--seeds", "1")
    with compare(text, tmp_path / "uninterrupted", *flags) as process:
        code, _, err = ended(process)
        assert code == 0, err
    folder, often = tmp_path / "killed", ("--checkpoint-every", "0.0005")
    checkpoints = folder / "checkpoints"
    with compare(text, folder, *flags, *often) as process:
        await_until(lambda: any(checkpoints.glob("*.checkpoint")), process)
        os.kill(int((tmp_path / f"rank-{victim}").read_text()), signal.SIGKILL)
        assert ended(process)[0] == 1
    assert any(checkpoints.glob("*.checkpoint")), "it was killed on its way"
    with compare(text, folder, *flags, *often, "--json") as process:
        code, out, err = ended(process)
    assert code == 0, err
    assert json.loads(out)["complete"]
    assert numbers(folder) == numbers(tmp_path / "uninterrupted")
    assert not checkpoints.exists()


def test_ctrl_c_keeps_what_had_finished(text, tmp_path):
    folder = tmp_path / "out"
    with compare(text, folder, "--steps", "30", "--seeds", "99") as process:
        await_until(lambda: any(folder.glob("cells/*.json")), process)
        process.send_signal(signal.SIGINT)  # torchrun tells its processes
        assert ended(process)[0] != 0
    results = json.loads((folder / "results.json").read_text())
    assert not results["complete"]
    assert results["runs"]["finished"] == len(numbers(folder))


@pytest.mark.parametrize(
    ("data", "message"),
    [("missing.txt", "missing.txt"), ("other.txt", "rank 0 has")],
)
def test_the_error_of_one_rank_is_printed_and_ends_all(data, message, text, tmp_path):
    (tmp_path / "other.txt").write_text(TEXT.replace("line", "LINE"))
    with compare(
        text, tmp_path / "out", "--steps", "3", "--seeds", "1", more=("--data", str(tmp_path / data))
    ) as process:
        code, out, err = ended(process)
    assert code == 1, "the exit code of torchrun"
    assert not out
    (line,) = (line for line in err.splitlines() if line.startswith("posenc compare: error on rank 1: "))
    assert message in line


def test_a_launcher_is_needed():
    for arguments, name in ((("fsdp",), "parallel=fsdp"), ((None, 2), "sequence_shards=2")):
        with (
            pytest.raises(InputError, match=rf"{name}: there is one process; start several with torchrun"),
            together(*arguments),
        ):
            pass
    with together():
        pass
