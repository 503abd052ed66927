# SPDX-License-Identifier: Apache-2.0
"""Settings from fields, flags and files, and what config.yaml records."""

import sys
import warnings
from dataclasses import MISSING
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from posenc import cli
from posenc.cli.command import as_yaml, parse, settings_in, with_flags
from posenc.cli.common import one_line, one_line_warnings
from posenc.errors import InputError
from posenc.lab.compare import EXPERIMENTS, Comparison
from posenc.lab.evals.config import PRESETS as EVALUATIONS
from posenc.lab.evals.config import settings_of


def parsed(command, *arguments):
    return parse(cli.COMMANDS[command], arguments)


def file(tmp_path, text, name="run.yaml"):
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(path)


def settings_of_folder(folder):
    return yaml.safe_load((Path(folder) / "config.yaml").read_text())


# ---------------------------------------------------------------- flags and files


def test_flags_as_users_type_them():
    flags = ["--num-layers", "4", "--factors", "1", "2", "4", "8", "--no-packed", "--encodings", "rope", "alibi"]
    options = parsed("compare", *flags, "--learning-rate=1e-3")
    assert options.encodings == ("rope", "alibi")
    assert options.given == {"num_layers": 4, "factors": (1, 2, 4, 8), "packed": False, "learning_rate": 0.001}
    options = parsed("bench", "rope", "--n", "4", "8", "--rounds", "2")
    assert (options.encodings, options.lengths, options.given) == (("rope",), (4, 8), {"rounds": 2})
    options = parsed("extend", "--option", "a=1", "demo", "--method", "yarn", "--option", "b=2", "--pose")
    assert (options.model, options.option, options.given) == ("demo", ("a=1", "b=2"), {"pose": True})


def test_flags_win_over_the_file_and_the_file_over_defaults(tmp_path):
    path = file(tmp_path, "command: compare\nencodings: [none, rope]\nseeds: 2\nlearning_rate: 1e-3\nout: there\n")
    options = parsed("compare", "--config", path, "--seeds", "3", "--encodings", "alibi")
    assert (options.encodings, options.seeds, options.out, options.preset) == (("alibi",), 3, "there", "standard")
    assert options.given == {"learning_rate": 0.001}


def test_what_has_no_flag_and_what_is_required_may_be_in_the_file(tmp_path):
    path = file(tmp_path, "model: folder\nmethod: yarn\nfactor: 2\noption: [beta_fast=16]\nverify: no\n")
    options = parsed("extend", "--config", path)
    assert (options.model, options.method, options.factor, options.verify) == ("folder", "yarn", 2.0, False)
    assert options.option == ("beta_fast=16",)
    options = parsed("extend", "--config", path, "other", "--target-length", "9", "--option", "a=1", "--verify")
    assert (options.model, options.factor, options.target_length) == ("other", None, 9)
    assert (options.option, options.verify) == (("a=1",), True)
    assert parsed("check", "--config", file(tmp_path, "as: rotary\n"), "a:b").kind == "rotary"
    with pytest.raises(InputError, match=r"required: --method, MODEL"):
        parsed("extend", "--config", file(tmp_path, "factor: 2\n"))


@pytest.mark.parametrize("text", ["no", "1_000", "2020-01-01", "1:30", "null", "1e3", "010"])
def test_text_arrives_as_it_was_written(tmp_path, text):
    options = parsed("compare", "--config", file(tmp_path, f"encodings: [{text}]\ndata: {text}\n"))
    assert (options.encodings, options.data) == ((text,), text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"# nothing\n", "has no settings"),
        (b"- a\n- b\n", "has no settings"),
        (b"\xff\xfe\x00", "codec can't decode"),
        (b"seeds: [1\n", "is not YAML"),
        (b"seeds: 1\n---\nseeds: 2\n", "is not YAML"),
        (b"data: !!python/object/apply:os.system [ls]\n", "data: write one value"),
        (b"command: eval\n", "of another command"),
        (b"lenght: 3\n", "unknown setting 'lenght': did you mean 'length'?"),
        (b"json: true\n", "unknown setting 'json'"),
        (b"seeds: 3.0\n", "invalid int value: '3.0'"),
        (b"seeds: true\n", "invalid int value: 'true'"),
        (b"seeds: [1, 2]\n", "seeds: write one value"),
        (b"encodings:\n- &a [rope, rope]\n- [*a, *a]\n", "encodings: write a list of values"),
        (b"factors: [1, two]\n", "invalid int value: 'two'"),
        (b"packed: 3\n", "packed: write true or false"),
        (b"preset: slow\n", "unknown choice 'slow'"),
    ],
)
def test_a_file_that_cannot_be_used_is_one_line(tmp_path, capsys, text, message):
    code = cli.main(["compare", "--config", file(tmp_path, text)])
    out, err = capsys.readouterr()
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("posenc compare: error: --config ")
    assert message in err


def test_files_that_cannot_be_read(tmp_path):
    (tmp_path / "folder.yaml").mkdir()
    for path, message in (
        (tmp_path / "none.yaml", "No such file"),
        (tmp_path / "folder.yaml", "directory"),
        (file(tmp_path, "seeds: 1", "run.json"), "must end in"),
        (file(tmp_path, "seeds =", "run.toml"), "Invalid value"),
        ("", "must end in"),
    ):
        with pytest.raises(InputError, match=r"--config") as refused:
            parsed("compare", "--config", str(path))
        assert message in str(refused.value)


def test_without_pyyaml_toml_is_read(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "yaml", None)
    path = file(tmp_path, "seeds = 2\npacked = false\nfactors = [1, 2]\n", "run.toml")
    options = parsed("compare", "--config", path)
    assert (options.seeds, options.given) == (2, {"packed": False, "factors": (1, 2)})
    with pytest.raises(InputError, match=r"posenc\[lab\]"):
        parsed("compare", "--config", file(tmp_path, "seeds: 2\n"))


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (InputError("must be at least 1", num_layers=0), "--num-layers 0: must be at least 1"),
        (InputError("No such file", directory="/proc/x"), "--out /proc/x: No such file"),
        (InputError("name a folder", out=""), "--out '': name a folder"),
        (InputError("name a folder", out="a b"), "--out 'a b': name a folder"),
        (InputError("is missing", argument="num_layers"), "--num-layers: is missing"),
        (InputError("start at 1", "as in 1 2", factors=(2, 4)), "--factors 2 4: start at 1; as in 1 2"),
        (InputError("give one", seeds=3, num_layers=2), "--seeds 3, --num-layers 2: give one"),
        (InputError("--steps 0: must be at least 1"), "--steps 0: must be at least 1"),
        (InputError("unknown option", encodings="rope:x=1"), "--encodings rope:x=1: unknown option"),
        (InputError("bytes have 256 values", vocab_size=3), "vocab_size=3: bytes have 256 values"),
        (InputError("unknown encoding 'ropes': did you mean"), "unknown encoding 'ropes': did you mean"),
        (InputError("steps=3: is a text about an argument"), "steps=3: is a text about an argument"),
    ],
)
def test_an_argument_in_an_error_is_shown_as_its_flag(error, shown):
    assert with_flags(error, cli.COMMANDS["compare"]) == shown


def test_a_flag_of_another_name_than_its_argument():
    assert with_flags(InputError("too short", lengths=1), cli.COMMANDS["bench"]) == "--n 1: too short"
    for model, written in (("my-llm", "my-llm"), ("my model", "'my model'")):
        refused = InputError("no such folder", model=model)
        assert with_flags(refused, cli.COMMANDS["doctor"]) == f"{written}: no such folder"


@pytest.mark.parametrize("command", cli.COMMANDS.values())
def test_no_two_settings_have_one_name(command):
    keys = [each.key for each in command.settings().values()]
    assert len(keys) == len(set(keys))
    assert all(each.help for each in command.settings().values())


# ---------------------------------------------------------------- config.yaml


@st.composite
def commands(draw):
    """A command, of those without presets, with some valid settings."""
    command = draw(st.sampled_from([each for each in cli.COMMANDS.values() if each.name not in ("compare", "eval")]))
    known, values = settings_in(command), {}
    for name, setting in command.settings().items():
        text = st.text(st.characters(exclude_categories=["Cs"])).filter(lambda text: text[:1] not in ("-", ":"))
        kinds = {bool: st.booleans(), int: st.integers(0), float: st.floats(0, allow_nan=False), str: text}
        one = st.sampled_from(setting.choices) if setting.choices else kinds[setting.type]
        if setting.default is MISSING or (not setting.how.unless and draw(st.booleans())):
            values[name] = draw(st.lists(one, min_size=1, max_size=4).map(tuple) if setting.many else one)
    given = {name: values.pop(name) for name in list(values) if name not in known}
    return command(**values, given=given)


@settings(deadline=None, max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(commands())
def test_what_is_written_is_read_again(tmp_path, first):
    again = parsed(first.name, "--config", file(tmp_path, as_yaml(first)))
    again.out = first.out
    assert again == first


COMMANDS = {
    "analyze": ["analyze", "ntk", "yarn"],
    "bench": ["bench", "rope", "--n", "8", "--mode", "forward"],
    "check": ["check", "rope", "--fast"],
    "compare": ["compare", "--task", "copy", "parity", "--preset", "quick", "--steps", "1"],
    "eval": ["eval", "no/such-model"],
    "list": ["list", "rope"],
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_file_of_somebody_else_is_left_alone(command, tmp_path, capsys):
    """It is refused before anything is computed."""
    options = parsed(*COMMANDS[command], "--out", str(tmp_path))
    for name in ["config.yaml", *options.written()]:
        mine = file(tmp_path, "factor: 8\n", name)
        assert cli.main([*COMMANDS[command], "--out", str(tmp_path)]) == 2
        assert f"{mine}: was not written by posenc" in capsys.readouterr().err
        assert [path.name for path in tmp_path.iterdir()] == [name]
        assert Path(mine).read_text() == "factor: 8\n"
        Path(mine).unlink()


@pytest.mark.parametrize(
    "command", [["explore", "--out"], ["check", "posenc.functional:rotary", "--as", "rotary", "--badge"]]
)
def test_a_page_and_a_badge_replace_their_own_kind_alone(command, tmp_path, capsys):
    mine = file(tmp_path, "<svg>mine", "page.svg")
    assert cli.main([*command, mine]) == 2
    assert f"{mine}: was not written by posenc" in capsys.readouterr().err
    assert Path(mine).read_text() == "<svg>mine"
    Path(mine).unlink()
    if command[0] == "explore":
        assert [cli.main([*command, mine]) for _ in range(2)] == [0, 0]


def test_a_report_is_written_again(tmp_path):
    assert [cli.main([*COMMANDS["analyze"], "--out", str(tmp_path)]) for _ in range(2)] == [0, 0]
    assert [cli.main([*COMMANDS["list"], "--out", str(tmp_path)])] == [0]


@pytest.mark.parametrize(
    ("task", "preset"),
    [
        pytest.param(name, preset, marks=() if at == 0 or name == "text" else pytest.mark.slow)
        for name, task in EXPERIMENTS.items()
        for at, preset in enumerate(task.presets)
    ],
)
def test_a_comparison_comes_back_complete_without_its_preset(task, preset, tmp_path, monkeypatch, capsys):
    asked = []

    def planned(comparison, corpus, directory, *, begin, **_):
        asked.append((comparison, corpus.digest))
        begin()
        raise InputError("far enough")

    monkeypatch.setattr("posenc.lab.compare.compare", planned)
    assert cli.main(["compare", "--task", task, "--preset", preset, "--out", str(tmp_path / "a")]) == 2
    assert cli.main(["compare", "--config", str(tmp_path / "a" / "config.yaml"), "--out", str(tmp_path / "b")]) == 2
    assert "far enough" in capsys.readouterr().err
    assert asked[0] == asked[1]
    p, decided = EXPERIMENTS[task].presets[preset], asked[0][0].settings
    of_data = {name: getattr(decided, name) for name in ("num_classes", "channels") if hasattr(decided, name)}
    assert asked[0][0] == Comparison(p.encodings, p.seeds, p.settings.changed(**of_data))
    assert "preset" not in settings_of_folder(tmp_path / "a")


@pytest.mark.parametrize("preset", EVALUATIONS)
def test_an_evaluation_comes_back_complete_without_its_preset(preset, tmp_path):
    again = parsed("eval", "--config", file(tmp_path, as_yaml(parsed("eval", "demo", "--preset", preset))))
    chosen = settings_of(None, **again.given)
    assert chosen == EVALUATIONS[preset]


def test_print_config_prints_what_config_takes(tmp_path, capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(["compare", "--preset", "quick", "--steps", "7", "--print-config", "--out", str(tmp_path / "out")])
    assert stop.value.code == 0
    path = file(tmp_path, capsys.readouterr().out)
    options = parsed("compare", "--config", path)
    assert (options.given["steps"], options.seeds, options.data) == (7, 2, "pydoc")
    assert not (tmp_path / "out").exists()


# ---------------------------------------------------------------- messages


def test_a_message_is_one_line_with_its_start_and_its_remedy():
    shown = one_line(f"--dim {'9' * 10**5}\x1b[2J\n: give a smaller one")
    assert shown.startswith("--dim 9999")
    assert shown.endswith(": give a smaller one")
    assert shown.isprintable()
    assert len(shown) < 3000


def test_warnings_are_one_line_and_shown_as_before_after_a_failure(capsys):
    def fails():
        with one_line_warnings("eval"):
            warnings.warn("posenc: long text", stacklevel=1)
            raise ZeroDivisionError

    before = warnings.showwarning, list(warnings.filters)
    with pytest.raises(ZeroDivisionError):
        fails()
    assert (warnings.showwarning, list(warnings.filters)) == before
    assert capsys.readouterr().err == "posenc eval: warning: long text\n"


def test_other_warnings_are_shown_as_usual():
    with pytest.warns(UserWarning, match="not ours"), one_line_warnings("eval"):
        warnings.warn("not ours", stacklevel=1)
