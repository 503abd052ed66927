# SPDX-License-Identifier: Apache-2.0
"""A pass: what its layers share depends on the arguments alone, whatever runs around it."""

import gc
import sys
import weakref
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import product

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounter
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.utils import _apply_to_tensors
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint

import posenc
from posenc import ALiBi, Encoding, InputError, KVCache, NoPE, Pass, Positions, Rotary, attention
from posenc.bias import Relative, dense_sum
from posenc.conformance.fixtures import DECODER, attention_inputs, named
from posenc.encoding import gates_of
from posenc.positions.visibility import Branch, Region

N = 11
AT = Positions.arange(N)
SUMS = (
    "rope+alibi", "rope+t5", "alibi+t5", "rope+log_n", "rope/rope/none", "t5/rope+alibi", "rope+sink", "rope@rerope:window=4",
)  # fmt: skip
MOST_FRAMES = {
    "rope@rerope:window=4": (345, 90), "floater": (450, 90), "wall": (310, 230), "path": (245, 165), "dape": (190, 135),
    "swin_v2": (250, 135), "tupe_r": (245, 40), "beit": (225, 120), "deberta_v2": (225, 125),
}  # fmt: skip
"""Python functions that a first layer and a later one call"""
LAYOUTS = {
    "left padded": lambda: Positions.from_mask(torch.tensor([[0, 0, 0] + [1] * (N - 3), [1] * N]), causal=True),
    "packed": lambda: Positions.packed([4, 5, 2], causal=True),
    "ragged cache": lambda: Positions.arange(3, torch.tensor([N - 3, 2]), causal=True),
    "one token": lambda: Positions.arange(1, N - 1, causal=True),
    "long": lambda: Positions.arange(300, causal=True),
    "window": lambda: Positions.arange(N, causal=True).with_window(3),
}


def made(name):
    """An encoding with parameters that are not those of a new one, and the model's projections."""
    encoding = named(name)(DECODER).double()
    heads, of_keys = DECODER.num_heads * DECODER.width, DECODER.kv_heads * DECODER.width
    encoding.share(
        [(nn.Linear(DECODER.dim, heads).double(), nn.Linear(DECODER.dim, of_keys).double()) for _ in range(2)]
    )
    for parameter in encoding.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return encoding


def layers(encoding, given, attend, around=lambda layer, *inputs: layer(*inputs)):
    """The outputs of four layers, two of each kind, and the gradients of all that is learned."""
    leaves, total, outs = [x.clone().requires_grad_() for x in given], 0.0, []

    def layer(q, k, v, x, number):
        gates = gates_of(encoding, x, number) or None
        return attend(q, k, v, layer=number, gates=gates)

    for number in (0, 1, 0, 1):
        outs.append(around(partial(layer, number=number), *leaves))
        total = total + outs[-1].square().sum() * (1 + number)
    learned = [*leaves, *(x for x in encoding.parameters() if x.requires_grad)]
    total.backward()
    grads = [x.grad for x in learned if x.grad is not None]
    encoding.zero_grad()
    return [*outs, *grads]


def both(encoding, positions):
    """Inputs, and what the layers give by the formulas, each layer by itself."""
    given = [x.double() for x in attention_inputs(DECODER, positions)]
    return given, layers(encoding, given, lambda *x, **o: attention(*x, encoding, positions, backend="reference", **o))


def alike(ours, wanted):
    assert_close(ours, wanted, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("name", [*posenc.ENCODINGS, *SUMS])
def test_layers_of_a_pass_are_the_reference_under_both_kinds_of_checkpoint(name):
    encoding, positions = made(name), Positions.arange(N, causal=True)
    given, wanted = both(encoding, positions)
    for kind in (None, False, True):
        around = {} if kind is None else {"around": partial(checkpoint, use_reentrant=kind)}
        alike(layers(encoding, given, encoding.at(positions).attention, **around), wanted)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ["none", "alibi", "t5", "shaw", *SUMS])
def test_layers_of_a_pass_are_the_reference_at_any_positions(name, layout):
    encoding, positions = made(name), LAYOUTS[layout]()
    try:
        given, wanted = both(encoding, positions)
    except InputError:
        pytest.skip("refuses these positions")
    alike(layers(encoding, given, encoding.at(positions).attention), wanted)


def inputs(n=N, heads=2, **options):
    return torch.randn(3, 1, heads, n, 8, **options).unbind()


@pytest.mark.parametrize(
    ("name", "n"), [*product([*posenc.ENCODINGS, *SUMS], [N]), *product(["none", "alibi", "t5", *SUMS], [300])]
)
def test_a_layer_checks_nothing_that_the_first_has_checked(name, n, monkeypatch):
    """And takes few Python frames, as does the first."""
    encoding, positions = made(name).float(), Positions.arange(n, causal=True)
    q, k, v, x = (x.float() for x in attention_inputs(DECODER, positions))
    here, gates = encoding.at(positions), [gates_of(encoding, x, layer) or None for layer in range(2)]

    def call(layer, make=lambda: here):
        events = []
        sys.setprofile(lambda frame, event, _: events.append(event))
        out = make().attention(q, k, v, layer=layer, gates=gates[layer])
        sys.setprofile(None)
        return out, n == N and events.count("call")

    most, outs = MOST_FRAMES.get(name, (205, 122)), [call(layer)[0] for layer in range(2)]
    assert call(0, lambda: encoding.at(positions))[1] <= most[0]
    monkeypatch.setattr(sys.modules["posenc.attention.attend"], "checked", None)
    for layer, out in enumerate(outs):
        again, frames = call(layer)
        assert_close(again, out)
        assert frames <= most[1]


CHANGES = {
    "step": lambda encoding, optimizer: optimizer.step(),
    "freeze": lambda encoding, optimizer: encoding.requires_grad_(False),
    "load": lambda encoding, optimizer: encoding.load_state_dict(posenc.T5(2).state_dict(), assign=True),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_pass_is_of_the_parameters_that_it_was_made_from(change):
    encoding, positions = posenc.T5(2), Positions.arange(N, causal=True)
    optimizer, given = torch.optim.SGD(encoding.parameters(), lr=10.0), inputs()
    here = encoding.at(positions)
    here.attention(*given).square().sum().backward()
    CHANGES[change](encoding, optimizer)
    for use in (here.attention, here.embed):
        with pytest.raises(InputError, match=r"have changed since this pass was made: .* encoding.at\(positions\)"):
            use(*given) if use == here.attention else use(torch.randn(1, N, 8))
    assert_close(encoding.at(positions).attention(*given), attention(*given, encoding, positions, backend="reference"))


@pytest.mark.parametrize("learns", [True, False])
@pytest.mark.parametrize("name", ["t5", "rope+alibi", "learned_rope", "floater", "fire", "shaw", "deberta"])
def test_the_next_pass_sees_what_is_written_to_data(name, learns):
    """As an exponential moving average is, which changes no version."""
    encoding, positions = made(name).requires_grad_(learns), Positions.arange(N, causal=True)
    q, k, v, _ = (x.double() for x in attention_inputs(DECODER, positions))
    for _ in range(2):
        for x in (*encoding.parameters(), *encoding.buffers()):
            x.data.mul_(1.5 if x.is_floating_point() else 1)
        ours = encoding.at(positions).attention(q, k, v)
        assert_close(ours, attention(q, k, v, encoding, positions, backend="reference"))


class Steeper(ALiBi):
    """Another slope in each layer."""

    num_layers = 3

    def of_distance(self, head, distance, layer, dtype):
        return super().of_distance(head, distance, layer, dtype) * (layer + 1)


class Replaced(ALiBi):
    """Another function in the term of the parent."""

    def bias(self, q, k, positions, layer=0):
        term = super().bias(q, k, positions, layer)
        return replace(term, function=lambda head, distance: term.function(head, distance) * (layer + 1))


class Sometimes(Encoding):
    """A bias in some layers, of another kind in each."""

    def bias(self, q, k, positions, layer=0):
        dense = posenc.bias.Dense(torch.eye(q.shape[2])[None, None])
        return [None, Relative(lambda head, distance: distance.abs() * 0.5, 2, positions), dense][layer]


class Nearer(Rotary):
    """Another branch of a map, and another function of the scores."""

    def branches(self, layer=0):
        return [Branch(Region(None, 2 + 2 * layer))]

    def modify(self, positions, layer=0):
        return posenc.bias.SoftCap(1.0 + layer)


class Farther(posenc.Shaw):
    """Another index of the same table."""

    def bias(self, q, k, positions, layer=0):
        self.ahead = -layer
        return super().bias(q, k, positions, layer)


FARTHER = partial(Farther, 8, num_heads=2, init_std=1.0)


@pytest.mark.parametrize("cls", [partial(Steeper, 2), partial(Replaced, 2), Sometimes, partial(Nearer, 8), FARTHER])
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0)])
def test_an_encoding_may_differ_from_layer_to_layer(cls, order):
    encoding, positions, given = cls(), Positions.arange(N, causal=True), inputs()
    here = encoding.at(positions)
    for layer in order:
        wanted = attention(*given, encoding, positions, layer=layer, backend="reference")
        assert_close(here.attention(*given, layer=layer), wanted)


@pytest.mark.parametrize("name", [name for name, cls in posenc.ENCODINGS.items() if "bias" in cls.own_sites])
def test_a_bias_is_constant_if_it_depends_on_positions_and_parameters_alone(name):
    encoding, positions = made(name), Positions.arange(7, causal=True)
    q, k, _, x = (x.double() for x in attention_inputs(DECODER, positions))
    terms = []
    with torch.no_grad():
        for queries, keys, features in ((q, k, x), (q.flip(2), k, x), (q, k.flip(2), x), (q, k, x.flip(1))):
            at = positions.with_gates(gates_of(encoding, features))
            terms.append(dense_sum(encoding.effects(at).terms(queries, keys), q.device))
    if terms[0] is None:
        assert name == "window"  # which has one width for all heads here
    else:
        assert type(encoding).constant == all(torch.equal(terms[0], other) for other in terms[1:])


# ---------------------------------------------------------------- what runs around a pass


@pytest.mark.parametrize("name", ["rope+alibi", "t5", "rope+log_n", "shaw", "rope@rerope:window=4"])
def test_a_pass_may_be_used_under_modes_and_without(name):
    encoding, positions = made(name).float(), Positions.arange(N, causal=True)
    q, k, v, _ = (x.float() for x in attention_inputs(DECODER, positions))
    wanted = attention(q, k, v, encoding, positions, backend="reference")
    here = encoding.at(positions)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fake = here.attention(*(mode.from_tensor(x) for x in (q, k, v)))
        assert fake.shape == wanted.shape
    for mode in (torch.inference_mode, torch.no_grad):
        with mode():
            assert_close(here.attention(q, k, v), wanted)
    many = torch.func.vmap(lambda q: here.attention(q, k, v))(torch.stack((q, 2 * q)))
    assert_close(many[0], wanted)
    slope = torch.func.grad(lambda q: here.attention(q, k, v).square().sum())(q)
    leaf = q.clone().requires_grad_()
    here.attention(leaf, k, v).square().sum().backward()
    assert_close(leaf.grad, slope)


@pytest.mark.parametrize("name", ["rope+alibi", "t5", "shaw", "rope@rerope:window=4"])
def test_a_token_with_a_cache_may_be_derived_after_others(name):
    encoding, positions = made(name).float(), Positions.arange(N, causal=True)
    q, k, v, _ = (x.float() for x in attention_inputs(DECODER, positions))
    cache, (prompt, last) = KVCache(), ([x.split([N - 1, 1], 2)[i] for x in (q, k, v)] for i in (0, 1))
    encoding.at(cache.positions(N - 1)).attention(*prompt, cache=cache)

    def token(q):
        cache.crop(N - 1)
        return encoding.at(cache.positions()).attention(q, *last[1:], cache=cache)

    token(last[0])
    _, got = torch.func.jvp(token, (last[0],), (torch.ones_like(last[0]),))
    of_all = partial(attention, k=k, v=v, encoding=encoding, positions=positions, backend="reference")
    assert_close(got, torch.func.jvp(of_all, (q,), (torch.ones_like(q),))[1][:, :, -1:])


def test_a_pass_on_meta_has_shapes():
    encoding = (Rotary(8) + posenc.T5(2)).to("meta")
    here = encoding.at(Positions.arange(N, causal=True, device="meta"))
    for layer in range(2):
        assert here.attention(*inputs(device="meta"), layer=layer).is_meta


@pytest.mark.parametrize("outside", [True, False])
def test_forty_steps_of_training_are_one_graph(outside):
    encoding, counter = Rotary(8) + posenc.T5(2), CompileCounter()
    optimizer, positions = torch.optim.SGD(encoding.parameters(), lr=0.1), Positions.arange(N, causal=True)

    def run(q, k, v, here=None):
        here = encoding.at(positions) if here is None else here
        for layer in range(3):
            q = q + here.attention(q, k, v, layer=layer)
        return q

    compiled, given = torch.compile(run, fullgraph=True, backend=counter), inputs()
    for _ in range(40):
        more = (encoding.at(positions),) if outside else ()
        out = compiled(*given, *more)
        assert_close(out, run(*given), rtol=1e-4, atol=1e-5)
        out.square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert counter.frame_count == 1


def test_threads_share_a_pass():
    encoding, positions, given = Rotary(8) + posenc.T5(2), Positions.arange(N, causal=True), inputs()
    here, wanted = encoding.at(positions), attention(*given, encoding, positions)
    with ThreadPoolExecutor(4) as pool:
        for out in pool.map(lambda _: here.attention(*given), range(80)):
            assert_close(out, wanted)


@pytest.mark.parametrize("name", [*posenc.ENCODINGS, *SUMS])
def test_what_a_pass_held_is_free_when_it_is(name):
    """At once, without a search for garbage: a cycle would keep masks."""
    encoding, positions = made(name), Positions.arange(N, causal=True)
    q, k, v, x = (x.double() for x in attention_inputs(DECODER, positions))
    gates = gates_of(encoding, x) or None
    gc.collect()
    gc.disable()
    try:
        here = encoding.at(positions)
        outs = [here.attention(q, k, v, gates=gates) for _ in range(2)]
        held = [weakref.ref(here._memory), weakref.ref(here.positions)]
        del here, outs
        assert [each() for each in held] == [None, None]
        alone = weakref.ref(encoding)
        attention(q, k, v, encoding, positions, gates=gates)
        del encoding, gates
        assert alone() is None, "positions remember nothing"
    finally:
        gc.enable()


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (lambda given: Pass("rope", AT), "encoding='rope': pass an Encoding"),
        (lambda given: NoPE().at(3), "positions=3: pass Positions"),
        (lambda given: attention(*given, NoPE().at(AT), AT), "a pass has its positions"),
        (lambda given: NoPE().at(AT).attention(*given, is_causal=True), "is_causal=True: pass causal="),
        (lambda given: NoPE().at(Positions.arange(N - 1)).attention(*given), "positions are for 10 queries"),
    ],
)
def test_what_is_no_pass_is_refused(use, message):
    with pytest.raises(InputError, match=message):
        use(inputs())


def test_explain_says_what_is_made_for_a_call_alone():
    encoding, positions, given = posenc.T5(2), Positions.arange(N, causal=True), inputs()
    assert "made for this call alone: pass encoding.at(positions)" in str(posenc.explain(*given, encoding, positions))
    assert "alone" not in str(posenc.explain(*given, encoding.at(positions)))


# ---------------------------------------------------------------- with a cache


def decoded(encoding, attend, sizes=(4, 3, 4)):
    """The keys and values of a text in pieces, whose last output is read."""
    given = torch.randn(3, 1, 2, sum(sizes), 8, generator=torch.Generator().manual_seed(0))
    leaves = [x.clone().requires_grad_() for x in given]
    parts, cache = zip(*(x.split(sizes, 2) for x in leaves), strict=True), KVCache()
    outs = [attend(cache, q, k, v) for q, k, v in parts]
    return leaves, cache, outs


@pytest.mark.parametrize("name", ["none", "rope", "p_rope", "rope+alibi", "t5", "rope@rerope:window=4"])
def test_a_cache_under_a_checkpoint_is_right(name):
    encoding = posenc.create(name, head_dim=8, num_heads=2)

    def attend(use_reentrant):
        def call(cache, q, k, v):
            here = cache.at(encoding, q.shape[2])
            if use_reentrant is None:
                return here.attention(q, k, v, cache=cache)
            return checkpoint(lambda *x: here.attention(*x, cache=cache), q, k, v, use_reentrant=use_reentrant)

        return call

    def grads(kind, sizes):
        leaves, _, outs = decoded(encoding, attend(kind), sizes)
        return torch.autograd.grad(sum(out.square().sum() for out in outs), leaves)

    assert_close(grads(False, (4, 3, 4)), grads(None, (4, 3, 4)))
    leaves, _, outs = decoded(encoding, attend(True), (11,))  # whose forward keeps no gradient for later pieces
    outs[0].square().sum().backward()
    assert_close(tuple(x.grad for x in leaves), grads(None, (11,)))


def test_a_cache_that_is_written_again_from_0_keeps_no_graph():
    encoding, cache = Rotary(8), KVCache()
    for _ in range(3):
        q, k, v = inputs(requires_grad=True)
        here = encoding.at(Positions.arange(N, causal=True))
        here.attention(q, k, v, cache=cache).square().sum().backward()


def test_segments_of_a_text_are_trained_one_by_one():
    encoding, cache = Rotary(8) + ALiBi(2), KVCache()
    for _ in range(3):
        given = [x.clone().requires_grad_() for x in inputs(4)]
        cache.at(encoding, 4).attention(*given, cache=cache).square().sum().backward()
        assert all(x.grad is not None for x in given)
        cache.detach()
    assert len(cache) == 12


def test_the_next_positions_of_a_cache_are_in_one_graph():
    encoding, counter = Rotary(8), CompileCounter()
    caches, (q, k, v) = [KVCache(), KVCache()], inputs(6)

    def step(q, k, v, cache):
        return attention(q, k, v, encoding, cache.positions(q.shape[2]), cache=cache)

    compiled = torch.compile(step, fullgraph=True, dynamic=True, backend=counter)
    with torch.no_grad():
        for cache, run in zip(caches, (compiled, step), strict=True):
            cache.outs = [run(q[:, :, :4], k[:, :, :4], v[:, :, :4], cache)]
            cache.outs.append(run(q[:, :, 4:], k[:, :, 4:], v[:, :, 4:], cache))
    assert_close(caches[0].outs, caches[1].outs)
    assert counter.frame_count == 2, "the prefill and the step"


@pytest.mark.parametrize("name", [*posenc.encodings.ENCODINGS])
def test_casts_of_inputs_leave_encodings_positions_and_passes(name):
    """As FSDP2's MixedPrecisionPolicy and DDP's mixed precision do: dataclasses among inputs are replaced by new ones."""
    cast = partial(_apply_to_tensors, lambda x: x.bfloat16() if x.is_floating_point() else x)
    encoding, positions = made(name), Positions.from_ids(torch.tensor([0.5, 1.25, 7.0]), causal=True)
    here = encoding.at(positions)
    assert cast([here, positions]) == [here, positions]
    assert positions.q.dtype != torch.bfloat16
    assert cast(encoding) is encoding
