"""The command line as a user meets it: exit codes, one-line errors, JSON."""

import json
import re
import subprocess
import sys

import pytest

import posenc
from posenc import cli
from posenc.encodings.catalogue import measured
from posenc.tasks import TASKS
from references.commands import run


def test_list_and_cite(capsys, tmp_path):
    assert run(capsys, "--version") == (0, f"posenc {posenc.__version__}\n", "")
    code, out, _ = run(capsys, "list")
    assert code == 0
    assert out.splitlines()[0] == "Encodings: rotary"
    code, out, _ = run(capsys, "list", "--json")
    assert {row["name"] for row in json.loads(out)["encodings"]} == set(posenc.ENCODINGS)
    schedules = {row["name"]: row["options"] for row in json.loads(out)["schedules"]}
    assert schedules == {name: list(posenc.frequencies.options_of(name)) for name in posenc.frequencies.SCHEDULES}
    methods = {row["name"]: row for row in json.loads(out)["methods"]}
    assert methods["rerope"]["kind"] == "map"
    tasks = {row["name"]: row["options"] for row in json.loads(out)["tasks"]}
    assert set(tasks) == set(TASKS)
    assert (tasks["passkey"], tasks["facts"]) == ([], ["items", "query_aware", "noise"])
    assert set(posenc.position_maps.MAPS) - {"inverse_leaky"} <= set(methods)
    code, out, _ = run(capsys, "list", "fox", "@rerope", "rope_nope")
    assert code == 0
    assert [line.split(":")[0] for line in out.splitlines() if line[:1].strip()] == [
        "fox (encoding)", "rope_nope (pattern)", "rerope (position map)", "rerope (method)",
    ]  # fmt: skip
    assert posenc.FoX.use_when in out
    code, out, _ = run(capsys, "list", *posenc.ENCODINGS, "--json")
    for row in json.loads(out)["encodings"]:
        claim, printed = posenc.ENCODINGS[row["name"]].extrapolates, row["extrapolates"]
        assert printed == f"by the paper: {claim or 'no claim'}; measured: {measured(row['name'])}"
    assert (measured("rope"), measured("swin")) == ("+0.80 nats from 128 to 1024 bytes", "not measured")
    code, out, _ = run(capsys, "list", "wall", "--json")
    assert {kind: [row["use_when"] for row in rows] for kind, rows in json.loads(out).items()} == {
        "encodings": [posenc.Wall.use_when]
    }
    code, out, _ = run(capsys, "list", "--cite", "rope+alibi")
    assert (code, out.count("@")) == (0, 2)
    code, out, _ = run(capsys, "list", "--cite", "t5", "--json")
    assert "Raffel" in json.loads(out)["bibtex"]
    code, out, err = run(capsys, "list", "--cite", "binary", "--out", str(tmp_path / "new"))
    assert (code, out, err) == (0, "binary has no paper\n", "")
    assert json.loads((tmp_path / "new" / "list.json").read_text()) == {"name": "binary", "bibtex": ""}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["list", "--out", "/proc/nothing/here"], "posenc list: error: --out /proc/nothing/here: "),
        (["list", "--cite", "alibii"], "list: error: --cite alibii: unknown encoding 'alibii': did you mean 'alibi'?"),
        (["list", "--explain", "@nan"], "list: error: --explain: unknown name 'nan': did you mean "),
        (["check", "math:sin", "--as", "ropes"], "check: error: --as ropes: unknown kind 'ropes'"),
        (["compare", "--dim", "127", "--num-heads", "1"], "must be even"),
        (["compare", "--seeds", "three"], "--seeds: invalid int value: 'three'"),
        (["compare", "--seeds", "0"], "--seeds 0: must lie between 1 and 1000"),
        (["compare", "--data", "/no/such/text"], "--data /no/such/text: no such file or folder"),
        (["compare", "--factors", "1", "4000"], "are too short to test at 512000 tokens"),
        (["compare", "--steps", "9000"], "and train 9000 steps, read 4 times at most; needs about"),
        (["compare", "--preset", "gpu", "--data", "pydoc"], "and train 800 steps, read 4 times at most; needs about"),
        (["compare", "--steps", "40"], "--steps 40: a quarter of it, 10, cools down from step 6 on"),
        (["compare", "--rates", "1", "1"], "--rates 1 1: a sweep has at least two different values"),
        (["compare", "--out", "/proc/nothing/here"], "--out /proc/nothing/here: "),
        (["compare", "--workers", "0"], "--workers 0: must be at least 1"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(capsys, arguments, message):
    code, out, err = run(capsys, *arguments)
    assert code == 2
    assert out == ""
    assert message in err
    assert len(err.splitlines()) == 1
    assert err.startswith("posenc")


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_help_gives_each_default_once_and_no_empty_default(command, capsys):
    with pytest.raises(SystemExit):
        cli.main([command, "--help"])
    printed = " ".join(capsys.readouterr().out.split())
    assert not re.findall(r"\(default: (?:None|False|\[\])\)|\(default: [^)]*\) \(default", printed)
    assert command != "analyze" or "of random numbers (default: 0)" in printed


def test_compare_prints_the_answer_or_json(capsys, tmp_path, monkeypatch):
    text = tmp_path / "text.txt"
    text.write_text("the quick brown fox jumps over the lazy dog. " * 200)
    flags = "--length 16 --factors 1 2 --steps 2 --batch-size 2 --dim 8 --num-layers 1 --num-heads 2 --head-dim 4 --windows 4 --targets 8 --no-curve"
    given = ["--data", str(text), "--out", str(tmp_path / "out"), "--encodings", "rope,none", "--seeds", "1"]
    flags = ["compare", *given, *flags.split()]
    code, out, err = run(capsys, *flags)
    assert code == 0
    assert "rope + NTK" in out
    assert str(tmp_path / "out" / "report.html") in out
    assert "[2/2]" in err
    code, out, err = run(capsys, *flags, "--json")
    assert json.loads(out)["runs"]["kept_from_before"] == 2
    assert "2 of 2 runs are here already" in err


def test_core_commands_need_torch_alone():
    """`import posenc`, list works where the lab's packages are missing; compare says what to install."""
    block = "import sys; [sys.modules.__setitem__(m, None) for m in ('rich', 'transformers', 'datasets')]; "
    code = block + "from posenc.cli import main; sys.exit(main(sys.argv[1:]))"
    for arguments, expected in (
        (["list"], 0),
        (["list", "--cite", "rope"], 0),
        (["bench"], 2),
        (["doctor", "demo"], 2),
        (["compare"], 2),
    ):
        done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True)
        assert done.returncode == expected, done.stderr
    assert done.stderr.strip().endswith("pip install 'posenc[lab]'")
    assert len(done.stderr.splitlines()) == 1
