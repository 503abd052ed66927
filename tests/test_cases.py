"""Which cases run by default: few, of every value, others for other commits, and the same in every process."""

from itertools import product
from pathlib import Path
from types import SimpleNamespace

from references.cases import few


def items(name, *sizes):
    """The cases of one test with parameters of so many values."""
    made = []
    for at in product(*map(range, sizes)):
        indices = dict(zip("abc", at, strict=False))
        made.append(SimpleNamespace(nodeid=f"{name}[{at}]", callspec=SimpleNamespace(indices=indices)))
    return made or [SimpleNamespace(nodeid=name)]


def test_every_value_is_covered_as_far_as_three_cases_can():
    group = items("tests/test_x.py::test", 3, 2, 3)
    kept, left_out = few(group, "abc")
    assert len(kept) == 3
    assert len(kept) + len(left_out) == len(group)
    for name, size in (("a", 3), ("b", 2), ("c", 3)):
        assert {item.callspec.indices[name] for item in kept} == set(range(size))


def test_another_commit_draws_others_and_the_same_commit_the_same():
    group = items("tests/test_x.py::test", 70)
    draws = [tuple(item.nodeid for item in few(group, str(n))[0]) for n in range(20)]
    assert few(group, "7")[0] == few(group, "7")[0]
    assert len(set(draws)) > 15
    assert len({name for draw in draws for name in draw}) > 30


def test_tests_without_cases_run_and_backends_run_more():
    assert len(few(items("tests/test_x.py::test"), "")[0]) == 1
    assert len(few(items("tests/backends/test_flex.py::test", 9), "")[0]) == 6
    assert len(few(items("tests/test_attention.py::test", 9), "")[0]) == 6
    both = items("tests/test_x.py::one", 5) + items("tests/test_x.py::two", 2)
    assert [sum(name in item.nodeid for item in few(both, "")[0]) for name in ("one", "two")] == [3, 2]


def test_each_slow_test_exists():
    tests = Path(__file__).parent
    for line in (tests / "slow.txt").read_text().splitlines():
        file, *_, name = line.split()[0].split("::")  # seconds may follow
        assert f"def {name}(" in (tests.parent / file).read_text(), f"tests/slow.txt: {line}"
