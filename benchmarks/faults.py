"""The table of docs/reliability.md on faults: python benchmarks/faults.py [SECTION ...]; all sections unless some are named.

What each section finds goes into benchmarks/faults.json, and the table is made of it; exit code 1 where anything was wrong.
"""

import contextlib
import errno
import io
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from hostile import rehearsal  # noqa: E402
from hostile.runs import COMPARE, EVAL, KILLS, Subject, Tally, kill_until  # noqa: E402
from posenc.cli import main as posenc  # noqa: E402

START, END = "<!-- faults: made by benchmarks/faults.py -->", "<!-- faults end -->"
SEED, KILLED, DAMAGED = 8, 7, 12
"""Seed of every choice; kills of each kind; how often a file is cut off, and how often one bit of it is changed."""
Rows = dict[str, Tally]


def subject(place: Path) -> Subject:
    """A comparison of four runs."""
    text = place / "text.txt"
    text.write_bytes(rehearsal.TEXT)
    return Subject(["compare", "--data", str(text), *COMPARE], place / "undisturbed")


def undisturbed(run: Subject) -> float:
    """Let it run to its end; the seconds from its first measurement on."""
    started = run.start()
    started.measures()
    since = time.monotonic()
    code, said = started.end()
    assert code == 0, said
    return time.monotonic() - since


def killed(run: Subject, kind: str, times: int = KILLED) -> Rows:
    """Killed at random moments: the same numbers come of it."""
    seconds = undisturbed(run)
    tally, chosen = Tally(), random.Random(f"{SEED} {kind}")
    while tally.injected < times:
        again = Subject(run.command[:-2], run.folder.with_name(f"{kind} {tally.injected}"))
        kill_until(again, times - tally.injected, seconds, KILLS[kind], chosen, tally)
        tally.check(again.measured() == run.measured(), "other numbers")
    return {f"SIGKILL of {kind}, `posenc {run.command[0]}`": tally}


def kills(kind: str, place: Path) -> Rows:
    return killed(subject(place), kind)


def eval_kills(place: Path) -> Rows:
    from references.small_models import small_model
    from references.tokenizers import small_tokenizer

    small_model("llama", vocab_size=512).save_pretrained(place / "model")
    small_tokenizer(512).save_pretrained(place / "model")
    return killed(Subject(["eval", str(place / "model"), *EVAL], place / "undisturbed"), "all processes", KILLED // 2)


def calls(place: Path) -> Rows:
    """Every n-th system call on the folder fails."""
    practice, rows = rehearsal.Rehearsal(place), {}
    for error, stays in ((errno.ENOSPC, False), (errno.ENOSPC, True), (errno.EIO, False), (errno.EROFS, True)):
        name = f"{errno.errorcode[error]} at the n-th system call{' and all after it' if stays else ''}, for every n"
        rows[name] = rehearsal.fail(practice, error, stays)
        print(name, rows[name], file=sys.stderr, flush=True)
    return rows


def files(place: Path) -> Rows:
    """Damaged files."""
    practice, rows = rehearsal.Rehearsal(place), {}
    for kind, word in (
        ("cells", "finished cell"),
        ("results.json", "results.json"),
    ):
        chosen = random.Random(f"{SEED} {kind}")
        for what, tally in rehearsal.damage(practice, kind, DAMAGED, chosen).items():
            rows[f"{word}: {what}"] = tally
    return rows


def disk(place: Path) -> Rows:
    """A small disk that fills up, and one that is read-only; needs the right to mount one."""
    run, tally, read_only = subject(place), Tally(), Tally()
    undisturbed(run)
    for kilobytes in (16, 64, 256, 2048):
        with mounted(place / f"disk {kilobytes}", f"size={kilobytes}k") as folder:
            full = Subject(run.command[:-2], folder / "out")
            code, said = full.start().end()
            tally.injected += 1
            refused(tally, code, said)
            before = full.cells() if full.folder.exists() else {}
            tally.kept += len(before)
            subprocess.run(["mount", "-o", "remount,size=64m", str(folder)], check=True)
            code, said = full.start().end()
            tally.check(code == 0, said)
            tally.lost += sum(full.cells().get(name) != found for name, found in before.items())
            tally.check(full.measured() == run.measured(), f"{kilobytes} kB: other numbers")
    with mounted(place / "read-only", "ro") as folder:
        code, said = Subject(run.command[:-2], folder / "out").start().end()
        read_only.injected += 1
        refused(read_only, code, said)
    return {"a disk of 16, 64, 256, 2048 kB that fills up": tally, "a read-only disk": read_only}


@contextlib.contextmanager
def mounted(folder: Path, options: str) -> Iterator[Path]:
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def folders(place: Path) -> Rows:
    """Two runs in one folder, a folder that goes away, and what is no folder."""
    run = subject(place)
    first = run.start("--steps", "100000")  # until it is stopped
    first.begun()
    twice = Tally()
    for _ in range(2):
        code, said = run.start().end()
        twice.injected += 1
        refused(twice, code, said)
        twice.check(f"process {first.process.pid} on" in said, f"it does not say who: {said}")
    os.killpg(first.process.pid, signal.SIGKILL)
    first.process.wait()
    code, said = run.start().end()
    twice.check(code == 0, said)
    removed = Tally(injected=1)
    other = Subject(run.command[:-2], place / "removed")
    started = other.start()
    started.wait_for(other.cells)
    shutil.rmtree(other.folder, ignore_errors=True)
    refused(removed, *started.end())
    removed.check(not other.folder.exists(), "it was made anew")
    removed.check(not started.orphans(), "processes left")
    return {
        "a second run in the folder": twice,
        "the folder removed while it runs": removed,
        "--out a file, a link to nothing, a link in a circle, a file's inside": no_folders(run, place),
        "config.yaml: empty, cut off, foreign": configs(run, place),
    }


def no_folders(run: Subject, place: Path) -> Tally:
    """What is named as a folder and is none."""
    tally = Tally()
    (place / "file").write_text("mine")
    (place / "nowhere").symlink_to(place / "missing")
    (place / "circle").symlink_to(place / "circle")
    for name in ("file", "nowhere", "circle", "file/inside"):
        tally.injected += 1
        refused(tally, *here(Subject(run.command[:-2], place / name)))
    tally.check((place / "file").read_text() == "mine", "the file was changed")
    tally.check(not (place / "missing").exists(), "the link was followed")
    return tally


def configs(run: Subject, place: Path) -> Tally:
    """A config.yaml of the finished run that is damaged: written again, or refused where it is somebody's own."""
    tally = Tally()
    path = run.folder / "config.yaml"
    whole = path.read_bytes()
    for content, mine in ((b"", True), (whole[:5], True), (whole[:200], True), (b"lr: 1\n", False)):
        path.write_bytes(content)
        tally.injected += 1
        before = run.cells()
        tally.kept += len(before)
        code, said = here(run)
        if mine:
            tally.check(code == 0 and path.read_bytes() == whole, f"config {content[:9]!r}: {code}, {said}")
        else:
            refused(tally, code, said)
            tally.check(path.read_bytes() == content, "somebody's own was changed")
        tally.lost += sum(run.cells().get(name) != found for name, found in before.items())
    return tally


def here(run: Subject) -> tuple[int, str]:
    """A command in this process."""
    with contextlib.redirect_stderr(io.StringIO()) as said, contextlib.redirect_stdout(io.StringIO()):
        code = posenc(run.command)
    return code, said.getvalue()


def refused(tally: Tally, code: int, said: str) -> None:
    """Check that a run was refused, in one line that names the folder."""
    last = said.strip().splitlines()[-1:] or [""]
    ok = code == 2 and "error: --out" in last[0] and "Traceback" not in said
    tally.refused += ok
    tally.check(ok, f"not refused: {code}, {said[-500:]}")


SECTIONS: dict[str, Callable[[Path], Rows]] = {
    **{f"kills: {kind}": partial(kills, kind) for kind in KILLS}, "eval kills": eval_kills, "disk": disk, "calls": calls, "files": files, "folders": folders,
}  # fmt: skip


def table(found: dict[str, Any]) -> str:
    """The rows as Markdown."""
    lines = [
        "| fault | injected | refused in one line | set aside, made again | finished cells there | lost or recomputed | wrong |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in SECTIONS:
        for fault, row in found.get(name, {}).get("rows", {}).items():
            counts = (row[key] for key in ("injected", "refused", "aside", "kept", "lost"))
            lines.append(f"| {fault} | {' | '.join(map(str, counts))} | {len(row['wrong'])} |")
    return "\n".join(lines)


def main() -> int:
    path, page = ROOT / "benchmarks" / "faults.json", ROOT / "docs" / "reliability.md"
    found = json.loads(path.read_text()) if path.exists() else {}
    wrong = 0
    for name in sys.argv[1:] or SECTIONS:
        started = time.monotonic()
        with tempfile.TemporaryDirectory() as place:
            rows = SECTIONS[name](Path(place))
        seconds = round(time.monotonic() - started, 1)
        for fault, tally in rows.items():
            print(fault, tally, file=sys.stderr, flush=True)
            wrong += len(tally.wrong)
        found = json.loads(path.read_text()) if path.exists() else {}
        found[name] = {
            "seconds": seconds,
            "seed": SEED,
            "rows": {fault: asdict(tally) for fault, tally in rows.items()},
        }
        path.write_text(json.dumps({name: found[name] for name in SECTIONS if name in found}, indent=1) + "\n")
    text = page.read_text(encoding="utf-8")
    made = f"{START}\n\n{table(found)}\n\n{END}"
    page.write_text(re.sub(f"{START}.*{END}", lambda _: made, text, flags=re.DOTALL), encoding="utf-8")
    return int(bool(wrong))


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())
