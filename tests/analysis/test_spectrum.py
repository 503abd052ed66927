"""Directions and wavelengths of codes whose answer is known."""

import json
import math

import pytest
import torch

from posenc.analysis import spectrum
from posenc.testing.oracles.rotations import frequencies as ladder


def test_wavelengths_of_the_paper():
    found = spectrum("sinusoidal")
    expected = 2 * math.pi / ladder(64)
    assert found.known
    assert torch.allclose(found.wavelengths, expected.repeat_interleave(2))
    assert found.unfinished == 2 * int((expected > 512).sum()) == 32
    assert found.sentences()[-1] == "32 of 64 channels complete less than one period in 512 positions."


def test_channels_that_do_not_rotate_never_turn():
    found = spectrum("rope:rotary_dim=16")
    assert int(found.wavelengths.isinf().sum()) == 48
    assert found.to_dict()["wavelengths"][-1] is None
    json.dumps(found.to_dict(), allow_nan=False)


@pytest.mark.parametrize("wavelength", [3.0, 17.3, 100.0, 512.0, 900.0, 2000.0])
def test_a_wave_is_found_in_a_function_that_does_not_tell(wavelength):
    found = spectrum(lambda at: torch.cos(2 * math.pi * at.double() / wavelength + 1)[:, None] + 5)
    assert not found.known
    assert found.purity[0] > 0.97
    assert found.wavelengths[0] == pytest.approx(wavelength, rel=0.15 if wavelength > 512 else 0.02)
    assert found.unfinished == int(wavelength > 512)
    assert found.mean_share > 0.9


def test_the_same_wave_twice_is_two_directions_of_four():
    def codes(at):
        angle = 2 * math.pi * at.double() / 32
        return torch.stack((angle.sin(), angle.cos(), angle.sin(), -angle.cos()), -1)

    found = spectrum(codes, 128)
    assert found.directions_99 == 2
    assert found.effective_dim == pytest.approx(2)
    assert found.share.tolist() == pytest.approx([0.5, 1, 1, 1])
    assert found.waves == 4
    assert found.mean_share == pytest.approx(0, abs=1e-12)


def test_an_untrained_table_is_no_wave_and_uses_every_direction():
    torch.manual_seed(0)
    found = spectrum("learned")
    assert found.waves == 0
    assert found.directions_99 > 60
    assert "0 of 64 channels are a single wave" in found.sentences()[1]


def test_codes_that_are_all_the_same_have_no_directions():
    found = spectrum(lambda at: torch.ones(len(at), 3))
    assert (found.directions_99, found.effective_dim, found.mean_share) == (0, 0, 1)
    assert found.sentences() == ["All codes of the first 512 positions are the same."]
    assert found.unfinished == 3
    assert found.waves == 0


@pytest.mark.parametrize("size", [1e-20, 1.0, 1e20])
def test_the_size_of_codes_changes_no_wave(size):
    found = spectrum(lambda at: size * torch.stack((at.double().cos(), torch.full((len(at),), 0.1)), -1), 64)
    assert found.wavelengths.tolist() == [pytest.approx(2 * math.pi, rel=0.01), math.inf]
    assert (found.waves, found.unfinished) == (1, 1)
