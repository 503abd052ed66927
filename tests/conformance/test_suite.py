"""The checks can fail: for each, an encoding that is wrong in just the way it is there to find. And their report."""

import json
import random

import numpy as np
import pytest
import torch
from torch import nn

import posenc
from posenc import Positions
from posenc.backends import BACKENDS
from posenc.bias import Dense, Positional, Relative
from posenc.cli import main
from posenc.conformance import CHECKS, check
from posenc.conformance.checks import FAST, SLOW
from posenc.conformance.fixtures import EncodingUnderTest, NotApplicable, named
from posenc.conformance.suite import run_check
from posenc.encoding import Encoding
from posenc.positions.patches import coordinates_of
from posenc.positions.visibility import Branch, Region


class Indices(Encoding):
    """Distances of indices instead of positions: right until a cache, a packed batch or padding comes."""

    def bias(self, q, k, positions, layer=0):
        i, j = torch.arange(q.shape[2])[:, None], torch.arange(k.shape[2])
        return Dense(-0.5 * (i - j).abs().to(q.dtype)[None, None])


class IndexCodes(Encoding):
    """Codes of indices, counted from wherever the batch begins."""

    def embed(self, x, positions, layer=0):
        return x + torch.arange(x.shape[1], dtype=x.dtype)[:, None].sin()


class SumOfAll(Encoding):
    """Codes that sum up all tokens before, whether a window shows them or not."""

    def embed(self, x, positions, layer=0):
        return x + x.cumsum(1)


class FirstRow(Encoding):
    """The first row's positions for the complete batch."""

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
    """A spec that loses its argument, and shares its table with its copies."""

    shift_invariant = True

    def __init__(self, slope=0.1):
        super().__init__()
        self.slope = 0.1
        self.used = slope

    def __deepcopy__(self, memo):
        return Forgetful(0.2)

    def bias(self, q, k, positions, layer=0):
        return Relative(lambda head, distance: -self.used * distance.abs(), 4, positions)


class Coarse(Encoding):
    """RoPE with positions in the dtype of the queries: neighbours meet where bfloat16 no longer represents all integers."""

    shift_invariant = True

    def rotate(self, q, k, positions, layer=0):
        def turned(x, ids):
            angles = ids.to(x.dtype)[:, None, :, None] * torch.tensor([1.0, 0.01], dtype=x.dtype)
            return posenc.functional.rotary(x, angles.cos(), angles.sin())

        return turned(q, positions.q), turned(k, positions.k)


class OfItsHeads(Encoding):
    """Slopes of as many heads as it has: those of some heads are others than theirs among all."""

    shift_invariant = True

    def __init__(self, num_heads=4):
        super().__init__()
        self.num_heads = num_heads

    def bias(self, q, k, positions, layer=0):
        n = self.num_heads
        return Relative(lambda head, distance: -(2.0 ** -(head + 1.0) / n) * distance.abs(), n, positions)


class Reads(Encoding):
    """Looks at the values of a tensor to decide what to do."""

    shift_invariant = True

    def bias(self, q, k, positions, layer=0):
        slope = 0.1 if float(q.abs().max()) > 1e6 else 0.3
        return Relative(lambda head, distance: -slope * distance.abs(), 4, positions)


class NeedsLength(Encoding):
    """Says it needs the length, and takes any part of a text."""

    needs_length = True


class NoBackend(Encoding):
    """Two backends that see different things: what it returns depends on the number of calls."""

    def __init__(self):
        super().__init__()
        self.calls = 0

    def bias(self, q, k, positions, layer=0):
        self.calls += 1
        return Relative(lambda head, distance, n=self.calls: -0.1 * n * distance.abs(), 4, positions)


WRONG = {
    "position_matters": Blind, "backends_agree": NoBackend, "cached_decoding_equals_full_pass": Indices,
    "ragged_cache": FirstRow, "windows_are_local": SumOfAll, "prefixes_are_bidirectional": IndexCodes,
    "batched_generation_equals_single": IndexCodes, "padding_changes_nothing": IndexCodes,
    "packed_documents_are_separate": IndexCodes, "packed_images_are_separate": IndexCodes, "batch_rows_are_independent": FirstRow,
    "shift_invariance_as_declared": Undeclared, "gradients_arrive": Learns, "gradients_are_right": lambda: Learns("doubled"),
    "copies_are_equal": Forgetful, "state_and_spec_round_trip": lambda: Stateful(),
    "calls_are_independent": lambda: ByLength(), "graphs_are_freed": lambda: KeepsGraph(),
    "sequence_shards_equal_one_process": IndexCodes, "slices_of_heads_equal_all_heads": OfItsHeads, "random_state_is_unchanged": lambda: Seeds("torch"),
    "meta_device_gives_the_same_model": Buffered, "bfloat16_logits_stay_near": Coarse,
    "torch_compile_equals_eager": Reads, "torch_export_equals_eager": Reads,
}  # fmt: skip


class ByLength(Encoding):
    """Keeps the positions of a length for all that is as long."""

    shift_invariant = True

    def __init__(self):
        super().__init__()
        self.stored = {}

    def bias(self, q, k, positions, layer=0):
        known = self.stored.setdefault((positions.num_queries, positions.num_keys), positions)
        return Relative(lambda head, distance: -0.3 * distance.abs(), 4, known)


class KeepsGraph(Encoding):
    """Right in every number, and never lets go of the last step."""

    shift_invariant = True

    def __init__(self):
        super().__init__()
        self.slope, self.stored = nn.Parameter(torch.tensor(0.3)), None

    def bias(self, q, k, positions, layer=0):
        slope = self.stored = self.slope * 2
        return Relative(lambda head, distance: -slope * distance.abs(), 4, positions)


class Seeds(Encoding):
    """Takes the caller's random numbers for its own."""

    def __init__(self, whose, when="made"):
        super().__init__()
        self.whose, self.when = whose, when
        if when == "made":
            self.seed()

    def seed(self):
        {"torch": torch.manual_seed, "Python": random.seed, "numpy": np.random.seed}[self.whose](0)

    def embed(self, x, positions, layer=0):
        if self.when == "trained" and self.training:
            self.seed()
        if self.when == "evaluated":
            {"torch": torch.rand, "Python": lambda n: random.random(), "numpy": np.random.rand}[self.whose](1)
        return x


class Lossy(Encoding):
    """Keeps an argument under its name, but not as it was given."""

    shift_invariant = True

    def __init__(self, slope=0.1):
        super().__init__()
        self.slope = slope * 2

    def bias(self, q, k, positions, layer=0):
        return Relative(lambda head, distance: -self.slope * distance.abs(), 4, positions)


class Stateful(Encoding):
    """Draws a number that neither its spec nor its state holds."""

    shift_invariant = True

    def __init__(self):
        super().__init__()
        self.slope = float(torch.rand(()))

    def bias(self, q, k, positions, layer=0):
        return Relative(lambda head, distance: -self.slope * distance.abs(), 4, positions)


@pytest.mark.parametrize("name", [pytest.param(c, marks=pytest.mark.slow) if c in SLOW else c for c in CHECKS])
def test_each_check_detects_its_fault(name):
    wrong = WRONG[name]
    tested = EncodingUnderTest(lambda config: wrong())
    with pytest.raises(Exception) as raised:  # noqa: PT011 - compiling and exporting raise errors of their own
        CHECKS[name](tested)
    assert not isinstance(raised.value, NotApplicable)
    outcome = run_check(name, tested)
    assert outcome.passed is False
    assert outcome.reason
    assert name != "torch_compile_equals_eager" or "test_suite.py" in outcome.where, "the line that was traced"


def test_positions_that_end_are_found_by_moving_far():
    assert run_check("shift_invariance_as_declared", EncodingUnderTest(lambda config: Clamped())).passed is False


@pytest.mark.parametrize("make", [posenc.Rotary, posenc.Rotary(4), lambda config: None, lambda config: nn.Linear(2, 2)])
def test_what_makes_no_encoding_is_reported_once(make):
    with pytest.raises(posenc.InputError, match="pass a function from a model's config to an encoding"):
        check(make)


class RefusesAll:
    """A backend."""

    def plan(self, problem):
        return "not today"


@pytest.mark.parametrize("name", ["sdpa", "flex", "triton"])
def test_a_backend_may_not_refuse_what_it_has_to_serve(monkeypatch, name):
    monkeypatch.setitem(BACKENDS, name, RefusesAll())
    for text in ("none", "t5", "rope@rerope:window=3") if name != "triton" else ("none", "t5"):
        outcome = run_check("backends_agree", EncodingUnderTest(named(text)))
        assert outcome.passed is False
        assert f"backend {name} refuses what it must serve" in outcome.reason


def test_a_backend_may_refuse_what_it_need_not_serve(monkeypatch):
    monkeypatch.setitem(BACKENDS, "flex", RefusesAll())
    assert run_check("backends_agree", EncodingUnderTest(named("shaw"))).passed  # terms on the values


def test_a_new_backend_has_to_serve_everything(monkeypatch):
    monkeypatch.setitem(BACKENDS, "mine", RefusesAll())
    assert "backend mine refuses" in run_check("backends_agree", EncodingUnderTest(named("none"))).reason


def test_a_declared_refusal_has_to_happen():
    outcome = run_check("cached_decoding_equals_full_pass", EncodingUnderTest(lambda config: NeedsLength()))
    assert "not refused" in outcome.reason


class TextOnly(Encoding):
    """Of one axis. how: what becomes of images."""

    def __init__(self, how):
        super().__init__()
        self.how = how

    def embed(self, x, positions, layer=0):
        if self.how == "refuses":
            positions.require_one_axis("TextOnly")
        if self.how == "divides" and positions.axes == 2:
            return x * (1 / (positions.axes - 2))
        return x + 0.1 * positions.q[..., None].to(x.dtype).cos()


@pytest.mark.parametrize(("how", "error"), [("crashes", "RuntimeError"), ("divides", "ZeroDivisionError")])
def test_only_a_refusal_is_no_failure(how, error):
    outcome = run_check("packed_images_are_separate", EncodingUnderTest(lambda config: TextOnly(how)))
    assert outcome.passed is False
    assert outcome.reason.startswith(error)
    assert "in embed" in outcome.where
    assert "test_suite.py:" in outcome.where
    assert "positions.require_one_axis('TextOnly')" in outcome.reason


def test_a_refusal_is_the_reason():
    outcome = run_check("packed_images_are_separate", EncodingUnderTest(lambda config: TextOnly("refuses")))
    assert outcome.passed is None
    assert outcome.reason == "TextOnly takes one coordinate per token, these positions have 2"


@pytest.mark.parametrize("when", ["made", "trained", "evaluated"])
@pytest.mark.parametrize("whose", ["torch", "Python", "numpy"])
def test_random_numbers_that_are_set_are_found(whose, when):
    outcome = run_check("random_state_is_unchanged", EncodingUnderTest(lambda config: Seeds(whose, when)))
    assert outcome.passed is False
    assert f"random numbers of {whose}" in outcome.reason


@pytest.mark.parametrize("make", [lambda config: Lossy(0.1), lambda config: Lossy(0.1) + posenc.Rotary(config.width)])
def test_a_spec_that_loses_an_argument_is_found(make):
    outcome = run_check("state_and_spec_round_trip", EncodingUnderTest(make))
    assert outcome.passed is False
    assert "the spec" in outcome.reason


def test_a_spec_that_is_no_json_is_found():
    class Numbers(Lossy):
        def spec(self):
            return {"name": "numbers", "slope": np.float32(0.1)}

    outcome = run_check("state_and_spec_round_trip", EncodingUnderTest(lambda config: Numbers()))
    assert outcome.passed is False
    assert "float32 is not JSON serializable" in outcome.reason


def test_the_calls_that_are_answered_otherwise_are_named():
    outcome = run_check("calls_are_independent", EncodingUnderTest(lambda config: ByLength()))
    assert outcome.passed is False
    assert "after other calls and alone" in outcome.reason
    calls = outcome.reason.partition("the calls: ")[2]
    assert len(calls.split("; ")) == 2  # the one that leaves something behind, and the one that meets it


class Chunked(Encoding):
    """Each token sees its own chunk of four."""

    causal_only = True

    def branches(self, layer=0):
        return (Branch(Region(chunk=4, farthest=1), most=4),)


def test_one_alone_in_its_window_is_not_all_there_is_to_see():
    assert run_check("position_matters", EncodingUnderTest(lambda config: Chunked())).passed


@pytest.mark.parametrize("text", ["window:before=512", "window:before=512:after=512", "chunks:size=64"])
def test_what_hides_none_of_the_tokens_is_not_judged(text):
    found = run_check("position_matters", EncodingUnderTest(named(text)))
    assert found.passed is None
    assert "none of the 9 tokens here" in found.reason


class Turns(Encoding):
    """Two axes whose turns do not commute: on text, which is at the same number on both, they do."""

    def __init__(self, claims):
        super().__init__()
        self.claims = claims
        a, b = (torch.randn(4, 4, generator=torch.Generator().manual_seed(n)) for n in (0, 1))
        self.skew = torch.stack((a - a.T, b - b.T)).double()

    shift_invariant = property(lambda self: self.claims)

    def rotate(self, q, k, positions, layer=0):
        ids = coordinates_of(positions, 2, "Turns")
        turns = [torch.matrix_exp(torch.einsum("bna,aij->bnij", x.double() / 5, self.skew)) for x in ids]
        return tuple((x[..., None, :] @ t[:, None].to(x.dtype))[..., 0, :] for x, t in zip((q, k), turns, strict=True))


def test_every_axis_is_moved_by_itself():
    assert run_check("shift_invariance_as_declared", EncodingUnderTest(lambda config: Turns(False))).passed
    claimed = run_check("shift_invariance_as_declared", EncodingUnderTest(lambda config: Turns(True)))
    assert claimed.passed is False
    assert "shift_invariant is True, but moving every position of an image by 2 along axis" in claimed.reason


# -------------------------------------------------------------------- positions of the user


def paths(n):
    """Of tokens in a tree, in which token i hangs below (i - 1) // 2: the numbers of its ancestors and its own, up to four,
    the root's first; -1 below it."""

    def path(i):
        return [] if i < 0 else [*(path((i - 1) // 2) if i else []), i]

    return Positions.from_ids(torch.tensor([(path(i) + [-1] * 4)[:4] for i in range(n)])[None])


class CommonAncestors(Encoding):
    """A bias by how far down two tokens' paths are one; it refuses a line."""

    def __init__(self, num_heads, careless=False):
        super().__init__()
        self.num_heads, self.careless = num_heads, careless

    def bias(self, q, k, positions, layer=0):
        if positions.axes != 4:
            raise posenc.InputError(f"positions with {positions.axes} coordinates: pass the paths of a tree")
        if self.careless:
            positions = Positions.cross(paths(q.shape[2]), paths(k.shape[2]))
        return Positional(lambda head, i, j: 0.7 * ((i == j) & (i >= 0)).sum(-1), self.num_heads, positions)


def test_positions_of_the_user():
    random.seed(3), np.random.seed(3), torch.manual_seed(3)
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    report = check(lambda config: CommonAncestors(config.num_heads), positions=paths, slow=False)
    assert report.passed, str(report)
    assert not {outcome.check for outcome in report.outcomes} & {*SLOW}
    assert before == (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist())
    left_out = {outcome.check for outcome in report.outcomes if outcome.passed is None}
    assert left_out == {
        "batched_generation_equals_single",
        "packed_images_are_separate",
        "shift_invariance_as_declared",
    }
    assert "positions= is given" in str(report)
    as_text = EncodingUnderTest(lambda config: CommonAncestors(config.num_heads))
    assert run_check("cached_decoding_equals_full_pass", as_text).passed is False
    careless = EncodingUnderTest(lambda config: CommonAncestors(config.num_heads, careless=True), paths)
    assert {
        run_check(name, careless).passed
        for name in ("cached_decoding_equals_full_pass", "packed_documents_are_separate")
    } == {False}


def test_a_gpu_that_is_used_later_is_not_seeded(monkeypatch):
    """torch.manual_seed keeps the seed for devices that are not there yet."""
    kept = []
    monkeypatch.setattr(torch, "manual_seed", torch.random.manual_seed)  # torch's own, also where the suite replaces it
    monkeypatch.setattr(torch.cuda, "manual_seed_all", kept.append)
    assert run_check("position_matters", EncodingUnderTest(named("alibi"))).passed
    assert torch.cuda.is_initialized() or kept == []


def test_positions_of_the_user_in_compiled_code():
    tested = EncodingUnderTest(lambda config: CommonAncestors(config.num_heads), paths)
    assert all(run_check(name, tested).passed for name in SLOW)


@pytest.mark.parametrize("positions", [lambda n: n, lambda n: Positions.arange(n + 1)])
def test_what_makes_no_positions_is_reported_once(positions):
    with pytest.raises(posenc.InputError, match=r"positions.*: return the Positions"):
        check(named("rope"), positions=positions)


class Broken(Encoding):
    """One mistake that every pass meets."""

    def bias(self, q, k, positions, layer=0):
        raise RuntimeError("no shapes fit")


def test_equal_failures_share_a_line():
    report = check(lambda config: Broken(), fast=True)
    assert [each.check for each in report.outcomes] == list(FAST)
    failed = [each for each in report.outcomes if each.passed is False]
    assert len(failed) > 3
    assert len({each.reason for each in failed}) == 1
    (line,) = (line for line in str(report).splitlines() if "FAILED" in line)
    assert line.startswith(
        ", ".join(each.check.replace("_", " ") for each in failed) + ": FAILED (RuntimeError: no shapes fit"
    )
    assert str(report).count("no shapes fit") == 1


def test_the_fast_checks_find_what_a_cache_shows():
    assert set(FAST) < set(CHECKS)
    assert not set(FAST) & set(SLOW)
    report = check(lambda config: Indices(), fast=True)
    assert {each.check for each in report.outcomes if each.passed is False} >= {
        "cached_decoding_equals_full_pass",
        "windows_are_local",
    }


def test_check_as_a_command(capsys):
    assert main(["check", "alibi", "--fast"]) == 0
    assert capsys.readouterr().out.splitlines() == [f"{name.replace('_', ' ')}: passed" for name in FAST]
    assert main(["check", "selective_rope:kernel_size=4", "--fast"]) == 0
    assert "windows are local: does not apply (in any window all 9 tokens" in capsys.readouterr().out
    assert main(["check", f"{__file__}:Broken", "--fast", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert not found["passed"]
    assert [each["check"] for each in found["checks"]] == list(FAST)
