"""The table of docs/reliability.md on hostile input: python benchmarks/hostile_input.py [SECONDS a fuzzed target].

Every flag of every command with every odd value, then every parser under atheris; exit code 1 where anything was wrong.
"""

import re
import subprocess
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))
START, END = "<!-- hostile: made by benchmarks/hostile_input.py -->", "<!-- hostile ends -->"


def flags() -> tuple[list[str], int]:
    """A row for each command, and how often something was wrong."""
    from hostile.commands import arguments, cases, prepare, wrong

    counts: dict[str, Counter[str]] = {}
    with tempfile.TemporaryDirectory() as folder:
        prepare(Path(folder))
        for case in cases():
            found = counts.setdefault(case.command, Counter())
            try:
                code, faults = wrong(case, Path(folder))
            except Exception as error:  # that is what is looked for
                code, faults = 1, [repr(error)]
            found[("accepted", "failed", "refused")[code]] += 1
            found["wrong"] += bool(faults)
            if faults:
                print(case, faults, file=sys.stderr)
    rows = [
        f"| `posenc {command}` | {len(arguments(command))} | {found.total() - found['wrong']} | {found['refused']} | "
        f"{found['accepted']} | {found['failed']} | {found['wrong']} |"
        for command, found in counts.items()
    ]
    head = [
        "| command | flags and positionals | inputs | refused | done | stopped or failed | wrong |",
        "|---|---|---|---|---|---|---|",
    ]
    return head + rows, sum(found["wrong"] for found in counts.values())


def fuzzed(seconds: int) -> tuple[list[str], int]:
    """A row for each target, two at a time, and how many of them ended with a fault."""
    from hostile.fuzz_targets import TARGETS

    with ThreadPoolExecutor(2) as pool:
        rows = list(pool.map(_row, TARGETS, [seconds] * len(TARGETS)))
    head = ["| target | seconds | executions | wrong |", "|---|---|---|---|"]
    return head + rows, sum(row.endswith("| 1 |") for row in rows)


def _row(name: str, seconds: int) -> str:
    command = [sys.executable, str(ROOT / "tests" / "hostile" / "fuzz.py"), name, str(seconds)]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace")
    executed = re.search(r"stat::number_of_executed_units:\s*(\d+)", done.stderr)
    wrong = done.returncode != 0 or executed is None
    if wrong:
        print(name, done.stderr[-3000:], file=sys.stderr)
    runs = "?" if executed is None else f"{int(executed[1]):,}".replace(",", " ")
    row = f"| {name} | {seconds} | {runs} | {int(wrong)} |"
    print(row, file=sys.stderr, flush=True)
    return row


def main() -> int:
    seconds = int(sys.argv[1]) if sys.argv[1:] else 60
    fuzz, faults = fuzzed(seconds)
    table, wrong = flags()
    path = ROOT / "docs" / "reliability.md"
    text = path.read_text(encoding="utf-8")
    made = "\n".join([START, "", *table, "", *fuzz, "", END])
    path.write_text(re.sub(f"{START}.*{END}", lambda _: made, text, flags=re.DOTALL), encoding="utf-8")
    return int(bool(wrong + faults))


if __name__ == "__main__":
    sys.exit(main())
