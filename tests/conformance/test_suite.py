"""The checks can fail: for each, an encoding that is wrong in just the way it is there to find. And their report."""

import pytest
import torch
from torch import nn

import posenc
from posenc import Positions
from posenc.bias import Dense, Relative
from posenc.conformance import CHECKS, check, checks
from posenc.conformance.checks import SLOW, Inapplicable, Subject
from posenc.conformance.matrix import named
from posenc.conformance.suite import run
from posenc.encoding import Encoding


class Indices(Encoding):
    """Distances of indices instead of positions: right until a cache, a packed batch or padding comes."""

    def bias(self, q, k, positions, layer=0):
        i, j = torch.arange(q.shape[2])[:, None], torch.arange(k.shape[2])
        return Dense(-0.5 * (i - j).abs().to(q.dtype)[None, None])


class IndexCodes(Encoding):
    """Codes of indices, counted from wherever the batch begins."""

    def embed(self, x, positions, layer=0):
        return x + torch.arange(x.shape[1], dtype=x.dtype)[:, None].sin()


class FirstRow(Encoding):
    """The first row's positions for the whole batch."""

    shift_invariant = True

    def bias(self, q, k, positions, layer=0):
        ids = Positions.from_ids(positions.q[0], positions.k[0])
        return Relative(lambda head, distance: -0.3 * distance.abs(), 4, ids)


class Undeclared(Encoding):
    """A bias of the distance that does not say it is one."""

    def bias(self, q, k, positions, layer=0):
        return Relative(lambda head, distance: -0.3 * distance.abs(), 4, positions)


class Blind(Encoding):
    """Says that it acts on the scores, and adds nothing."""

    shift_invariant = True

    def bias(self, q, k, positions, layer=0):
        return Relative(lambda head, distance: 0.0 * distance, 4, positions)


class Learns(Encoding):
    """A slope whose training is broken: detached, or with a wrong derivative."""

    shift_invariant = True

    def __init__(self, how="detached"):
        super().__init__()
        self.how = how
        self.slope = nn.Parameter(torch.tensor(0.3))

    def bias(self, q, k, positions, layer=0):
        slope = self.slope.detach() if self.how == "detached" else 2 * self.slope - self.slope.detach()
        return Relative(lambda head, distance: -slope * distance.abs(), 4 if q.shape[1] == 4 else 2, positions)


class Buffered(Encoding):
    """A plain buffer as its table: rounded by .to(dtype), empty after to_empty()."""

    shift_invariant = True

    def __init__(self):
        super().__init__()
        self.register_buffer("slopes", torch.tensor([0.1, 0.2, 0.3, 0.41]) * 100, persistent=False)

    def bias(self, q, k, positions, layer=0):
        return Relative(lambda head, distance: -self.slopes[head] * distance.abs() / 100, 4, positions)


class Clamped(Encoding):
    """Positions that end at 30."""

    shift_invariant = True

    def bias(self, q, k, positions, layer=0):
        moved = positions.moved(lambda ids, order: ids.clamp(max=30))
        return Relative(lambda head, distance: -0.3 * distance.abs(), 4, moved)


class Forgetful(Encoding):
    """A spec that loses what was asked for, and shares its table with its copies."""

    shift_invariant = True

    def __init__(self, slope=0.1):
        super().__init__()
        self.slope = 0.1
        self.used = slope

    def __deepcopy__(self, memo):
        return Forgetful(0.2)

    def bias(self, q, k, positions, layer=0):
        return Relative(lambda head, distance: -self.used * distance.abs(), 4, positions)


class Remembers(Encoding):
    """Keeps a table with its graph from one call to the next."""

    shift_invariant = True

    def __init__(self):
        super().__init__()
        self.slope, self.kept = nn.Parameter(torch.tensor(0.3)), None

    def bias(self, q, k, positions, layer=0):
        if self.kept is None or self.kept.is_inference():
            self.kept = self.slope * 2
        return Relative(lambda head, distance: -self.kept * distance.abs(), 4, positions)


class Coarse(Encoding):
    """RoPE with positions in the dtype of the queries: neighbours meet where bfloat16 holds no more whole numbers."""

    shift_invariant = True

    def rotate(self, q, k, positions, layer=0):
        def turned(x, ids):
            angles = ids.to(x.dtype)[:, None, :, None] * torch.tensor([1.0, 0.01], dtype=x.dtype)
            return posenc.functional.rotary(x, angles.cos(), angles.sin())

        return turned(q, positions.q), turned(k, positions.k)


class Reads(Encoding):
    """Looks at the values of a tensor to decide what to do."""

    shift_invariant = True

    def bias(self, q, k, positions, layer=0):
        slope = 0.1 if float(q.abs().max()) > 1e6 else 0.3
        return Relative(lambda head, distance: -slope * distance.abs(), 4, positions)


class Refuses(Encoding):
    """Says it needs the length, or a decoder, and takes anything."""

    def __init__(self, what):
        super().__init__()
        self.what = what

    needs_length = property(lambda self: self.what == "length")
    causal_only = property(lambda self: self.what == "decoder")


class NoBackend(Encoding):
    """Two backends that see different things: what it returns depends on how often it was asked."""

    def __init__(self):
        super().__init__()
        self.asked = 0

    def bias(self, q, k, positions, layer=0):
        self.asked += 1
        return Relative(lambda head, distance, n=self.asked: -0.1 * n * distance.abs(), 4, positions)


WRONG = {
    "position_matters": Blind, "backends_agree": NoBackend, "cached_is_full": Indices, "ragged_cache": FirstRow,
    "generates_alike": IndexCodes, "padded_is_unpadded": IndexCodes, "packed_is_separate": IndexCodes, "images_are_separate": IndexCodes, "rows_do_not_meet": FirstRow,
    "shift_invariant_as_declared": Undeclared, "gradients_arrive": Learns, "gradients_are_right": lambda: Learns("doubled"),
    "inference_then_training": Remembers, "copies_are_equal": Forgetful, "state_and_spec_bring_it_back": lambda: Stateful(),
    "meta_is_normal": Buffered, "bfloat16_stays_near": Coarse, "compiled_is_eager": Reads, "exported_is_eager": Reads,
}  # fmt: skip


class Stateful(Encoding):
    """Draws a number that neither its spec nor its state holds."""

    shift_invariant = True

    def __init__(self):
        super().__init__()
        self.slope = float(torch.rand(()))

    def spec(self):
        torch.rand(3)
        return {"name": "alibi", "num_heads": 4}

    def bias(self, q, k, positions, layer=0):
        return Relative(lambda head, distance: -self.slope * distance.abs(), 4, positions)


@pytest.mark.parametrize("name", [pytest.param(c, marks=pytest.mark.slow) if c in SLOW else c for c in CHECKS])
def test_each_check_finds_what_it_is_there_for(name):
    subject = Subject(lambda config: WRONG[name]())
    with pytest.raises(Exception) as found:  # noqa: PT011 - compiling and exporting raise errors of their own
        CHECKS[name](subject)
    assert not isinstance(found.value, Inapplicable)
    outcome = run(name, subject)
    assert outcome.holds is False
    assert outcome.reason


def test_positions_that_end_are_found_by_moving_far():
    assert run("shift_invariant_as_declared", Subject(lambda config: Clamped())).holds is False


@pytest.mark.parametrize("make", [posenc.Rotary, posenc.Rotary(4), lambda config: None, lambda config: nn.Linear(2, 2)])
def test_what_makes_no_encoding_is_said_once(make):
    with pytest.raises(posenc.InputError, match="pass a function from a model's config to an encoding"):
        check(make)


def test_auto_may_not_refuse(monkeypatch):
    whole = checks.attention

    def refusing(*args, backend, **options):
        if backend == "auto":
            raise posenc.InputError("no")
        return whole(*args, backend=backend, **options)

    monkeypatch.setattr(checks, "attention", refusing)
    assert "auto refuses" in run("backends_agree", Subject(named("rope"))).reason


@pytest.mark.parametrize(("what", "check_name"), [("length", "cached_is_full"), ("decoder", "padded_is_unpadded")])
def test_a_declared_refusal_has_to_happen(what, check_name):
    outcome = run(check_name, Subject(lambda config: Refuses(what)))
    assert "not refused" in outcome.reason


@pytest.mark.slow
def test_report_of_ones_own_encoding():
    right = check(named("alibi"), slow=False)
    assert right.passed
    assert "cached is full: holds" in str(right)
    assert "compiled" not in str(right)
    wrong = check(lambda config: Indices(), slow=False)
    assert not wrong.passed
    assert "FAILS" in str(wrong)
    refused = check(named("normalized"), slow=False)
    assert refused.passed
    assert "does not apply (its codes depend on the final length)" in str(refused)


def test_one_of_text_need_not_refuse_images():
    """What torch says of shapes is no news to who reads the report."""

    class TextOnly(Encoding):
        def embed(self, x, positions, layer=0):
            return x + 0.1 * positions.q[..., None].to(x.dtype).cos()

    outcome = run("images_are_separate", Subject(lambda config: TextOnly()))
    assert outcome.holds is None
    assert outcome.reason == "it has no places in an image, where it ends in RuntimeError"
