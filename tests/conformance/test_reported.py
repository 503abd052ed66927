"""Faults that only a cast module, or x in half precision, shows: `conform` names them."""

import pytest
import torch

from posenc.conformance import conform


def inv_freq(width, base):
    return 1.0 / (base ** (torch.arange(width // 2).double() * 2.0 / width))


def halves(x):
    a, b = x.chunk(2, -1)
    return torch.cat((-b, a), -1)


def apply(x, angles):
    """RoPE with angles of every channel's pair, in the half layout."""
    table = torch.cat((angles, angles), -1)
    return (x.double() * table.cos() + halves(x.double()) * table.sin()).to(x.dtype)


def in_the_dtype_of_x(x, positions, base):
    angles = torch.outer(positions.to(x.dtype), inv_freq(x.shape[-1], base).to(x.dtype))
    return apply(x, angles.double())


def angles_in_the_dtype_of_x(x, positions, base):
    angles = torch.outer(positions.float(), inv_freq(x.shape[-1], base).float()).to(x.dtype)
    return apply(x, angles.double())


class Tables(torch.nn.Module):
    """RoPE with its frequencies in a buffer, made once, or anew from plain numbers when it is called."""

    def __init__(self, stored):
        super().__init__()
        self.stored = stored
        for width in range(2, 257, 2):
            self.register_buffer(f"inv_freq_{width}", inv_freq(width, 1e4).float(), persistent=False)

    def forward(self, x, positions, base):
        if base != 10000:
            raise NotImplementedError
        width = x.shape[-1]
        table = getattr(self, f"inv_freq_{width}") if self.stored else inv_freq(width, base)
        return apply(x, positions.double()[:, None] * table.double())

    def turned(self, x, positions, base):
        return self(x, positions, base)


def test_a_module_is_cast_as_those_of_a_model_are():
    for function in (Tables(stored=True), Tables(stored=True).turned):
        findings = conform(function, "rotary").findings
        for dtype in ("bfloat16", "float16"):
            (finding,) = [f for f in findings if f.startswith(f"in a model in {dtype} (the module is cast), ")]
            assert finding.endswith(f": frequencies are stored in {dtype}")
        assert len(findings) == 2, findings
    module = Tables(stored=True)
    conform(module, "rotary")
    assert module.inv_freq_8.dtype == torch.float32, "the module itself is cast"
    assert conform(Tables(stored=False), "rotary").passed


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_roundings_to_the_dtype_of_x_are_named(dtype):
    def finding(function):
        (found,) = [f for f in conform(function, "rotary").findings if f.startswith(f"with x in {dtype}")]
        return found

    every = f"positions are rounded to {dtype}", f"frequencies are stored in {dtype}", f"angles are rounded to {dtype}"
    assert all(words in finding(in_the_dtype_of_x) for words in every)
    assert finding(angles_in_the_dtype_of_x).endswith(f": {every[-1]}")
