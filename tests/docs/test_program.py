# SPDX-License-Identifier: Apache-2.0
"""The program: what it answers without torch, in terminals of every width, and where its table comes from."""

import errno
import itertools
import os
import re
import shlex
import shutil
import subprocess
import sys
from io import StringIO
from pathlib import Path

import pytest

from posenc import cli
from posenc.cli.command import parse
from posenc.errors import InputError, unknown
from posenc_cli import cached, program
from posenc_cli.answers import DONE, FAILED, USAGE
from posenc_cli.arguments import Described, example, laid_out, mistyped
from posenc_cli.completion import SCRIPTS, proposals
from posenc_cli.left import LEFT
from posenc_cli.listing import ASKED, KINDS, PAGES, bibtex, cited, listed
from posenc_cli.names import nearest, unknown_name

WIDTHS = (40, 60, 80, 120)
COMMANDS = {name: command.described() for name, command in cli.COMMANDS.items()}
TABLE = cached.table()


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


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_is_the_same_in_the_table(name):
    assert Described.from_json(name, TABLE["commands"][name]) == COMMANDS[name]


def test_a_table_is_made_once_for_the_same_sources(tmp_path):
    made = []

    def make():
        made.append(1)
        return {"commands": len(made)}

    for key, expected in (("a", 1), ("a", 1), ("b", 2), ("a", 3)):
        assert cached.stored(tmp_path, key, make) == {"commands": expected}
    (file,) = tmp_path.iterdir()
    for broken in ("", "[]", '{"key": "a"}'):
        file.write_text(broken)
        assert cached.stored(tmp_path, "a", make) == {"commands": len(made)}


@pytest.mark.parametrize("where", [None, Path("/proc/nothing/here")])
def test_a_cache_that_cannot_be_written_does_not_matter(where):
    assert cached.stored(where, "a", lambda: {"commands": 1}) == {"commands": 1}


def test_a_changed_source_is_another_key(tmp_path, monkeypatch):
    for name in ("posenc", "posenc_cli"):
        (tmp_path / name).mkdir()
    (tmp_path / "posenc/one.py").write_text("a = 1")
    monkeypatch.setattr(cached, "HERE", tmp_path / "posenc_cli")
    first = cached.key()
    assert cached.key() == first
    (tmp_path / "posenc/one.py").write_text("a = 12")
    assert cached.key() != first


def test_help_lists_completion_and_typing_errors_import_no_torch():
    """In one process: each answer, and then the modules."""
    lines = [
        [], ["--help"], ["--version"], ["list"], ["list", "rope"], ["list", "--search", "2d"], ["list", "--cite", "rope+alibi"], ["--print-completion", "bash"], ["--complete", "compare", ""],
        ["help"], ["help", "eval"], ["lst"], ["cite", "rope"], ["compare", "--help-all"], ["compare", "--encodings", "sinusodal"], ["compare", "--preset", "quik"],
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


LINES = "", "--help", "--version", "list", "list rope", "list --cite fox", "--print-completion zsh", "extend --help"
ANSWERS = [line.split() for line in LINES]


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
        ("analyze yarn lineer", "unknown schedule 'lineer': did you mean 'linear'?"),
        ("check a:b --as rotry", "--as rotry: unknown kind 'rotry': did you mean 'rotary'?"),
        ("--print-completion bsh", "posenc: error: unknown shell 'bsh': did you mean 'bash'?"),
        ("compare --stepz 3", "unknown argument --stepz: did you mean --steps?"),
        (
            "extend",
            "the following arguments are required: --method, MODEL; for example: posenc extend demo --method yarn",
        ),
        ("list --kind tasks --acts-on bias", "--kind tasks --acts-on bias: nothing is found"),
        ("list rope --acts-on embed", "--acts-on embed: leaves out 'rope'; posenc list rope shows it"),
        ("list nosuch", "posenc list: error: unknown name 'nosuch': posenc list shows all names"),
        ("list rpoe --kind tasks", "unknown name 'rpoe': did you mean 'rope'?"),
    ],
)
def test_a_typing_error_names_the_nearest(words, message, capsys):
    code, out, err = answered(capsys, *shlex.split(words))
    assert (code, out) == (2, "")
    assert message in err
    assert len(err.splitlines()) == 1
    assert len(err) < 400


@pytest.mark.parametrize("text", ["{}/fade.py:Fade", "{}:Fade:slope=2", "rope+/home/{}/a.py:A@rerope"])
def test_folders_and_modules_of_code_have_any_names(text):
    """Such as code (like cope), and names that left, such as vision."""
    commands = [
        (c, each.field) for c in COMMANDS.values() for each in c.settings.values() if each.how.code and each.how.names
    ]
    assert len(commands) == 4
    for name, (command, field) in itertools.product([*LEFT, "code", "posenc", "learn", "windows"], commands):
        assert mistyped(command, {field: text.format(name)}, TABLE["known"]) is None
        assert "Write code/fade.py:NAME" in mistyped(command, {field: "code/fade.py"}, TABLE["known"])


def test_every_choice_has_a_nearest(capsys):
    for name, command in COMMANDS.items():
        for setting in (each for each in command.settings.values() if each.choices):
            given = setting.choices[0] + "x"
            code, _, err = answered(capsys, name, *([given] if setting.how.positional else [setting.written, given]))
            assert code == 2
            assert f"unknown choice {given!r}: did you mean " in err


def test_a_long_list_of_names_is_not_shown_beside_a_suggestion():
    many = [f"name{i}" for i in range(40)]
    assert unknown_name("name", "nam1", many, ["name1", "name11"]) == (
        "unknown name 'nam1': did you mean 'name1'? Also like it: name11"
    )
    assert "known are name0" in unknown_name("model type", "x", many, [])
    for what in ("encoding", "method", "kind"):
        error = unknown(what, "nosuch", TABLE["known"][what])
        assert str(error) == f"unknown {what} 'nosuch': posenc list --kind {what}s shows all"
    assert nearest("rpoe", ["rove", "rope"]) == ["rope", "rove"]


def test_what_to_do_instead_follows_a_question_as_a_sentence():
    assert str(InputError("did you mean 'a'?", "Write b")) == "did you mean 'a'? Write b"
    assert str(InputError("unknown 'a'", "write b")) == "unknown 'a'; write b"


@pytest.mark.parametrize("name", COMMANDS)
def test_help_breaks_no_line_inside_a_paragraph(name):
    assert all("\n" not in paragraph for paragraph in COMMANDS[name].about.split("\n\n"))


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
@pytest.mark.parametrize("words", [("--help",), *((name, "--help") for name in COMMANDS)], ids=" ".join)  # fmt: skip
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
    narrow = "  name    what it\n          is, in\n          words\nnext"
    assert laid_out("  name    what it is, in words\nnext", 20) == narrow
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
    assert "Or posenc list --search roformer" in answered(capsys, "list", "roformer")[2]
    assert "--search" not in answered(capsys, "list", "foxx")[2]


def test_every_kind_is_listed_under_its_heading():
    text = "\n".join(listed(TABLE, kind=kind)[1] for kind in KINDS)
    assert all(heading[1:] in text for heading in KINDS.values())
    assert not any(KINDS[kind] in listed(TABLE)[1] for kind in ASKED)
    for rows in TABLE["list"].values():
        for row in rows:
            assert re.search(rf"^  @?{re.escape(row['name'])} ", text, re.MULTILINE)


def test_cite_is_that_of_the_library():
    from posenc.encodings.catalogue import cite

    for text in ("rope", "rope+alibi", "t5+t5", "local_nope", "binary"):
        assert cited(text, TABLE) == cite(text)
    assert cited("rope:rope_theta=5", TABLE) is None
    assert bibtex("@misc{a, x}\n\n@book{b,\ny}") == {"a": "@misc{a, x}", "b": "@book{b,\ny}"}


def proposed(line):
    *before, last = line.split(" ")[1:]
    return set(proposals([*before, last], TABLE))


def test_words_are_completed():
    assert proposed("posenc com") == {"compare"}
    assert {"--encodings"} <= proposed("posenc compare --en")
    assert proposed("posenc compare --preset st") == {"standard"}
    assert proposed("posenc compare --encodings rope stick") == {"stick_breaking"}
    assert "yarn_paper" in proposed("posenc extend demo --method yarn")
    assert proposed("posenc check a:b --as m_rope_i") == {"m_rope_interleaved", "m_rope_ids", "m_rope_ids_frames"}
    assert proposed("posenc compare --compiled --data ") == proposed("posenc nothing ") == set()
    assert proposed("posenc help ex") == {"extend", "explore"}


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_completes_by_its_script(shell, tmp_path):
    """In bash; the others where they are installed."""
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} on this machine")
    program = tmp_path / "posenc"
    program.write_text(
        f'#!/bin/sh\nexec {sys.executable} -c "import sys; from posenc_cli import main; sys.exit(main())" "$@"\n'
    )
    program.chmod(0o755)
    (tmp_path / "script").write_text(SCRIPTS[shell])
    ask = {
        "bash": "source script; COMP_WORDS=(posenc compare --preset st); COMP_CWORD=3; _posenc; echo ${COMPREPLY[@]}",
        "zsh": "compdef() {}; compadd() { echo ${@:2} }; source ./script; words=(posenc compare --preset st); CURRENT=4; _posenc",
        "fish": "source script; complete -C 'posenc compare --preset st'",
    }
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [shell, "-c", ask[shell]], capture_output=True, text=True, cwd=tmp_path, env={**os.environ, "PATH": path}
    )
    assert done.stdout.split() == ["standard"], done.stderr


# ---------------------------------------------------------------- what left, and what few need


@pytest.mark.parametrize("name", LEFT)
def test_what_left_says_what_to_use(name, capsys):
    assert name not in COMMANDS
    assert answered(capsys, "list", name) == (2, "", f"posenc list: error: {name} left posenc: {LEFT[name]}\n")
    if not name.startswith("-"):
        assert answered(capsys, f"posenc.{name}") == (2, "", f"posenc: error: {name} left posenc: {LEFT[name]}\n")
        assert str(unknown("option", f"{name}=2", [])) == f"{name} left posenc: {LEFT[name]}"


def test_what_to_use_names_the_command_that_has_its_flags():
    """The answer is the same in every command."""
    for name, text in LEFT.items():
        words = set(re.findall(r"(?<!\S)[\w-]+", text)) - {"--num_fewshot", "--print-completion"}
        has = {each.written for word in words & COMMANDS.keys() for each in COMMANDS[word].settings.values()}
        assert {word for word in words if word.startswith("--")} <= has | {"--out"}, name


def test_a_flag_and_a_value_that_left_say_what_to_use(monkeypatch, capsys):
    monkeypatch.setitem(LEFT, "--gone", "write --here")
    monkeypatch.setitem(LEFT, "gone", "take yarn")
    assert "--task FILE:CLASS left posenc: " in answered(capsys, "compare", "--task", "second.py:Second")[2]
    for words in ("compare --gone 3", "extend demo --method gone", "compare --preset gone", "list gone"):
        code, out, err = answered(capsys, *words.split())
        assert (code, out) == (2, "")
        assert "gone left posenc: " in err


def test_help_of_what_only_a_cluster_needs_is_in_help_all(capsys):
    assert "--share" not in answered(capsys, "compare", "--help")[1]
    assert "--share" in answered(capsys, "compare", "--help-all")[1]
    assert "--help-all" in answered(capsys, "help", "compare")[1]
    assert "--help-all" not in answered(capsys, "help", "list")[1]


@pytest.mark.parametrize("page", PAGES)
def test_words_that_no_entry_has_are_answered_with_pages_that_exist(page):
    assert (Path(__file__).parents[2] / page).is_file()
    for word in PAGES[page].split():
        try:
            text = listed(TABLE, search=[word])[1]
        except ValueError as error:
            text = str(error)
        assert page in text
