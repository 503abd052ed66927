"""Encodings of some heads (tensor parallelism), parameters that FSDP divides, and classes that PyTorch makes."""

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

import posenc
from posenc import InputError, Positions, attention
from posenc.conformance.checks import _of_heads
from posenc.conformance.fixtures import DECODER, EncodingUnderTest, attention_inputs, named
from posenc.encoding import gates_of
from posenc.lab.transformer import Attention
from test_conformance import VARIANTS

EVERY = pytest.mark.parametrize("name", posenc.ENCODINGS)
MIXING = {"dape", "selective_attention", "floater"}
HEADS, KV, GROUP = DECODER.num_heads, DECODER.kv_heads, DECODER.num_heads // DECODER.kv_heads


def drawn(name):
    """An encoding for a decoder of 4 heads, 2 of keys, whose parameters are drawn."""
    return EncodingUnderTest(named(name)).model(DECODER).encoding


def results(encoding, inputs, positions, layer=0):
    """The output, and the gradients of the inputs and of the parameters by name."""
    leaves = [x.detach().clone().requires_grad_() for x in inputs]
    q, k, v, x = leaves
    out = attention(q, k, v, encoding, positions, gates=gates_of(encoding, x, layer) or None, layer=layer)
    weight = torch.linspace(-1, 1, out.shape[-1] * out.shape[-2], dtype=out.dtype).view(out.shape[-2:])
    (out * weight).sum().backward()
    of_parameters = {n: torch.zeros_like(p) if p.grad is None else p.grad for n, p in encoding.named_parameters()}
    return out.detach(), [torch.zeros_like(x) if x.grad is None else x.grad for x in leaves], of_parameters


def shared(encoding, model, of_q=slice(None), of_k=slice(None)):
    """An encoding, given the projections of a model, of all heads or of some."""
    layers = [each for each in model.modules() if isinstance(each, Attention)]
    encoding.share([(_of_heads(of_q, each.query), _of_heads(of_k, each.key)) for each in layers])
    return encoding


REFUSED = MIXING | {"learned_rope:groups=2:layout=interleaved"}
SERVED = [
    name
    for name in (*posenc.ENCODINGS, *VARIANTS, "head_rope:schedules=default|linear\\:factor=2")
    if not REFUSED & {name, *name.replace("+", " ").replace("/", " ").replace(":", " ").split()}
]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in VARIANTS[1::2] else ()) for name in SERVED]
)
def test_parts_of_the_heads_are_one_process(name):
    positions, model = Positions.arange(7, causal=True), EncodingUnderTest(named(name)).model(DECODER)
    inputs, encoding = attention_inputs(DECODER, positions), shared(model.encoding, model)
    want, of_inputs, of_parameters = results(encoding, inputs, positions)
    summed = {key: torch.zeros_like(x) for key, x in of_parameters.items()}
    outs, grads = [], []
    for first in range(0, HEADS, GROUP):
        of_q, of_keys = slice(first, first + GROUP), slice(first // GROUP, first // GROUP + 1)
        part = shared(encoding.heads(of_q, num_heads=HEADS, num_kv_heads=KV), model, of_q, of_keys)
        given = [inputs[0][:, of_q], inputs[1][:, of_keys], inputs[2][:, of_keys], inputs[3]]
        out, of_given, of_part = results(part, given, positions)
        outs.append(out)
        grads.append(of_given)
        for key, x in of_part.items():  # what is cut has a place in the gradient of all, the rest is summed
            where = [slice(None) if n == m else slice(m * first // HEADS, m * first // HEADS + n) for n, m in zip(x.shape, summed[key].shape, strict=True)]  # fmt: skip
            summed[key][tuple(where)] += x
    torch.testing.assert_close(torch.cat(outs, 1), want, rtol=0, atol=1e-12)
    for at in range(3):
        torch.testing.assert_close(torch.cat([each[at] for each in grads], 1), of_inputs[at], rtol=0, atol=1e-11)
    torch.testing.assert_close(grads[0][3] + grads[1][3], of_inputs[3], rtol=0, atol=1e-11)
    for key, x in of_parameters.items():
        torch.testing.assert_close(summed[key], x, rtol=0, atol=1e-11, msg=key)


@pytest.mark.parametrize("name", [*posenc.ENCODINGS, *VARIANTS])
def test_a_slice_that_cuts_a_group_is_refused(name):
    encoding = named(name)(DECODER)
    for part in (slice(1, 3), slice(0, 1), slice(1, None), slice(-1, None)):
        with pytest.raises(InputError) as refusal:
            encoding.heads(part, num_heads=HEADS, num_kv_heads=KV)
        assert str(refusal.value) == (
            f"heads={part}: cuts query heads of {HEADS} that belong together, {GROUP} by {GROUP}; begin and end at multiples of {GROUP}"
        )


@pytest.mark.parametrize("name", SERVED)
def test_a_part_refuses_other_heads(name):
    """A model with grouped keys whose number was not given; keys of too many heads; queries of too few."""
    positions, encoding = Positions.arange(7, causal=True), drawn(name)
    q, k, v, x = attention_inputs(DECODER, positions)

    def refused(part, heads, of_keys):
        gates = gates_of(part, x, 0) or None
        with pytest.raises(
            InputError, match=rf"^q with {heads} and k with {of_keys} heads: this part of \w+ is of query heads"
        ):
            attention(q[:, :heads], k[:, :of_keys], v[:, :of_keys], part, positions, gates=gates)

    part = encoding.heads(slice(0, GROUP), num_heads=HEADS, num_kv_heads=KV)
    refused(part, GROUP, GROUP)
    refused(part, 1, 1)
    refused(part, HEADS, KV)
    refused(posenc.from_spec(part.spec()).double(), GROUP, GROUP)
    if not any(getattr(each, "num_kv_heads", None) for each in encoding.modules()):
        refused(encoding.heads(slice(0, GROUP), num_heads=HEADS), GROUP, 1)


def test_numbers_of_heads_are_those_that_it_was_made_for():
    alibi, rope, path = posenc.ALiBi(8), posenc.Rotary(8), posenc.create("path", dim=64, num_heads=8, num_kv_heads=4)
    for encoding, given, message in (
        (alibi, {"num_heads": 4}, "num_heads=4: alibi was made for 8"),
        (path, {"num_kv_heads": 2}, "num_kv_heads=2: path was made for 4"),
        (alibi + path, {"num_kv_heads": 2}, "num_kv_heads=2: sum was made for 4"),
        (alibi, {"num_kv_heads": 3}, "num_kv_heads=3: must divide the 8 query heads"),
        (alibi, {"num_kv_heads": 0}, "num_kv_heads=0: must be at least 1"),
        (alibi.heads(slice(0, 4), num_kv_heads=4), {"num_kv_heads": 4}, "num_kv_heads=4: alibi was made for 2"),
        (rope, {"num_kv_heads": 2}, "num_kv_heads=2: rope does not know the number of query heads; pass num_heads= as well"),
        (alibi + posenc.ALiBi(4), {}, "heads=slice(0, 4, None): the parts of sum were made for 4 and 8 query heads"),
    ):  # fmt: skip
        with pytest.raises(InputError) as refusal:
            encoding.heads(slice(0, 4), **given)
        assert str(refusal.value) == message
    with pytest.raises(InputError, match=r"rope does not know the number of query heads; pass num_heads= as well$"):
        rope.heads(slice(4, None))
    assert (rope + alibi).heads(slice(4, None), num_kv_heads=2).spec()["parts"][0]["kv_heads"] == [1, 2]
    assert path.heads(slice(2, 6)).heads(slice(2, None)).spec()["kv_heads"] == [2, 3]


@pytest.mark.parametrize("cls", [posenc.ALiBi, posenc.GridALiBi])
@pytest.mark.parametrize("slopes", [[0.1, 0.2, 0.3, 0.4], [[0.1, 0.2, 0.3, 0.4], [1, 2, 3, 4]]], ids=["heads", "rows"])
def test_slopes_that_were_given_are_cut(cls, slopes):
    part = cls(4, slopes=slopes).heads(slice(1, 4)).heads(slice(1, 3)).double()
    torch.testing.assert_close(part.slope_table, torch.tensor(slopes, dtype=torch.float64)[..., 2:4])
    assert torch.equal(posenc.from_spec(part.spec()).slope_table, part.slope_table)


def test_windows_of_a_width_per_head_are_cut():
    part = (posenc.Window([2, 3, None, 5]) + posenc.ALiBi(4)).heads(slice(2, 4))
    window, alibi = part
    assert window.before == [None, 5]
    torch.testing.assert_close(alibi.slope_table, posenc.ALiBi(4).slope_table[2:])


@pytest.mark.parametrize("name", ["alibi", "sandwich", "grape_a", "mixed_rope", "swin", "fope", "rope+alibi/t5"])
def test_a_part_has_a_spec_and_moves_with_its_model(name):
    encoding = named(name)(DECODER)
    part = encoding.heads(slice(2, 4))
    again = posenc.from_spec(part.spec())
    assert again.spec() == part.spec()
    again.load_state_dict(part.state_dict())
    for other in (again, pickle.loads(pickle.dumps(part)), copy.deepcopy(part)):
        other.bfloat16().to(torch.float32)
        want = dict(part.named_buffers())
        assert want.keys() == dict(other.named_buffers()).keys()
        for key, x in other.named_buffers():
            if key not in other.state_dict():  # a table, which no dtype rounds
                torch.testing.assert_close(x, want[key], rtol=0, atol=0)
    halves = encoding.heads(slice(0, 4)).heads(slice(2, None))
    assert halves.spec() == part.spec()
    assert "heads 2 to 3 of 4" in repr(part)


def test_slices_that_are_none_or_cut_groups_are_refused():
    grouped = posenc.create("mixed_rope", head_dim=8, num_heads=8, num_kv_heads=4)
    for encoding in (grouped, posenc.create("path", head_dim=8, num_heads=8, num_kv_heads=4, dim=64)):
        with pytest.raises(
            InputError,
            match=r"^heads=slice\(1, 5, None\): cuts query heads of 8 that belong together, 2 by 2; begin and end at multiples of 2$",
        ):
            encoding.heads(slice(1, 5))
    with pytest.raises(InputError, match=r"cuts query heads( of \d+)? that belong together, 2 by 2"):
        posenc.create("rope_pp", head_dim=8).heads(slice(1, 3))
    for part in (slice(4, 4), slice(6, 12), slice(8, 9)):
        with pytest.raises(InputError, match=r"^heads=slice\(\d+, \d+, None\): name some of 8, such as slice\(0, 4\)$"):
            posenc.ALiBi(8).heads(part)
    for part in (3, slice(0, 4, 2), [0, 1]):
        with pytest.raises(InputError, match=r"pass a range of query heads, such as slice\(4, 8\)$"):
            posenc.ALiBi(8).heads(part)
    for name in MIXING:
        with pytest.raises(InputError, match="mixes the scores of all heads"):
            (named(name)(DECODER) + posenc.NoPE()).heads(slice(0, 2))
    with pytest.raises(InputError, match="does not know the number of heads"):
        posenc.LearnedRotary(8, groups=2).heads(slice(0, 2))
    with pytest.raises(InputError, match=r"heads=\[1\]: give the first head and the end"):
        posenc.from_spec({"name": "alibi", "num_heads": 8, "heads": [1], "kv_heads": [0, 1]})
    with pytest.raises(InputError, match=r"kv_heads=None: give the first head and the end"):
        posenc.from_spec({"name": "alibi", "num_heads": 8, "heads": [0, 4]})
    for of_keys in ([0, 3], [1, 2], [0, 8]):
        with pytest.raises(InputError, match=r"kv_heads=\[\d, \d\]: these are not the key heads of heads=\[0, 4\]$"):
            posenc.from_spec({"name": "alibi", "num_heads": 8, "heads": [0, 4], "kv_heads": of_keys})


# -------------------------------------------------------------------- parameters that are drawn again


@EVERY
def test_reset_parameters_gives_a_fresh_one(name):
    torch.manual_seed(3)
    fresh = named(name)(DECODER).state_dict()
    with torch.device("meta"):
        encoding = EncodingUnderTest(named(name)).make(DECODER)
    encoding.to_empty(device="cpu")
    for x in encoding.state_dict().values():
        x.fill_(7)
    torch.manual_seed(3)
    encoding.reset_parameters()
    assert encoding.state_dict().keys() == fresh.keys()
    for key, x in encoding.state_dict().items():
        torch.testing.assert_close(x, fresh[key], rtol=0, atol=0)


@pytest.mark.parametrize("name", ["rope+t5", "t5/alibi", "fope@rerope:window=3", "learned_rope@rerope:window=3"])
def test_reset_parameters_reaches_every_part(name):
    encoding = named(name)(DECODER)
    for x in encoding.state_dict().values():
        x.fill_(7)
    encoding.reset_parameters()
    assert not any(bool((x == 7).all()) for x in encoding.state_dict().values())


def test_reset_parameters_of_a_part_draws_as_one_process_does():
    torch.manual_seed(0)
    full = posenc.create("t5", num_heads=4)
    part = full.heads(slice(2, 4))
    torch.manual_seed(0)
    part.reset_parameters()
    assert torch.equal(part.table, full.table[2:])


# -------------------------------------------------------------------- classes that PyTorch makes


class Doubled(nn.Module):
    def forward(self, x):
        return 2 * x


@EVERY
def test_parametrization_leaves_the_name(name):
    encoding = named(name)(DECODER)
    spec, constant = encoding.spec(), encoding.constant
    first = next((key for key, _ in encoding.named_parameters(recurse=False)), None)
    if first is None:
        return
    parametrize.register_parametrization(encoding, first, Doubled())
    assert type(encoding).__name__.startswith("Parametrized")
    assert encoding.spec() == spec
    assert encoding.constant == constant
    assert type(posenc.from_spec(spec)) is posenc.ENCODINGS[name]


def test_a_users_class_inherits_no_name():
    class Mine(posenc.ALiBi):
        pass

    assert Mine(4).known_as == "Mine"
