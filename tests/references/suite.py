"""What a test of an encoding of the scores inherits: it gives two fixtures."""

import pytest
import torch

import posenc
from references.calls import BACKENDS, EVERYWHERE, LAYOUTS, check_against, check_gradients, dense, qkv


class BiasSuite:
    """`encoding`: of 3 heads and 2 layers, in float64 with random parameters (`references.calls.random`). `formula`: (positions,
    layer) -> the bias by its oracle, broadcastable to (rows, 3, queries, keys). The suites over all encodings find it by its name."""

    @BACKENDS
    @EVERYWHERE
    def test_attention_is_the_formulas(self, encoding, formula, positions, backend):
        check_against(lambda q, k: formula(positions, 0), encoding, positions, backend)

    def test_each_layer_has_its_parameters(self, encoding, formula):
        positions = LAYOUTS["causal"]
        for layer in range(2):
            want = formula(positions, layer).expand(1, 3, 7, 7)
            torch.testing.assert_close(dense(encoding, positions, 3, layer), want)

    @pytest.mark.parametrize("layout", ["causal", "packed"])
    def test_gradients_are_the_references(self, encoding, layout):
        check_gradients(encoding, LAYOUTS[layout], 3, 3)

    def test_what_does_not_fit_is_named(self, encoding):
        with pytest.raises(posenc.InputError, match=r"2 heads.*num_heads=3"):
            posenc.attention(*qkv(LAYOUTS["causal"], 2, 2), encoding, LAYOUTS["causal"])
        with pytest.raises(posenc.InputError, match="num_layers=2"):
            posenc.attention(*qkv(LAYOUTS["causal"]), encoding, LAYOUTS["causal"], layer=2)
        with pytest.raises(posenc.InputError, match="one coordinate per token"):
            dense(encoding, posenc.Positions.grid(2, 2), 3)
