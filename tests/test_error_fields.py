"""Errors are data: an InputError has fields, its text is made of them in one place, and nobody reads them out of the text."""

import ast
import copy
import pickle
import re
from pathlib import Path

import pytest
import torch
import torch._dynamo.exc

import posenc
from posenc.errors import NO_VALUE, InputError, shown

SOURCE = Path(posenc.__file__).parent
FILES = sorted(SOURCE.rglob("*.py"))

MADE = {
    "a problem": (InputError("pass positions"), "pass positions", "", NO_VALUE),
    "a remedy": (InputError("is empty", "name a file"), "is empty; name a file", "", NO_VALUE),
    "an argument": (InputError("must be even", dim=3), "dim=3: must be even", "dim", 3),
    "all": (InputError("must be even", "pass 4", dim=3), "dim=3: must be even; pass 4", "dim", 3),
    "a text": (InputError("no such file", path="a b"), "path='a b': no such file", "path", "a b"),
    "None": (InputError("pass one", tokenizer=None), "tokenizer=None: pass one", "tokenizer", None),
    "no value": (InputError("has no weights", argument="model"), "model: has no weights", "model", NO_VALUE),
    "a name that is computed": (InputError("too many", argument="n", value=9), "n=9: too many", "n", 9),
    "several": (InputError("pass one", factor=2, length=(8, 9)), "factor=2, length=(8, 9): pass one", "factor", 2),
}  # fmt: skip


@pytest.mark.parametrize(("error", "text", "argument", "value"), MADE.values(), ids=MADE)
def test_the_text_is_made_of_the_fields(error, text, argument, value):
    assert (str(error), error.argument) == (text, argument)
    assert error.value is value or error.value == value


@pytest.mark.parametrize("again", [lambda error: pickle.loads(pickle.dumps(error)), copy.copy, copy.deepcopy])
@pytest.mark.parametrize("error", [row[0] for row in MADE.values()], ids=MADE)
def test_it_is_sent_and_copied(error, again):
    other = again(error)
    assert (str(other), other.problem, other.remedy) == (str(error), error.problem, error.remedy)
    plain = (str, int, float, type(None), type(NO_VALUE))  # what is neither crosses processes as its text
    assert other.values == {k: v if isinstance(v, plain) else shown(v) for k, v in error.values.items()}
    assert type(other) is InputError


def test_what_no_other_process_can_read_is_sent_as_its_text():
    big, module = torch.zeros(1000, 1000), torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
    error = InputError("pass another", x=big, step=lambda: 1, model=module, parts=[big, 3])
    error.add_note("seen here")
    sent = pickle.dumps(error)
    assert len(sent) < 2000
    other = pickle.loads(sent)
    assert str(other) == str(error)
    assert other.__notes__ == ["seen here"]
    assert "\n" not in str(error)


def test_a_subclass_is_sent_with_its_fields():
    from posenc.analysis.codes import HiddenKeys

    error = pickle.loads(pickle.dumps(HiddenKeys("window", 7)))
    assert type(error) is HiddenKeys
    assert error.distance == 7
    assert str(error) == str(HiddenKeys("window", 7))


def test_a_value_is_shown_on_one_line():
    assert shown(torch.nn.Sequential(torch.nn.Linear(2, 2))) == "a Sequential"
    assert shown("x" * 300) == repr("x" * 300)
    assert len(shown(list(range(1000)))) < 80
    assert len(shown("x" * 10_000)) < 80


# ---------------------------------------------------------------- how src writes and reads them


def raised_texts(tree):
    """The call and the first words of the errors that a file makes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "InputError":
            first = node.args[0]
            while isinstance(first, ast.BinOp):
                first = first.left
            first = first.values[0] if isinstance(first, ast.JoinedStr) else first
            if isinstance(first, ast.Constant):
                yield node, first.value


def test_an_argument_is_a_field_and_not_part_of_the_text():
    found = [
        f"{file.name}:{node.lineno}: {text[:60]}"
        for file in FILES
        for node, text in raised_texts(ast.parse(file.read_text(encoding="utf-8")))
        if not node.keywords and re.match(r"[a-z_]\w*(=|: )", text)
    ]
    assert not found, 'write InputError("problem", "remedy", argument=value)'


CUTS = {
    "startswith", "endswith", "removeprefix", "removesuffix", "partition", "rpartition", "split", "rsplit", "replace",
    "find", "index", "match", "search", "sub", "fullmatch", "findall", "count",
}  # fmt: skip
AS_TEXT = {"str", "repr", "first_line", "on_one_line", "described", "located", "one_line"}
FOREIGN = {
    ("conformance/golden.py", "declines"): "what another library's function refuses",
    ("pretrained/checked.py", "out_of_memory"): "torch has no exception for the CPU's memory",
    ("pretrained/programs.py", "_transformers5"): "a KeyError of transformers has the layer type alone",
    ("errors.py", "import_failed"): "transformers has no exception for docstrings that are left out",
    ("errors.py", "on_one_line"): "of any exception, to print it",
}
"""Functions that read the messages of other libraries, which are text alone."""


def is_message(node, caught, texts=frozenset()):
    """Whether an expression holds the text of one of the caught exceptions, or one of the names of such a text."""
    for part in ast.walk(node):
        name = None
        if isinstance(part, ast.Name) and part.id in texts:
            return True
        if isinstance(part, ast.FormattedValue) or (isinstance(part, ast.Attribute) and part.attr == "args"):
            name = part.value
        elif isinstance(part, ast.Call) and isinstance(part.func, ast.Name) and part.func.id in AS_TEXT and part.args:
            name = part.args[0]
        if isinstance(name, ast.Name) and name.id in caught:
            return True
    return False


def reads_of_messages(tree):
    """The functions and lines that take the message of a caught exception apart."""
    for function in (node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.Lambda))):
        inside = list(ast.walk(function))
        caught = {node.name for node in inside if isinstance(node, ast.ExceptHandler)}
        caught |= {node.arg for node in inside if isinstance(node, ast.arg) and "error" in node.arg}
        texts = {
            target.id
            for node in inside
            if isinstance(node, ast.Assign) and is_message(node.value, caught)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        for node in inside:
            read = []
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CUTS:
                read = [node.func.value, *node.args]
            elif isinstance(node, ast.Compare):
                read = [node.left, *node.comparators]
            if any(is_message(each, caught, texts) for each in read):
                yield function, node.lineno


def test_nobody_takes_a_message_apart():
    found = {
        f"{name}:{line} in {getattr(function, 'name', 'lambda')}"
        for file in FILES
        for name in [file.relative_to(SOURCE).as_posix()]
        for function, line in reads_of_messages(ast.parse(file.read_text(encoding="utf-8")))
        if (name, getattr(function, "name", "lambda")) not in FOREIGN
    }
    assert not found, "read error.argument, .value, .problem, .remedy or .reason"


def test_reading_a_message_would_be_found():
    cut = "def f():\n    try:\n        g()\n    except ValueError as error:\n        {}"
    for line in (
        "return str(error).startswith('a')", "return 'a' in str(error)", "why = str(error)\n        return why.split(':')",
        "return re.match('a', str(error))", "return f'{error}'.removeprefix('a')", "return error.args[0] == 'a'",
    ):  # fmt: skip
        assert list(reads_of_messages(ast.parse(cut.format(line)))), line
    assert not list(reads_of_messages(ast.parse(cut.format("return error.argument == 'a', str(error)"))))


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        (lambda q: posenc.attention(q, q, q, None, posenc.Positions.arange(4)), "positions are for 4 queries, q has 5"),
        (lambda q: posenc.attention(q, q, q, softcap=-1.0), "pass a positive number, such as 50.0"),
        (lambda q: posenc.functional.rotary(q, q[0, 0], q[0, 0]), "cos has 8 columns for head_dim=8"),
    ],
)  # fmt: skip
def test_a_program_without_graph_breaks_states_the_problem(call, problem):
    with pytest.raises(torch._dynamo.exc.Unsupported, match=rf"InputError\(.{problem}"):
        torch.compile(call, backend="eager", fullgraph=True)(torch.zeros(1, 2, 5, 8))
    with pytest.raises(InputError, match=problem):
        torch.compile(call, backend="eager")(torch.zeros(1, 2, 5, 8))
