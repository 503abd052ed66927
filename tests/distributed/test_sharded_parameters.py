"""Parameters that FSDP divides, DTensors, tensor parallelism in processes, and docs/distributed.md as it is printed."""

import copy
import os
import re
import socket
from pathlib import Path

import pytest
import torch
from torch import distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Shard, distribute_tensor
from torch.multiprocessing.spawn import spawn

import posenc
from posenc import InputError, Positions, attention, linear_attention
from posenc.conformance.fixtures import DECODER, EncodingUnderTest, named
from posenc.distributed import shard
from posenc.encoding import gates_of

PAGE = Path(__file__).parents[2] / "docs" / "distributed.md"
SHARDED = ["t5", "learned", "shaw", "deberta_v2", "fire", "transformer_xl", "fox", "mixed_rope", "alibi"]


@pytest.fixture
def mesh():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


class Layer(nn.Module):
    """Attention with one projection for queries, keys and values."""

    def __init__(self, encoding):
        super().__init__()
        self.encoding, self.qkv = encoding, nn.Linear(16, 3 * 16)

    def forward(self, x):
        positions = Positions.arange(x.shape[1], causal=True)
        width = DECODER.width
        self.encoding.share([(nn.Linear(16, 16), nn.Linear(16, 16))] * 2)
        x = self.encoding.embed(x, positions)
        q, k, v = self.qkv(x).unflatten(-1, (3, -1, width)).permute(2, 0, 3, 1, 4)
        keys = slice(None, None, 2) if self.encoding.known_as in ("fox", "mixed_rope") else slice(None)
        return attention(q, k[:, keys], v[:, keys], self.encoding, positions, gates=gates_of(self.encoding, x) or None)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", posenc.ENCODINGS)
def test_blocks_are_sharded_with_the_encoding_that_they_are_given(mesh, name, dtype):
    """A policy casts what goes into a block: the pass of the model, with its positions, is left as it is."""
    model = posenc.Transformer(
        posenc.TransformerConfig(17, dim=16, num_layers=2, num_heads=4, num_kv_heads=2), named(name)(DECODER)
    )
    alone, tokens, spec = copy.deepcopy(model).to(dtype), torch.randint(17, (2, 9)), model.encoding.spec()
    for part in (*model.blocks, model):
        fully_shard(part, mesh=mesh, mp_policy=MixedPrecisionPolicy(param_dtype=dtype))
    for each in (alone, model):
        torch.manual_seed(1)
        each.logits = each(tokens).float()
        each.logits.square().mean().backward()
    near = {"rtol": 0.05, "atol": 0.02} if dtype == torch.bfloat16 else {}
    torch.testing.assert_close(model.logits, alone.logits, **near)
    for ours, theirs in zip(model.parameters(), alone.parameters(), strict=True):
        grad, want = (torch.zeros(p.shape) if p.grad is None else p.grad.float() for p in (ours, theirs))
        torch.testing.assert_close(grad if ours.grad is None else grad.full_tensor(), want, **near)
    assert model.encoding.spec() == spec


@pytest.mark.parametrize("name", SHARDED)
def test_an_encoding_that_is_sharded_alone_says_so(mesh, name):
    layer = Layer(named(name)(DECODER))
    spec = layer.encoding.spec()
    fully_shard(layer.encoding, mesh=mesh)
    assert type(layer.encoding).__name__.startswith("FSDP")
    assert layer.encoding.spec() == spec
    assert type(posenc.from_spec(layer.encoding.spec())) is posenc.ENCODINGS[name]
    if not list(layer.encoding.parameters()):
        return
    x, q = torch.randn(2, 7, 16), torch.randn(2, 4, 7, 4)
    calls = [lambda: attention(q, q, q, layer.encoding, causal=True)]
    if "gates" in layer.encoding.sites():
        calls = [lambda: gates_of(layer.encoding, x)]
    if "embed" in layer.encoding.sites():
        calls = [lambda: layer.encoding.effects(Positions.arange(7)).embedded(x)]
    for call in calls:
        with pytest.raises(
            InputError, match=rf"^{name}: its parameters are sharded here, .* as in fully_shard\(layer\), whose"
        ):
            call()


@pytest.mark.parametrize("name", ["t5", "fope", "transformer_xl", "learned"])
def test_fsdps_recipe_from_meta(mesh, name):
    torch.manual_seed(5)
    fresh = named(name)(DECODER).state_dict()
    with torch.device("meta"):
        encoding = EncodingUnderTest(named(name)).make(DECODER)
    fully_shard(encoding, mesh=mesh)
    encoding.to_empty(device="cpu")
    torch.manual_seed(5)
    encoding.reset_parameters()
    for key, x in encoding.state_dict().items():
        full = x.full_tensor() if hasattr(x, "full_tensor") else x
        torch.testing.assert_close(full, fresh[key], rtol=0, atol=0)


@pytest.mark.parametrize("encoding", [None, posenc.ALiBi(4), posenc.T5(4), posenc.Rotary(4)])
def test_dtensors_are_refused_in_a_sentence(mesh, encoding):
    q = distribute_tensor(torch.randn(2, 4, 7, 4), mesh, [Shard(1)])
    for call in (attention, posenc.explain, linear_attention):
        with pytest.raises(
            InputError, match=r"^q is a DTensor: pass this process's part, q\.to_local\(\), .*encoding\.heads\(slice"
        ):
            call(q, q, q, encoding, causal=True)
    for name in ("rotate_queries", "rotate_keys"):
        with pytest.raises(InputError, match=rf"^{name[7]} is a DTensor"):
            getattr(posenc.Rotary(4), name)(q, Positions.arange(7))
    x = distribute_tensor(torch.randn(2, 7, 16), mesh, [Shard(0)])
    for name in ("learned", "sinusoidal", "multiplicative"):
        with pytest.raises(InputError, match=r"^x is a DTensor"):
            named(name)(DECODER).embed(x, Positions.arange(7))
    with pytest.raises(InputError, match=r"^x is a DTensor"):
        gates_of(named("fox")(DECODER), x)


# -------------------------------------------------------------------- processes


def in_processes(act, *given, world_size=2):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    spawn(_process, (world_size, port, act, given), world_size)


def _process(rank, world_size, port, act, given):
    torch.set_num_threads(1)
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(rank), "WORLD_SIZE": str(world_size)}
    os.environ.update(address)
    act(rank, world_size, *given)
    if dist.is_initialized():
        dist.barrier()  # one that ends while another still connects fails it
        dist.destroy_process_group()


def as_printed(rank, world_size, code):
    torch.manual_seed(0)
    model = posenc.Transformer(posenc.TransformerConfig(17, dim=16, num_layers=2, num_heads=4), "rope+t5").double()
    tokens = torch.randint(17, (2, 16))
    names = {"model": model, "tokens": tokens}
    exec(code.replace("init_process_group()", 'init_process_group("gloo")'), names)
    want = model(tokens)
    torch.testing.assert_close(names["logits"], shard(want, names["local"]), rtol=0, atol=1e-11)


def printed(words):
    """The page's block of code that has these words."""
    blocks = re.findall(r"```py\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    return next(block for block in blocks if words in block)


def trained(rank, world_size, name, how):
    """Gradients of a layer whose encoding comes from outside, on each process's rows, are those of one process on all rows."""
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    layer, x = Layer(named(name)(DECODER)), torch.randn(2 * world_size, 7, 16)
    alone = copy.deepcopy(layer)
    alone(x).square().mean().backward()
    want = {key: p.grad for key, p in alone.named_parameters()}
    if how == "DDP":
        model = nn.parallel.DistributedDataParallel(layer, find_unused_parameters=True)
    else:
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16 if "bfloat16" in how else None)
        model = fully_shard(layer, mesh=init_device_mesh("cpu", (world_size,)), mp_policy=policy)
    model(x.chunk(world_size)[rank]).float().square().mean().backward()
    near = {"rtol": 0.1, "atol": 0.02} if "bfloat16" in how else {"rtol": 1e-4, "atol": 1e-6}
    for key, p in layer.named_parameters():
        if want[key] is not None and p.grad is not None:
            grad = p.grad.full_tensor() if hasattr(p.grad, "full_tensor") else p.grad
            torch.testing.assert_close(grad, want[key], **near)
        assert (p.grad is None) == (want[key] is None) or want[key] is None


@pytest.mark.parametrize("how", ["DDP", "FSDP2", "FSDP2, bfloat16"])
@pytest.mark.parametrize("name", ["t5", "learned", "fire", "alibi", "mixed_rope"])
def test_two_processes_train_an_encoding_as_one_does(name, how):
    in_processes(trained, name, how)


def test_the_page_runs_as_it_is_printed():
    in_processes(as_printed, printed("full.shard"))


def heads_as_printed(rank, world_size, code):
    dist.init_process_group("gloo")
    names = {"posenc": posenc, "torch": torch, "dist": dist, "Positions": Positions}
    exec(code, names)
    torch.testing.assert_close(names["encoding"].slope_table, posenc.ALiBi(32).slope_table.chunk(world_size)[rank])
    assert names["out"].shape == (2, 32 // world_size, 7, 16)


def test_the_pages_part_of_the_heads_runs_as_it_is_printed():
    in_processes(heads_as_printed, printed(".heads("))
