"""What must hold for every encoding, in the host model and in float64: one table, generated from the registry."""

import copy
import pickle

import pytest
import torch

import posenc
from posenc import Positions
from posenc.transformer import Cache, Transformer, TransformerConfig

VOCAB, LENGTH = 17, 9
DECODER = TransformerConfig(VOCAB, dim=16, num_layers=2, num_heads=4, num_kv_heads=2)
ENCODER = TransformerConfig(VOCAB, dim=16, num_layers=2, num_heads=4, causal=False)
VARIANTS = ["sinusoidal:merge=concat", "sinusoidal:merge=multiply:layout=concat", "learned:merge=multiply",
            "normalized:length=40", "rope:layout=interleaved:rotary_dim=2", "rope+alibi", "sinusoidal+t5", "rope/none",
            "sinusoidal:merge=product", "hierarchical:alpha=0.7", "multiplicative:plain=true", "axial_table:columns=5",
            "grid_table:width=5", "grid_sinusoidal:axes=3:layout=interleaved:x_first=true", "floater/alibi"]  # fmt: skip
NAMES = [*posenc.ENCODINGS, *VARIANTS]
CONFIGS = pytest.mark.parametrize("config", [DECODER, ENCODER], ids=["decoder", "encoder"])
EVERY = pytest.mark.parametrize("name", NAMES)


def make(name: str, config: TransformerConfig) -> posenc.Encoding:
    torch.manual_seed(0)
    return posenc.create(
        name, dim=16, num_heads=4, num_kv_heads=config.kv_heads, num_layers=2, max_positions=40, causal=config.causal
    )


def host(name: str, config: TransformerConfig, dtype=torch.float64) -> Transformer:
    encoding = make(name, config)
    torch.manual_seed(1)
    model = Transformer(config, encoding)
    for parameter in encoding.parameters():  # zeros and tiny values would hide a term
        torch.nn.init.normal_(parameter, std=0.5)
    return model.to(dtype).eval()


def tokens(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(VOCAB, shape, generator=torch.Generator().manual_seed(seed))


def close(a: torch.Tensor, b: torch.Tensor, atol: float = 1e-10) -> bool:
    return torch.allclose(a, b, atol=atol, rtol=0)


def needs_length(name: str) -> bool:
    return make(name, DECODER).needs_length


def skip_undefined(name: str, config: TransformerConfig) -> None:
    """An encoding for decoders refuses an encoder: that is all there is to test about it."""
    if make(name, DECODER).causal_only and not config.causal:
        with pytest.raises(posenc.InputError, match="causal"):
            host(name, config)(tokens(1, LENGTH))
        pytest.skip("defined for decoders only, and says so")


BLIND = {"place", "scale", "sink"}
"""Sites that alone do not tell one position from another."""


@EVERY
def test_position_matters_unless_there_is_none(name):
    skip_undefined(name, ENCODER)
    model, x = host(name, ENCODER), tokens(1, LENGTH)
    order = torch.randperm(LENGTH, generator=torch.Generator().manual_seed(3))
    moved, stayed = model(x[:, order]), model(x)[:, order]
    assert close(moved, stayed) == (set(model.encoding.sites()) <= BLIND)


@CONFIGS
@EVERY
def test_backends_agree(name, config):
    skip_undefined(name, config)
    encoding = host(name, config).encoding
    g = torch.Generator().manual_seed(0)
    q, k, v = (
        torch.randn(2, heads, LENGTH, 4, dtype=torch.float64, generator=g)
        for heads in (4, config.kv_heads, config.kv_heads)
    )
    for p in (
        Positions.arange(LENGTH),
        Positions.packed([4, 5]),
        Positions.from_mask(torch.tensor([[0] * 3 + [1] * 6])),
    ):
        args = (q, k, v, encoding, p.with_causal(config.causal))
        assert close(posenc.attention(*args, backend="sdpa"), posenc.attention(*args, backend="reference"), 1e-12)


@EVERY
def test_decoding_with_a_cache_is_the_full_pass(name):
    model, x = host(name, DECODER), tokens(2, LENGTH)
    cache = Cache()
    if model.encoding.needs_length:
        model(x[:, :4], cache=cache)
        with pytest.raises(posenc.InputError, match="whole sequence"):
            model(x[:, 4:5], cache=cache)
        return
    parts = [model(x[:, :4], cache=cache), model(x[:, 4:7], cache=cache)]
    parts += [model(x[:, i : i + 1], cache=cache) for i in (7, 8)]
    assert len(cache) == LENGTH
    assert close(torch.cat(parts, 1), model(x))


@CONFIGS
@pytest.mark.parametrize("side", ["left", "right"])
@EVERY
def test_padding_changes_nothing(name, side, config):
    skip_undefined(name, config)
    model, x = host(name, config), tokens(2, LENGTH)
    x[1] = tokens(LENGTH, seed=1)
    real = [LENGTH, 6]
    mask = torch.zeros(2, LENGTH, dtype=torch.long)
    for row, n in enumerate(real):
        mask[row, slice(LENGTH - n, None) if side == "left" else slice(0, n)] = 1
    together = model(x, Positions.from_mask(mask))
    for row in range(2):
        inside = mask[row].bool()
        assert close(together[row, inside], model(x[row, inside][None])[0])


@CONFIGS
@EVERY
def test_packed_documents_are_as_if_alone(name, config):
    skip_undefined(name, config)
    model, x = host(name, config), tokens(1, LENGTH)
    packed = model(x, Positions.packed([2, 4, 3]))
    alone = torch.cat([model(part) for part in x.split([2, 4, 3], dim=1)], 1)
    assert close(packed, alone)


@CONFIGS
@EVERY
def test_rows_of_a_batch_do_not_meet(name, config):
    skip_undefined(name, config)
    model, x = host(name, config), tokens(3, LENGTH)
    ids = torch.stack([torch.arange(LENGTH), torch.arange(LENGTH) + 5, torch.arange(LENGTH) * 2])
    order = torch.tensor([2, 0, 1])
    whole = model(x, Positions.from_ids(ids))
    assert close(model(x[order], Positions.from_ids(ids[order])), whole[order])


@EVERY
def test_shift_invariant_where_it_says_so(name):
    model, x = host(name, DECODER), tokens(1, LENGTH)
    if model.encoding.needs_length:
        assert not model.encoding.shift_invariant
        return
    here = model(x, Positions.from_ids(torch.arange(LENGTH)))
    there = model(x, Positions.from_ids(torch.arange(LENGTH) + 11))
    assert close(here, there) == model.encoding.shift_invariant


@EVERY
def test_gradients_reach_every_parameter(name):
    model, x = host(name, DECODER), tokens(2, LENGTH)
    model(x).square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() and p.grad.any() for p in model.parameters())


@EVERY
def test_gradients_are_right(name):
    config = TransformerConfig(5, dim=8, num_layers=1, num_heads=2)
    encoding = posenc.create(name, dim=8, num_heads=2, num_layers=1, max_positions=6, causal=True)
    model = Transformer(config, encoding).double()
    parameters = tuple(model.encoding.parameters()) or (model.blocks[0].attention.query.weight,)
    x = tokens(1, 4) % 5
    assert torch.autograd.gradcheck(lambda *_: model(x).logsumexp(-1).sum(), parameters, fast_mode=True)


@EVERY
def test_the_same_positions_serve_inference_and_then_training(name):
    model, x, p = host(name, DECODER), tokens(2, LENGTH), Positions.arange(LENGTH)
    with torch.inference_mode():
        before = model(x, p)
    for _ in range(2):
        after = model(x, p)
        after.sum().backward()
    assert close(before.clone(), after)


@EVERY
def test_copies_are_the_same(name):
    encoding = host(name, DECODER).encoding
    for other in (copy.deepcopy(encoding), pickle.loads(pickle.dumps(encoding))):
        assert other.spec() == encoding.spec()
        assert all(torch.equal(a, b) for a, b in zip(other.buffers(), encoding.buffers(), strict=True))
        assert all(torch.equal(a, b) for a, b in zip(other.parameters(), encoding.parameters(), strict=True))


@EVERY
def test_state_and_spec_bring_the_model_back(name):
    model, x = host(name, DECODER), tokens(1, LENGTH)
    again = Transformer(DECODER, posenc.from_spec(model.encoding.spec())).double()
    again.load_state_dict(model.state_dict())
    assert torch.equal(again(x), model(x))


@pytest.mark.parametrize("assign", [False, True], ids=["to_empty", "assigned"])
@EVERY
def test_meta_initialised_is_the_same_model(name, assign):
    model, x = host(name, DECODER), tokens(1, LENGTH)
    with torch.device("meta"):
        filled = Transformer(DECODER, make(name, DECODER))
    if not assign:
        filled = filled.to_empty(device="cpu").double()
    filled.load_state_dict(model.state_dict(), assign=assign)
    assert torch.equal(filled.eval()(x), model(x))


@pytest.mark.parametrize("name", [n for n in NAMES if not needs_length(n)])
def test_rows_of_different_lengths_share_a_cache(name):
    model, x = host(name, DECODER), tokens(2, LENGTH)
    lengths, cache = torch.tensor([5, 3]), Cache()
    mask = (torch.arange(5) < lengths[:, None]).long()
    model(x[:, :5], Positions.from_mask(mask), cache)
    new = torch.stack([x[0, 5:7], x[1, 3:5]])
    steps = [model(new[:, i : i + 1], Positions.arange(1, lengths + i), cache) for i in range(2)]
    for row, n in enumerate(lengths.tolist()):
        alone = model(x[row : row + 1, : n + 2])[0, n:]
        assert close(torch.cat(steps, 1)[row], alone)


@EVERY
def test_bfloat16_stays_near(name):
    exact = host(name, DECODER)
    half = host(name, DECODER, torch.bfloat16)
    x = tokens(2, LENGTH)
    assert (half(x).double() - exact(x)).abs().max() < 0.35


@pytest.mark.slow
@EVERY
def test_compiled_is_eager(name):
    torch._dynamo.reset()
    model = host(name, DECODER)
    compiled = torch.compile(model, backend="aot_eager", dynamic=True, fullgraph=True)
    for n in (LENGTH, LENGTH + 4):
        x = tokens(2, n)
        assert close(compiled(x), model(x))


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in NAMES if not needs_length(n)])  # its lengths depend on the data
def test_exported_for_any_length(name):
    model = host(name, DECODER)
    length = torch.export.Dim("length", min=2, max=40)
    exported = torch.export.export(model, (tokens(2, LENGTH),), dynamic_shapes=({1: length},)).module()
    x = tokens(2, LENGTH + 6)
    assert close(exported(x), model(x))


@pytest.mark.parametrize("name", [n for n in NAMES if not needs_length(n)])
def test_generation_is_the_same_alone_and_left_padded(name):
    model = host(name, DECODER)
    short, long = tokens(1, 4), tokens(1, 6, seed=5)
    alone = [model.generate(x, 5)[0] for x in (short, long)]
    batch = torch.cat((torch.cat((torch.zeros(1, 2, dtype=torch.long), short), 1), long))
    mask = torch.tensor([[0, 0, 1, 1, 1, 1], [1] * 6])
    together = model.generate(batch, 5, mask)
    assert torch.equal(together[0, 2:], alone[0])
    assert torch.equal(together[1], alone[1])
