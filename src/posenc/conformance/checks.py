# SPDX-License-Identifier: Apache-2.0
"""The checks that every encoding has to pass: each makes a small model around it and compares two ways of asking the
same thing, in float64."""

import copy
import pickle
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cached_property

import torch
from torch import Tensor

from posenc.attention import attention
from posenc.backends import BACKENDS
from posenc.blocks import Cache
from posenc.composites import PerLayer
from posenc.encoding import Encoding
from posenc.encodings import from_spec
from posenc.errors import InputError
from posenc.positions import Positions
from posenc.transformer import Transformer, TransformerConfig

VOCAB, LENGTH = 17, 9
DECODER = TransformerConfig(VOCAB, dim=16, num_layers=2, num_heads=4, num_kv_heads=2)
ENCODER = TransformerConfig(VOCAB, dim=16, num_layers=2, num_heads=4, causal=False)
BFLOAT16_BOUND, LATE_BOUND = 0.25, 0.06
"""Largest differences of a logit, see `bfloat16_stays_near`."""

LATE = 5000
"""A position at which bfloat16 is 32 apart from its neighbour."""

Make = Callable[[TransformerConfig], Encoding]


class Inapplicable(Exception):
    """The check asks for something the encoding says it cannot do, and it does refuse it."""


class Fails(AssertionError):
    """What the check asks for does not hold."""


class Subject:
    """An encoding under test, and the small models around it. make: a model's config -> the encoding for it."""

    def __init__(self, make: Make) -> None:
        self._make = make

    def encoding(self, config: TransformerConfig) -> Encoding:
        torch.manual_seed(0)
        made = self._make(config)
        if not isinstance(made, Encoding):
            raise InputError(
                f"make gave {made!r}: pass a function from a model's config to an encoding, as in "
                "check(lambda config: posenc.Rotary(config.width))"
            )
        return made

    def host(
        self, config: TransformerConfig, dtype: torch.dtype = torch.float64, *, redraw: bool = True
    ) -> Transformer:
        """A model in eval mode. redraw: parameters of the encoding are drawn afresh, since zeros and tiny ones would
        hide a term; else they are what they start as."""
        encoding = self.encoding(config)
        torch.manual_seed(1)
        model = Transformer(config, encoding)
        for parameter in encoding.parameters() if redraw else ():
            torch.nn.init.normal_(parameter, std=0.5)
        return model.to(dtype).eval()

    @cached_property
    def traits(self) -> Encoding:
        return self.encoding(DECODER)

    @property
    def shallow(self) -> TransformerConfig:
        """The smallest decoder in which all of the encoding acts, for checks that take long."""
        return DECODER if isinstance(self.traits, PerLayer) else replace(DECODER, num_layers=1)

    def shift(self, wanted: int) -> int:
        """How far positions can be moved, at most as wanted, within the encoding's table."""
        limit = self.traits.max_positions
        return wanted if limit is None else max(0, min(wanted, limit - 2 * LENGTH))

    def configs(self) -> Iterator[TransformerConfig]:
        """The models that the encoding is for; one for decoders only has to refuse an encoder."""
        yield DECODER
        if not self.traits.causal_only:
            yield ENCODER
            return
        try:
            self.host(ENCODER)(tokens(1, LENGTH))
        except InputError:
            return
        raise Fails("causal_only is declared, but an encoder is not refused")

    def require_cache(self) -> None:
        """Stop a check that decodes with a cache, where codes depend on the final length and caches are refused."""
        if not self.traits.needs_length:
            return
        model, cache = self.host(DECODER), Cache()
        model(tokens(1, 4), cache=cache)
        try:
            model(tokens(1, 1), cache=cache)
        except InputError:
            raise Inapplicable("its codes depend on the final length") from None
        raise Fails("needs_length is declared, but a cache is not refused")


def tokens(*shape: int, seed: int = 0) -> Tensor:
    return torch.randint(VOCAB, shape, generator=torch.Generator().manual_seed(seed))


def equal(a: Tensor, b: Tensor, what: str, atol: float = 1e-10) -> None:
    """Raise Fails unless two tensors agree."""
    difference = float((a - b).detach().abs().max()) if a.shape == b.shape else float("nan")
    if not difference <= atol:
        raise Fails(f"{what}: largest difference {difference:.3g}, allowed {atol:g}")


# -------------------------------------------------------------------- the checks


def position_matters(s: Subject) -> None:
    """An encoder tells one order of the tokens from another if and only if `sees_order` says so; a decoder always does."""
    config = DECODER if s.traits.causal_only else ENCODER
    model, x = s.host(config), tokens(1, LENGTH)
    order = torch.randperm(LENGTH - 1, generator=torch.Generator().manual_seed(3))
    order = torch.cat((order, torch.tensor([LENGTH - 1])))
    moved, stayed = model(x[:, order])[:, -1], model(x)[:, -1]
    blind = not model.encoding.sees_order and not config.causal
    if bool((moved - stayed).abs().max() < 1e-10) != blind:
        raise Fails("the order of the tokens is seen" if blind else "the order of the tokens is not seen")


def backends_agree(s: Subject) -> None:
    """Every backend that serves the encoding computes the reference's attention: plain, packed and padded."""
    for config in s.configs():
        model = s.host(config)
        model(tokens(1, LENGTH))  # which shares its projections
        encoding = model.encoding
        g = torch.Generator().manual_seed(0)
        heads = (config.num_heads, config.kv_heads, config.kv_heads)
        q, k, v = (torch.randn(2, h, LENGTH, config.width, dtype=torch.float64, generator=g) for h in heads)
        mask = torch.tensor([[0] * 3 + [1] * 6])
        for p in (Positions.arange(LENGTH), Positions.packed([4, 5]), Positions.from_mask(mask)):
            p = p.with_causal(config.causal)
            wanted = attention(q, k, v, encoding, p, backend="reference")
            for name in ("auto", *BACKENDS):
                try:
                    found = attention(q, k, v, encoding, p, backend=name)
                except InputError as refusal:
                    if name == "auto":
                        raise Fails(f"backend auto refuses: {refusal}") from None
                    continue
                equal(found, wanted, f"backend {name}", 1e-12)


def cached_is_full(s: Subject) -> None:
    """Decoding with a cache, in pieces of any size, gives the logits of the full pass."""
    s.require_cache()
    model, x, cache = s.host(DECODER), tokens(2, LENGTH), Cache()
    parts = [model(x[:, :4], cache=cache), model(x[:, 4:7], cache=cache)]
    parts += [model(x[:, i : i + 1], cache=cache) for i in (7, 8)]
    equal(torch.cat(parts, 1), model(x), "cached decoding")


def ragged_cache(s: Subject) -> None:
    """Rows of different lengths share a cache, and each decodes as if alone."""
    s.require_cache()
    model, x = s.host(DECODER), tokens(2, LENGTH)
    lengths, cache = torch.tensor([5, 3]), Cache()
    mask = (torch.arange(5) < lengths[:, None]).long()
    model(x[:, :5], Positions.from_mask(mask), cache)
    new = torch.stack([x[0, 5:7], x[1, 3:5]])
    steps = [model(new[:, i : i + 1], Positions.arange(1, lengths + i), cache) for i in range(2)]
    for row, n in enumerate(lengths.tolist()):
        equal(torch.cat(steps, 1)[row], model(x[row : row + 1, : n + 2])[0, n:], f"row {row} of a ragged cache")


def generates_alike(s: Subject) -> None:
    """Greedy generation is the same alone and in a left-padded batch."""
    s.require_cache()
    model = s.host(DECODER)
    short, long = tokens(1, 4), tokens(1, 6, seed=5)
    batch = torch.cat((torch.cat((torch.zeros(1, 2, dtype=torch.long), short), 1), long))
    together = model.generate(batch, 5, torch.tensor([[0, 0, 1, 1, 1, 1], [1] * 6]))
    for row, (alone, skip) in enumerate(((short, 2), (long, 0))):
        if not torch.equal(together[row, skip:], model.generate(alone, 5)[0]):
            raise Fails(f"row {row} continues otherwise than alone")


def padded_is_unpadded(s: Subject) -> None:
    """Left and right padding change nothing."""
    for config in s.configs():
        model, x = s.host(config), tokens(2, LENGTH)
        for side in ("left", "right"):
            mask = torch.ones(2, LENGTH, dtype=torch.long)
            mask[1, slice(0, 3) if side == "left" else slice(6, None)] = 0
            together = model(x, Positions.from_mask(mask))
            for row in range(2):
                inside = mask[row].bool()
                equal(together[row, inside], model(x[row, inside][None])[0], f"{side} padding")


def packed_is_separate(s: Subject) -> None:
    """Documents packed into one sequence are as if alone."""
    for config in s.configs():
        model, x = s.host(config), tokens(1, LENGTH)
        alone = torch.cat([model(part) for part in x.split([2, 4, 3], dim=1)], 1)
        equal(model(x, Positions.packed([2, 4, 3])), alone, "packing")


def images_are_separate(s: Subject) -> None:
    """Images packed into one sequence, or padded to rows of one length, are as if alone, and patches taken out of an image
    as if the others were hidden."""
    config = DECODER if s.traits.causal_only else ENCODER
    model, sizes = s.host(config), [(2, 3), (1, 3)]
    one, two = tokens(1, 6), tokens(1, 3, seed=5)
    try:
        alone = [model(x, Positions.grid(*size)) for x, size in zip((one, two), sizes, strict=True)]
    except InputError as refusal:
        raise Inapplicable(f"it has no places in an image: {refusal}") from None
    except Exception as error:  # one of text need not know of images, not even to refuse them
        raise Inapplicable(f"it has no places in an image, where it ends in {type(error).__name__}") from None
    equal(model(torch.cat((one, two), 1), Positions.grids(sizes)), torch.cat(alone, 1), "packed images")
    rows = torch.cat((one, torch.cat((two, two), 1)))
    padded = model(rows, Positions.grids(sizes, padded=True))
    equal(torch.cat((padded[:1], padded[1:, :3]), 1), torch.cat(alone, 1), "padded images")
    image, kept = Positions.grid(2, 3), torch.tensor([4, 0, 5])
    shown = torch.zeros(1, 6, dtype=torch.bool).index_fill(1, kept, True)
    hidden = model(one, replace(image, valid=shown, q_valid=shown))
    equal(model(one[:, kept], image.take(kept)), hidden[:, kept], "patches taken")


def rows_do_not_meet(s: Subject) -> None:
    """Permuting the rows of a batch, each at positions of its own, permutes the output."""
    for config in s.configs():
        model, x = s.host(config), tokens(3, LENGTH)
        ids = torch.arange(LENGTH)
        # others than 0 .. n-1 where they are allowed and within the table
        further = [ids.flip(0), ids.roll(3)] if s.traits.needs_length or s.shift(5) < 5 else [ids + 5, ids * 2]
        ids = torch.stack([ids, *further])
        order = torch.tensor([2, 0, 1])
        whole = model(x, Positions.from_ids(ids))
        equal(model(x[order], Positions.from_ids(ids[order])), whole[order], "permuted rows")


def shift_invariant_as_declared(s: Subject) -> None:
    """Moving every position by the same amount changes nothing, if and only if `shift_invariant` says so."""
    if s.traits.needs_length:
        if s.traits.shift_invariant:
            raise Fails("shift_invariant and needs_length exclude one another")
        raise Inapplicable("its codes depend on the final length")
    model, x = s.host(DECODER), tokens(1, LENGTH)
    here = model(x, Positions.from_ids(torch.arange(LENGTH)))
    there = model(x, Positions.from_ids(torch.arange(LENGTH) + s.shift(1003)))
    if bool((here - there).abs().max() < 1e-10) != model.encoding.shift_invariant:
        raise Fails(f"shift_invariant={model.encoding.shift_invariant} is declared")


def gradients_arrive(s: Subject) -> None:
    """Every parameter gets a finite gradient that is not zero, in the first layer's parameters as in the last's."""
    model, x = s.host(DECODER), tokens(2, LENGTH)
    model(x).square().sum().backward()
    for name, p in model.named_parameters():
        if p.grad is None or not p.grad.isfinite().all() or not p.grad.any():
            raise Fails(f"the gradient of {name} is missing, zero or not finite")


def gradients_are_right(s: Subject) -> None:
    """torch.autograd.gradcheck of the encoding's parameters as they start (or of the queries, where it has none)."""
    model = s.host(TransformerConfig(5, dim=8, num_layers=1, num_heads=2), redraw=False)
    parameters = tuple(model.encoding.parameters()) or (model.get_parameter("blocks.0.attention.query.weight"),)
    x = tokens(1, 4) % 5
    torch.autograd.gradcheck(lambda *_: model(x).logsumexp(-1).sum(), parameters, fast_mode=True)


def inference_then_training(s: Subject) -> None:
    """The same Positions serve inference mode, then several steps of training."""
    model, x, p = s.host(DECODER), tokens(2, LENGTH), Positions.arange(LENGTH)
    with torch.inference_mode():
        before = model(x, p)
    for _ in range(2):
        after = model(x, p)
        after.sum().backward()
    equal(before.clone(), after, "training after inference")


def copies_are_equal(s: Subject) -> None:
    """deepcopy and pickle give the same spec, tables and parameters, and a copied model its own encoding."""
    model, x = s.host(DECODER), tokens(1, LENGTH)
    for other in (copy.deepcopy(model.encoding), pickle.loads(pickle.dumps(model.encoding))):
        if other.spec() != model.encoding.spec():
            raise Fails("a copy has another spec")
        pairs = zip(
            (*other.buffers(), *other.parameters()),
            (*model.encoding.buffers(), *model.encoding.parameters()),
            strict=True,
        )
        if not all(torch.equal(a, b) for a, b in pairs):
            raise Fails("a copy has other tables or parameters")
    twin, wanted = copy.deepcopy(model), model(x)
    equal(twin(x), wanted, "a copied model", 0.0)
    for parameter in twin.parameters():
        torch.nn.init.zeros_(parameter)
    equal(model(x), wanted, "the original, after its copy was changed", 0.0)


def state_and_spec_bring_it_back(s: Subject) -> None:
    """state_dict() and spec() together rebuild the model."""
    model, x = s.host(DECODER), tokens(1, LENGTH)
    try:
        rebuilt = from_spec(model.encoding.spec())
    except InputError:
        rebuilt = s.encoding(DECODER)  # a class that is not in the registry
    again = Transformer(DECODER, rebuilt).double().eval()
    again.load_state_dict(model.state_dict())
    equal(again(x), model(x), "the rebuilt model", 0.0)


def meta_is_normal(s: Subject) -> None:
    """Made on the meta device and filled from a state_dict, copied or assigned, it is the same model."""
    model, x = s.host(DECODER), tokens(1, LENGTH)
    for assign in (False, True):
        with torch.device("meta"):
            filled = Transformer(DECODER, s.encoding(DECODER))
        if not assign:
            filled = filled.to_empty(device="cpu").double()
        filled.load_state_dict(model.state_dict(), assign=assign)
        equal(filled.eval()(x), model(x), "assigned" if assign else "to_empty", 0.0)


def bfloat16_stays_near(s: Subject) -> None:
    """In bfloat16 no logit is off by more than 0.25; where the encoding's own parameters are float32, and as they start,
    by no more than 0.06 at positions that bfloat16 cannot hold (logits have a standard deviation near 1)."""
    x = tokens(2, LENGTH)
    equal(s.host(DECODER, torch.bfloat16)(x).double(), s.host(DECODER)(x), "bfloat16", BFLOAT16_BOUND)
    if s.traits.needs_length:
        return
    late = Positions.from_ids(torch.arange(LENGTH) + s.shift(LATE))
    half, full = (s.host(DECODER, dtype, redraw=False) for dtype in (torch.float32, torch.float64))
    for name, module in half.named_children():
        if name != "encoding":
            module.to(torch.bfloat16)
    equal(half(x, late).double(), full(x, late), f"bfloat16 at position {int(late.q[0, 0])}", LATE_BOUND)


def compiled_is_eager(s: Subject) -> None:
    """torch.compile in one graph, for any length."""
    torch._dynamo.reset()
    model = s.host(s.shallow)
    compiled = torch.compile(model, backend="aot_eager", dynamic=True, fullgraph=True)
    for n in (LENGTH, LENGTH + 4):
        equal(compiled(tokens(2, n)), model(tokens(2, n)), f"compiled, {n} tokens")


def exported_is_eager(s: Subject) -> None:
    """torch.export for any length."""
    if s.traits.needs_length:
        raise Inapplicable("its codes depend on the final length")
    model = s.host(s.shallow)
    dimension = torch.export.Dim("length", min=2, max=40)
    exported = torch.export.export(model, (tokens(2, LENGTH),), dynamic_shapes=({1: dimension},)).module()
    x = tokens(2, LENGTH + 6)
    equal(exported(x), model(x), "exported")


CHECKS: dict[str, Callable[[Subject], None]] = {
    f.__name__: f
    for f in (
        position_matters, backends_agree, cached_is_full, ragged_cache, generates_alike, padded_is_unpadded,
        packed_is_separate, images_are_separate, rows_do_not_meet, shift_invariant_as_declared, gradients_arrive,
        gradients_are_right, inference_then_training, copies_are_equal, state_and_spec_bring_it_back, meta_is_normal,
        bfloat16_stays_near, compiled_is_eager, exported_is_eager,
    )
}  # fmt: skip
SLOW = ("compiled_is_eager", "exported_is_eager")
