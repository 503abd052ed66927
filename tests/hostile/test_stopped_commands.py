"""Every command that runs long, stopped by every signal: what is left, the exit code, and what the same command then computes."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from functools import cache
from pathlib import Path

import pytest

from references import PATIENCE
from references.small_models import small_model
from references.tokenizers import small_tokenizer

pytestmark = pytest.mark.skipif(not os.path.isdir("/proc"), reason="reads /proc to see what runs")

COMMAND = [sys.executable, "-m", "posenc.cli"]
SLOW_COPY = """
import sys, time
import transformers
from posenc.cli import main
save = transformers.PreTrainedModel.save_pretrained
def slow(*given, **more):
    save(*given, **more)
    print("under way", file=sys.stderr, flush=True)
    time.sleep(3)
    transformers.PreTrainedModel.save_pretrained = save
transformers.PreTrainedModel.save_pretrained = slow
sys.exit(main())
"""
"""The command, which takes a while in the middle of its first output."""

TINY = [
    "--no-curve", "--length", "16", "--factors", "1", "2", "--batch-size", "2", "--dim", "8", "--num-layers", "1",
    "--num-heads", "2", "--windows", "4", "--targets", "8",
]  # fmt: skip
COMPARE = ["compare", "--out", "OUT", "--encodings", "none", "log_n", "--seeds", "2", "--steps", "150", *TINY]
EXTEND = ["extend", "MODEL", "--method", "linear", "--factor", "2", "--no-verify"]
FINETUNE = ["--finetune", "TEXT", "--length", "16", "--checkpoint", "OUT/checkpoint", "--steps", "100"]
EVAL = ["--tasks", "copying:segment=8", "--methods", "rerope:window=16", "--lengths", "80", "96", "--samples", "2"]
BENCH = ["rope", "alibi", "t5", "--n", "16", "32", "64", "--mode", "forward", "--rounds", "20"]


def cells(count):
    return lambda out, err: len(list(out.glob("cells/*.json"))) >= count


def shown(text):
    return lambda out, err: text in err.read_text()


CASES = {
    "compare, 2 workers": ([*COMPARE, "--workers", "2"], cells(1)),
    "compare, 1 worker": ([*COMPARE, "--workers", "1"], cells(1)),
    "compare, while workers import": ([*COMPARE, "--workers", "2"], lambda out, err: (out / ".running").exists()),
    "eval": (["eval", "MODEL", *EVAL, "--seeds", "6", "--out", "OUT"], cells(2)),
    "bench": (["bench", *BENCH, "--out", "OUT"], cells(1)),
    "finetune": ([*EXTEND, *FINETUNE, "--out", "OUT/model"], shown("under way")),
    "to_hf": ([*EXTEND, "--out", "OUT/model"], shown("under way")),
}  # fmt: skip
QUICK = ("compare, while workers import", signal.SIGTERM)
"""The one that runs in every suite: it trains nothing."""
FINISHED = re.compile(r"(runs|cells) are stored and reported, run the same command again to continue")
"""What an interrupt leaves of `compare` and `eval`, where something had finished."""


@pytest.fixture(scope="module")
def given(tmp_path_factory):
    """A model and a text, for whom calls it."""

    @cache
    def made():
        folder = tmp_path_factory.mktemp("given")
        small_model("llama", vocab_size=512).save_pretrained(folder / "model")
        small_tokenizer(512).save_pretrained(folder / "model")
        (folder / "text").write_text("the quick brown fox jumps over the lazy dog. " * 400)
        return {"MODEL": str(folder / "model"), "TEXT": str(folder / "text")}

    return made


class Run:
    """A command in a session of its own, with a folder for temporary files of its own."""

    def __init__(self, name, folder, given):
        self.out, self.temporary, self.err = folder / "out", folder / "tmp", folder / "err"
        self.temporary.mkdir(exist_ok=True)
        self.out.mkdir(exist_ok=True)
        words = [word.replace("OUT", str(self.out)) for word in CASES[name][0]]
        files = given() if {"MODEL", "TEXT"} & {*words} else {}
        start = [sys.executable, "-c", SLOW_COPY] if name in ("finetune", "to_hf") else COMMAND
        environment = os.environ | {"TMPDIR": str(self.temporary), "OMP_NUM_THREADS": "1"}
        with self.err.open("w") as err, (folder / "stdout").open("w") as stdout:
            self.process = subprocess.Popen(
                [*start, *(files.get(word, word) for word in words)],
                stdout=stdout,
                stderr=err,
                env=environment,
                start_new_session=True,
            )

    def wait_for(self, reached):
        end = time.monotonic() + PATIENCE
        while not reached(self.out, self.err):
            assert self.process.poll() is None, self.err.read_text()
            assert time.monotonic() < end
            time.sleep(0.02)

    def stop(self, number):
        """As a terminal, Slurm and `timeout` do, which signal all processes; a process that is killed is killed alone."""
        if number == signal.SIGKILL:
            self.process.kill()
        else:
            os.killpg(self.process.pid, number)

    def code(self):
        return self.process.wait(timeout=PATIENCE)

    def alive(self):
        """Processes of the session."""
        found = []
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                state, _, _, session = stat.read_text().rsplit(")", 1)[1].split()[:4]
            except OSError:
                continue
            if session == str(self.process.pid) and state not in "ZX":
                found.append(stat.parent.name)
        return found

    def leftovers(self):
        found = [path for path in self.out.rglob("*") if path.name == ".running" or path.name.startswith(".posenc-")]
        return [*found, *self.temporary.rglob(".posenc-*")]


def computed(out):
    """The numbers of each cell, but for times and memory, and the bytes of each file of weights."""
    measured = ("second", "processor", "memory", "bytes", "fed")

    def plain(value):
        if isinstance(value, dict):
            return {k: plain(v) for k, v in value.items() if not any(word in k for word in measured)}
        return [plain(each) for each in value] if isinstance(value, list) else value

    found = {path.name: plain(json.loads(path.read_text())["cell"]["record"]) for path in out.glob("cells/*.json")}
    return found | {p.name: p.read_bytes() for p in out.rglob("*") if p.suffix in (".safetensors", ".gguf")}


@pytest.fixture(scope="module")
def undisturbed(given, tmp_path_factory):
    results = {}

    def result(name):
        if name not in results:
            run = Run(name, tmp_path_factory.mktemp("undisturbed"), given)
            assert run.code() == 0, run.err.read_text()
            results[name] = computed(run.out)
        return results[name]

    return result


def marked(name, number):
    return pytest.param(name, number, marks=[] if (name, number) == QUICK else pytest.mark.slow)


@pytest.mark.parametrize(
    ("name", "number"),
    [marked(name, number) for name in CASES for number in (signal.SIGTERM, signal.SIGINT, signal.SIGKILL)],
)
def test_a_stopped_command_leaves_nothing_and_goes_on(name, number, given, undisturbed, tmp_path):
    run = Run(name, tmp_path, given)
    try:
        run.wait_for(CASES[name][1])
        run.stop(number)
        code, err = run.code(), run.err.read_text()
        end = time.monotonic() + 5
        while alive := run.alive():
            assert time.monotonic() < end, f"{alive} outlive the command"
            time.sleep(0.05)
    finally:
        run.process.kill()
    assert code == (-signal.SIGKILL if number == signal.SIGKILL else 1), err
    if number != signal.SIGKILL:
        assert not run.leftovers()
        assert "Traceback" not in err
        assert "interrupted" in err
        if name in ("compare, 1 worker", "compare, 2 workers", "eval"):
            results = json.loads((run.out / "results.json").read_text())
            assert not results["complete"]
            assert results["cells" if name == "eval" else "runs"]["finished"] == len(list(run.out.glob("cells/*.json")))
            assert "Stopped early" in (run.out / "report.html").read_text()
            assert re.search(r"^(runs|cells): \d+ of \d+$", (run.out / "table.md").read_text(), re.MULTILINE)
            assert FINISHED.search(err), err
        assert name != "finetune" or any((tmp_path / "out" / "checkpoint").glob("checkpoint-*"))
    if (name, number) == QUICK:
        return  # the rest takes as long again
    before = len(list(run.out.glob("cells/*.json")))
    again = Run(name, tmp_path, given)
    assert again.code() == 0, again.err.read_text()
    left, killed = again.leftovers(), number == signal.SIGKILL
    if killed and name == "compare, while workers import":  # what no worker had taken yet stays, too
        left = [path for path in left if again.temporary not in path.parents]
    assert len(left) == (killed and name in ("finetune", "to_hf"))  # as docs/reliability.md says
    if before:
        assert re.search(rf"^{before} of \d+ \w+ are here already", again.err.read_text(), re.MULTILINE)
    same = set if name == "bench" else dict  # its numbers are times
    assert same(computed(again.out)) == same(undisturbed(name))
