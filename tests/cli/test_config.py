"""--config: what a file may say, what is written, and that the same numbers come out again."""

import json
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lab.evals.conftest import VOCABULARY
from posenc import cli
from posenc.cli import config
from posenc.errors import InputError
from posenc.lab.compare import EXPERIMENTS, Comparison
from posenc.lab.evals.config import PRESETS as EVALUATIONS
from posenc.lab.evals.config import preset_of, settings_of
from references import PATIENCE
from references.small_models import small_model
from references.tokenizers import small_tokenizer

ROOT = Path(__file__).parents[2]
SMALL = {
    "length": 16, "factors": [1, 2], "steps": 2, "batch_size": 2, "dim": 8, "num_layers": 1, "num_heads": 2,
    "head_dim": 4, "windows": 4, "targets": 8,
}  # fmt: skip
COMMANDS = {name: cli.build(name) for name in cli.COMMANDS}


def parsed(command, *arguments):
    return config.parse(partial(cli.build, command), arguments)


def file(tmp_path, text, name="run.yaml"):
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(path)


def toml(values):
    return "".join(f"{key} = {as_toml(value)}\n" for key, value in values.items())


def as_toml(value):
    """A value as TOML: JSON's, but for one sign in a text and the names of what is not finite."""
    if isinstance(value, list):
        return f"[{', '.join(map(as_toml, value))}]"
    if isinstance(value, float):
        return repr(value)
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


# ---------------------------------------------------------------- what a file says


def test_flags_win_over_the_file_and_the_file_over_defaults(tmp_path):
    path = file(tmp_path, "command: compare\nencodings: [none, rope]\nseeds: 2\nlearning_rate: 1e-3\nout: there\n")
    options = parsed("compare", "--config", path, "--seeds", "3", "--encodings", "alibi")
    assert (options.encodings, options.seeds, options.learning_rate, options.out) == (["alibi"], 3, 0.001, "there")
    assert options.preset == "standard"
    assert not hasattr(options, "steps")


def test_what_has_no_flag_and_what_must_be_given_may_be_in_the_file(tmp_path):
    path = file(tmp_path, "model: folder\nmethod: yarn\nfactor: 2\noption: [beta_fast=16]\nverify: no\n")
    options = parsed("extend", "--config", path)
    assert (options.model, options.method, options.factor, options.option) == ("folder", "yarn", 2.0, ["beta_fast=16"])
    assert options.verify is False
    options = parsed("extend", "--config", path, "other", "--target-length", "9", "--option", "a=1", "--verify")
    assert (options.model, options.factor, options.target_length) == ("other", None, 9)
    assert (options.option, options.verify) == (["a=1"], True)
    path = file(tmp_path, "function: a:b\nas: rotary\n")
    assert parsed("conform", "--config", path).kind == "rotary"
    path = file(tmp_path, "first: ntk\nsecond: yarn\n")
    options = parsed("diff", "--factor", "8", "--config", path, "linear")
    assert (options.first, options.second, options.factor) == ("linear", "yarn", 8.0)
    with pytest.raises(InputError, match=r"required: SCHEDULE"):
        parsed("diff", "--config", file(tmp_path, "first: ntk\n"))


@pytest.mark.parametrize("text", ["none", "no", "on", "1_000", "2020-01-01", "1:30", "null", "~", "0x10", "1e3", "010"])
def test_text_arrives_as_it_was_written(tmp_path, text):
    path = file(tmp_path, f"encodings: [{text}]\ndata: {text}\n")
    options = parsed("compare", "--config", path)
    assert (options.encodings, options.data) == ([text], text)


@pytest.mark.parametrize(
    ("written", "value"),
    [("1e-3", 0.001), ("3", 3.0), (".5", 0.5), ("1.0e-3", 0.001), ("-.inf", -float("inf")), ("1_000.5", 1000.5)],
)
def test_numbers_as_people_write_them(tmp_path, written, value):
    assert parsed("compare", "--config", file(tmp_path, f"learning_rate: {written}\n")).learning_rate == value


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "holds no setting"),
        (b"# nothing\n", "holds no setting"),
        (b"- a\n- b\n", "must hold settings by name"),
        (b"seeds\n", "must hold settings by name"),
        (b"\xff\xfe\x00", "is not UTF-8"),
        (b"a: 1\n" * 50_000, "is too long"),
        (b"seeds: [1\n", "is not YAML on line 2"),
        (b'data: "\\U99999999"\n', "is not YAML"),
        (b"data: \x00\n", "is not YAML"),
        (b"seeds: 1\n---\nseeds: 2\n", "a second document"),
        (b"data: &a x\nencodings: [*a, *a]\n", "line 1: anchors and references"),
        (b"data: !!python/object/apply:os.system [ls]\n", "line 1: tags such as"),
        (b"<<: {seeds: 1}\n", "line 1: '<<': give a value or a list of values"),
        (b"encodings: [[a]]\n", "give a value or a list of values"),
        (b"encodings: " + b"[" * 50_000, "give a value or a list of values"),
        (b"? [a]\n: b\n", "a setting has one name"),
        (b"seeds: 1\nseeds: 2\n", "line 2: 'seeds' is there twice"),
        (b"command: eval\n", "not settings of posenc compare"),
        (b"lenght: 3\n", "line 1: unknown setting 'lenght': did you mean 'length'?"),
        (b"json: true\n", "unknown setting 'json'"),
        (b'seeds: "3"\n', "line 1: seeds: '3' is not a whole number"),
        (b"seeds: 3.0\n", "'3.0' is not a whole number"),
        (b"seeds: true\n", "'true' is not a whole number"),
        (b"seeds: [1, 2]\n", "['1', '2'] is not a whole number"),
        (b"seeds: 1" + b"0" * 5000 + b"\n", "is not a whole number"),
        (b"factors: [1, two]\n", "'two' is not a whole number"),
        (b"factors: []\n", "is an empty list"),
        (b"learning_rate: fast\n", "'fast' is not a number"),
        (b"data:\n", "'' is not a text"),
        (b"seeds: x\nlenght: 3\ndim: y\n", "line 1: seeds: 'x' is not a whole number; line 2: unknown setting 'lenght'"),
        (b"".join(b"x%d: 1\n" % n for n in range(9)), "; and more"),
    ],
)  # fmt: skip
def test_a_file_that_does_not_serve_is_one_line(tmp_path, capsys, text, message):
    code = cli.main(["compare", "--config", file(tmp_path, text)])
    out, err = capsys.readouterr()
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("posenc compare: error: --config ")
    assert message in err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("seeds = '3'\n", "seeds: '3' is not a whole number"),
        ("seeds = 3.0\n", "3.0 is not a whole number"),
        ("seeds = true\n", "True is not a whole number"),
        ("data = 3\n", "data: 3 is not a text; write it between quotes"),
        ("data = 2020-01-01\n", "is not a text"),
        ("[seeds]\nx = 1\n", "{'x': 1} is not a whole number"),
        ("seeds = 1\nseeds = 2\n", "is not TOML"),
        ("encodings = " + "[" * 40_000, "is not TOML"),
        ("seeds =", "is not TOML"),
        ("", "holds no setting"),
    ],
)
def test_toml_is_as_strict(tmp_path, text, message):
    with pytest.raises(InputError) as refused:
        parsed("compare", "--config", file(tmp_path, text, "run.toml"))
    assert message in str(refused.value)


def test_files_that_cannot_be_read(tmp_path):
    (tmp_path / "folder.yaml").mkdir()
    for path, message in (
        (tmp_path / "none.yaml", "No such file"),
        (tmp_path / "folder.yaml", "is not a file"),
        (file(tmp_path, "seeds: 1", "run.json"), "must end in .yaml, .yml, .toml"),
        ("/dev/zero", "must end in"),
        ("\0.yaml", "give a readable file"),
        ("x" * 5000 + ".yaml", "give a readable file"),
        ("", "must end in"),
    ):
        with pytest.raises(InputError, match=r"--config") as refused:
            parsed("compare", "--config", str(path))
        assert message in str(refused.value)


def test_choices_are_checked(tmp_path):
    with pytest.raises(InputError, match=r"dtype: 'float8' is not one of auto, float32, bfloat16, float16"):
        parsed("doctor", "demo", "--config", file(tmp_path, "dtype: float8"))


def test_without_pyyaml_toml_is_read(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "yaml", None)
    assert parsed("compare", "--config", file(tmp_path, "seeds = 2\n", "run.toml")).seeds == 2
    with pytest.raises(InputError, match=r"posenc\[lab\]"):
        parsed("compare", "--config", file(tmp_path, "seeds: 2\n"))


# ---------------------------------------------------------------- properties

NUMBERS = {int: st.integers(), float: st.floats(allow_nan=False), bool: st.booleans()}
TEXTS = st.text(st.characters(exclude_categories=["Cs"]))


@st.composite
def of_a_command(draw):
    """A command and some valid settings of it by their keys."""
    command = draw(st.sampled_from(sorted(COMMANDS)))
    values = {}
    for action in config.settings(COMMANDS[command]):
        if action.required or not action.option_strings or draw(st.booleans()):
            one = st.sampled_from(list(action.choices)) if action.choices else NUMBERS.get(config._kind(action), TEXTS)
            many = config._takes_list(action)
            values[config.key(action)] = draw(st.lists(one, min_size=1, max_size=4) if many else one)
    return command, values


@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(of_a_command())
def test_what_is_written_is_read_again(tmp_path, drawn):
    command, values = drawn
    first = parsed(command, "--config", file(tmp_path, toml({"command": command, **values}), "run.toml"))
    first.command, first.typed = command, "posenc\nand more\x00"
    out = {} if getattr(first, "out", None) is None else {"out": first.out}
    written = config.dump(first)
    dumped = yaml.safe_load(written)  # another reader of YAML understands the same
    assert {k: dumped[k] for k in values if k != "out"} == {k: v for k, v in values.items() if k != "out"}
    again = parsed(command, "--config", file(tmp_path, written))
    for options in (first, again):
        for name in ("parser", "config", "command", "typed"):
            vars(options).pop(name, None)
    assert vars(again) | out == vars(first)


TOKENS = ["seeds", "data", "encodings", ": ", "= ", "1", "[", "]", "{", "}", '"', "'", "\n", "- ", "|", ">", "&a", "*a", "!!", "#",
          "? ", "%YAML 1.1", "---", "...", "\\U99999999", "\t", " ", ",", "\x85", "é", "@", "`"]  # fmt: skip


@settings(deadline=None, max_examples=400, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.sampled_from(TOKENS) | st.text(max_size=3), max_size=25).map("".join), st.sampled_from(["yaml", "toml"])
)
def test_any_text_is_read_or_refused(tmp_path, text, kind):
    path = file(tmp_path, text.encode("utf-8", "surrogatepass"), f"run.{kind}")
    found, told = set(), ""
    try:
        found = config.read(path, COMMANDS["compare"]).keys()
    except InputError as error:
        told = str(error)
    assert bool(found) != bool(told)
    assert found <= {"seeds", "data", "encodings"}
    assert "\n" not in told


# ---------------------------------------------------------------- what is written


def test_a_file_of_somebody_else_is_left_alone(tmp_path, capsys):
    mine = file(tmp_path, "factor: 8\n", "config.yaml")
    assert cli.main(["diff", "ntk", "yarn", "--config", mine, "--out", str(tmp_path)]) == 2
    assert "config.yaml there is not of posenc's making" in capsys.readouterr().err
    assert Path(mine).read_text() == "factor: 8\n"


def test_every_command_with_a_folder_writes_it(tmp_path, capsys):
    for number, words in enumerate((["diff", "ntk", "yarn", "--factor", "8"], ["cite", "rope"], ["list"])):
        one, two = (str(tmp_path / f"{number}{copy}") for copy in "ab")
        assert cli.main([*words, "--out", one]) == 0
        assert cli.main([words[0], "--config", f"{one}/config.yaml", "--out", two]) == 0
        name = f"{words[0]}.json"
        assert (Path(one) / name).read_bytes() == (Path(two) / name).read_bytes()
        assert settings_in(one) == settings_in(two)
    capsys.readouterr()


def settings_in(folder):
    return yaml.safe_load((Path(folder) / "config.yaml").read_text())


@pytest.mark.parametrize(
    ("task", "preset"), [(name, preset) for name, task in EXPERIMENTS.items() for preset in task.presets]
)
def test_a_comparison_comes_back_whole_without_its_preset(task, preset, tmp_path, monkeypatch, capsys):
    asked = []

    def planned(comparison, corpus, directory, *, progress, **_):
        asked.append((comparison, corpus.digest))
        progress.planned(0, 0, 0)
        raise InputError("far enough")

    monkeypatch.setattr("posenc.lab.compare.compare", planned)
    assert cli.main(["compare", "--task", task, "--preset", preset, "--out", str(tmp_path / "a")]) == 2
    assert cli.main(["compare", "--config", str(tmp_path / "a" / "config.yaml"), "--out", str(tmp_path / "b")]) == 2
    assert "far enough" in capsys.readouterr().err
    assert asked[0] == asked[1]
    p, decided = EXPERIMENTS[task].presets[preset], asked[0][0].settings
    of_data = {name: getattr(decided, name) for name in ("num_classes", "channels") if hasattr(decided, name)}
    assert asked[0][0] == Comparison(p.encodings, p.seeds, p.settings.changed(**of_data))
    assert "preset" not in settings_in(tmp_path / "a")


@pytest.mark.parametrize("preset", EVALUATIONS)
def test_an_evaluation_comes_back_whole_without_its_preset(preset, tmp_path):
    options = parsed("eval", "demo", "--preset", preset)
    options.command, options.typed = "eval", ""
    written = config.dump(options, **vars(settings_of(preset)), preset=None)
    again = parsed("eval", "--config", file(tmp_path, written))
    found = settings_of(again.preset, **cli.eval.given(again))
    assert found == EVALUATIONS[preset]
    assert preset_of(found) == preset


def posenc(*arguments):
    """In a process of its own."""
    command = [sys.executable, "-m", "posenc.cli", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)


COSTS = ("created", "seconds", "tokens_per_second", "peak_bytes", "load", "command")
"""What differs from run to run of the same."""


def numbers(folder):
    """Everything that was measured, but for times and memory."""

    def kept(value):
        if isinstance(value, dict):
            return {k: kept(v) for k, v in value.items() if not k.endswith(COSTS)}
        return [kept(v) for v in value] if isinstance(value, list) else value

    return kept(json.loads((Path(folder) / "results.json").read_text()))


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("".join(f"{n} times the quick brown fox jumps over the lazy dog. " for n in range(200)))
    return path


def test_a_text_that_has_changed_is_told(tmp_path, text, capsys):
    path = file(tmp_path, f"data: {text}\ndata_sha256: {'0' * 64}\n")
    assert cli.main(["compare", "--config", path, "--out", str(tmp_path / "out")]) == 2
    err = capsys.readouterr().err
    assert f"--data {text}: has changed" in err
    assert "leave data_sha256 out" in err
    assert not (tmp_path / "out").exists()
    assert parsed("compare", "--config", path, "--data", "pydoc").data_sha256 is None


@pytest.mark.slow
def test_a_comparison_run_again_gives_the_same_numbers(tmp_path, text, capsys):
    flags = [
        word for k, v in SMALL.items() for word in (f"--{k.replace('_', '-')}", *(v if isinstance(v, list) else [v]))
    ]
    one, two, three = (tmp_path / name for name in ("one", "two", "three"))
    flags = ["--data", text, "--encodings", "rope,alibi", "--seeds", 2, *flags, "--out", one]
    assert cli.main(["compare", *map(str, flags)]) == 0
    done = posenc("compare", "--config", one / "config.yaml", "--out", two)
    assert done.returncode == 0, done.stderr
    assert numbers(one) == numbers(two)
    twin = file(tmp_path, toml(settings_in(one)), "twin.toml")
    assert cli.main(["compare", "--config", twin, "--out", str(three)]) == 0
    assert numbers(one) == numbers(three)
    assert settings_in(one) == settings_in(two) == settings_in(three)
    text.write_text(text.read_text() + "more")
    assert cli.main(["compare", "--config", twin, "--out", str(three)]) == 2
    assert "has changed" in capsys.readouterr().err


@pytest.mark.slow
def test_an_evaluation_run_again_gives_the_same_numbers(tmp_path, capsys):
    model, one, two = (tmp_path / name for name in ("model", "one", "two"))
    small_model("llama", vocab_size=VOCABULARY).save_pretrained(model)
    small_tokenizer(VOCABULARY).save_pretrained(model)
    flags = [
        "--tasks",
        "copying:segment=8",
        "--methods",
        "rerope:window=16",
        "--lengths",
        80,
        "--samples",
        2,
        "--generate",
    ]
    assert cli.main(["eval", str(model), *map(str, flags), "--out", str(one)]) == 0
    done = posenc("eval", "--config", one / "config.yaml", "--out", two)
    assert done.returncode == 0, done.stderr
    assert numbers(one) == numbers(two)
    assert settings_in(one) == settings_in(two)
    path = one / "config.yaml"
    path.write_text(path.read_text().replace("model_fingerprint: ", "model_fingerprint: f0"))
    assert cli.main(["eval", "--config", str(path), "--out", str(two)]) == 2
    assert "has changed" in capsys.readouterr().err
    assert parsed("eval", "--config", str(path), "--dtype", "float32").model_fingerprint is None
