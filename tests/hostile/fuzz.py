"""Fuzz one target under atheris: python tests/hostile/fuzz.py TARGET SECONDS; exit code 0: nothing was found."""

import sys
import tempfile
from pathlib import Path

import atheris

sys.path.insert(0, str(Path(__file__).parents[1]))
with atheris.instrument_imports(include=["posenc"]):
    from hostile.fuzz_corpus import seeds
    from hostile.fuzz_targets import TARGETS, accepts


def main() -> None:
    name, seconds = sys.argv[1:3]
    if name not in TARGETS:
        sys.exit(f"unknown target {name}: known are {', '.join(TARGETS)}")
    with tempfile.TemporaryDirectory() as corpus:
        for number, data in enumerate(seeds(name)):
            (Path(corpus) / str(number)).write_bytes(data)
        said = [
            f"-max_total_time={seconds}",
            "-timeout=20",
            "-rss_limit_mb=4096",
            "-max_len=4096",
            "-print_final_stats=1",
        ]
        atheris.Setup(
            [sys.argv[0], *said, f"-artifact_prefix={tempfile.gettempdir()}/", corpus], lambda data: accepts(name, data)
        )
        atheris.Fuzz()


if __name__ == "__main__":
    main()
