# SPDX-License-Identifier: Apache-2.0
"""The checks that every encoding has to pass: each makes a small model around it and compares two ways of asking the
same thing, in float64."""

import copy
import json
import pickle
import random
import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import wraps
from typing import Any

import torch
from torch import Tensor, nn

from posenc.attention import attention, explain, prepare
from posenc.backends import BACKENDS
from posenc.blocks import Cache
from posenc.composites import PerLayer, Sum
from posenc.conformance.sequences import calls_do_not_remember, no_graph_is_kept
from posenc.conformance.serves import features, must_serve
from posenc.conformance.subject import (
    DECODER,
    ENCODER,
    LENGTH,
    VOCAB,
    Fails,
    Inapplicable,
    Make,
    Subject,
    equal,
    seeded,
    tokens,
    uncompiled,
)  # fmt: skip
from posenc.distributed import LAYOUTS, shard
from posenc.encoding import Encoding
from posenc.encodings import ENCODINGS, Mapped, from_spec
from posenc.errors import InputError
from posenc.positions import Positions
from posenc.transformer import Transformer, TransformerConfig

__all__ = [
    "CHECKS", "DECODER", "ENCODER", "LENGTH", "SLOW", "VOCAB", "Fails", "Inapplicable", "Make", "Subject", "equal",
    "tokens",
]  # fmt: skip

BFLOAT16_BOUND, LATE_BOUND = 0.25, 0.06
"""Largest differences of a logit, see `bfloat16_stays_near`."""

LATE = 5000
"""A position at which bfloat16 is 32 apart from its neighbour."""


# -------------------------------------------------------------------- the checks


def position_matters(s: Subject) -> None:
    """An encoder tells one order of the tokens from another if and only if `sees_order` says so; a decoder always does."""
    config = DECODER if s.traits.causal_only else ENCODER
    model, largest = s.host(config), 0.0
    for n in range(6, LENGTH + 1):  # at some of them, the last token may be alone in its window
        x, p = tokens(1, n), s.document(n)
        order = torch.randperm(n - 1, generator=torch.Generator().manual_seed(3))
        order = torch.cat((order, torch.tensor([n - 1])))
        largest = max(largest, float((model(x[:, order], p)[:, -1] - model(x, p)[:, -1]).detach().abs().max()))
    blind = not model.encoding.sees_order and not config.causal
    if blind and largest >= 1e-10:
        raise Fails(f"sees_order is False, but another order of the tokens changes a logit by {largest:.3g}")
    if not blind and largest < 1e-10:
        raise Fails("another order of the tokens before the last one does not change its logits")


def backends_agree(s: Subject) -> None:
    """Every backend computes the reference's attention, and its gradients, or refuses what it need not serve: plain, packed,
    padded, scattered and cached, and in shorter dtypes."""
    for config in s.configs():
        model = s.host(config)
        model(tokens(1, LENGTH), s.document(LENGTH))  # which shares its projections
        mask = torch.tensor([[0] * 3 + [1] * 6])
        layouts = {
            "contiguous": Positions.arange(LENGTH), "packed": s.placed(Positions.packed([4, 5]), [4, 5]),
            "padded": s.placed(Positions.from_mask(mask), [6]), "scattered": Positions.from_ids(s.ids(LENGTH).flip(0)[None]),
        }  # fmt: skip
        if not s.of_text:
            layouts["scattered"] = s.document(LENGTH)
            del layouts["contiguous"]
        if config.causal and not s.traits.needs_length:
            layouts["cached"] = s.placed(Positions.arange(2, LENGTH - 2), [LENGTH])
        for layout, positions in layouts.items():
            _agree(model.encoding, config, positions.with_causal(config.causal), layout, torch.float64)
    plain = next(iter(layouts))
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        _agree(model.encoding, config, layouts[plain].with_causal(config.causal), plain, dtype)


TOLERANCE = {torch.float64: 1e-11, torch.float32: 1e-4, torch.bfloat16: 0.15, torch.float16: 0.02}
"""Of outputs of about 1, and of gradients, whatever order a backend adds in."""
COMPILED = "flex", "triton"
"""Backends that compile, or interpret, a kernel for each case: in short dtypes they are asked for refusals alone."""


def _agree(encoding: Encoding, config: TransformerConfig, p: Positions, layout: str, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    sizes = (config.num_heads, p.num_queries), (config.kv_heads, p.num_keys), (config.kv_heads, p.num_keys)
    given = [torch.randn(2, h, n, config.width, dtype=torch.float64, generator=generator).to(dtype) for h, n in sizes]
    long = dtype == torch.float64
    wanted = _attended(encoding, given, p, "reference", grad=long)
    what = features(encoding, given[0], given[1], p, layout)
    for name in ("auto", *BACKENDS):
        for grad in (False, True) if long else (False,):
            try:
                if not long and name in COMPILED:
                    with torch.no_grad():
                        explain(given[0], given[1], given[2], encoding, p, backend=name)
                    continue
                found = _attended(encoding, given, p, name, grad)
            except InputError as refusal:
                if name == "auto" or must_serve(name, what | ({"a gradient"} if grad else set())):
                    raise Fails(f"backend {name} refuses what it has to serve ({layout}, {dtype}): {refusal}") from None
                continue
            for a, b in zip(found, wanted, strict=False):
                equal(a.double(), b.double(), f"backend {name}, {layout}, {dtype}", TOLERANCE[dtype])


def _attended(encoding: Encoding, qkv: list[Tensor], p: Positions, backend: str, grad: bool) -> list[Tensor]:
    """The output, and the gradients of queries, keys and values."""
    q, k, v = given = [x.detach().clone().requires_grad_(grad) for x in qkv]
    with torch.set_grad_enabled(grad):
        out = attention(q, k, v, encoding, p, backend=backend)
    return [out.detach(), *torch.autograd.grad(out.square().sum(), given)] if grad else [out]


def cached_is_full(s: Subject) -> None:
    """Decoding with a cache, in pieces of any size, gives the logits of the full pass."""
    s.require_cache()
    model, x, cache = s.host(DECODER), tokens(2, LENGTH), Cache()
    parts = [
        model(x[:, first:end], s.placed(Positions.arange(end - first, first), [LENGTH]), cache)
        for first, end in ((0, 4), (4, 7), (7, 8), (8, 9))
    ]
    equal(torch.cat(parts, 1), model(x, s.document(LENGTH)), "cached decoding")


def ragged_cache(s: Subject) -> None:
    """Rows of different lengths share a cache, and each decodes as if alone."""
    s.require_cache()
    model, x = s.host(DECODER), tokens(2, LENGTH)
    lengths, cache = torch.tensor([5, 3]), Cache()
    ends = [[n + 2] for n in lengths.tolist()]
    mask = (torch.arange(5) < lengths[:, None]).long()
    model(x[:, :5], s.placed(Positions.from_mask(mask), *ends), cache)
    new = torch.stack([x[0, 5:7], x[1, 3:5]])
    steps = [model(new[:, i : i + 1], s.placed(Positions.arange(1, lengths + i), *ends), cache) for i in range(2)]
    for row, n in enumerate(lengths.tolist()):
        alone = model(x[row : row + 1, : n + 2], s.document(n + 2))
        equal(torch.cat(steps, 1)[row], alone[0, n:], f"row {row} of a ragged cache")


def generates_alike(s: Subject) -> None:
    """Greedy generation is the same alone and in a left-padded batch."""
    s.require_text("generate() numbers tokens as those of a text")
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
            together = model(x, s.placed(Positions.from_mask(mask), [LENGTH], [6]))
            for row, n in enumerate((LENGTH, 6)):
                inside = mask[row].bool()
                equal(together[row, inside], model(x[row, inside][None], s.document(n))[0], f"{side} padding")


def packed_is_separate(s: Subject) -> None:
    """Documents packed into one sequence are as if alone."""
    for config in s.configs():
        model, x, lengths = s.host(config), tokens(1, LENGTH), [2, 4, 3]
        alone = torch.cat([model(part, s.document(part.shape[1])) for part in x.split(lengths, dim=1)], 1)
        equal(model(x, s.placed(Positions.packed(lengths), lengths)), alone, "packing")


def images_are_separate(s: Subject) -> None:
    """Images packed into one sequence, or padded to rows of one length, are as if alone, and patches taken out of an image
    as if the others were hidden. An encoding without places in an image refuses them."""
    s.require_text("its tokens are where that says")
    config = DECODER if s.traits.causal_only else ENCODER
    model, sizes = s.host(config), [(2, 3), (1, 3)]
    one, two = tokens(1, 6), tokens(1, 3, seed=5)
    try:
        alone = [model(x, Positions.grid(*size)) for x, size in zip((one, two), sizes, strict=True)]
    except InputError as refusal:
        raise Inapplicable(str(refusal)) from None
    except Exception as error:
        error.add_note(f"one of text refuses images with positions.require_one_axis({s.name!r})")
        raise
    equal(model(torch.cat((one, two), 1), Positions.grids(sizes)), torch.cat(alone, 1), "packed images")
    rows = torch.cat((one, torch.cat((two, two), 1)))
    padded = model(rows, Positions.grids(sizes, padded=True))
    equal(torch.cat((padded[:1], padded[1:, :3]), 1), torch.cat(alone, 1), "padded images")
    image, taken = Positions.grid(2, 3), torch.tensor([4, 0, 5])
    shown = torch.zeros(1, 6, dtype=torch.bool).index_fill(1, taken, True)
    hidden = model(one, replace(image, valid=shown, q_valid=shown))
    equal(model(one[:, taken], image.take(taken)), hidden[:, taken], "patches taken")


def rows_do_not_meet(s: Subject) -> None:
    """Permuting the rows of a batch, each at positions of its own, permutes the output."""
    for config in s.configs():
        model, x = s.host(config), tokens(3, LENGTH)
        ids = s.ids(LENGTH)
        # others than 0 .. n-1 where they are allowed and within the table
        same = not s.of_text or s.traits.needs_length or s.shift(5) < 5
        further = [ids.flip(0), ids.roll(3, 0)] if same else [ids + 5, ids * 2]
        ids = torch.stack([ids, *further])
        order = torch.tensor([2, 0, 1])
        together = model(x, Positions.from_ids(ids))
        equal(model(x[order], Positions.from_ids(ids[order])), together[order], "permuted rows")


def shift_invariant_as_declared(s: Subject) -> None:
    """Moving every position by the same amount, in images along any axis, changes nothing, if and only if
    `shift_invariant` says so."""
    if s.traits.needs_length and s.traits.shift_invariant:
        raise Fails("shift_invariant and needs_length exclude one another")
    s.require_cache()
    model, x = s.host(DECODER), tokens(1, LENGTH)
    declared = model.encoding.shift_invariant
    if not s.of_text and not declared:
        raise Inapplicable("positions= is given and shift_invariant is not declared: they need not be such as can move")
    places = {"": s.ids(LENGTH)[None]}
    if s.takes_images:
        places[" of an image"] = Positions.grid(3, 3).q
    moves: dict[str, float] = {}
    for of, ids in places.items():
        here = model(x, Positions.from_ids(ids))
        far = s.shift(1003) if not of else 2
        axes = 1 if ids.dim() == 2 else ids.shape[2]
        for axis in range(axes):
            step = torch.tensor(far) if ids.dim() == 2 else far * (torch.arange(axes) == axis).long()
            try:
                there = model(x, Positions.from_ids(ids + step))
            except InputError:  # out of a table
                if declared:
                    raise
                continue
            along = f" along axis {axis}" if ids.dim() == 3 else ""
            moves[f"moving every position{of} by {far}{along}"] = float((here - there).detach().abs().max())
    worst = max(moves, key=lambda name: moves[name])
    if declared and moves[worst] >= 1e-10:
        raise Fails(f"shift_invariant is True, but {worst} changes a logit by {moves[worst]:.3g}")
    if not declared and moves[worst] < 1e-10:
        raise Fails(f"shift_invariant is False, but {worst} changes nothing: declare shift_invariant = True")


def gradients_arrive(s: Subject) -> None:
    """Every parameter gets a finite gradient that is not zero, in the first layer's parameters as in the last's."""
    model, x = s.host(DECODER), tokens(2, LENGTH)
    model(x, s.document(LENGTH)).square().sum().backward()
    for name, p in model.named_parameters():
        if p.grad is None or not p.grad.isfinite().all() or not p.grad.any():
            raise Fails(f"the gradient of {name} is missing, zero or not finite")


def gradients_are_right(s: Subject) -> None:
    """torch.autograd.gradcheck of the encoding's parameters as they start (or of the queries, where it has none)."""
    model = s.host(TransformerConfig(5, dim=8, num_layers=1, num_heads=2), redraw=False)
    parameters = tuple(model.encoding.parameters()) or (model.get_parameter("blocks.0.attention.query.weight"),)
    x = tokens(1, 4) % 5
    torch.autograd.gradcheck(lambda *_: model(x, s.document(4)).logsumexp(-1).sum(), parameters, fast_mode=True)


def inference_then_training(s: Subject) -> None:
    """The same Positions serve inference mode, then several steps of training."""
    model, x, p = s.host(DECODER), tokens(2, LENGTH), s.document(LENGTH)
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
        if json.dumps(other.spec()) != json.dumps(model.encoding.spec()):
            raise Fails(f"a copy has another spec, {other.spec()}, than {model.encoding.spec()}")
        pairs = zip(
            (*other.buffers(), *other.parameters()),
            (*model.encoding.buffers(), *model.encoding.parameters()),
            strict=True,
        )
        if not all(torch.equal(a, b) for a, b in pairs):
            raise Fails("a copy has other tables or parameters")
    here = s.document(LENGTH)
    twin, wanted = copy.deepcopy(model), model(x, here)
    equal(twin(x, here), wanted, "a copied model", 0.0)
    for parameter in twin.parameters():
        torch.nn.init.zeros_(parameter)
    equal(model(x, here), wanted, "the original, after its copy was changed", 0.0)


def state_and_spec_bring_it_back(s: Subject) -> None:
    """state_dict() and spec() together rebuild the model, the spec by way of JSON: what is registered by
    `posenc.from_spec`, other classes from the arguments that it names."""
    model, x = s.host(DECODER), tokens(1, LENGTH)
    spec = model.encoding.spec()
    text = json.dumps(spec)
    with seeded(5):  # what was drawn is in the state, or lost
        rebuilt = from_spec(json.loads(text), _classes_of_ones_own(model.encoding))
    if json.dumps(rebuilt.spec()) != text:
        raise Fails(f"the spec of what the spec {text} builds is another: {json.dumps(rebuilt.spec())}")
    again = Transformer(DECODER, rebuilt).double().eval()
    again.load_state_dict(model.state_dict())
    equal(again(x, s.document(LENGTH)), model(x, s.document(LENGTH)), f"the model rebuilt from {text}", 0.0)


def _classes_of_ones_own(encoding: Encoding) -> dict[str, type[Encoding]]:
    parts = (part for part in encoding.modules() if isinstance(part, Encoding))
    return {
        part.known_as: type(part) for part in parts if type(part) not in (*ENCODINGS.values(), Sum, PerLayer, Mapped)
    }


def meta_is_normal(s: Subject) -> None:
    """Made on the meta device and filled from a state_dict, copied or assigned, it is the same model."""
    model, x, here = s.host(DECODER), tokens(1, LENGTH), s.document(LENGTH)
    for assign in (False, True):
        with torch.device("meta"):
            filled = Transformer(DECODER, s.encoding(DECODER))
        if not assign:
            filled = filled.to_empty(device="cpu").double()
        filled.load_state_dict(model.state_dict(), assign=assign)
        equal(filled.eval()(x, here), model(x, here), "assigned" if assign else "to_empty", 0.0)


def bfloat16_stays_near(s: Subject) -> None:
    """In bfloat16 no logit is off by more than 0.25; where the encoding's own parameters are float32, and as they start,
    by no more than 0.06 at positions that bfloat16 cannot hold (logits have a standard deviation near 1)."""
    x, here = tokens(2, LENGTH), s.document(LENGTH)
    equal(s.host(DECODER, torch.bfloat16)(x, here).double(), s.host(DECODER)(x, here), "bfloat16", BFLOAT16_BOUND)
    if s.traits.needs_length or not s.of_text:
        return
    late = Positions.from_ids(torch.arange(LENGTH) + s.shift(LATE))
    half, full = (s.host(DECODER, dtype, redraw=False) for dtype in (torch.float32, torch.float64))
    for name, module in half.named_children():
        if name != "encoding":
            module.to(torch.bfloat16)
    equal(half(x, late).double(), full(x, late), f"bfloat16 at position {int(late.q[0, 0])}", LATE_BOUND)


def random_numbers_are_the_callers(s: Subject) -> None:
    """Nothing sets the random numbers of torch, Python or numpy to a seed, and an evaluation draws none."""
    x, after = tokens(1, LENGTH), []
    for seed in (1, 2):
        with seeded(seed):
            model = Transformer(DECODER, s.make(DECODER)).eval()
            before = _random_states()
            model(x, s.document(LENGTH))
            changed = [name for name, state in _random_states().items() if state != before[name]]
            if changed:
                raise Fails(f"a forward pass in eval mode changes the random numbers of {', '.join(changed)}")
            model.train()(x, s.document(LENGTH)).sum().backward()
            after.append(_random_states())
    same = [name for name, state in after[0].items() if state == after[1][name]]
    if same:
        raise Fails(f"it sets the random numbers of {', '.join(same)} to a seed, which are the caller's")


def _random_states() -> dict[str, Any]:
    found: dict[str, Any] = {"torch": torch.get_rng_state().tolist(), "Python": random.getstate()}
    if "numpy" in sys.modules:
        name, keys, *rest = sys.modules["numpy"].random.get_state()
        found["numpy"] = name, keys.tolist(), rest
    return found


def shards_are_whole(s: Subject) -> None:
    """What each of two processes that share a sequence asks of the encoding, in both layouts: codes of its own tokens, and
    attention of its queries among all keys, are those of one process that has all of it."""
    n = LENGTH - LENGTH % 4
    for config in s.configs():
        model = s.host(config)
        model(tokens(1, n), s.document(n))  # which shares its projections
        encoding, generator = model.encoding, torch.Generator().manual_seed(0)
        x = torch.randn(1, n, config.dim, dtype=torch.float64, generator=generator)
        heads = config.num_heads, config.kv_heads, config.kv_heads
        q, k, v = (torch.randn(1, h, n, config.width, dtype=torch.float64, generator=generator) for h in heads)
        mask = (torch.arange(n) >= 2).long()[None]
        for name, p in (
            ("one text", s.document(n)), ("padded", s.placed(Positions.from_mask(mask), [n - 2])),
            ("packed", s.placed(Positions.packed([3, n - 3]), [3, n - 3])),
        ):  # fmt: skip
            p = p.with_causal(config.causal)
            coded, attended = encoding.embed(x, p), attention(q, k, v, encoding, p, backend="reference")
            for layout in LAYOUTS:
                for rank in range(2):
                    own, what = p.shard(rank, 2, layout=layout), f"process {rank} of 2, {layout}, {name}"
                    assert own.part is not None
                    equal(encoding.embed(shard(x, own), own), shard(coded, own), f"codes of {what}")
                    calls = own.part.calls(config.causal)
                    rows = shard(q, own, 2).split([call.num_queries for call in calls], 2)
                    parts = [
                        BACKENDS["reference"].attend(
                            prepare(
                                part, k[:, :, : call.num_keys], v[:, :, : call.num_keys], encoding, call, None, None,
                                None, 0.0, 0,
                            )
                        )
                        for part, call in zip(rows, calls, strict=True)
                    ]  # fmt: skip
                    equal(torch.cat(parts, 2), shard(attended, own, 2), f"attention of {what}")


class AtIds(nn.Module):
    """A model that is given where its tokens are as a tensor, as compilers want it."""

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor, ids: Tensor) -> Tensor:
        logits: Tensor = self.model(tokens, Positions.from_ids(ids))
        return logits


def compiled_is_eager(s: Subject) -> None:
    """torch.compile in one graph, for any length."""
    torch._dynamo.reset()
    model = s.host(s.shallow)
    inputs = [(tokens(2, n),) if s.of_text else (tokens(2, n), s.ids(n)[None]) for n in (LENGTH, LENGTH + 4)]
    called = model if s.of_text else AtIds(model)
    compiled = torch.compile(called, backend="aot_eager", dynamic=True, fullgraph=True)
    for given in inputs:
        equal(compiled(*given), called(*given), f"compiled, {given[0].shape[1]} tokens")


def exported_is_eager(s: Subject) -> None:
    """torch.export for any length."""
    s.require_cache()
    model = s.host(s.shallow)
    called = model if s.of_text else AtIds(model)
    inputs = [(tokens(2, n),) if s.of_text else (tokens(2, n), s.ids(n)[None]) for n in (LENGTH, LENGTH + 6)]
    dimension = torch.export.Dim("length", min=2, max=40)
    sizes = ({1: dimension},) if s.of_text else ({1: dimension}, {1: dimension})
    exported = torch.export.export(called, inputs[0], dynamic_shapes=sizes).module()
    equal(exported(*inputs[1]), called(*inputs[1]), "exported")


def _isolated(check: Callable[[Subject], None]) -> Callable[[Subject], None]:
    @wraps(check)
    def isolated(s: Subject) -> None:
        with seeded(), nullcontext() if check.__name__ in SLOW else uncompiled():
            check(s)

    return isolated


SLOW = ("compiled_is_eager", "exported_is_eager")
CHECKS: dict[str, Callable[[Subject], None]] = {
    f.__name__: _isolated(f)
    for f in (
        position_matters, backends_agree, calls_do_not_remember, no_graph_is_kept, cached_is_full, ragged_cache,
        generates_alike, padded_is_unpadded, packed_is_separate, images_are_separate, rows_do_not_meet, shards_are_whole,
        shift_invariant_as_declared, gradients_arrive, gradients_are_right, inference_then_training, copies_are_equal,
        state_and_spec_bring_it_back, random_numbers_are_the_callers, meta_is_normal, bfloat16_stays_near, compiled_is_eager,
        exported_is_eager,
    )
}  # fmt: skip
