"""What posenc asks of the machine, and leaves as it was."""

import pytest
import torch

from posenc.lab.machine import flushed_denormals

TINY = torch.tensor(2.0**-1060, dtype=torch.float64)


def halved() -> float:
    return (TINY * 0.5).item()


def test_denormals_are_flushed_inside_and_nowhere_else():
    assert halved() == 2.0**-1061
    with flushed_denormals():
        assert halved() == 0
        with flushed_denormals():
            assert halved() == 0
        assert halved() == 0
    assert halved() == 2.0**-1061
    with pytest.raises(KeyError), flushed_denormals():
        raise KeyError
    assert halved() == 2.0**-1061
