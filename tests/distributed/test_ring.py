"""Shards under PyTorch's ring attention.

`context_parallel` has no kernel for the CPU. Its ring takes any kernel that returns the log-sum-exp, and the CPU's does:
the test puts the one onto the other, in the place where context_parallel puts its own.
"""

import tempfile

import pytest
import torch
from torch import distributed as dist
from torch.distributed.tensor.experimental import _attention as experimental
from torch.multiprocessing.spawn import spawn
from torch.nn import functional as F
from torch.testing import assert_close

import posenc
from posenc import InputError, Positions
from posenc.distributed import LAYOUTS, gather, shard

FLOAT32 = {"rtol": 1e-5, "atol": 2e-6}
ROVE = posenc.Rotary(8) + posenc.RoVE(8)


@pytest.fixture
def ring(monkeypatch):
    """The name of a function that stands where context_parallel puts its own, and is not called."""
    monkeypatch.setattr(F, "scaled_dot_product_attention", _in_its_place(lambda *args, **options: None))


def _in_its_place(function):
    function.__module__ = experimental.__name__
    return function


def test_what_the_ring_serves(ring):
    q, k, v = torch.randn(3, 1, 4, 8, 8).unbind()
    local_positions = Positions.arange(16, causal=True).shard(1, 2, layout="zigzag")

    def explained(encoding, positions=local_positions, keys=k, **options):
        return posenc.explain(q, keys, keys, encoding, positions, **options)

    for encoding in (None, posenc.Rotary(8), posenc.XPos(8), posenc.Rotary(8) + posenc.LogN(4), ROVE):
        assert explained(encoding).backend == "ring"
    padded = Positions.from_mask([[0] * 3 + [1] * 13], causal=True).shard(1, 2, layout="zigzag")
    centred = posenc.AxialRotary(8, centred=True)
    for reason, explanation in (
        ("no bias", explained(posenc.ALiBi(4))),
        ("no values", explained(posenc.create("floater", dim=32, num_heads=4, head_dim=8))),
        ("no sink", explained(None, sink=0.0)),
        ("no sink", explained(posenc.Rotary(8), sink=0.0)),
        ("no position map", explained(posenc.create("rope@rerope:window=4", head_dim=8))),
        ("no padding", explained(None, padded)),
        ("grouped-query", explained(None, keys=k[:, :2])),
        ("the sequence's length", explained(centred)),
        ("takes layout='zigzag'", explained(None, Positions.arange(16, causal=True).shard(1, 2))),
        ("load balancing requires causal", explained(None, causal=False)),
    ):
        assert reason in explanation.reason
        assert "gathered from 2 processes" in explanation.reason
    with pytest.raises(InputError, match=r"positions without a shard inside torch's context_parallel"):
        posenc.attention(q, k, v, posenc.Rotary(8), Positions.arange(8, causal=True))


def test_outside_the_ring_is_not_active():
    q = torch.randn(1, 4, 8, 8)
    local_positions = Positions.arange(16, causal=True).shard(1, 2, layout="zigzag")
    assert "context_parallel is not active" in posenc.explain(q, q, q, None, local_positions).reason


@pytest.mark.slow
def test_two_processes_under_the_ring():
    with tempfile.TemporaryDirectory() as folder:
        spawn(_process, (folder,), 2)


def _process(rank: int, folder: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    kernel, calls, plain = (
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu,
        [],
        F.scaled_dot_product_attention,
    )

    def attend(q, k, v, *, is_causal, scale, dropout_p):
        calls.append(1)
        return experimental._templated_ring_attention(
            dist.group.WORLD, 2, kernel, q, k, v, is_causal=is_causal, scale=scale, dropout_p=dropout_p
        )[0]

    torch.manual_seed(0)
    full = Positions.arange(16, causal=True)
    q, k, v = torch.randn(3, 2, 4, 16, 8).unbind()
    for layout in LAYOUTS:
        local_positions = full.shard(rank, 2, layout=layout)
        local = [shard(x, local_positions, 2) for x in (q, k, v)]
        experimental._cp_options.enable_load_balance = layout == "zigzag"
        for encoding, rings in (
            (posenc.Rotary(8), True), (posenc.Rotary(8) + posenc.LogN(4), True), (ROVE, True), (posenc.ALiBi(4), False)
        ):  # fmt: skip
            want = posenc.attention(q, k, v, encoding, full)
            calls.clear()
            F.scaled_dot_product_attention = _in_its_place(attend)
            try:
                result = posenc.attention(*local, encoding, local_positions)
            finally:
                F.scaled_dot_product_attention = plain
            assert bool(calls) == rings
            assert_close(gather(result, local_positions, 2), want, **FLOAT32)
            assert_close(posenc.attention(*local, encoding, local_positions), result, **FLOAT32)  # gathered
    dist.destroy_process_group()
