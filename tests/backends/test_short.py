"""What the layers of a pass share, in a call of few tokens or of a decoding step, depends on the arguments alone."""

import copy
import gc
import sys
import weakref

import pytest
import torch
from torch.testing import assert_close

import posenc
from posenc import Positions, attention, explain
from posenc.conformance.fixtures import DECODER, ENCODER, named

N, H = 11, 4
SUMS = ("rope+alibi", "rope+t5", "alibi+t5", "rope+log_n", "rope/rope/none", "t5/rope+alibi", "rope+kerple")
POSITIONS = {
    "causal": lambda: Positions.arange(N, causal=True),
    "all": lambda: Positions.arange(N),
    "left padded": lambda: Positions.from_mask(torch.tensor([[0, 0, 0] + [1] * (N - 3), [1] * N]), causal=True),
    "packed": lambda: Positions.packed([4, 5, 2], causal=True),
    "ragged cache": lambda: Positions.arange(3, torch.tensor([N - 3, 2]), causal=True),
    "step": lambda: Positions.arange(1, N - 1, causal=True),
}


def made(name, layout="causal"):
    encoding = named(name)(ENCODER if layout == "all" else DECODER).double()
    for parameter in encoding.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return encoding


def adds(name):
    """Whether it turns and adds alone, without projections of a model."""
    encoding = made(name)
    shares = type(encoding).share is not posenc.Encoding.share
    return encoding.turns_and_adds and not shares and {"rotate", "bias"} & set(encoding.sites())


ADDING = list(filter(adds, posenc.ENCODINGS))


def inputs(positions):
    keys = (2, DECODER.num_kv_heads if positions.causal else H, positions.num_keys, ENCODER.width)
    shapes = (2, H, positions.num_queries, ENCODER.width), keys, keys
    return [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]


def results(encoding, given, positions, backend):
    learned = [parameter for parameter in encoding.parameters() if parameter.requires_grad]
    outs = [attention(*given, encoding, positions, layer=layer, backend=backend) for layer in range(2)]
    loss = sum((1 + layer) * out.square().sum() for layer, out in enumerate(outs))
    grads = torch.autograd.grad(loss, [*given, *learned], allow_unused=True)
    return [*outs, *(grad for grad in grads if grad is not None)]


@pytest.mark.parametrize("layout", POSITIONS)
@pytest.mark.parametrize("name", [*ADDING, *SUMS])
def test_layers_that_share_are_the_reference(name, layout):
    encoding, positions = made(name, layout), POSITIONS[layout]()
    given = inputs(positions)
    try:
        want = results(encoding, given, positions, "reference")
    except posenc.InputError:
        pytest.skip("refuses these positions")
    for ours, theirs in zip(results(encoding, given, positions, "auto"), want, strict=True):
        assert_close(ours, theirs, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("name", [*ADDING, *SUMS])
def test_a_written_table_or_parameter_is_seen_by_a_step(name):
    encoding, positions = made(name), POSITIONS["step"]()
    q, k, v = inputs(positions)
    with torch.no_grad():
        attention(q, k, v, encoding, positions)
        for numbers in [*encoding.parameters(), *encoding.buffers()]:
            if numbers.is_floating_point():
                numbers.mul_(1.25)
        ours, want = (attention(q, k, v, encoding, p) for p in (positions, POSITIONS["step"]()))
    assert_close(ours, want, rtol=1e-12, atol=1e-12)


def test_a_written_part_of_a_copy_is_its_own():
    encoding, positions = made("rope+alibi"), POSITIONS["causal"]()
    q, k, v = inputs(positions)
    before = attention(q, k, v, encoding, positions)
    other = copy.deepcopy(encoding)
    next(part for part in other if part.known_as == "alibi").slope_table.mul_(3)
    assert not torch.allclose(attention(q, k, v, other, positions), before)
    assert_close(attention(q, k, v, encoding, positions), before)


@pytest.mark.parametrize("layout", ["causal", "step", "left padded", "long"])
@pytest.mark.parametrize(
    "name", ["none", "rope", "alibi", "rope+alibi", "rope+log_n", "rope+sandwich", "rope/rope/none"]
)
def test_the_layers_of_a_pass_repeat_the_plan_of_the_first(name, layout, monkeypatch):
    """Nothing is validated or searched a second time, whatever made the plan: shorter texts, the operator's, a step's."""
    encoding = made(name)
    positions = Positions.arange(300, causal=True) if layout == "long" else POSITIONS[layout]()
    given = [x.float() for x in inputs(positions)]
    outs = [attention(*given, encoding, positions, layer=layer) for layer in range(2)]
    monkeypatch.setattr(sys.modules["posenc.attention"], "prepare", None)
    for layer, out in enumerate(outs):
        assert_close(attention(*given, encoding, positions, layer=layer), out)


@pytest.mark.parametrize("count", [6, 300])
@pytest.mark.parametrize("name", ["alibi", "rope+alibi", "rope"])
def test_positions_that_learn_are_read_in_each_layer(name, count):
    encoding, grads = made(name), []
    at = torch.arange(count, dtype=torch.float64) * 1.5
    given = inputs(Positions.from_ids(at))
    for backend in ("auto", "reference"):
        leaf = at.clone().requires_grad_()
        positions = Positions.from_ids(leaf, causal=True)
        with torch.no_grad():
            attention(*given, encoding, positions, backend=backend)
        outs = [attention(*given, encoding, positions, layer=layer, backend=backend) for layer in range(2)]
        grads += torch.autograd.grad(sum(out.square().sum() for out in outs), [leaf])
    assert_close(*grads, rtol=1e-8, atol=1e-8)
    assert grads[0].abs().max() > 0


def test_plans_of_positions_that_live_long_keep_no_encoding():
    positions = POSITIONS["causal"]()
    for name in ("rope", "rope+alibi", "t5", "rope/none"):
        encoding = made(name)
        attention(*inputs(positions), encoding, positions)
        gone = weakref.ref(encoding)
        del encoding
        gc.collect()
        assert gone() is None, name


def test_explain_says_what_runs():
    positions = Positions.arange(256, causal=True)
    q, k, v = torch.randn(3, 1, 2, 256, 8)
    assert "few queries and keys" in explain(q, k, v, posenc.ALiBi(2), positions).reason
    assert "strided view" in explain(q, k, v, posenc.ALiBi(2), positions, backend="sdpa").reason
    q, k, v = torch.randn(3, 1, 2, 257, 8)
    assert "strided view" in explain(q, k, v, posenc.ALiBi(2), Positions.arange(257, causal=True)).reason
