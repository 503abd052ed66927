# SPDX-License-Identifier: Apache-2.0
"""RULER's synthetic tasks (Hsieh et al. 2024, arXiv 2404.06654), as NVIDIA/RULER makes them at commit c3f5e3b.

The texts are byte for byte those of scripts/data/synthetic/*.py with the settings of scripts/synthetic.yaml, answer
prefix included, but for what each task's docstring says. Its two question-answering tasks need SQuAD and HotpotQA and
are not here.
"""

from posenc.tasks.ruler.base import string_match_all, string_match_part
from posenc.tasks.ruler.needles import NEEDLES, Niah
from posenc.tasks.ruler.variables import VariableTracking
from posenc.tasks.ruler.words import CommonWords, FrequentWords

__all__ = [
    "NEEDLES",
    "CommonWords",
    "FrequentWords",
    "Niah",
    "VariableTracking",
    "string_match_all",
    "string_match_part",
]
