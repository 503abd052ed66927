# SPDX-License-Identifier: Apache-2.0
"""The checks that every encoding has to pass: each builds a small model with it and compares two ways of computing the
same numbers, in float64."""

import copy
import json
import os
import pickle
import random
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import pairwise, product
from typing import Any

import torch
from torch import Tensor, nn

from posenc.attention import Call, explain, prepare
from posenc.backends import BACKENDS, flex
from posenc.backends.problem import Problem
from posenc.backends.reference import Reference
from posenc.bias import Mixer
from posenc.cache import KVCache
from posenc.conformance import fixtures
from posenc.conformance.fixtures import DECODER, LENGTH, CheckFailed, EncodingUnderTest, equal, tokens
from posenc.conformance.sequences import calls_are_independent, graphs_are_freed
from posenc.distributed import LAYOUTS, shard
from posenc.distributed.exchange import calls_of
from posenc.encoding import Encoding, PerLayer, Sum, gates_of
from posenc.encodings import ENCODINGS, Mapped, from_spec
from posenc.errors import InputError
from posenc.lab.transformer import Attention, Transformer, TransformerConfig
from posenc.positions import Positions, segments

BFLOAT16_BOUND, LATE_BOUND = 0.25, 0.06
"""Largest differences of a logit, see `bfloat16_logits_stay_near`."""
LATE = 1500
"""A position at which neighbours in bfloat16 are 8 apart."""


def position_matters(tested: EncodingUnderTest) -> None:
    """The output of an encoder depends on the order of the tokens if and only if `sees_order` is true; that of a decoder always does."""
    config = DECODER if tested.encoding.causal_only else fixtures.ENCODER
    model, largest = tested.model(config), 0.0
    blind = not model.encoding.sees_order and not config.causal
    for n in range(LENGTH, 5, -1):  # at some of them, the last token may be alone in its window
        x, p = tokens(1, n), tested.document(n)
        order = [*random.Random(3).sample(range(n - 1), n - 1), n - 1]
        largest = max(largest, float((model(x[:, order], p)[:, -1] - model(x, p)[:, -1]).detach().abs().max()))
        if largest >= 1e-10:
            break
    if blind and largest >= 1e-10:
        raise CheckFailed(f"sees_order is False, but another order of the tokens changes a logit by {largest:.3g}")
    if not blind and largest < 1e-10:
        effects = model.encoding.effects(tested.document(LENGTH))
        if {"restrict"} <= {*effects.sites} <= {"restrict", "bias"} and bool(effects.restricted().mask().all()):
            raise fixtures.NotApplicable(f"it hides keys, but none of the {LENGTH} tokens here: give a smaller size")
        raise CheckFailed("another order of the tokens before the last one does not change its logits")


# -------------------------------------------------------------------- backends

TOLERANCE = {torch.float64: 1e-11, torch.float32: 1e-4, torch.bfloat16: 0.15, torch.float16: 0.02}
"""Of outputs of about 1, and of gradients, whatever order a backend adds in."""
COMPILED = "flex", "triton"
"""Backends that compile, or interpret, a kernel for each case: in short dtypes only their refusals are checked."""
FLEX_LAYOUTS = "padded", "scattered", "prefixes", "cached in a window"
"""FlexAttention takes most of the time: it computes these, in the decoder or, what that lacks, in the encoder."""


def backends_agree(tested: EncodingUnderTest) -> None:
    """Every backend equals the reference, gradients included, or refuses a call that it need not serve: plain, packed,
    padded, scattered and cached, with a prefix and in a window, and in shorter dtypes."""
    for config in tested.configs():
        model = tested.model(config)
        model(tokens(1, LENGTH), tested.document(LENGTH))  # the model shares its projections
        agree = partial(_agree, model.encoding, config)
        layouts = _layouts(tested, config.causal)
        for layout, positions in layouts.items():
            agree(positions.with_causal(config.causal), layout, torch.float64)
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        agree(layouts["contiguous"].with_causal(config.causal), "contiguous", dtype)


def _layouts(tested: EncodingUnderTest, causal: bool) -> dict[str, Positions]:
    """Positions of a decoder's or an encoder's calls."""
    padded, packed, cached = (tested.layout(name) for name in ("padded", "packed", "cached"))
    scattered = Positions.from_ids(tested.ids(LENGTH).flip(0)[None], packed=False)
    layouts = {"contiguous": tested.document(LENGTH), "scattered": scattered}
    if not causal:
        return layouts | {"packed": packed, "padded": padded.with_window(3, 2)}
    layouts |= {"packed": packed, "padded": padded}
    if tested.takes_prefixes:
        layouts["prefixes"] = packed.with_prefix([2, 3])
    if not tested.encoding.needs_length:
        layouts["cached in a window"] = cached.with_window(4)
    return layouts


def _agree(encoding: Encoding, config: TransformerConfig, p: Positions, layout: str, dtype: torch.dtype) -> None:
    inputs, double = fixtures.attention_inputs(config, p, dtype=dtype), dtype == torch.float64
    expected = _results(encoding, inputs, p, "reference", trains=double)
    with torch.no_grad():
        gates = gates_of(encoding, inputs[3])
        problem = prepare(Call(inputs[0], inputs[1], inputs[2], encoding, p, gates=gates))
    for name, trains in product(("auto", *(name for name in BACKENDS if name != "reference")), (False, True)):
        if (trains and not double) or (name == "flex" and double and layout not in FLEX_LAYOUTS):
            continue
        try:
            if not double and name in COMPILED:
                with torch.no_grad():
                    explain(inputs[0], inputs[1], inputs[2], encoding, p, gates=gates, backend=name)
                continue
            result = _results(encoding, inputs, p, name, trains)
        except InputError as refusal:
            if name == "auto" or must_serve(name, problem, trains):
                raise CheckFailed(f"backend {name} refuses what it must serve ({layout}, {dtype}): {refusal}") from None
            continue
        for a, b in zip(result, expected, strict=False):
            equal(a.double(), b.double(), f"backend {name}, {layout}, {dtype}", TOLERANCE[dtype])


def must_serve(backend: str, problem: Problem, trains: bool) -> bool:
    """The calls that a backend may not refuse on a CPU, tested by *backends agree*:

    - `sdpa`: every call; with a term on the values (`Values`) contiguous text, packed and padded too, without a window or
      a prefix, whose other terms have a form in the CPU operator.
    - `flex`: from PyTorch 2.11 on, every call without gradients, `Values` and `Mixer`, with a softmax.
    - `triton`, in its interpreter: contiguous text in float32 or less without gradients, whose terms have a form in the
      kernel, at most one of them a table that queries are multiplied with; a sink, but no `Values`, score modifier or
      position map.
    - `reference`, and a backend that is not named here: every call.
    """
    positions, no_values, visible = problem.positions, problem.values is None, segments.segments(problem.positions)
    restricted = positions.prefix is not None or positions.window is not None or bool(positions.blocks)
    if backend == "sdpa":
        simple = visible is not None and visible.regular and not restricted
        return no_values or (simple and all(term.unsupported(positions) is None for term in problem.bias))
    if backend == "flex":
        mixes = any(isinstance(each, Mixer) for each in problem.modifiers)
        return flex.IS_THERE and no_values and not trains and not problem.weighs and not mixes
    if backend == "triton":
        inputs = [term.in_kernel for term in problem.bias]
        return (
            os.environ.get("TRITON_INTERPRET", "0") not in ("", "0")  # it has no CPU but the one of its interpreter
            and no_values and not trains and not restricted and not problem.modifiers and not problem.branches
            and positions.start is not None and problem.q.dtype != torch.float64
            and None not in inputs and inputs.count("products") <= 1
            and all(getattr(term, "positions", positions) is positions for term in problem.bias)
        )  # fmt: skip
    return True


def _results(encoding: Encoding, inputs: list[Tensor], p: Positions, backend: str, trains: bool) -> list[Tensor]:
    """The output, and the gradients of queries, keys, values and, where gates are made of it, of the layer's input."""
    leaves = [x.detach().clone().requires_grad_(trains) for x in inputs]
    with torch.set_grad_enabled(trains):
        out = fixtures.attend(encoding, leaves, p, backend=backend)
    if "gates" not in encoding.acting_in(0).part.sites():
        leaves.pop()
    return [out.detach(), *torch.autograd.grad(out.square().sum(), leaves)] if trains else [out]


# -------------------------------------------------------------------- caches, padding, packing and windows


def _decoded(
    tested: EncodingUnderTest, model: Transformer, x: Tensor, layouts: Callable[[Positions], Positions], rotated: bool | None = None
) -> Tensor:  # fmt: skip
    """Logits of tokens that are read with a cache, in pieces of several sizes."""
    cache, ends = KVCache(rotated=rotated), (0, 4, 7, 8, 9)
    pieces = [(first, tested.relocate(Positions.arange(end - first, first), [LENGTH])) for first, end in pairwise(ends)]
    return torch.cat([model(x[:, first : first + p.num_queries], layouts(p), cache) for first, p in pieces], 1)


def cached_decoding_equals_full_pass(tested: EncodingUnderTest) -> None:
    """Decoding with a cache, in pieces of any size, gives the logits of the full pass."""
    tested.require_cache()
    model, x = tested.model(DECODER), tokens(2, LENGTH)
    full = model(x, tested.document(LENGTH))
    equal(_decoded(tested, model, x, lambda p: p), full, "cached decoding")
    equal(_decoded(tested, model, x, lambda p: p, rotated=False), full, "decoding from a cache of unrotated keys")
    with torch.no_grad():  # where a cache is written in place
        equal(_decoded(tested, model, x, lambda p: p), full.detach(), "cached decoding without gradients")


def windows_are_local(tested: EncodingUnderTest) -> None:
    """In a window (`Positions.with_window`), a token beyond the reach of all layers changes no logit, and decoding with a
    cache gives the logits of the full pass."""
    model, x, before = tested.model(DECODER), tokens(2, LENGTH), 1
    full = model(x, tested.document(LENGTH).with_window(before))
    if not tested.encoding.needs_length:
        decoded = _decoded(tested, model, x, lambda p: p.with_window(before))
        equal(decoded, full, "cached decoding in a window")
    reach = (before + tested.encoding.looks_back) * DECODER.num_layers + 1
    if reach >= LENGTH:
        raise fixtures.NotApplicable(f"in any window all {LENGTH} tokens reach one another: looks_back is large")
    other = torch.cat(((x[:, :1] + 1) % fixtures.VOCAB, x[:, 1:]), 1)
    changed = model(other, tested.document(LENGTH).with_window(before))
    equal(changed[:, reach:], full[:, reach:], "a token out of the window is changed")


def prefixes_are_bidirectional(tested: EncodingUnderTest) -> None:
    """The tokens of a prefix (`Positions.prefix_lm`) see one another as an encoder's do, the tokens after it see it and
    their past, packed or read with a cache too."""
    if not tested.takes_prefixes:
        raise fixtures.NotApplicable("it acts on the past alone and refuses a prefix")
    model, x, here = tested.model(DECODER), tokens(1, LENGTH), tested.document(LENGTH)
    equal(model(x, here.with_prefix(0)), model(x, here), "a prefix of no token")
    if not tested.encoding.causal_only:
        encoder = copy.deepcopy(model)
        encoder.config = replace(DECODER, causal=False)
        equal(model(x, here.with_prefix(LENGTH)), encoder(x, here), "a prefix of all tokens")
    documents = [tested.document(n).with_prefix(n - 2) for n in (4, 5)]
    alone = [model(part, p) for part, p in zip(x.split([4, 5], 1), documents, strict=True)]
    packed = tested.relocate(Positions.packed([4, 5]), [4, 5]).with_prefix([2, 3])
    equal(model(x, packed), torch.cat(alone, 1), "packed documents with prefixes")
    if not tested.encoding.needs_length:
        decoded = _decoded(tested, model, x, lambda p: p.with_prefix(3) if p.num_keys == p.num_queries else p)
        equal(decoded, model(x, here.with_prefix(3)), "cached decoding after a prefix")


def ragged_cache(tested: EncodingUnderTest) -> None:
    """Rows of different lengths share a cache, and each decodes as if alone."""
    tested.require_cache()
    model, x = tested.model(DECODER), tokens(2, LENGTH)
    lengths, cache = torch.tensor([5, 3]), KVCache()
    ends = [[n + 2] for n in lengths.tolist()]
    mask = (torch.arange(5) < lengths[:, None]).long()
    model(x[:, :5], tested.relocate(Positions.from_mask(mask), *ends), cache)
    new = torch.stack([x[0, 5:7], x[1, 3:5]])
    steps = [
        model(new[:, i : i + 1], tested.relocate(Positions.arange(1, lengths + i), *ends), cache) for i in range(2)
    ]
    for row, n in enumerate(lengths.tolist()):
        alone = model(x[row : row + 1, : n + 2], tested.document(n + 2))
        equal(torch.cat(steps, 1)[row], alone[0, n:], f"row {row} of a ragged cache")


def batched_generation_equals_single(tested: EncodingUnderTest) -> None:
    """Greedy generation is the same alone and in a left-padded batch."""
    tested.require_text("generate() numbers tokens as those of a text")
    tested.require_cache()
    model = tested.model(DECODER)
    short, long = tokens(1, 4), tokens(1, 6, seed=5)
    batch = torch.cat((torch.cat((torch.zeros(1, 2, dtype=torch.long), short), 1), long))
    together = model.generate(batch, 5, torch.tensor([[0, 0, 1, 1, 1, 1], [1] * 6]))
    for row, (alone, skip) in enumerate(((short, 2), (long, 0))):
        if not torch.equal(together[row, skip:], model.generate(alone, 5)[0]):
            raise CheckFailed(f"row {row} continues otherwise than alone")


def padding_changes_nothing(tested: EncodingUnderTest) -> None:
    """Left and right padding do not change the output."""
    for config in tested.configs():
        model, x = tested.model(config), tokens(2, LENGTH)
        for side in ("left", "right"):
            mask = torch.ones(2, LENGTH, dtype=torch.long)
            mask[1, slice(0, 3) if side == "left" else slice(6, None)] = 0
            together = model(x, tested.relocate(Positions.from_mask(mask), [LENGTH], [6]))
            for row, n in enumerate((LENGTH, 6)):
                inside = mask[row].bool()
                equal(together[row, inside], model(x[row, inside][None], tested.document(n))[0], f"{side} padding")


def packed_documents_are_separate(tested: EncodingUnderTest) -> None:
    """Documents packed into one sequence give the same outputs as each alone."""
    for config in tested.configs():
        model, x, lengths = tested.model(config), tokens(1, LENGTH), [2, 4, 3]
        alone = torch.cat([model(part, tested.document(part.shape[1])) for part in x.split(lengths, dim=1)], 1)
        equal(model(x, tested.relocate(Positions.packed(lengths), lengths)), alone, "packing")


def packed_images_are_separate(tested: EncodingUnderTest) -> None:
    """Images packed into one sequence, or padded to rows of one length, are as if alone, and patches taken out of an image
    as if the others were hidden. An encoding without positions in an image refuses them."""
    tested.require_text("it replaces positions in an image")
    config = DECODER if tested.encoding.causal_only else fixtures.ENCODER
    model, sizes = tested.model(config), [(2, 3), (1, 3)]
    one, two = tokens(1, 6), tokens(1, 3, seed=5)
    try:
        alone = [model(x, Positions.grid(*size)) for x, size in zip((one, two), sizes, strict=True)]
    except InputError as refusal:
        raise fixtures.NotApplicable(str(refusal)) from None
    except Exception as error:
        error.add_note(f"one of text refuses images with positions.require_one_axis({tested.encoding.known_as!r})")
        raise
    equal(model(torch.cat((one, two), 1), Positions.grids(sizes)), torch.cat(alone, 1), "packed images")
    rows = torch.cat((one, torch.cat((two, two), 1)))
    padded = model(rows, Positions.grids(sizes, padded=True))
    equal(torch.cat((padded[:1], padded[1:, :3]), 1), torch.cat(alone, 1), "padded images")
    image, taken = Positions.grid(2, 3), torch.tensor([4, 0, 5])
    shown = torch.zeros(1, 6, dtype=torch.bool).index_fill(1, taken, True)
    hidden = model(one, image.derived(valid=shown, q_valid=shown))
    equal(model(one[:, taken], image.take(taken)), hidden[:, taken], "patches taken")


def batch_rows_are_independent(tested: EncodingUnderTest) -> None:
    """Permuting the rows of a batch, each at other positions, permutes the output."""
    for config in tested.configs():
        model, x, ids = tested.model(config), tokens(3, LENGTH), tested.ids(LENGTH)
        # others than 0 .. n-1 where they are allowed and within the table
        same = not tested.is_text or tested.encoding.needs_length or tested.largest_shift(5) < 5
        further = [ids.flip(0), ids.roll(3, 0)] if same else [ids + 5, ids * 2]
        ids = torch.stack([ids, *further])
        order = torch.tensor([2, 0, 1])
        together = model(x, Positions.from_ids(ids, packed=False))
        equal(model(x[order], Positions.from_ids(ids[order], packed=False)), together[order], "permuted rows")


def shift_invariance_as_declared(tested: EncodingUnderTest) -> None:
    """Moving every position by the same amount, in images along any axis, changes nothing, if and only if
    `shift_invariant` is true."""
    if tested.encoding.needs_length and tested.encoding.shift_invariant:
        raise CheckFailed("shift_invariant and needs_length exclude one another")
    tested.require_cache()
    model, x = tested.model(DECODER), tokens(1, LENGTH)
    declared = model.encoding.shift_invariant
    if not tested.is_text and not declared:
        raise fixtures.NotApplicable("positions= is given, and need not be such as can move: shift_invariant is False")
    bases = {"": (tested.ids(LENGTH)[None], tested.largest_shift(1003))}
    if tested.takes_images:
        bases[" of an image"] = Positions.grid(3, 3).q, 2
    moves: dict[str, float] = {}
    for of, (ids, far) in bases.items():
        here = model(x, Positions.from_ids(ids, packed=False))
        steps = {"": torch.tensor(far)}
        if ids.dim() == 3:
            steps = {f" along axis {axis}": step for axis, step in enumerate(far * torch.eye(ids.shape[2]).long())}
        for along, step in steps.items():
            try:
                there = model(x, Positions.from_ids(ids + step, packed=False))
            except InputError:  # out of a table
                if declared:
                    raise
                continue
            moves[f"moving every position{of} by {far}{along}"] = float((here - there).detach().abs().max())
    worst = max(moves, key=lambda name: moves[name])
    if declared and moves[worst] >= 1e-10:
        raise CheckFailed(f"shift_invariant is True, but {worst} changes a logit by {moves[worst]:.3g}")
    if not declared and moves[worst] < 1e-10:
        raise CheckFailed(f"shift_invariant is False, but {worst} changes nothing: declare shift_invariant = True")


def gradients_arrive(tested: EncodingUnderTest) -> None:
    """Every parameter gets a finite gradient that is not zero, in the first layer's parameters as in the last's."""
    model, x = tested.model(DECODER), tokens(2, LENGTH)
    model(x, tested.document(LENGTH)).square().sum().backward()
    for name, p in model.named_parameters():
        if p.grad is None or not p.grad.isfinite().all() or not p.grad.any():
            raise CheckFailed(f"the gradient of {name} is missing, zero or not finite")


def gradients_are_right(tested: EncodingUnderTest) -> None:
    """torch.autograd.gradcheck of the encoding's parameters as they start (or of the queries, where it has none)."""
    model = tested.model(TransformerConfig(5, dim=8, num_layers=1, num_heads=2), redraw=False)
    parameters = tuple(model.encoding.parameters()) or (model.get_parameter("blocks.0.attention.query.weight"),)
    x = tokens(1, 4) % 5
    torch.autograd.gradcheck(lambda *_: model(x, tested.document(4)).logsumexp(-1).sum(), parameters, fast_mode=True)


def copies_are_equal(tested: EncodingUnderTest) -> None:
    """deepcopy and pickle give the same spec, tables and parameters, and a copied model another encoding."""
    model, x = tested.model(DECODER), tokens(1, LENGTH)
    for other in (copy.deepcopy(model.encoding), pickle.loads(pickle.dumps(model.encoding))):
        if json.dumps(other.spec()) != json.dumps(model.encoding.spec()):
            raise CheckFailed(f"a copy has another spec, {other.spec()}, than {model.encoding.spec()}")
        of = model.encoding
        pairs = zip((*other.buffers(), *other.parameters()), (*of.buffers(), *of.parameters()), strict=True)
        if not all(torch.equal(a, b) for a, b in pairs):
            raise CheckFailed("a copy has other tables or parameters")
    here = tested.document(LENGTH)
    twin, expected = copy.deepcopy(model), model(x, here)
    equal(twin(x, here), expected, "a copied model", 0.0)
    for parameter in twin.parameters():
        torch.nn.init.zeros_(parameter)
    equal(model(x, here), expected, "the original, after its copy was changed", 0.0)


def state_and_spec_round_trip(tested: EncodingUnderTest) -> None:
    """state_dict() and spec() together rebuild the model, the spec by way of JSON: what is registered by
    `posenc.from_spec`, other classes from the arguments that it names."""
    model, x = tested.model(DECODER), tokens(1, LENGTH)
    text = json.dumps(model.encoding.spec())
    classes = {
        part.known_as: type(part)
        for part in model.encoding.modules()
        if isinstance(part, Encoding) and type(part) not in (*ENCODINGS.values(), Sum, PerLayer, Mapped)
    }
    with fixtures.seeded(5):  # what was drawn is in the state, or lost
        rebuilt = from_spec(json.loads(text), classes)
    if json.dumps(rebuilt.spec()) != text:
        raise CheckFailed(f"the spec of what the spec {text} builds is another: {json.dumps(rebuilt.spec())}")
    again = Transformer(DECODER, rebuilt).double().eval()
    again.load_state_dict(model.state_dict())
    equal(again(x, tested.document(LENGTH)), model(x, tested.document(LENGTH)), f"the model rebuilt from {text}", 0.0)


def meta_device_gives_the_same_model(tested: EncodingUnderTest) -> None:
    """Made on the meta device and filled from a state_dict, copied or assigned, it is the same model."""
    model, x, here = tested.model(DECODER), tokens(1, LENGTH), tested.document(LENGTH)
    for assign in (False, True):
        with torch.device("meta"):
            filled = Transformer(DECODER, tested.make_encoding(DECODER))
        if not assign:
            filled = filled.to_empty(device="cpu").double()
        filled.load_state_dict(model.state_dict(), assign=assign)
        equal(filled.eval()(x, here), model(x, here), "assigned" if assign else "to_empty", 0.0)


def bfloat16_logits_stay_near(tested: EncodingUnderTest) -> None:
    """In bfloat16 no logit is off by more than 0.25; where the encoding's parameters are float32, and as they start,
    by no more than 0.06 at positions that bfloat16 cannot represent (logits have a standard deviation near 1)."""
    x, here = tokens(2, LENGTH), tested.document(LENGTH)
    short = tested.model(DECODER, torch.bfloat16)(x, here).double()
    equal(short, tested.model(DECODER)(x, here), "bfloat16", BFLOAT16_BOUND)
    if tested.encoding.needs_length or not tested.is_text:
        return
    late = Positions.from_ids(torch.arange(LENGTH) + tested.largest_shift(LATE))
    half, full = (tested.model(DECODER, dtype, redraw=False) for dtype in (torch.float32, torch.float64))
    for name, module in half.named_children():
        if name != "encoding":
            module.to(torch.bfloat16)
    equal(half(x, late).double(), full(x, late), f"bfloat16 at position {int(late.q[0, 0])}", LATE_BOUND)


def random_state_is_unchanged(tested: EncodingUnderTest) -> None:
    """Nothing sets the random numbers of torch, Python or numpy to a seed, and an evaluation draws none."""
    x, after = tokens(1, LENGTH), []
    for seed in (1, 2):
        with fixtures.seeded(seed):
            model = Transformer(DECODER, tested.make(DECODER)).eval()
            before = _random_states()
            model(x, tested.document(LENGTH))
            changed = [name for name, state in _random_states().items() if state != before[name]]
            if changed:
                raise CheckFailed(f"a forward pass in eval mode changes the random numbers of {', '.join(changed)}")
            model.train()(x, tested.document(LENGTH)).sum().backward()
            after.append(_random_states())
    same = [name for name, state in after[0].items() if state == after[1][name]]
    if same:
        raise CheckFailed(f"it sets the random numbers of {', '.join(same)} to a seed, which are the caller's")


def _random_states() -> dict[str, Any]:
    states: dict[str, Any] = {"torch": torch.get_rng_state().tolist(), "Python": random.getstate()}
    if "numpy" in sys.modules:
        name, keys, *rest = sys.modules["numpy"].random.get_state()
        states["numpy"] = name, keys.tolist(), rest
    return states


def sequence_shards_equal_one_process(tested: EncodingUnderTest) -> None:
    """Each of two processes that share a sequence, in both layouts, gets the codes of its tokens, and the attention of its
    queries among all keys, that one process with the complete sequence gets."""
    n = LENGTH - LENGTH % 4
    for config in tested.configs():
        model = tested.model(config)
        model(tokens(1, n), tested.document(n))  # which shares its projections
        encoding = model.encoding
        (x,) = fixtures.random_inputs((2, n, config.dim))
        inputs = fixtures.attention_inputs(config, tested.document(n))
        q, k, v = inputs[:3]
        gates = gates_of(encoding, inputs[3])
        texts = {
            "one text": tested.document(n),
            "padded": tested.relocate(Positions.from_mask((torch.arange(n) >= 2).long()[None]), [n - 2]),
            "packed": tested.relocate(Positions.packed([3, n - 3]), [3, n - 3]),
        }
        for (name, p), layout, rank in product(texts.items(), LAYOUTS, range(2)):
            p = p.with_causal(config.causal)
            coded, attended = encoding.embed(x, p), fixtures.attend(encoding, inputs, p, backend="reference")
            local, what = p.shard(rank, 2, layout=layout), f"process {rank} of 2, {layout}, {name}"
            equal(encoding.embed(shard(x, local), local), shard(coded, local), f"codes of {what}")
            calls = calls_of(local, config.causal)
            parts = shard(q, local, 2).split([call.num_queries for call in calls], 2)
            outs = []
            for part, call in zip(parts, calls, strict=True):
                keys, values, *gating = (each[:, :, : call.num_keys] for each in (k, v, *gates))
                problem = prepare(Call(part, keys, values, encoding, call, gates=gating))
                outs.append(problem.finished(Reference().attend(problem)))
            equal(torch.cat(outs, 2), shard(attended, local, 2), f"attention of {what}")


def slices_of_heads_equal_all_heads(tested: EncodingUnderTest) -> None:
    """The encoding of some heads (`Encoding.heads`), as a process of tensor parallelism has it, gives what they get among all."""
    model, here = tested.model(DECODER), tested.document(LENGTH).with_causal(True)
    model(tokens(1, LENGTH), here)  # which shares its projections
    layers = [each for each in model.modules() if isinstance(each, Attention)]
    inputs, sharing = fixtures.attention_inputs(DECODER, here), DECODER.num_heads // DECODER.kv_heads
    for layer, at in product(range(len(layers)), range(DECODER.kv_heads)):
        of_q, of_k = slice(at * sharing, at * sharing + sharing), slice(at, at + 1)
        try:
            part = model.encoding.heads(of_q, num_heads=DECODER.num_heads, num_kv_heads=DECODER.kv_heads)
            part.share([(_of_heads(of_q, each.query), _of_heads(of_k, each.key)) for each in layers])
            some = [x[:, heads] for x, heads in zip(inputs, (of_q, of_k, of_k, slice(None)), strict=True)]
            found = fixtures.attend(part, some, here, layer=layer)
        except InputError as refusal:
            raise fixtures.NotApplicable(str(refusal)) from None
        what = f"heads {of_q.start} to {of_q.stop - 1} alone (what differs between heads belongs into tables() or parameters)"
        equal(found, fixtures.attend(model.encoding, inputs, here, layer=layer)[:, of_q], what)


def _of_heads(heads: slice, project: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda x: project(x).unflatten(-1, (-1, DECODER.width))[..., heads, :].flatten(-2)


class AtIds(nn.Module):
    """A model that is given the positions of its tokens as a tensor, as compilers need it."""

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor, ids: Tensor) -> Tensor:
        return self.model(tokens, Positions.from_ids(ids, packed=False))


def _to_compile(tested: EncodingUnderTest, *lengths: int) -> tuple[nn.Module, list[tuple[Tensor, ...]]]:
    """The smallest model that all of the encoding acts in, and inputs of these lengths, of two rows and of three."""
    model = tested.model(DECODER if isinstance(tested.encoding, PerLayer) else replace(DECODER, num_layers=1))
    given = [(tokens(rows, n), tested.ids(n)[None]) for rows, n in enumerate(lengths, start=2)]
    if tested.is_text:
        return model, [(x,) for x, _ in given]
    return AtIds(model), [*given]


def torch_compile_equals_eager(tested: EncodingUnderTest) -> None:
    """torch.compile in one graph, for any batch and length."""
    torch._dynamo.reset()
    model, inputs = _to_compile(tested, LENGTH, LENGTH + 4)
    compiled = torch.compile(model, backend="aot_eager", dynamic=True, fullgraph=True)
    for given in inputs:
        equal(compiled(*given), model(*given), f"compiled, {tuple(given[0].shape)} tokens")


def torch_export_equals_eager(tested: EncodingUnderTest) -> None:
    """torch.export for any batch and length."""
    model, inputs = _to_compile(tested, LENGTH, LENGTH + 6)
    batch, length = torch.export.Dim("batch", min=1, max=64), torch.export.Dim("length", min=2, max=40)
    sizes = ({0: batch, 1: length}, {1: length})[: len(inputs[0])]
    exported = torch.export.export(model, inputs[0], dynamic_shapes=sizes).module()
    equal(exported(*inputs[1]), model(*inputs[1]), "exported")


SLOW = ("torch_compile_equals_eager", "torch_export_equals_eager")
FAST = (
    "cached_decoding_equals_full_pass", "ragged_cache", "windows_are_local", "padding_changes_nothing",
    "packed_documents_are_separate", "batch_rows_are_independent",
)  # fmt: skip
"""Those that find most mistakes, in seconds."""
CHECKS: dict[str, Callable[[EncodingUnderTest], None]] = {
    f.__name__: f
    for f in (
        position_matters, backends_agree, calls_are_independent, graphs_are_freed, cached_decoding_equals_full_pass,
        ragged_cache, windows_are_local, prefixes_are_bidirectional, batched_generation_equals_single,
        padding_changes_nothing, packed_documents_are_separate, packed_images_are_separate, batch_rows_are_independent,
        sequence_shards_equal_one_process, slices_of_heads_equal_all_heads, shift_invariance_as_declared, gradients_arrive,
        gradients_are_right, copies_are_equal, state_and_spec_round_trip, random_state_is_unchanged,
        meta_device_gives_the_same_model, bfloat16_logits_stay_near, torch_compile_equals_eager, torch_export_equals_eager,
    )
}  # fmt: skip
