"""The command line where something around it is odd: no home, no terminal, no stdout, a folder that is gone, signals."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import posenc
from references import PATIENCE

pytestmark = pytest.mark.slow  # each starts Python and torch anew
POSENC = [sys.executable, "-c", "import sys; from posenc.cli import main; sys.exit(main())"]
PATHS = {"PYTHONPATH": str(Path(posenc.__file__).parents[1]), "PATH": os.environ["PATH"]}


def run(*arguments, environment=None, **more):
    options = {"capture_output": True} | more
    return subprocess.run([*POSENC, *arguments], env=PATHS | (environment or {}), **options)


@pytest.mark.parametrize(
    "environment",
    [
        {"COLUMNS": "1", "LINES": "0", "TERM": "dumb"},  # no HOME, no LANG
        {"LANG": "C", "LC_ALL": "C", "PYTHONUTF8": "0", "COLUMNS": "x", "TMPDIR": "/no/such/folder"},
    ],
    ids=str,
)
def test_an_answer_in_any_environment(environment):
    done = run("analyze", "yarn", "ntk", environment=environment)
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"frequenc" in done.stdout
    done = run("list", "--cite", "\u2028é", environment=environment)
    assert done.returncode == 2
    assert done.stderr.startswith(b"posenc list: error: --cite ")
    assert done.stderr.count(b"\n") == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_full_stdout_is_a_failure_in_one_line():
    with open("/dev/full", "w") as full:
        done = run("list", capture_output=False, stdout=full, stderr=subprocess.PIPE)
    assert done.returncode == 1
    assert done.stderr.startswith(b"posenc list: failed: ")
    assert done.stderr.count(b"\n") == 1


def test_closed_streams_are_no_mistake(tmp_path):
    command = " ".join(f"'{word}'" for word in [*POSENC, "list", "--cite", "rope", "--out", str(tmp_path / "out")])
    done = subprocess.run(["sh", "-c", f"{command} <&- >&-"], env=PATHS, stderr=subprocess.PIPE)
    assert (done.returncode, done.stderr) == (0, b"")
    assert (tmp_path / "out" / "list.json").exists()
    done = subprocess.run(["sh", "-c", f"{command.replace('rope', 'ropes')} <&- >&- 2>&-"], env=PATHS)
    assert done.returncode == 2


def test_two_signals_in_a_row(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("the quick brown fox jumps over the lazy dog. " * 20_000)
    out = tmp_path / "new" / "out"
    started = [*POSENC, "compare", "--preset", "quick", "--data", str(text), "--out", str(out), "--workers", "1"]
    with subprocess.Popen(started, env=PATHS, stderr=subprocess.PIPE) as process:
        while not out.exists() and process.poll() is None:
            time.sleep(0.05)
        for _ in range(2):
            process.send_signal(signal.SIGINT)
            time.sleep(0.1)
        message = process.communicate(timeout=PATIENCE)[1]
    assert process.returncode in (1, -signal.SIGINT)
    assert message.count(b"Traceback") == 0, message
