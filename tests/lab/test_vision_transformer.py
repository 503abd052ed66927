"""The image host: patches, prefix tokens, selected patches, packed images, other resolutions, under every encoding."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import posenc
from posenc import Encoding, InputError, NoPE, Positions, VisionConfig, VisionTransformer
from posenc.lab.transformer import Transformer, TransformerConfig
from references.calls import EXACT, start_alike

CONFIG = {"num_classes": 5, "patch_size": 2, "dim": 24, "num_layers": 2, "num_heads": 2}
NAMES = [
    "none", "grid_table", "grid_sinusoidal", "axial_rope", "axial_rope:centred=true", "mixed_rope", "m_rope", "swin",
    "beit", "swin_v2", "grid_alibi", "axial_rope/none",
]  # fmt: skip
EVERY = pytest.mark.parametrize("name", NAMES)


def made(name: str, grid: tuple[int, ...] = (3, 4), **options) -> VisionTransformer:
    config = VisionConfig(**CONFIG | options)
    torch.manual_seed(0)
    encoding = posenc.create(
        name, dim=config.dim, num_heads=config.num_heads, head_dim=config.width, num_layers=config.num_layers, grid=grid
    )
    for parameter in encoding.parameters():
        nn.init.normal_(parameter, std=0.5)
    return VisionTransformer(config, encoding).double().eval()


def pictures(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


# ---------------------------------------------------------------- patches and tokens


@pytest.mark.parametrize("tubelet_size", [None, 2])
def test_patches_are_those_of_a_convolution(tubelet_size):
    model = made("none", tubelet_size=tubelet_size)
    nn.init.normal_(model.embedding.bias)
    sides = model.config.patch_shape
    convolution = (nn.Conv2d if tubelet_size is None else nn.Conv3d)(3, 24, sides, sides).double()
    convolution.weight.data = model.embedding.weight.view(24, 3, *sides)
    convolution.bias.data = model.embedding.bias
    images = pictures(2, 3, *(() if tubelet_size is None else (6,)), 4, 8)
    assert_close(model.patches(images), convolution(images).flatten(2).mT, **EXACT)
    assert model.grid(images) == ((2, 4) if tubelet_size is None else (2, 4, 3))


def test_tokens_begin_with_the_class_and_the_registers():
    model, images = made("axial_rope", class_token=True, registers=2), pictures(2, 3, 4, 6)
    tokens = model.tokens(images)
    assert tokens.shape == (2, 3 + 6, 24)
    assert torch.equal(tokens[:, :3], model.prefix.expand(2, -1, -1))
    assert torch.equal(tokens[:, 3:], model.patches(images))
    read = model.read(tokens, Positions.grid(2, 3, prefix=3))
    assert_close(model(images), model.head(read[:, 0]), **EXACT)


def test_padding_is_not_averaged():
    model, (image, other) = made("swin_v2"), pictures(2, 3, 4, 6)
    short = model.tokens(image[None, :, :2])
    rows = torch.cat((torch.cat((short, torch.full_like(short, 9.0)), 1), model.tokens(other[None])))
    padded = Positions.grids([(1, 3), (2, 3)], padded=True)
    together = model.head(model.pooled(model.read(rows, padded), padded.q_valid))
    assert_close(together, torch.cat((model(image[None, :, :2]), model(other[None]))), **EXACT)


# ---------------------------------------------------------------- positions


@EVERY
def test_an_image_is_on_its_own_grid(name):
    model, images = made(name), pictures(2, 3, 4, 6)
    assert_close(model(images, Positions.grid(2, 3)), model(images), **EXACT)
    turned = model(images, Positions.grid(3, 2))
    assert torch.allclose(turned, model(images)) == (name == "none")


@EVERY
def test_patches_move_with_their_positions(name):
    model, images = made(name), pictures(2, 3, 4, 6)
    order = torch.stack([torch.randperm(6, generator=torch.Generator().manual_seed(n)) for n in (1, 2)])
    assert_close(model(images, keep=order), model(images), **EXACT)
    shuffled = images.roll(2, 3)  # each row of patches by one
    assert torch.allclose(model(shuffled), model(images)) == (name == "none")


@EVERY
def test_unselected_patches_have_no_influence(name):
    model, images = made(name), pictures(2, 3, 4, 6)
    selected, other = torch.tensor([[4, 0, 3], [1, 2, 5]]), images.clone()
    other[0, :, :2, 2:] = 7.0  # patches 1 and 2
    other[1, :, 2:, :4] = 7.0  # patches 3 and 4
    assert_close(model(other, keep=selected), model(images, keep=selected), **EXACT)
    assert_close(model(images[:1], keep=selected[0]), model(images, keep=selected)[:1], **EXACT)
    assert not torch.allclose(model(images, keep=selected), model(images))


@EVERY
@pytest.mark.parametrize("options", [{}, {"class_token": True, "registers": 1}], ids=["mean", "class"])
def test_packed_images_are_as_if_alone(name, options):
    model = made(name, **options)
    images = [pictures(3, 2 * height, 2 * width, seed=height) for height, width in ((3, 4), (1, 1), (2, 5))]
    if options and name.startswith("swin"):
        with pytest.raises(InputError, match=r"no bias for tokens such as \[CLS\]"):
            model(images)
        return
    alone = torch.cat([model(image[None]) for image in images])
    assert_close(model(images), alone, **EXACT)
    assert_close(model(images[2:]), alone[2:], **EXACT)


# ---------------------------------------------------------------- the host itself


def test_the_host_starts_the_same_under_every_encoding_and_queries_make_up_for_scale():
    models = {}
    for name in NAMES:
        config = VisionConfig(**CONFIG, class_token=True, registers=1)
        encoding = posenc.create(name, dim=24, num_heads=2, num_layers=2, grid=(3, 4))
        torch.manual_seed(0)
        models[name] = VisionTransformer(config, encoding)
    start_alike(models, unscaled=("swin_v2",))


def test_blocks_are_those_of_the_text_host():
    torch.manual_seed(0)
    text = Transformer(TransformerConfig(11, dim=24, num_layers=2, num_heads=2, causal=False), NoPE()).double()
    model = made("none")
    model.blocks.load_state_dict(text.blocks.state_dict())
    model.norm.load_state_dict(text.norm.state_dict())
    x, line = torch.randn(2, 6, 24, dtype=torch.float64), Positions.arange(6)
    assert torch.equal(model.read(x, line), text.read(x, line))


@EVERY
def test_every_parameter_is_trained(name):
    options = {} if name.startswith("swin") else {"registers": 1}
    model = made(name, **options)
    model(pictures(2, 3, 8, 6)).square().sum().backward()
    for key, parameter in model.named_parameters():
        if parameter.numel():
            assert parameter.grad is not None, key
            assert parameter.grad.any(), key


@pytest.mark.parametrize(
    "name", ["grid_table", "mixed_rope", "axial_rope:centred=true", "beit", "swin_v2", "grid_alibi"]
)
def test_compiled_is_eager(name):
    torch._dynamo.reset()
    model, images, keep = made(name), pictures(2, 3, 4, 10), torch.tensor([3, 1])
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True, dynamic=False)
    assert_close(compiled(images), model(images), **EXACT)
    assert_close(compiled(images, keep=keep), model(images, keep=keep), **EXACT)
    assert_close(compiled([images[0], images[1, :, :, :4]]), model([images[0], images[1, :, :, :4]]), **EXACT)


def call_with(*shape: int, encoding: Encoding | None = None, keep=None, positions=None, **options):
    model = VisionTransformer(VisionConfig(**CONFIG | options), encoding or NoPE())
    return lambda: model(torch.zeros(*shape), positions, None if keep is None else torch.tensor(keep))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: VisionConfig(5, patch_size=2, dim=10, num_heads=4), r"dim=10: must be a multiple of num_heads=4"),
        (call_with(2, 3, 4), r"images=.*pass \(batch, channels, height, width\)"),
        (call_with(2, 1, 4, 4), r"channels=3"),
        (call_with(2, 3, 4, 5), r"multiple of patch_size=2"),
        (call_with(2, 3, 3, 4, 4, tubelet_size=2), r"the frames of tubelet_size=2"),
        (call_with(2, 3, 4, 4, tubelet_size=2), r"pass \(batch, channels, frames, height, width\)"),
        (call_with(2, 3, 0, 4), r"pass at least one image of at least one patch"),
        (call_with(0, 3, 4, 4), r"pass at least one image of at least one patch"),
        (call_with(2, 3, 4, 4, positions=Positions.grid(2, 3)), r"positions of 6 queries and 6 keys for 4 tokens"),
        (call_with(2, 3, 4, 4, registers=1, positions=Positions.grid(2, 2)), r"4 keys for 5 tokens, 1 of them before"),
        (call_with(2, 3, 4, 4, positions=Positions.grid(2, 4).shard(0, 2)), r"no shard"),
        (call_with(2, 3, 4, 4, keep=[4]), r"keep from 4 to 4: must lie between 0 and 3"),
        (call_with(2, 3, 4, 4, keep=[[0], [1], [2]]), r"keep=.*for the 2 rows"),
        (
            call_with(2, 3, 4, 4, encoding=posenc.WindowTable(2), class_token=True),
            r"no bias for tokens such as \[CLS\]",
        ),
        (lambda: made("none")([]), r"at least one image"),
        (lambda: made("none")([torch.zeros(3, 4, 4)] * 2, keep=torch.tensor([0])), r"keep= with a batch"),
        (lambda: made("none")([torch.zeros(4, 4)]), r"pass \(batch, channels"),
        (lambda: made("none")(torch.zeros(1, 3, 4, 4, dtype=torch.uint8)), r"floating point"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(InputError, match=message):
        call()
