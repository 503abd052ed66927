# SPDX-License-Identifier: Apache-2.0
"""Does `make test` see a fault? Faults are placed at random in src/posenc, one at a time, and the tests that reach the place are run.

    python benchmarks/mutation.py run --work DIR     # 60 faults; run again, it goes on with those that are not judged
    python benchmarks/mutation.py show               # benchmarks/mutation.md, from benchmarks/mutation.json

First the default run goes once over a clone in which each place notes which test reaches it. Then each fault is judged in a second
clone: by the tests of the default run that reach it, and if none of them fails, by all cases, slow ones included, of every test
function in the files of these tests, and in the files that are named like its module. DIR has the clones.
"""

import argparse
import ast
import copy
import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks/mutation.json"
HOUR = 3600  # seconds, more than the tests of any fault take on an idle machine
OVER = "(not judged: an hour was over)"
SWAPPED = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.And: ast.Or,
    ast.Or: ast.And,
}
PLUGIN = """
import atexit, builtins, os

SEEN = set()
builtins.__site__ = lambda n: SEEN.add((n, os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0]))


def note():
    with open(os.environ["SITES"] + f"/{os.getpid()}", "w") as file:
        file.writelines(f"{n} {test}\\n" for n, test in sorted(SEEN) if test)


atexit.register(note)
"""


def changed(node):
    """Source of the node with a fault, or None where none of our kinds can be placed."""
    copied = copy.deepcopy(node)
    match copied:
        case ast.BinOp(op=op) | ast.BoolOp(op=op) if type(op) in SWAPPED:
            copied.op = SWAPPED[type(op)]()
        case ast.Compare(ops=[op]) if type(op) in SWAPPED:
            copied.ops = [SWAPPED[type(op)]()]
        case ast.Constant(value=bool()):
            copied.value = not copied.value
        case ast.Constant(value=int() | float()):
            copied.value += 1
        case ast.UnaryOp(op=ast.USub() | ast.Not()):
            copied = copied.operand
        case ast.IfExp():
            copied.body, copied.orelse = copied.orelse, copied.body
        case _:
            return None
    return ast.unparse(copied)


def places(path):
    """(first byte, byte after the last, line, source with a fault) of what may be changed: in functions, outside of annotations,
    decorators, messages of errors and texts."""
    source = path.read_bytes()
    starts = [0]
    for line in source.split(b"\n"):
        starts.append(starts[-1] + len(line) + 1)
    tree = ast.parse(source)
    left_out, inside = set(), set()
    for node in ast.walk(tree):
        parts = []
        if isinstance(node, ast.Raise | ast.JoinedStr | ast.AnnAssign | ast.Assert | ast.match_case):
            parts = [node.pattern if isinstance(node, ast.match_case) else node]
        elif isinstance(node, ast.FunctionDef):
            parts = [*node.decorator_list, node.args, *([node.returns] if node.returns else [])]
            inside |= {id(each) for statement in node.body for each in ast.walk(statement)}
        left_out |= {id(each) for part in parts for each in ast.walk(part)}
    for node in ast.walk(tree):
        if isinstance(node, ast.expr) and id(node) in inside and id(node) not in left_out and (new := changed(node)):
            yield (
                starts[node.lineno - 1] + node.col_offset,
                starts[node.end_lineno - 1] + node.end_col_offset,
                node.lineno,
                new,
            )


def sites(count, seed):
    """Places that are drawn, none inside another, as records that JSON can hold. A file is drawn as often as it has places."""
    pool = []
    for path in sorted((ROOT / "src/posenc").rglob("*.py")):
        pool += [(path, *place) for place in places(path)]
    found = []
    random.Random(seed).shuffle(pool)
    for path, start, end, line, new in pool:
        if len(found) == count:
            break
        name = str(path.relative_to(ROOT))
        if any(name == each["file"] and start < each["end"] and each["start"] < end for each in found):
            continue
        old = path.read_bytes()[start:end].decode()
        found.append({"file": name, "line": line, "start": start, "end": end, "old": old, "new": new})
    return found


def clone(folder, commit):
    if not folder.exists():
        subprocess.run(["git", "clone", "-q", ROOT, folder], check=True)
    subprocess.run(["git", "-C", folder, "checkout", "-q", "--force", "--detach", commit], check=True)
    return folder


def pytest(folder, *args, **environment):
    paths = os.pathsep.join([str(folder / "src"), *environment.pop("path", [])])
    environment = os.environ | {"PYTHONPATH": paths} | environment
    command = [sys.executable, "-m", "pytest", "-q", "--no-header", "--tb=no", *args]
    try:
        return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=HOUR)
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 1, f"FAILED {OVER}", "")


def reached(found, work, commit):
    """For each place, the tests of the default run that reach it."""
    notes = work / "notes"
    if not (work / "run").exists():
        folder = clone(work / "noting", commit)
        notes.mkdir(exist_ok=True)
        (work / "plugin").mkdir(exist_ok=True)
        (work / "plugin/sitecustomize.py").write_text(PLUGIN)
        by_file = {}
        for n, site in enumerate(found):
            by_file.setdefault(site["file"], []).append((site["start"], site["end"], n))
        for name, each in by_file.items():
            source = (folder / name).read_bytes()
            for start, end, n in sorted(each, reverse=True):
                source = source[:start] + b"(__site__(%d), %s)[1]" % (n, source[start:end]) + source[end:]
            (folder / name).write_bytes(source)
        options = ["-n", "2", "--dist", "worksteal"]
        done = pytest(folder, *options, path=[str(work / "plugin")], SITES=str(notes), POSENC_DRAW=commit)
        if done.returncode not in (0, 1):
            raise SystemExit(f"the default run did not run: {done.stdout[-2000:]}")
        (work / "run").touch()
    tests = [set() for _ in found]
    for path in notes.iterdir():
        for line in path.read_text().splitlines():
            n, _, test = line.partition(" ")
            if test.startswith("tests/"):  # not one that a test wrote
                tests[int(n)].add(test)
    return tests


def judged(site, tests, folder, commit):
    """The site's record, with the test that fails: in the default run, in all cases, or none."""
    path = folder / site["file"]
    original = path.read_bytes()
    path.write_bytes(original[: site["start"]] + f"({site['new']})".encode() + original[site["end"] :])
    try:
        begun = time.monotonic()
        few = sorted(tests)
        killed = failing(folder, few, [], commit) if few else ""
        record = {**site, "reached": len(few), "default": killed}
        if not killed:
            files = {test.partition("::")[0] for test in tests} | named_like(folder, path.stem)
            record["all"] = failing(folder, sorted(files), ["-m", "", "--all-cases"], commit) if files else ""
        return record | {"seconds": round(time.monotonic() - begun)}
    finally:
        path.write_bytes(original)


def named_like(folder, stem):
    return {str(path.relative_to(folder)) for path in (folder / "tests").rglob(f"test_{stem}*.py")}


def failing(folder, tests, options, commit):
    """The first test that fails, "" if none does."""
    for some in [tests[n : n + 300] for n in range(0, len(tests), 300)]:  # a command line has its limit
        done = pytest(folder, "-x", "-rfE", *options, *some, POSENC_DRAW=commit)
        if done.returncode not in (0, 5):
            lines = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
            return lines[0].split(" - ")[0] if lines else f"pytest ended with {done.returncode}"
    return ""


def run(work, count, seed):
    commit = subprocess.run(["git", "-C", ROOT, "rev-parse", "HEAD"], capture_output=True, text=True).stdout.strip()
    work.mkdir(parents=True, exist_ok=True)
    plan = work / "plan.json"
    if not plan.exists():
        plan.write_text(json.dumps({"commit": commit, "seed": seed, "sites": sites(count, seed)}, indent=1))
    planned = json.loads(plan.read_text())
    commit, found = planned["commit"], planned["sites"]
    tests = reached(found, work, commit)
    state = work / "judged.json"
    records = json.loads(state.read_text()) if state.exists() else []
    folder = clone(work / "faults", commit)
    for n in range(len(records), len(found)):
        records.append(judged(found[n], tests[n], folder, commit))
        state.write_text(json.dumps(records, indent=1))
        print(
            n, *(records[n].get(key) for key in ("file", "line", "old", "new", "reached", "default", "all")), flush=True
        )
        stripped = [{key: value for key, value in r.items() if key not in ("start", "end")} for r in records]
        RESULTS.write_text(json.dumps({"commit": commit, "seed": planned["seed"], "faults": stripped}, indent=1) + "\n")
    show()


def show():
    from posenc.lab.table import in_markdown

    data = json.loads(RESULTS.read_text())
    faults = data["faults"]
    open_ = [f for f in faults if OVER in f["default"] + f.get("all", "")]
    faults = [f for f in faults if f not in open_]
    default = [f for f in faults if f["default"]]
    late = [f for f in faults if not f["default"] and f["all"]]
    alive = [f for f in faults if not f["default"] and not f["all"]]
    lines = [
        "# Faults placed at random",
        "",
        f"{len(faults)} faults in src/posenc (seed {data['seed']}, commit {data['commit'][:8]}). The default run kills {len(default)}. "
        f"All cases of the same files kill {len(late)} more. {len(alive)} survive both. {len(open_)} more: an hour was not enough. "
        "[benchmarks/mutation.py](mutation.py) says how.",
        "",
        "| file | line | was | is | tests that reach it | killed by |",
        "|---|--:|---|---|--:|---|",
    ]
    for f in sorted(faults, key=lambda f: (bool(f["default"]), f["file"], f["line"])):
        by = "the default run" if f["default"] else f"all cases: {f['all']}" if f["all"] else "**none**"
        cells = [in_markdown(" ".join(f[key].split())) for key in ("file", "old", "new")]
        lines.append(f"| {cells[0]} | {f['line']} | {cells[1]} | {cells[2]} | {f['reached']} | {by} |")
    (ROOT / "benchmarks/mutation.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["run", "show"])
    parser.add_argument("--work", type=Path, default=Path("mutation-work"), help="folder of the clones")
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    run(given.work.resolve(), given.count, given.seed) if given.command == "run" else show()
