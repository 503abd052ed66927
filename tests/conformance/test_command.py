"""`posenc check FUNCTION --as KIND` as a user meets it."""

import json
import sys
from xml.etree import ElementTree

import pytest
import torch

from posenc import cli
from posenc.conformance.kinds import KINDS
from references import commands

MODULE = """
print("a word from the module")

def right(num_heads):
    print("a word from the function")
    lower = 2 ** (num_heads.bit_length() - 1)
    slopes = [2 ** (-8 * (h + 1) / lower) for h in range(lower)]
    return slopes if lower == num_heads else slopes + right(2 * lower)[::2][: num_heads - lower]

def wrong(num_heads):
    return [2 ** (-8 * (h + 1) / num_heads) for h in range(num_heads)]

class Group:
    slopes = staticmethod(right)

    def unbound(self, num_heads):
        return right(num_heads)

def leaves_in_an_invariant(positions, dim, base):
    if len(positions) == 150:
        raise SystemExit(0)
    from posenc.testing.oracles.codes import sinusoidal
    return sinusoidal(positions.tolist(), dim, base)

def raises(num_heads):
    return [1 / (num_heads - num_heads)]

def goes_elsewhere(num_heads):
    import os
    os.chdir("/")
    return right(num_heads)

def prints_natively(num_heads):
    import os
    os.write(1, b"a word from native code")
    return right(num_heads)

def __getattr__(name):
    if name == "lazy":
        raise RuntimeError("no accelerator")
    raise AttributeError(name)

number = 3
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "my_slopes.py").write_text(MODULE)
    (tmp_path / "broken_module.py").write_text("import nothing_of_that_name\n")
    (tmp_path / "leaving_module.py").write_text("raise SystemExit('no\\nGPU')\n")
    (tmp_path / "torch.py").write_text(MODULE)
    (tmp_path / "default_device.py").write_text("import torch\n\ntorch.set_default_device('meta')\n" + MODULE)
    (tmp_path / "pk").mkdir()
    (tmp_path / "pk" / "__init__.py").write_text("")
    (tmp_path / "pk" / "rope.py").write_text("from .other import right\n")
    (tmp_path / "pk" / "other.py").write_text(MODULE)
    (tmp_path / "many.py").write_text("".join(f"def f{n}(): pass\n" for n in range(50)))
    (tmp_path / "none.py").write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))  # undone after the test, with what the command adds
    return tmp_path


def run(capsys, *arguments):
    return commands.run(capsys, "check", *arguments)


@pytest.mark.parametrize("target", ["my_slopes:right", "my_slopes.py:right", "my_slopes:Group.slopes"])
def test_a_function_that_conforms_exits_with_0(capsys, folder, target):
    code, out, err = run(capsys, target, "--as", "alibi")
    assert (code, out.splitlines()[0][: len(target) + 19]) == (0, f"{target} as alibi: conforms")
    assert "a word from the function" in err
    assert "a word" not in out


def test_a_function_that_does_not_exits_with_1(capsys, folder):
    code, out, _ = run(capsys, f"{folder}/my_slopes.py:wrong", "--as", "alibi", "--json", "--out", str(folder / "new"))
    verdict = json.loads(out)
    assert code == 1
    assert verdict == json.loads((folder / "new" / "check.json").read_text())
    assert not verdict["passed"]
    assert verdict["findings"][0].startswith("slopes wrong for 3, 6, 10, 12, 20, 24, 25, 40, 48, 71, 96, 112 heads")


@pytest.mark.parametrize(
    ("function", "words"), [("right", "conforms"), ("wrong", "does not conform"), ("raises", "could not be run")]
)
def test_a_badge_has_the_verdict(capsys, folder, function, words):
    run(capsys, f"my_slopes:{function}", "--as", "alibi", "--badge", "alibi.svg")
    svg = ElementTree.parse(folder / "alibi.svg").getroot()
    assert svg.get("aria-label") == f"alibi: {words}"
    assert [text.text for text in svg.iter("{http://www.w3.org/2000/svg}text")] == ["alibi", words]


def test_files_are_where_the_command_was_given(capsys, folder):
    files = ["--badge", "alibi.svg", "--out", "verdict"]
    assert run(capsys, "my_slopes:goes_elsewhere", "--as", "alibi", *files)[0] == 0
    assert (folder / "alibi.svg").is_file()
    assert (folder / "verdict" / "check.json").is_file()


def test_a_function_that_could_not_be_run_exits_with_3(capsys, folder):
    code, out, _ = run(capsys, "my_slopes:raises", "--as", "alibi")
    assert code == 3
    assert out.startswith("my_slopes:raises as alibi: could not be run")
    assert "raises ZeroDivisionError: division by zero (my_slopes.py:26)" in out
    assert json.loads(run(capsys, "my_slopes:raises", "--as", "alibi", "--json")[1])["passed"] is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["my_slopes:right", "--as", "rope"], "unknown kind 'rope': did you mean 'rotary'?"),
        (["my_slopes:lazy", "--as", "alibi"], "my_slopes: looking up 'lazy' failed: RuntimeError: no accelerator"),
        (["my_slopes:Group", "--as", "alibi"], "Group is a class: pass a function that makes an object of it"),
        (["my_slopes:Group.unbound", "--as", "alibi"], "Group.unbound is a method without its object"),
        (["pk/rope.py:right", "--as", "alibi"], "importing pk/rope.py failed: ImportError: attempted relative import"),
        (["pk/rope:right", "--as", "alibi"], "'pk/rope': is neither a module's name nor a .py file; write MODULE"),
        (["my_slopes:right"], "is a function; say what it implements by --as KIND"),
        (["my_slopes:right", "--as", "alibi", "--fast"], "--fast: is for an encoding"),
        (["rope", "--badge", "a.svg"], "--badge a.svg: is for a function, give --as KIND"),
        (["my_slopes", "--as", "alibi"], "'my_slopes': write MODULE:FUNCTION"),
        (["my_slopes:rigth", "--as", "alibi"], "unknown function in my_slopes 'rigth': did you mean 'right'?"),
        (["my_slopes:number", "--as", "alibi"], "'my_slopes:number': is a int, not a function"),
        (
            ["no_such_module:f", "--as", "alibi"],
            "importing no_such_module failed: ModuleNotFoundError: No module named",
        ),
        (["no/such/file.py:f", "--as", "alibi"], "no/such/file.py: no such file"),
        (["broken_module:f", "--as", "alibi"], "No module named 'nothing_of_that_name'"),
        (["leaving_module.py:f", "--as", "alibi"], "importing leaving_module.py failed: SystemExit: no GPU"),
        (["my_slopes:right", "--as", "alibi", "--badge", "a.png"], "--badge a.png: the picture is an SVG; name a file"),
        (["my_slopes:right", "--as", "alibi", "--badge", "no/a.svg"], "no; make it first"),
        (["my_slopes:right", "--as", "alibi", "--out", "/proc/nothing/here"], "--out /proc/nothing/here: "),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(capsys, folder, arguments, message):
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "")
    last = err.splitlines()[-1]
    assert last.startswith("posenc check: error: ")
    assert message in last


@pytest.mark.parametrize(
    ("target", "message"), [("many:g", "unknown function in many 'g'"), ("none:g", "unknown function in none 'g'")]
)
def test_names_are_listed_only_where_there_are_some_and_few(capsys, folder, target, message):
    _, _, err = run(capsys, target, "--as", "alibi")
    assert err.splitlines()[-1] == f"posenc check: error: {message}"


@pytest.mark.parametrize("target", ["torch.py:right", "pk.rope:right", "default_device:right"])
def test_files_and_modules_of_any_name_can_be_tested(capsys, folder, target):
    try:
        assert run(capsys, target, "--as", "alibi")[0] == 0
        assert sys.modules["torch"] is torch
    finally:
        torch.set_default_device(None)


def test_a_function_that_leaves_is_no_success(capsys, folder):
    code, out, _ = run(capsys, "my_slopes:leaves_in_an_invariant", "--as", "sinusoidal")
    assert code == 1
    assert "raises SystemExit: 0 (my_slopes.py:21) (while checking: Input tensors are not changed" in out


def test_what_native_code_prints_does_not_spoil_the_json(capfd, folder):
    assert cli.main(["check", "my_slopes:prints_natively", "--as", "alibi", "--json"]) == 0
    out, err = capfd.readouterr()
    assert json.loads(out)["passed"]
    assert "a word from native code" in err


def test_the_list_has_every_kind_with_its_call(capsys):
    for name, kind in KINDS.items():
        _, out, _ = commands.run(capsys, "list", "--explain", name)
        assert all(" ".join(part.split()) in " ".join(out.split()) for part in (kind.what, kind.call, kind.returns))
