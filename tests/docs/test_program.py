# SPDX-License-Identifier: Apache-2.0
"""The program: what it answers without torch, in terminals of every width, and that its table is that of the code."""

import errno
import json
import re
import shlex
import subprocess
import sys
from importlib.util import find_spec
from io import StringIO
from pathlib import Path

import pytest
from website import commands

from posenc import cli
from posenc.cli.command import parse
from posenc.errors import InputError
from posenc_cli import answers, program
from posenc_cli.answers import DONE, FAILED, USAGE
from posenc_cli.arguments import Described, example, laid_out
from posenc_cli.listing import KINDS, bibtex, cited, listed
from posenc_cli.names import unknown_name

WIDTHS = (40, 60, 80, 120)
COMMANDS = {name: command.described() for name, command in cli.COMMANDS.items()}
TABLE = answers.table()


def answered(capsys, *words):
    """Exit code, stdout and stderr of the program for what it answers by itself."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["posenc", *words])
        patch.setattr("posenc.cli.main", lambda: pytest.fail("needs torch"))
        code = ended(program.main)
    return code, *capsys.readouterr()


def ended(main):
    """The exit code."""
    try:
        return main()
    except SystemExit as stop:
        return stop.code


# ---------------------------------------------------------------- without torch


def test_the_table_is_that_of_the_code():
    """If not: python -m website.commands, in docs."""
    assert json.loads(json.dumps(commands.table())) == TABLE


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_is_the_same_in_the_table(name):
    assert Described.from_json(name, TABLE["commands"][name]) == COMMANDS[name]


@pytest.mark.skipif(find_spec("shtab") is None, reason="needs shtab")
@pytest.mark.parametrize("shell", answers.SHELLS)
def test_completion_is_that_of_the_table(shell, capsys):
    assert answered(capsys, "completion", shell)[1] == commands.completion(shell, TABLE["commands"], TABLE["known"])


def test_help_lists_completion_and_typing_errors_import_no_torch():
    """In one process: each answer, and then the modules."""
    lines = [
        [], ["--help"], ["--version"], ["list"], ["list", "rope"], ["list", "--search", "2d"], ["cite", "rope+alibi"], ["completion", "bash"],
        ["help", "eval"], ["lst"], ["cite", "alibii"], ["compare", "--encodings", "sinusodal"], ["compare", "--preset", "quik"],
        ["eval", "--stepz"], ["extend"], *([name, "--help"] for name in COMMANDS),
    ]  # fmt: skip
    code = (
        "import contextlib, io, sys\nfrom posenc_cli import program\n"
        f"for words in {lines}:\n"
        "    sys.argv = ['posenc', *words]\n"
        "    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()), contextlib.suppress(SystemExit):\n"
        "        program.main()\n"
        "print(*({'torch', 'posenc', 'numpy', 'rich'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


ANSWERS = [
    line.split()
    for line in ("", "--help", "--version", "list", "list rope", "cite fox", "completion zsh", "extend --help")
]


class Gone(StringIO):
    """Of a reader that has left."""

    def write(self, text):
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")


class Late(StringIO):
    """The same, noticed when what was written is flushed."""

    def flush(self):
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")


@pytest.mark.parametrize("words", ANSWERS, ids=" ".join)
@pytest.mark.parametrize("reader", [Gone, Late, lambda: None], ids=["gone", "late", "no stdout"])
def test_a_reader_that_leaves_is_no_mistake(reader, words, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["posenc", *words])
    with monkeypatch.context() as patched:
        patched.setattr(sys, "stdout", reader())
        code = ended(program.main)
    assert (code, *capsys.readouterr()) == (USAGE if words == [] and reader() is None else DONE, "", "")


@pytest.mark.parametrize("words", ANSWERS, ids=" ".join)
def test_an_answer_that_cannot_be_written_is_a_failure(words, monkeypatch, capsys):
    class Full(StringIO):
        def flush(self):
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(sys, "argv", ["posenc", *words])
    with monkeypatch.context() as patched:
        patched.setattr(sys, "stdout", Full())
        code = ended(program.main)
    assert code == FAILED
    assert "failed: [Errno 28] No space left on device" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("lst", "posenc: error: unknown command 'lst': did you mean 'list'?"),
        ("compare --preset quik", "posenc compare: error: --preset: unknown choice 'quik': did you mean 'quick'?"),
        ("bench --mode trian", "posenc bench: error: --mode: unknown choice 'trian': did you mean 'train'?"),
        ("compare --encodings rope alibbi", "--encodings alibbi: unknown encoding 'alibbi': did you mean 'alibi'?"),
        ("extend demo --method yran", "--method yran: unknown method 'yran': did you mean 'yarn'?"),
        ("eval demo --tasks paskey", "--tasks paskey: unknown task 'paskey': did you mean 'passkey'?"),
        ("diff yarn lineer", "unknown schedule 'lineer': did you mean 'linear'?"),
        ("conform a:b --as rotry", "--as rotry: unknown kind 'rotry': did you mean 'rotary'?"),
        ("completion bsh", "posenc completion: error: unknown shell 'bsh': did you mean 'bash'?"),
        ("compare --stepz 3", "unknown argument --stepz: did you mean --steps?"),
        ("extend", "the following arguments are required: MODEL; for example: posenc extend demo --method yarn"),
        ("list --search nothinghere", "--search nothinghere: nothing is found"),
    ],
)
def test_a_typing_error_names_the_nearest(words, message, capsys):
    code, out, err = answered(capsys, *shlex.split(words))
    assert (code, out) == (2, "")
    assert message in err
    assert len(err.splitlines()) == 1
    assert len(err) < 400


CHOICES = [(name, each) for name, command in COMMANDS.items() for each in command.settings.values() if each.choices]


@pytest.mark.parametrize(("name", "setting"), CHOICES, ids=lambda each: getattr(each, "field", each))
def test_every_choice_has_a_nearest(name, setting, capsys):
    given = setting.choices[0] + "x"
    words = [given] if setting.how.positional else [setting.written, given]
    code, _, err = answered(capsys, name, *words)
    assert code == 2
    assert f"unknown choice {given!r}: did you mean " in err


def test_a_long_list_of_names_is_not_shown_beside_a_suggestion():
    many = [f"name{i}" for i in range(40)]
    assert unknown_name("name", "nam1", many, ["name1", "name11"]) == (
        "unknown name 'nam1': did you mean 'name1'? Also like it: name11."
    )
    assert "known are name0" in unknown_name("name", "x", many, [])


@pytest.mark.parametrize("name", COMMANDS)
def test_examples_are_valid(name):
    """They come first in help, and each parses."""
    command = cli.COMMANDS[name]
    assert command.examples
    for each in command.examples:
        program, called, *words = shlex.split(each)
        assert (program, called) == ("posenc", name)
        assert "--print-config" not in words
        parse(command, words)


# ---------------------------------------------------------------- widths


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("words", [("--help",), ("completion", "--help"), *((name, "--help") for name in COMMANDS)], ids=" ".join)  # fmt: skip
def test_help_is_as_wide_as_the_terminal(words, width, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", str(width))
    code, out, _ = answered(capsys, *words)
    assert code == 0
    long = [line for line in out.splitlines() if len(line) > width and len(line.split()) > 1]
    assert long == []
    if words[0] in COMMANDS:
        head = out.split("options:")[0]
        assert head.index("usage:") < head.index("examples:")


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("words", ["", "rope yarn passkey @rerope", "--search 2d", "--acts-on bias", "--kind tasks"])
def test_lists_are_as_wide_as_the_terminal_and_cut_nothing(words, width, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", str(width))
    code, out, _ = answered(capsys, "list", *words.split())
    assert code == 0
    assert [line for line in out.splitlines() if len(line) > width and len(line.split()) > 2] == []
    monkeypatch.setenv("COLUMNS", "10000")
    assert answered(capsys, "list", *words.split())[1].split() == out.split()


def test_lines_are_laid_out():
    assert (
        laid_out("  name    what it is, in words\nnext", 20)
        == "  name    what it\n          is, in\n          words\nnext"
    )
    assert laid_out("  a_long_name  of it", 19) == "  a_long_name\n    of it"
    assert laid_out("", 20) == ""
    assert example("posenc extend demo --factor 2", 24) == "  posenc extend demo \\\n    --factor 2"


# ---------------------------------------------------------------- list, cite, completion


def test_a_search_finds_titles_names_in_chinese_and_beginnings():
    def found(*words, **more):
        return [row["name"] for rows in listed(TABLE, search=words, **more)[0].values() for row in rows]

    assert "axial_rope" in found("2-D", "rope")
    assert "rope" in found("旋转位置编码")
    assert "rope" in found("rotary")
    assert "passkey" in found("passkey")
    assert found("interpol", kind="schedules")[0] == "linear"
    assert set(found("rope", acts_on="rotate")) < set(found("rope"))
    with pytest.raises(ValueError, match="nothing is found"):
        listed(TABLE, search=["bias"], kind="tasks", acts_on="embed")


def test_a_word_that_is_no_name_leads_to_the_search(capsys):
    assert "Or posenc list --search rotary" in answered(capsys, "list", "rotary")[2]
    assert "--search" not in answered(capsys, "list", "foxx")[2]


def test_every_kind_is_listed_under_its_heading():
    text = listed(TABLE)[1]
    assert all(heading[1:] in text for heading in KINDS.values())
    for rows in TABLE["list"].values():
        for row in rows:
            assert re.search(rf"^  @?{re.escape(row['name'])} ", text, re.MULTILINE)


def test_cite_is_that_of_the_library():
    from posenc.encodings.catalogue import cite

    for text in ("rope", "rope+alibi", "t5+t5", "local_nope", "binary"):
        assert cited(text, TABLE) == cite(text)
    assert cited("rope:rope_theta=5", TABLE) is None
    assert bibtex("@misc{a, x}\n\n@book{b,\ny}") == {"a": "@misc{a, x}", "b": "@book{b,\ny}"}


@pytest.mark.parametrize("shell", answers.SHELLS)
def test_completion_has_every_command_option_and_name(shell, capsys):
    code, script, _ = answered(capsys, "completion", shell)
    assert code == 0
    for name, command in COMMANDS.items():
        assert name in script
        for setting in command.settings.values():
            assert setting.how.positional or setting.key.replace("_", "-") in script
    assert {"stick_breaking", "self_extend", "passkey", "quick"} <= set(re.findall(r"[\w-]+", script))


def completions(line):
    """What bash proposes for the last word of a line."""
    words = line.split(" ")
    script = (
        f"source {Path(answers.__file__).with_name('completion.bash')}\n"
        f"COMP_WORDS=({' '.join(map(shlex.quote, words))}); COMP_CWORD={len(words) - 1}\n"
        "$(complete -p posenc | sed 's/.*-F \\([^ ]*\\).*/\\1/')\nprintf '%s\\n' \"${COMPREPLY[@]}\""
    )
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True)
    return {word.strip() for word in done.stdout.split("\n")} - {""}


def test_bash_completes_commands_options_choices_and_names():
    assert completions("posenc com") == {"compare", "completion"}
    assert {"--encodings", "--engine"} <= completions("posenc compare --en")
    assert completions("posenc compare --preset st") == {"standard"}
    assert {"stick_breaking"} == completions("posenc compare --encodings stick")
    assert "yarn_paper" in completions("posenc extend demo --method yarn")


def test_a_mistake_is_raised_alike_by_both_parsers():
    with pytest.raises(InputError, match="did you mean 'quick'"):
        parse(cli.COMMANDS["compare"], ["--preset", "quik"])
