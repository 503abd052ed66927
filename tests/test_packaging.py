"""The package itself: its names, what importing it costs, its metadata, and its distributions, installed."""

import ast
import email
import json
import os
import pkgutil
import re
import runpy
import shutil
import subprocess
import sys
import tomllib
import venv
import zipfile
from importlib import import_module, metadata
from pathlib import Path
from types import ModuleType

import pytest
import yaml
from packaging.requirements import Requirement

import posenc
import posenc_version

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
MODULES = [
    each.name for each in pkgutil.walk_packages(posenc.__path__, "posenc.") if not each.name.endswith("__main__")
]


def run(*command: object, cwd: Path | None = None) -> str:
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_nothing_answers_to_a_former_name():
    for path in (ROOT / "src").rglob("*.py"):
        assert "DeprecationWarning" not in path.read_text(encoding="utf-8"), path
    assert not any("posenc" in type(finder).__module__ for finder in sys.meta_path)


def test_no_file_of_the_repository_leads_out_of_it():
    if not (ROOT / ".git").exists():
        pytest.skip("no clone")
    links = [line for line in run("git", "-C", ROOT, "ls-files", "-s").splitlines() if line.startswith("120000")]
    assert links == []


def test_public_names_are_there_and_documented():
    assert len(set(posenc.__all__)) == len(posenc.__all__)
    for name in posenc.__all__:
        assert name == "ENCODINGS" or getattr(posenc, name).__doc__, name


def test_nothing_else_is_public():
    """What is neither named in __all__ nor private is a module of ours, which `dir` leaves out."""
    named = {name for name in dir(posenc) if not name.startswith("__")}
    assert named == set(posenc.__all__)
    others = {name: value for name, value in vars(posenc).items() if name not in named and not name.startswith("_")}
    assert all(isinstance(value, ModuleType) and value.__name__ == f"posenc.{name}" for name, value in others.items())


IMPORTED_AS = {
    "PIL": "pillow",
    "yaml": "pyyaml",
    "sklearn": "scikit-learn",
    "huggingface_hub": "huggingface-hub",
    "lm_eval": "lm-eval",
}


def test_what_is_imported_is_declared():
    """An imported package must not come only as a dependency of another."""
    declared = "\n".join(
        [*PROJECT["dependencies"], *(p for each in PROJECT["optional-dependencies"].values() for p in each)]
    )
    names = set(re.findall(r"^[\w-]+", declared, re.MULTILINE))
    found = set()
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            modules += [node.module] if isinstance(node, ast.ImportFrom) and not node.level else []
            found |= {module.partition(".")[0] for module in modules} - {
                *sys.stdlib_module_names,
                "posenc",
                "posenc_cli",
                "posenc_version",
            }
    assert {IMPORTED_AS.get(name, name) for name in found} - names == set()


def test_the_lowest_versions_that_are_run_are_the_declared_ones():
    """make test-oldest installs constraints-oldest.txt; what it did not run is not declared."""
    lines = (ROOT / "constraints-oldest.txt").read_text(encoding="utf-8").splitlines()
    run = {line.partition("==")[0]: line.partition("==")[2] for line in lines if not line.startswith("#")}
    extras = PROJECT["optional-dependencies"]
    declared = {}
    for requirement in (r for name in extras if name not in ("docs", "dev") for r in extras[name]):
        if found := re.match(r"([\w-]+)(?:\[\w+\])?>=([\w.]+)", requirement):
            assert declared.setdefault(found[1], found[2]) == found[2], requirement
    assert declared.keys() == run.keys()
    assert all(run[name] in (lowest, f"{lowest}.0") for name, lowest in declared.items())


def test_the_tests_that_are_run_under_other_versions_exist():
    runs = runpy.run_path(str(ROOT / "benchmarks/versions.py"))["TESTS"]
    for each in {test for tests in runs.values() for test in tests}:
        path, _, name = each.partition("::")
        assert (ROOT / path).exists(), each
        assert not name or f"\ndef {name}(" in (ROOT / path).read_text(encoding="utf-8"), each


def test_every_list_of_names_is_true():
    for module in map(import_module, MODULES):
        assert all(hasattr(module, name) for name in getattr(module, "__all__", ())), module.__name__


def test_pages_and_examples_use_named_names():
    """What README, docs and examples import is a module of ours or a name in its module's list."""
    texts = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.py")]
    text = "\n".join(path.read_text(encoding="utf-8") for path in texts)
    for module, names in re.findall(r"^ *from (posenc[\w.]*) import (\w+(?:, \w+)*)", text, re.MULTILINE):
        listed = getattr(import_module(module), "__all__", ())
        for name in names.split(", "):
            public = name in listed or f"{module}.{name}" in MODULES
            assert public, f"a page or an example imports {module}.{name}: add {name!r} to __all__ of {module}"


def test_importing_posenc_brings_torch_alone():
    """No package of an extra, nothing of ours that attention can do without, and no warning, from any name."""
    code = """
import sys, torch
torchs = set(sys.modules)
import posenc
print(*sorted(set(sys.modules) - torchs))
posenc.extend
assert "transformers" not in sys.modules
import posenc.cli, posenc.conformance
from posenc import *
"""
    brought = run(sys.executable, "-W", "error", "-c", code).split()
    assert [
        name
        for name in brought
        if name.partition(".")[0] not in ("posenc", "posenc_cli", "posenc_version", *sys.stdlib_module_names)
    ] == []
    ours = {name.split(".")[1] for name in brought if "." in name}
    heavy = {"analysis", "bench", "cli", "conformance", "engines", "evals", "lab", "pretrained", "report", "tasks"}
    assert ours & (heavy | {"bibliography", "listing", "transformer", "vision"}) == set()


def test_the_version_says_when_files_are_not_those_of_the_commit(tmp_path):
    def git(*arguments):
        command = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b", *arguments]
        subprocess.run(command, check=True, capture_output=True)

    (tmp_path / "src").mkdir()
    (tmp_path / "src/one.py").write_text("a = 1")
    git("init", "-q")
    git("add", "-A")
    git("commit", "-qm", "first")
    assert re.fullmatch(r"\+g[0-9a-f]{9}", posenc_version._commit(tmp_path))
    (tmp_path / "notes").write_text("beside the source")
    assert re.fullmatch(r"\+g[0-9a-f]{9}", posenc_version._commit(tmp_path))
    (tmp_path / "src/one.py").write_text("a = 2")
    assert re.fullmatch(r"\+g[0-9a-f]{9}\.dirty", posenc_version._commit(tmp_path))
    git("checkout", "-q", ".")
    (tmp_path / "src/two.py").write_text("a = 1")
    assert posenc_version._commit(tmp_path).endswith(".dirty")


def test_no_module_warns_on_import():
    run(sys.executable, "-W", "error", "-c", "\n".join(f"import {name}" for name in MODULES))


def test_readme_and_a_comparison_warn_of_nothing(tmp_path):
    snippets = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    (tmp_path / "readme.py").write_text("\n".join(snippets), encoding="utf-8")
    strict = (sys.executable, "-W", "error")
    run(*strict, "readme.py", cwd=tmp_path)
    tiny = ("--preset", "quick", "--encodings", "rope", "alibi", "--seeds", "1", "--steps", "2", "--out", "tiny")
    run(*strict, "-m", "posenc", "compare", *tiny, cwd=tmp_path)


def test_version_is_the_same_everywhere():
    """Of the release before this one; between releases the version is that of the next, and the commit's."""
    assert re.fullmatch(r"\d+\.\d+\.\d+\.dev0(\+g[0-9a-f]{9,}(\.dirty)?)?", posenc.__version__)
    commit = subprocess.run(["git", "-C", ROOT, "rev-parse", "HEAD"], capture_output=True, text=True).stdout
    if (ROOT / ".git").exists() and commit:
        assert commit.startswith(posenc.__version__.partition("+g")[2].partition(".")[0])
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    released = re.findall(
        r"^## \[(\d[^]]*)\] - (\S+)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert released[0] == (citation["version"], str(citation["date-released"]))
    assert posenc.__version__ > citation["version"]
    assert citation["license"] == PROJECT["license"]


def test_extras_are_those_that_messages_name_and_dev_has_all():
    extras = PROJECT["optional-dependencies"]
    (extras_of_dev,) = (re.findall(r"[\w-]+", line)[1:] for line in extras["dev"] if line.startswith("posenc["))
    assert {"dev", *extras_of_dev} == set(extras)
    for message in re.findall(r"pip install '?posenc\[(\w+)\]", "\n".join(map(Path.read_text, sources()))):
        assert message in extras


def test_every_source_says_its_licence():
    for path in (*sources(), *(ROOT / "examples").rglob("*.py")):
        assert path.read_text(encoding="utf-8").startswith("# SPDX-License-Identifier: Apache-2.0\n"), path


def sources() -> list[Path]:
    return [path for path in (ROOT / "src").rglob("*.py") if "__pycache__" not in path.parts]


@pytest.fixture(scope="module")
def distributions(tmp_path_factory) -> Path:
    """A folder with an sdist, the wheel made from it, and the wheel made from the checkout."""
    pytest.importorskip("hatchling", reason="the extra dev has it")
    made = tmp_path_factory.mktemp("dist")
    hatchling = (sys.executable, "-m", "hatchling", "build", "-d")
    run(*hatchling, made, "-t", "sdist", "-t", "wheel", cwd=ROOT)
    shutil.unpack_archive(next(made.glob("*.tar.gz")), made / "unpacked")
    run(*hatchling, made / "again", "-t", "wheel", cwd=next((made / "unpacked").iterdir()))
    return made


def wheel(folder: Path) -> zipfile.ZipFile:
    return zipfile.ZipFile(next(folder.glob("*.whl")))


def test_wheel_holds_the_library_and_its_data_alone(distributions):
    files = {
        str(path.relative_to(ROOT / "src"))
        for path in (ROOT / "src").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    with wheel(distributions) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
        info = email.message_from_bytes(
            archive.read(next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA")))
        )
    assert names == files | {"posenc_cli/table.json"}
    assert {"papers.bib", "findings.toml", "py.typed", "page.html", "explorer.js", "style.css"} <= {
        name.rpartition("/")[2] for name in names
    }
    assert (info["Name"], info["Version"], info["License-Expression"]) == ("posenc", posenc.__version__, "Apache-2.0")
    assert info["Description-Content-Type"] == "text/markdown"
    assert info.get_payload(decode=True) == (ROOT / "README.md").read_bytes()
    core = [line for line in info.get_all("Requires-Dist") if "extra ==" not in line]
    assert core == ["torch>=2.8"]


def test_an_index_takes_what_is_built(distributions):
    """Its metadata are valid, and its description is rendered without a warning."""
    pytest.importorskip("twine", reason="the extra dev has it")
    made = [*distributions.glob("*.whl"), *distributions.glob("*.tar.gz")]
    assert len(made) == 2
    run(sys.executable, "-m", "twine", "check", "--strict", *made)


def test_an_index_shows_the_addresses_of_the_repository(tmp_path, monkeypatch):
    pytest.importorskip("twine", reason="the extra dev has it")
    address = "https://example.org/them/posenc"
    monkeypatch.setenv("REPOSITORY_URL", f"{address}/")
    monkeypatch.setenv("SITE_URL", "https://example.org/site")
    run(sys.executable, "-m", "hatchling", "build", "-d", tmp_path, "-t", "wheel", cwd=ROOT)
    run(sys.executable, "-m", "twine", "check", "--strict", *tmp_path.glob("*.whl"))
    with wheel(tmp_path) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        info = email.message_from_bytes(archive.read(name))
    urls = dict(url.split(", ") for url in info.get_all("Project-URL"))
    assert urls.keys() == {"Source", "Documentation", "Changelog", "Issues"}
    assert (urls["Source"], urls["Documentation"]) == (address, "https://example.org/site")
    text = info.get_payload(decode=True).decode()
    targets = re.findall(r"\]\(([^)]+)\)|(?:src|srcset)=\"([^\"]+)\"", text)
    assert [target for target in map("".join, targets) if not target.startswith(("https://", "#"))] == []
    assert f'<img src="{address}/raw/HEAD/docs/images/story.svg"' in text
    ours = [target.removeprefix(address) for target in map("".join, targets) if target.startswith(address)]
    assert len(ours) > 20
    for target in ours:
        path = re.fullmatch(r"/(?:raw|blob)/HEAD/([^#]+)(#.*)?", target)[1]
        assert (ROOT / path).exists(), target


def test_sdist_makes_the_same_wheel(distributions):
    with wheel(distributions) as ours, wheel(distributions / "again") as again:
        assert {entry.filename: entry.CRC for entry in ours.infolist()} == {
            entry.filename: entry.CRC for entry in again.infolist()
        }


def test_sdist_can_be_tested(distributions):
    unpacked = next((distributions / "unpacked").iterdir())
    for name in ("tests/test_packaging.py", "constraints.txt", "Makefile", "CHANGELOG.md", "docs", "benchmarks"):
        assert (unpacked / name).exists(), name


def put(name: str, site: Path) -> None:
    """A package of this environment and all that it requires, as pip would install them into another."""
    package = metadata.distribution(name)
    for top in {file.parts[0] for file in package.files or ()} - {"..", "__pycache__"}:
        if not (site / top).exists():
            (site / top).symlink_to(package.locate_file(top))
    for requirement in map(Requirement, package.requires or ()):
        at = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if at and not any(site.glob(f"{requirement.name.replace('-', '_')}-*.dist-info")):
            put(requirement.name, site)


def test_wheel_works_with_torch_alone(distributions, tmp_path):
    """In a new environment, outside the checkout, with torch and what torch requires."""
    venv.create(tmp_path / "venv", with_pip=False)
    python = tmp_path / "venv" / "bin" / "python"
    site = next((tmp_path / "venv" / "lib").glob("python*")) / "site-packages"
    pip = (sys.executable, "-m", "pip", "--python", python)
    run(*pip, "install", "--no-deps", "--no-index", *distributions.glob("*.whl"))
    put("torch", site)
    assert not (site / "numpy").exists()
    away = tmp_path / "away"
    away.mkdir()

    def there(command: str, *arguments: str) -> str:
        return run("env", "-u", "PYTHONPATH", python.parent / command, *arguments, cwd=away)

    where, version = there("python", "-c", "import posenc; print(posenc.__file__, posenc.__version__)").split()
    assert Path(where).is_relative_to(site)
    assert version == posenc.__version__
    listed = there("posenc", "list")
    assert all(name in listed for name in posenc.ENCODINGS)
    there("posenc", "explore", "--out", "page.html")
    assert "<script>" in (away / "page.html").read_text(encoding="utf-8")
    assert "conforms" in there("posenc", "check", "posenc.functional:sinusoidal", "--as", "sinusoidal")


def test_every_public_type_is_known():
    """What a type checker learns from py.typed: the type of each name of any public module, inferred ones included."""
    pytest.importorskip("basedpyright", reason="the extra dev has it")
    command = [sys.executable, "-m", "basedpyright", "--verifytypes", "posenc", "--ignoreexternal", "--outputjson"]
    first = {
        **os.environ,
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
    }  # its packages
    done = subprocess.run(command, capture_output=True, text=True, env=first)
    found = json.loads(done.stdout)["typeCompleteness"]
    unknown = [each["name"] for each in found["symbols"] if not (each["isTypeKnown"] or each["isTypeAmbiguous"])]
    assert found["symbols"]
    assert unknown == []


def test_what_needs_transformers_names_the_extra():
    """In an installation of posenc and torch alone."""
    code = """
import sys
sys.modules["transformers"] = None
import posenc
calls = posenc.hf.register, lambda: posenc.load("llama"), lambda: posenc.doctor("llama")
for call in calls:
    try:
        call()
    except posenc.InputError as error:
        print(str(error).endswith("]'"))
"""
    assert run(sys.executable, "-c", code).split() == ["True"] * 2 + ["False"]
