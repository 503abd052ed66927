import errno
import json
import os
import random
import re
import shutil
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hostile.faults import Calls, damages
from posenc.errors import InputError
from posenc.measuring.records import MOST_BYTES, Damaged, Records, typed


@dataclass(frozen=True)
class Inner:
    value: float


@dataclass(frozen=True)
class Outer:
    count: int
    text: str
    flag: bool
    maybe: int | None
    numbers: list[float]
    named: dict[str, list[float]]
    pair: tuple[Inner, ...]


RAW = {
    "count": 3, "text": "é→漢字", "flag": True, "maybe": None, "numbers": [1, 2.5], "named": {"a": [0.1]},
    "pair": [{"value": 1e-300}],
}  # fmt: skip
WHOLE = Outer(3, "é→漢字", True, None, [1, 2.5], {"a": [0.1]}, (Inner(1e-300),))


def read(folder, name="cells/one.json"):
    return Records(folder, tell=False).kept(name, lambda raw: typed(Outer, raw))


@pytest.fixture
def kept(tmp_path):
    """The content of a record."""
    records = Records(tmp_path)
    records.keep("cells/one.json", RAW)
    assert read(tmp_path) == WHOLE
    return (tmp_path / "cells/one.json").read_bytes()


def check_set_aside(folder, content):
    shutil.rmtree(folder / "set-aside", ignore_errors=True)
    (folder / "cells/one.json").write_bytes(content)
    assert read(folder) is None
    assert not (folder / "cells/one.json").exists()
    (entry,) = Records(folder).set_aside()
    assert entry["file"] == "cells/one.json"
    assert (folder / entry["kept_as"]).read_bytes() == content
    return entry["why"]


def test_a_record_that_is_cut_off_is_set_aside(tmp_path, kept):
    for length in (*range(100), *range(100, len(kept), 5)):
        why = check_set_aside(tmp_path, kept[:length])
        assert why == ("it is empty" if not length else why)
        assert re.fullmatch(r"it is empty|it does not begin with a checksum|its checksum is wrong.*", why)


def test_a_record_with_any_bit_changed_is_set_aside(tmp_path, kept):
    for at in range(len(kept)):
        changed = bytearray(kept)
        changed[at] ^= 1 << at % 8
        check_set_aside(tmp_path, bytes(changed))


def test_what_is_not_ours_is_set_aside(tmp_path, kept):
    for _, content in damages(kept, random.Random(0), 5):
        check_set_aside(tmp_path, content)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"count": 3.0}, "Outer.count is 3.0, not int"),
        ({"count": True}, "Outer.count is True, not int"),
        ({"text": None}, "Outer.text is None, not str"),
        ({"flag": 1}, "Outer.flag is 1, not bool"),
        ({"maybe": "x"}, "Outer.maybe is 'x', not int"),
        ({"numbers": [1, "2"]}, "Outer.numbers[1] is '2', not float"),
        ({"numbers": {}}, "Outer.numbers is {}, not list"),
        ({"named": {"a": 1}}, "Outer.named.a is 1, not list"),
        ({"pair": [[]]}, "Outer.pair[0] is [], not Inner"),
        ({"pair": [{}]}, "Outer.pair[0] has the fields , not value"),
        ({"more": 1}, "Outer has the fields"),
        ({"numbers": [10**400]}, "Outer.numbers[0] is 1000"),
    ],
)
def test_wrong_types_under_a_right_checksum_are_set_aside(tmp_path, change, why):
    Records(tmp_path).keep("cells/one.json", RAW | change)
    assert read(tmp_path) is None
    assert Records(tmp_path).set_aside()[0]["why"].startswith(why)


@settings(max_examples=60)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda x: st.lists(x) | st.dictionaries(st.text(), x),
    )
)
def test_any_plain_data_fits_or_is_damaged(raw):
    for kind in (Outer, Inner):
        for each in (raw, RAW | {"named": raw}, {"value": raw}):
            try:
                found = typed(kind, each)
            except (Damaged, OverflowError):
                continue
            assert isinstance(found, kind)


def test_not_a_number_is_neither_written_nor_read(tmp_path):
    with pytest.raises(ValueError, match=r"not JSON compliant"):
        Records(tmp_path).keep("cells/one.json", {"value": float("nan")})
    assert not list(tmp_path.rglob("*.json"))
    records = Records(tmp_path, tell=False)
    for constant in (b"NaN", b"-Infinity"):
        (tmp_path / "results.json").write_bytes(b'{"kind": "compare", "schema": 1, "x": %s}' % constant)
        with records.writing("it", "compare", 1):
            assert records.set_aside()[-1]["why"] == f"it holds {constant.decode()}"


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b'{"kind": "eval", "schema": 1}', "it is not a result of posenc compare"),
        (b'{"kind": "compare", "schema": 2}', "its schema is 2, and this version knows 1"),
        (b'{"kind": "compare", "schema": "1"}', "its schema is '1', and this version knows 1"),
        (b'{"kind": "compare"}', "its schema is None, and this version knows 1"),
        (b"[]", "it is not a JSON object"),
        (b"", r"it is not JSON \(.*"),
        (b"\xff\xfe", r"it is not JSON \(.*"),
        (b'{"a": ' * 100_000, "it is nested too deeply"),
    ],
)
def test_results_of_something_else_or_somebody_newer_are_set_aside(tmp_path, content, why):
    records = Records(tmp_path)
    (tmp_path / "results.json").write_bytes(content)
    told = r"results\.json cannot be used: .*; it is kept as set-aside/results\.json\.1"
    with pytest.warns(UserWarning, match=told), records.writing("it", "compare", 1):
        pass
    (entry,) = records.set_aside()
    assert re.fullmatch(why, entry["why"])
    assert (tmp_path / entry["kept_as"]).read_bytes() == content


def test_results_that_can_be_used_stay(tmp_path):
    (tmp_path / "results.json").write_bytes(b'{"kind": "compare", "schema": 1}')
    with Records(tmp_path).writing("it", "compare", 1):
        assert (tmp_path / "results.json").exists()


def test_what_is_no_file_is_set_aside(tmp_path):
    (tmp_path / "cells/one.json").mkdir(parents=True)
    assert read(tmp_path) is None
    os.mkfifo(tmp_path / "cells/one.json")
    assert read(tmp_path) is None
    with open(tmp_path / "cells/one.json", "wb") as file:
        file.truncate(MOST_BYTES + 1)
    assert read(tmp_path) is None
    whys = [entry["why"] for entry in Records(tmp_path).set_aside()]
    assert whys == ["it is no file", "it is no file", f"it has {MOST_BYTES + 1} bytes, more than {MOST_BYTES}"]


@pytest.mark.parametrize("error", [errno.EACCES, errno.EIO, errno.ELOOP])
def test_what_cannot_be_read_is_refused_and_stays(tmp_path, kept, error):
    records = Records(tmp_path)
    with Calls(tmp_path, 1, error).failing(), pytest.raises(InputError, match=r"while reading cells/one\.json"):
        records.kept("cells/one.json", dict)
    assert (tmp_path / "cells/one.json").read_bytes() == kept
    assert not records.set_aside()


@pytest.mark.parametrize("at", [2, 3])
def test_what_cannot_be_set_aside_is_refused_and_stays(tmp_path, kept, at):
    (tmp_path / "cells/one.json").write_bytes(kept[:50])
    records = Records(tmp_path)
    with (
        Calls(tmp_path, at, errno.EROFS, stays=True).failing(),
        pytest.raises(InputError, match=r"while setting the damaged cells/one\.json aside"),
    ):
        records.kept("cells/one.json", dict)
    assert (tmp_path / "cells/one.json").read_bytes() == kept[:50]


def test_what_was_set_aside_is_told_once_and_listed_always(tmp_path, kept):
    (tmp_path / "cells/one.json").write_bytes(b"")
    quiet, first = Records(tmp_path, tell=False), Records(tmp_path)
    assert quiet.kept("cells/one.json", dict) is None
    with pytest.warns(UserWarning, match=r"^posenc: .*cells/one\.json cannot be used: it is empty; it is kept as"):
        first.warn()
    first.warn()
    Records(tmp_path).warn()
    (tmp_path / "set-aside/one.json.1.why.json").write_bytes(b"[" * 100_000)
    assert Records(tmp_path).set_aside() == [{"file": "one.json", "kept_as": "set-aside/one.json.1", "why": "unknown"}]


def test_a_record_is_json_that_anybody_reads(tmp_path, kept):
    found = json.loads(kept)
    assert found.pop("sha256")
    assert found == RAW
