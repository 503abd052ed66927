# SPDX-License-Identifier: Apache-2.0
"""What one factor for all lengths costs short inputs: YaRN with the factor of the longest input against YaRN by length, in stories15M.

python benchmarks/by_length.py    # writes by_length.md, minutes
"""

import sys
from pathlib import Path

import torch

ROOT = Path(__file__).parents[1]
sys.path += [str(ROOT / folder) for folder in ("tests", "examples")]
from yarn_by_length import table  # noqa: E402

from references import stories15m  # noqa: E402

LENGTHS = [64, 128, 256, 512, 1024]


def main() -> None:
    texts = torch.as_tensor(stories15m.texts()).long()
    lines = [
        "# YaRN by length",
        "",
        f"`python benchmarks/by_length.py`: stories15M (context length 256), {len(texts)} texts that it wrote. Loss of the last quarter of "
        "inputs of so many tokens, in nats: unextended; under YaRN with the factor of the longest input, 4; and under YaRN with the factor of "
        "the input's length, as [examples/yarn_by_length.py](../examples/yarn_by_length.py) extends it.",
        "",
        *table(stories15m.load(), texts, LENGTHS),
        "",
    ]
    Path(__file__).with_suffix(".md").write_text("\n".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
