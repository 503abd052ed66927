"""TISA against the paper's sum of Gaussians, and the suite of biases."""

import pytest

from posenc import TISA
from posenc.testing.oracles import biases
from references.calls import distances, random
from references.suite import BiasSuite


class TestTISA(BiasSuite):
    @pytest.fixture
    def encoding(self):
        return random(TISA(3, num_layers=2, kernels=2))

    @pytest.fixture
    def formula(self, encoding):
        learned = encoding.amplitude, encoding.sharpness, encoding.centre
        return lambda positions, layer: biases.tisa(distances(positions), *(x[layer].detach() for x in learned))
