"""Every candidate of every case does the same work: outputs and gradients equal to the formula in float64."""

import sys
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch

import posenc
from posenc.functional import FINE
from posenc.lab.bench import attention, rotary
from posenc.lab.bench.attention import CLIP, SCHEMES
from posenc.lab.bench.case import DTYPES, Built, Case, Missing, Refusal, Workload, difference, load
from posenc.lab.bench.cases import CASES
from posenc.lab.bench.frontier import CHUNK, FRONTIER

LENGTH = 2 * CLIP + 30  # some distances are clipped
FEW = 70  # more than a chunk of PaTH's and Wall's 64
PLANNED = [
    (case.name, candidate.name, mode, dtype)
    for case in CASES.values()
    for candidate in case.candidates
    for mode in case.modes
    for dtype in case.dtypes
    if mode in candidate.modes and "compiled" not in candidate.name
]
COMPILED = [
    (case.name, candidate.name, mode)
    for case in CASES.values()
    for candidate in case.candidates
    for mode in ("forward", "train")
    if mode in candidate.modes and "compiled" in candidate.name
]


@cache
def inputs(case: str, mode: str, dtype: str, length: int = 0):
    length = length or (FEW if case in FRONTIER else LENGTH)
    return CASES[case].prepare(Workload(length, mode, DTYPES[dtype]))


def candidate(case: Case, name: str):
    return next(c for c in case.candidates if c.name == name)


def built(case: str, name: str, mode: str, dtype: str) -> Built:
    try:
        return candidate(CASES[case], name).build(inputs(case, mode, dtype))
    except Missing as missing:
        pytest.skip(str(missing))


@pytest.mark.parametrize(
    ("case", "name", "mode", "dtype"),
    [
        pytest.param(*planned, marks=pytest.mark.slow if planned[2:] == ("train", "bfloat16") else ())
        for planned in PLANNED
    ],
)
def test_every_candidate_agrees_with_the_formula(case, name, mode, dtype):
    made = built(case, name, mode, dtype)
    results = made.results()
    made.run()
    if name == CASES[case].limit:
        assert made.truth is None
        return
    truth = made.truth()
    assert len(results) == len(truth) > (mode == "train")
    error = difference(results, truth)
    assert error < made.tolerance
    if dtype == "float32":
        assert error < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize(("case", "name", "mode"), COMPILED)
def test_compiled_candidates_agree_too(case, name, mode):
    torch.compiler.reset()
    if name.startswith("flex") and mode == "train":
        with pytest.raises(Refusal, match="FlexAttention has no backward pass on the CPU"):
            built(case, name, mode, "float32")
    else:
        made = built(case, name, mode, "float32")
        assert difference(made.results(), made.truth()) < 1e-5


@pytest.mark.parametrize("name", [*SCHEMES, *FRONTIER])
def test_the_gradient_of_the_learned_weight_is_compared(name):
    scheme = (SCHEMES | FRONTIER)[name]
    truth = inputs(name, "train", "float32").truth
    assert len(truth) == (3 if scheme.learned else 2)
    if scheme.learned:
        assert truth[2].shape == inputs(name, "train", "float32").weights[scheme.learned].shape
        assert truth[2].norm() > 0


def files_that_run(call):
    """The files of posenc whose functions run in a call."""
    found = set()
    sys.setprofile(lambda frame, event, of: found.add(frame.f_code.co_filename))
    try:
        call()
    finally:
        sys.setprofile(None)
    root = Path(posenc.__file__).parent
    return {Path(file).relative_to(root).as_posix() for file in found if Path(file).is_relative_to(root)}


OF_CALLS = posenc.ALiBi(8)
TRUTHS = {name: lambda name=name: CASES[name].prepare(Workload(FEW, "train")) for name in (*SCHEMES, *FRONTIER)}
READ = {name: lambda given: given.truth for name in TRUTHS}
TRUTHS |= {name: lambda name=name: CASES[name].prepare(Workload(FEW, "decode")) for name in ("rotary", "call")}
READ |= {"rotary": lambda given: given.truth("half"), "call": lambda given: given.truth(OF_CALLS)}


@pytest.mark.parametrize("name", TRUTHS)
def test_the_truth_is_computed_by_oracles_alone(name):
    given = TRUTHS[name]()
    ran = files_that_run(lambda: READ[name](given))
    assert any(file.startswith("testing/oracles/") for file in ran)
    assert not [file for file in ran if not file.startswith(("testing/oracles/", "lab/bench/"))]


@pytest.mark.parametrize("name", SCHEMES)
def test_position_matters_in_every_case(name):
    """The formula is far from attention without position: agreement is not agreement on nothing."""
    case = CASES[name]
    plain = case.candidates[0].build(inputs(name, "forward", "float32")).results()
    assert difference(plain, inputs(name, "forward", "float32").truth) > 0.05


@pytest.mark.parametrize("name", FRONTIER)
def test_position_matters_as_the_encodings_start(name):
    given = inputs(name, "forward", "float32", CHUNK + 30 if name == "chunks" else FEW)
    plain = CASES[name].candidates[0].build(given).results()
    assert difference(plain, given.truth) > 0.005, "Wall and selective RoPE start near attention without position"


def test_a_wrong_candidate_is_noticed():
    given = inputs("t5", "train", "float32")
    wrong = attention.AttentionInputs(given.scheme, given.problem)
    wrong.weights["table"] = wrong.weights["table"].flip(0)
    made = attention.ours(wrong)
    assert difference(made.results(), given.truth) > 0.05
    same = attention.ours(given).results()
    assert difference(same, given.truth) < 1e-5
    off = (*same[:2], 1.01 * same[2])
    assert 0.005 < difference(off, given.truth) < 0.02, "the table's gradient alone"
    assert not difference((torch.full_like(same[0], torch.nan), *same[1:]), given.truth) <= 1


def test_rotary_embedding_torch_is_wrong_in_bfloat16_on_long_texts():
    pytest.importorskip("rotary_embedding_torch")
    made = rotary.rotary_embedding_torch(inputs("rotary", "forward", "bfloat16", 700))
    assert difference(made.results(), made.truth()) > 2 * made.tolerance


def test_a_step_of_decoding_can_be_repeated():
    given = inputs("t5_causal", "decode", "float32")
    made = attention.ours(given)
    first, again = made.results(), made.results()
    assert torch.equal(first[0], again[0])
    cache = given.cache()
    assert cache.get_seq_length() == LENGTH - 1
    assert cache.keys.shape[2] == LENGTH


def test_only_the_new_key_is_turned_where_the_cache_holds_rotated_ones(monkeypatch):
    made = candidate(CASES["rope"], "posenc, rotated cache").build(inputs("rope", "decode", "float32"))
    turned, turn, token = [], posenc.Rotary.turn, posenc.encodings.rotary.turn_token
    monkeypatch.setattr(posenc.Rotary, "turn", lambda *a, **kw: turned.append(a[1].shape[2]) or turn(*a, **kw))
    monkeypatch.setattr(posenc.encodings.rotary, "turn_token", lambda *a: turned.append(a[0].shape[2]) or token(*a))
    made.run()
    assert set(turned) == {1}, "the query and its key, and no key of the cache"


def test_the_tables_that_are_timed_are_those_that_rotate_takes():
    length = 2 * FINE + 100  # enough for angles to be added
    problem = Workload(length)
    found = candidate(CASES["tables"], "posenc").build(CASES["tables"].prepare(problem)).run()
    rope = posenc.Rotary(rotary.HEAD_DIM, rope_theta=rotary.THETA)
    taken, _ = rope.turns(posenc.Positions.arange(length), torch.float32)
    assert all(torch.equal(a, b) for a, b in zip(found, taken, strict=True))
    assert not torch.equal(found[0], rope.cos_sin(torch.arange(length)[None], torch.float32)[0])


def test_missing_packages_say_what_to_install():
    with pytest.raises(Missing, match="not installed: pip install no-such-package"):
        load("no-such-package")


def test_a_package_that_cannot_be_imported_counts_as_not_installed(tmp_path, monkeypatch):
    (tmp_path / "half_peer.py").write_text("import something_else_that_is_not_there")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(Missing, match=r"cannot be imported \(ModuleNotFoundError: .*\): pip install half-peer"):
        load("half-peer")


def test_candidates_that_do_not_fit_say_so():
    dense = candidate(CASES["alibi"], "SDPA with a dense bias")
    small, large = Workload(512), Workload(16384)
    dense.check_memory(small, 2**30)
    dense.check_memory(replace(large, mode="decode"), 2**30)
    with pytest.raises(Refusal, match="would take about 24 GiB, 16 GiB may be used"):
        dense.check_memory(large, 16 * 2**30)
    with pytest.raises(Refusal, match="48 GiB"):
        dense.check_memory(replace(large, mode="train"), 16 * 2**30)
    with pytest.raises(Refusal, match="beyond 2048 tokens"):
        candidate(CASES["alibi"], "flex_attention, compiled").build(inputs("alibi", "forward", "float32", 4096))
