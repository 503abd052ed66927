"""The grammar of texts: what is read is printed, and read again as it was; classes of files and modules are names."""

from contextlib import suppress
from time import process_time

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import posenc
from posenc import InputError
from posenc.encodings.create_encoding import lookup
from posenc.lab.user_code import load_object
from posenc.spec import EncodingSpec, Spec, literal, parse, parse_single, parse_sum, split_list

names = st.from_regex(r"[a-z][a-z_0-9]{0,8}", fullmatch=True)
values = st.from_regex(r"[a-z0-9.|\\-]{1,6}(,[0-9.]{1,4}){0,3}|1e\+5|C:", fullmatch=True).filter(
    lambda v: "\\" not in v
)
options = st.lists(st.tuples(names, values), max_size=3).map(tuple)
maps = st.none() | st.builds(Spec, names, options)
classes = st.tuples(st.sampled_from(["pack.module", "folder/fade.py", "/deep/fade.py", "fade.py"]), names).map(":".join)
terms = st.builds(Spec, names | classes, options, maps)
trees = (
    st.lists(st.lists(terms, min_size=1, max_size=3).map(tuple), min_size=1, max_size=3).map(tuple).map(EncodingSpec)
)


@given(trees)
def test_a_tree_is_printed_and_read_again(tree):
    files = any(".py" in term.name for term in tree.terms)
    if files and len(tree.layers) > 1:  # which of the slashes are a path's, only the files that there are decide
        return
    text = str(tree)
    assert parse(text) == tree
    assert str(parse(text)) == text


@given(st.lists(st.builds(Spec, names, options), min_size=1, max_size=3))
def test_a_sum_is_printed_and_read_again(sum_):
    assert parse_sum("+".join(map(str, sum_))) == sum_


@given(
    st.recursive(
        st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.booleans() | st.none(), lambda x: x
    )
)
def test_values_are_printed_and_read_again(value):
    assert Spec.of("x", {"y": value}).values("x") == {"y": value}


@pytest.mark.parametrize(
    ("text", "layers"),
    [
        ("rope:layout=half@rerope:window=4+alibi/none", [["rope:layout=half@rerope:window=4", "alibi"], ["none"]]),
        ("rope:rope_theta=1e+5+alibi", [["rope:rope_theta=1e+5", "alibi"]]),
        (" rope : layout=half + alibi", [["rope:layout=half", "alibi"]]),
        ("m_rope:sections=16,8,8/none", [["m_rope:sections=16,8,8"], ["none"]]),
        ("rope:layout=half/fade.py:Fade:slope=2", [["rope:layout=half"], ["fade.py:Fade:slope=2"]]),
        ("rope+./fade.py:Fade+alibi", [["rope", "./fade.py:Fade", "alibi"]]),
        ("needle:source=C\\:x", [["needle:source=C\\:x"]]),
    ],
)
def test_layers_terms_and_maps(text, layers):
    assert [[str(term) for term in terms] for terms in parse(text).layers] == layers


def test_slashes_of_a_path_are_not_taken_for_layers(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "deeper").mkdir()
    (tmp_path / "deeper" / "fade.py").touch()
    absolute = f"{tmp_path}/deeper/fade.py:Fade"
    for text, want in (
        ("none/deeper/fade.py:Fade", ["none", "deeper/fade.py:Fade"]),
        (f"none/{absolute}", ["none", absolute]),
        (f"{absolute}/none/{absolute}", [absolute, "none", absolute]),
        ("missing/fade.py:Fade", ["missing/fade.py:Fade"]),
    ):
        assert [term.name for (term,) in parse(text).layers] == want


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("rope,t5", ["rope", "t5"]),
        ("a,b:sections=1,2,c", ["a", "b:sections=1,2", "c"]),
        ("rope,m_rope:sections=16,8,8:rope_theta=5e5,t5,", ["rope", "m_rope:sections=16,8,8:rope_theta=5e5", "t5"]),
        ("my.py:Code:at=.5,-1,alibi", ["my.py:Code:at=.5,-1", "alibi"]),
    ],
)
def test_commas_part_encodings_and_lists_of_numbers_stay_together(text, want):
    assert split_list(text) == want


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1), ("1e5", 1e5), ("true", True), ("None", None), ("1,2.5", [1.0, 2.5]), ("[1]", [1]), ("1,", [1]),
        ("half", "half"), ],
)  # fmt: skip
def test_literals(text, value):
    assert literal(text) == value


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: parse_single("yarn:factor"), "option factor of yarn: write factor=value"),
        (lambda: parse("+".join(["rope"] * 100)), "join at most 64"),
        (lambda: parse_single("a:b=1:b=2").values("a"), "option b of a is written twice"),
        (lambda: parse_single("a:b=nan").values("a"), "option b=nan of a: write a finite number"),
        (lambda: parse_single("a:size=1").values("a", ["sizes"]), "unknown option of a 'size=1': did you mean 'sizes'"),
        (lambda: posenc.create("rope:layout", head_dim=8), "option layout of rope: write layout=value"),
        (lambda: load_object("os:pat", may_import=True), "did you mean 'path'|unknown function in os 'pat'"),
        (lambda: load_object("os path:x", may_import=True), "neither a module's name nor a .py file"),
        (lambda: load_object("rope:layout", may_import=True), "'rope'; an option is written NAME:OPTION=VALUE"),
        (lambda: load_object("nowhere.py:x", may_import=True), "nowhere.py: no such file"),
        (
            lambda: lookup("torch:Tensor", may_import=True),
            "torch:Tensor: is a _TensorMeta; name a subclass of posenc.Encoding",
        ),
        (lambda: posenc.from_spec({"name": "torch:Tensor"}), "torch:Tensor.: names code, and a text from a file"),
    ],
)
def test_bad_texts_are_named(call, message):
    with pytest.raises(InputError, match=message):
        call()


FADE = """
import posenc

class Fade(posenc.ALiBi):
    papers = ("su2021roformer",)

    def __init__(self, num_heads: int, slope: float = 1.0):
        super().__init__(num_heads)
        print("made")
        self.slope = slope
"""


def test_classes_of_files_and_modules_are_names(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "spec_fade.py").write_text(FADE)
    both = posenc.create("rope+spec_fade.py:Fade:slope=2", head_dim=8, num_heads=2)
    assert [type(part).__name__ for part in both] == ["Rotary", "Fade"]
    assert list(both)[1].slope == 2
    assert type(posenc.create("spec_fade:Fade", num_heads=2)).__module__ == "spec_fade"
    assert "RoFormer" in posenc.cite("spec_fade.py:Fade:slope=2+alibi")
    same = posenc.create("spec_fade.py:Fade", num_heads=2)
    assert type(same) is type(list(both)[1]), "a file that has not changed is imported once"
    (tmp_path / "spec_fade.py").write_text(FADE + "    papers = ()\n")
    with pytest.raises(InputError, match="has changed since it was loaded"):
        posenc.cite("spec_fade.py:Fade")
    assert torch.equal(same.slope_table, posenc.ALiBi(2).slope_table)


def test_plain_names_import_nothing(monkeypatch):
    monkeypatch.setattr(posenc.lab.user_code, "load_object", None)
    posenc.create("rope@rerope:window=4+alibi/none", head_dim=8, num_heads=2)
    assert "RoFormer" in posenc.cite("rope")


@pytest.mark.parametrize(
    "value",
    ["true", "False", "none", "1", "1e3", "inf", "nan", "1,2", "[1]", "1,", "", " a", "'a'", "'", "half", "a,b", "a:b"],
)
def test_texts_stay_texts(value):
    """Also those that look like a number or a word of the grammar."""
    spec = Spec.of("x", {"y": value})
    assert spec.values("x") == {"y": value}
    assert parse(str(spec)).layers[0][0].values("x") == {"y": value}


@pytest.mark.parametrize("text", ["=" * 100_000 + ",1", "a=1" + ",1" * 50_000, "a=1" + "," * 99_000, "/.py:a" * 16_000])
def test_a_long_text_is_read_in_time(text):
    start = process_time()
    assert split_list(text)
    with suppress(InputError):  # which most of them are
        parse(text)
    assert process_time() - start < 20  # of tenths of a second; a time that grows with the square was minutes


def test_deep_parts_and_long_names_are_refused_in_a_few_words():
    deep = {"name": "rope", "head_dim": 8}
    for _ in range(3000):
        deep = {"name": "sum", "parts": [deep]}
    for call in (
        lambda: posenc.from_spec(deep),
        lambda: posenc.create("=" * 100_000),
        lambda: lookup("+" * 9000, may_import=False),
    ):
        with pytest.raises(InputError) as refused:
            call()
        assert len(str(refused.value)) < 2000
