"""The shape of src: no circle of imports, no code in a package's face, no knowledge of single encodings above them."""

import ast
import re
from pathlib import Path

import pytest

import posenc

SOURCE = Path(posenc.__file__).parents[1]


def modules():
    """Every module of ours by name, with its file."""
    found = {}
    for top in ("posenc", "posenc_cli"):
        for file in sorted((SOURCE / top).rglob("*.py")):
            parts = file.relative_to(SOURCE).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return found


MODULES = modules()


def imported(text, name="", package="", known=MODULES):
    """The known modules that a module names in imports, wherever they stand: for types and inside functions, too."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found |= {each.name for each in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, *([base] if base else [])])
            found |= {f"{base}.{each.name}" if f"{base}.{each.name}" in known else base for each in node.names}
    return (found & known.keys()) - {name}


def circles(graph):
    """The sets of modules that import one another, each sorted: by removing, as often as it goes, what imports nothing that is
    left or is imported by nothing that is left."""
    left = {name: set(to) for name, to in graph.items()}
    while True:
        wanted = set().union(*left.values()) if left else set()
        idle = {name for name, to in left.items() if not to & left.keys() or name not in wanted}
        if not idle:
            return {name: sorted(to & left.keys()) for name, to in left.items()}
        left = {name: to - idle for name, to in left.items() if name not in idle}


def test_no_module_imports_one_that_imports_it():
    graph = {
        name: imported(
            file.read_text(encoding="utf-8"), name, name if file.stem == "__init__" else name.rpartition(".")[0]
        )
        for name, file in MODULES.items()
    }
    assert sum(map(len, graph.values())) > len(MODULES)
    assert not circles(graph), "move what both need to a third module"


def test_a_circle_would_be_found():
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}, "e": set()}) == {"a": ["b"], "b": ["c"], "c": ["a"]}
    assert not circles({"a": {"b", "c"}, "b": {"c"}, "c": set()})
    lazy = "def f():\n    from x.y import z\nif TYPE_CHECKING:\n    import x.w\n"
    assert imported(lazy, known={"x.y": 1, "x.w": 1}) == {"x.y", "x.w"}


@pytest.mark.parametrize(
    "name", [name for name, file in MODULES.items() if file.stem == "__init__" and name != "posenc"]
)
def test_the_face_of_a_package_has_no_code(name):
    """Of posenc itself, too, but for the table of names that it imports when they are first used."""
    for node in ast.parse(MODULES[name].read_text(encoding="utf-8")).body:
        documented = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        named = isinstance(node, ast.Assign) and [target.id for target in node.targets] == ["__all__"]
        assert documented or named or isinstance(node, (ast.Import, ast.ImportFrom)), f"{name}:{node.lineno}"


# ---------------------------------------------------------------- encodings are known by what they declare

OF_ONE_KIND = {
    "analysis/codes.py": {
        "Mapped",
        "Rotary",
    },  # a wrapper, as Sum is; XPos too, which has angles but refuses to move keys
    "analysis/target.py": {"Rotary"},  # whose frequencies the questions about a base are of
    "pretrained/attach.py": {"Rotary"},  # as transformers' modules
    "pretrained/convert.py": {"PoPE"},  # as wide again as its head
    "report/predict.py": {"ALiBi", "T5"},  # the page's, which it computes by itself
}
"""Where a module above the encodings asks for a class of them, and why. It may become shorter only."""


def test_modules_above_ask_for_traits_and_not_for_classes():
    classes = {
        node.name
        for file in (SOURCE / "posenc/encodings").glob("*.py")
        for node in ast.parse(file.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef) and issubclass(getattr(posenc, node.name, int), posenc.Encoding)
    }
    assert len(classes) > 60
    asked = {}
    for file in sorted((SOURCE / "posenc").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))) if file.parent.name != "encodings" else ():
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id in ("isinstance", "issubclass")
            ):
                named = {each.id for each in ast.walk(node.args[1]) if isinstance(each, ast.Name)} & classes
                if named:
                    asked.setdefault(file.relative_to(SOURCE / "posenc").as_posix(), set()).update(named)
    assert asked == OF_ONE_KIND


# ---------------------------------------------------------------- records


def in_prose(node):
    """Fields that a dataclass's docstring describes as "name: ..", in place of a line beside each."""
    fields = [each.target.id for each in node.body if isinstance(each, ast.AnnAssign)]
    return [name for name in fields if re.search(rf"(?m)(^|[\s,.]){name}(, \w+)*: ", ast.get_docstring(node) or "")]


def test_a_record_of_many_fields_describes_each_beside_it():
    by_class = {
        f"{name}.{node.name}": in_prose(node)
        for name, file in MODULES.items()
        if not name.startswith("posenc.encodings.")  # whose docstrings are those of constructors, and pages
        for node in ast.parse(file.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef) and any("dataclass" in ast.unparse(each) for each in node.decorator_list)
    }
    assert len(by_class) > 100
    assert [name for name, fields in by_class.items() if len(fields) > 7] == []


def test_type_checkers_know_every_encoding():
    static = ast.parse(MODULES["posenc.encodings.names"].read_text()).body[-1].body
    listed = next(ast.literal_eval(each.value) for each in static if isinstance(each, ast.Assign))
    imported = {name.name for each in static if isinstance(each, ast.ImportFrom) for name in each.names}
    assert imported | {"ENCODINGS", "create", "from_spec"} == set(listed) == set(posenc.encodings.__all__)
