"""What an error looks like on the command line: a place for a bug in the user's code, and a traceback on demand."""

from types import SimpleNamespace

import pytest

from posenc import cli
from posenc.errors import InputError, import_failed
from posenc.lab.messages import located, users_line
from posenc.pretrained.checked import reading

BUG = """
import posenc


class Bug(posenc.Encoding):
    def bias(self, *given, **more):
        raise {error}
"""
LINE = BUG[: BUG.index("raise")].count("\n") + 1
SMALL = ["--task", "copy", "--preset", "quick", "--steps", "1", "--seeds", "1", "--workers", "1"]


@pytest.fixture(params=["TypeError", "KeyError", "RuntimeError", "AttributeError", "ZeroDivisionError"])
def bug(request, tmp_path):
    """The kind of an error that an encoding in a file raises, and the file."""
    file = tmp_path / "bug.py"
    file.write_text(BUG.format(error=f"{request.param}('why')"))
    return request.param, file


@pytest.mark.parametrize("command", ["compare", "analyze"])
@pytest.mark.parametrize("traceback", [False, True])
def test_a_bug_in_an_encoding_has_a_type_a_file_and_a_line(command, traceback, bug, tmp_path, capsys, monkeypatch):
    kind, file = bug
    monkeypatch.setenv("POSENC_TRACEBACK", "01"[traceback])
    given = [f"{file}:Bug"] if command == "analyze" else ["--encodings", f"{file}:Bug", *SMALL, "--out", str(tmp_path)]
    assert cli.main([command, *given]) in (1, 2)
    err = capsys.readouterr().err
    assert f"posenc {command}: " in (last := err.splitlines()[-1])
    assert f"{kind}: " in last
    assert f"{file}:{LINE}" in last
    assert ("Traceback" in err) == traceback
    assert traceback or err.count("\n") == 1


def test_an_error_of_the_users_has_a_traceback_on_demand(capsys, monkeypatch):
    monkeypatch.setenv("POSENC_TRACEBACK", "1")
    assert cli.main(["list", "rop"]) == 2
    err = capsys.readouterr().err
    assert err.startswith("Traceback")
    assert err.splitlines()[-1].startswith("posenc list: error: unknown name 'rop'")


def test_a_bug_of_ours_is_not_hidden(monkeypatch):
    def fail(*_):
        raise KeyError("ours")

    monkeypatch.setattr("posenc.cli.list_command.List.run", fail)
    monkeypatch.setattr("posenc.cli.commands.users_line", lambda error: None)  # this file is not installed
    with pytest.raises(KeyError):
        cli.main(["list"])


def test_where_an_error_came_from():
    with pytest.raises(TypeError) as caught:
        raise TypeError("what")
    assert users_line(caught.value).startswith(f"{__file__}:")
    assert located(caught.value).startswith(f"TypeError: what (at {__file__}:")
    assert located(InputError("x=1: why")) == "x=1: why"
    assert users_line(TypeError("never raised")) is None


@pytest.mark.parametrize("world", [None, "1", "2"])
def test_ranks(world, capsys, monkeypatch):
    """Shells of clusters set RANK without a launcher, and a launcher's processes print alike; a study runs in one."""
    monkeypatch.setenv("RANK", "1")
    if world is None:
        monkeypatch.delenv("WORLD_SIZE", raising=False)
    else:
        monkeypatch.setenv("WORLD_SIZE", world)
    assert cli.main(["list", "rope"]) == 0
    assert capsys.readouterr().out
    for command, what in ((["compare"], "a comparison"), (["eval", "demo"], "an evaluation")):
        if world == "2":
            assert cli.main(command) == 2
            assert f"WORLD_SIZE='2': {what} runs in one process" in capsys.readouterr().err


def test_an_import_that_fails_in_a_package_names_it_and_the_innermost_cause(tmp_path, monkeypatch):
    (tmp_path / "lazy.py").write_text(
        "def __getattr__(name):\n"
        "    try:\n        raise RuntimeError('operator vision::nms does not exist')\n"
        "    except RuntimeError as error:\n        raise ModuleNotFoundError(f'Could not import module {name!r}') from error\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    import lazy

    with pytest.raises(InputError, match=r"lazy cannot be imported here: RuntimeError: operator vision::nms") as raised, reading("a.gguf: cannot be read: "):  # fmt: skip
        print(lazy.LlamaConfig)
    assert "a.gguf" not in str(raised.value)
    monkeypatch.setattr("posenc.errors.sys", SimpleNamespace(flags=SimpleNamespace(optimize=2)))
    assert "unset PYTHONOPTIMIZE" in import_failed(ValueError("no docstring"))


def test_a_model_that_is_nowhere_is_refused_at_once(tmp_path, capsys):
    """Before, after PyTorch, transformers and several calls of the hub: 47 s."""
    from posenc_cli.answers import answer
    from posenc_cli.arguments import Mistake

    for model in ("nothing", "./owner/name", "a/b/c", "config.json", "a b/c"):
        for words in (["doctor", model], ["eval", model], ["extend", model, "--method", "yarn", "--factor", "2"]):
            with pytest.raises(Mistake, match="no such file or folder, and not a name on the Hugging Face hub"):
                answer(words)
            assert cli.main(words) == 2
            assert "no such file or folder" in capsys.readouterr().err
    assert answer(["doctor", "owner/name"]) is answer(["doctor", str(tmp_path)]) is None
