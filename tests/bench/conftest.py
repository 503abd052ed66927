import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))  # for the package bench


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)
