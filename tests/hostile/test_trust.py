"""Data never runs code: FILE:CLASS and MODULE:CLASS are planted in every file that posenc reads, and nothing is imported."""

import ast
import contextlib
import gzip
import importlib
import json
import pickle
import re
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

import archives
import pytest
import torch

import posenc
from hostile.test_checkpoints import little_memory
from posenc import cli
from posenc.cli.command import parse
from posenc.encodings import ENCODINGS, create
from posenc.encodings.create_encoding import MOST_BYTES
from posenc.errors import LARGEST_SHAPE, InputError
from posenc.lab import store
from posenc.lab.compare import experiment
from posenc.lab.records import RunRecord, VariantScores
from posenc.lab.store import Stored, encoded
from posenc.lab.user_code import load_object, names_code, source_of
from posenc.spec import MOST_CHARACTERS, MOST_LAYERS, MOST_TERMS, read_json
from references.small_models import small_model

SOURCE = Path(posenc.__file__).parent

# ------------------------------------------------------------------------------------------ the readers

READS = {
    "read_text", "read_bytes", "open", "safe_open", "load_file", "GzipFile", "decompress", "from_pretrained", "load_dataset",
    "get_config_dict", "load_gguf_checkpoint", "read_gguf", "GGUFReader", "from_file", "fromfile", "memmap", "ParquetFile", "Unpickler",
}  # fmt: skip
LOADERS = {"torch", "np", "numpy", "pickle", "yaml", "json", "joblib", "marshal", "tomllib"}

OWN = {
    "backends/gpus.py:", "pretrained/findings.py:_read", "pretrained/families.py:", "encodings/catalogue.py:entries", "encodings/catalogue.py:measured", "report/html.py:asset", "report/explorer.py:formulas",
    "lab/study.py:code", "lab/machine.py:cpu",
    "lab/machine.py:free_bytes", "lab/machine.py:_bytes", "cli/common.py:write_page", "lab/files.py:write_atomically",
}  # fmt: skip
"""Files of the package or of the system, and such that are written."""
USERS = {"lab/user_code.py:module_of_file", "lab/user_code.py:_made_of"}
"""The code that a user named on the command line or in Python."""
PROCESSES = {"lab/engines.py:_start"}
"""What one process of a run sends another, in a folder that the user alone can read."""
PLAIN = {
    "cli/command.py:check_ours", "lab/learning_rates.py:table_rates", "cli/extend_command.py:_read", "lab/data/corpora.py:_library", "lab/data/corpora.py:chinese", "lab/data/sources.py:_read", "lab/data/sources.py:_rows",
    "lab/data/tokens.py:pretrained",
    "lab/store.py:Store.lock", "tasks/running_text.py:read", "pretrained/lm_eval.py:_load",
    "pretrained/hf.py:_chooser.from_pretrained",
    "pretrained/finetune.py:_check_same", "pretrained/finetune.py:_last", "pretrained/stated.py:_code_of",
}  # fmt: skip
"""Texts, tokens, images, tokenizers, frequencies and digests, in which nothing is looked up by name."""
PLANTED = {
    "cli/command.py:_load": "settings", "lab/store.py:decoded": "archives",
    "lab/store.py:_one": "cells", "lab/store.py:Store.merge": "cells",
    "pretrained/checked.py:weight_files": "checkpoints", "pretrained/checked.py:shapes_in": "checkpoints",
    "pretrained/gguf_reader.py:read_config": "checkpoints", "pretrained/gguf_reader.py:_gguf_config": "checkpoints",
    "pretrained/load.py:_from_pretrained": "checkpoints", "pretrained/load.py:_from_gguf": "checkpoints",
    "pretrained/gguf_reader.py:described": "checkpoints",
}  # fmt: skip
"""Files with names in them: what is planted, by the tests below and in test_checkpoints.py."""


def calls():
    """(module and function, the call) for every call in the package."""
    for path in sorted(SOURCE.rglob("*.py")):

        def visit(node, where, path=path):
            for child in ast.iter_child_nodes(node):
                inner = [*where, child.name] if isinstance(child, ast.FunctionDef | ast.ClassDef) else where
                if isinstance(child, ast.Call):
                    yield f"{path.relative_to(SOURCE).as_posix()}:{'.'.join(inner)}", child
                yield from visit(child, inner)

        yield from visit(ast.parse(path.read_text(encoding="utf-8")), [])


def named(call):
    """The function of a call, and the name before its dot."""
    function = call.func
    if isinstance(function, ast.Attribute):
        return function.attr, getattr(function.value, "id", "")
    return getattr(function, "id", ""), ""


def test_every_reader_of_files_is_known():
    found = set()
    for where, call in calls():
        name, owner = named(call)
        if name in READS or (name == "load" and owner in LOADERS):
            found.add(where)
    known = OWN | USERS | PROCESSES | PLAIN | PLANTED.keys()
    assert found - known == set(), (
        "a new reader of files: put it into a group above; if names in the file are looked up, pass may_import=False and plant"
    )
    assert known - found == set()


def test_code_is_imported_for_the_command_line_and_python_arguments_alone():
    allowed, runs, pickles = set(), set(), set()
    for where, call in calls():
        name, owner = named(call)
        if any(k.arg == "may_import" and isinstance(k.value, ast.Constant) and k.value.value for k in call.keywords):
            allowed.add(where)
        plain = isinstance(call.func, ast.Name)  # not model.eval()
        if (plain and name in ("exec", "eval")) or name == "exec_module":
            runs.add(where)
        if (name == "load" and owner == "torch") or owner in ("pickle", "joblib", "marshal") or name == "Unpickler":
            pickles.add(where)
        assert not any(k.arg == "allow_pickle" for k in call.keywords)
        for keyword in call.keywords:
            if keyword.arg == "trust_remote_code":
                assert keyword.value.value is False
    assert allowed == {
        "cli/analyze_command.py:Analyze._target", "cli/check_command.py:Check._encoding",
        "cli/check_command.py:Check._function", "encodings/catalogue.py:cite",
        "lab/experiment.py:_clamped", "lab/user_code.py:source_of",
    }  # fmt: skip
    assert runs == {"lab/user_code.py:module_of_file"}
    assert {
        where for where in pickles if not where.startswith("conformance/checks.py:")
    } == PROCESSES  # those copy objects


# ------------------------------------------------------------------------------------------ what is planted

FORMS = [
    "evil.py:Evil", "evil:Evil", "./evil.py:Evil", "{folder}/evil.py:Evil", "evil\\:Evil", "evil.py\\:Evil", "rope+evil.py:Evil",
    "rope/evil.py:Evil", "rope, evil.py:Evil", " evil.py : Evil ", "evil.py:Evil:slope=1", "evil.py:Evil@rerope:window=4",
    "evil.py:Evil.inner", "none+evil:Evil", "rope:,evil.py:Evil", "rope:layout=half+evil.py:Evil", "evil.py:x=1:Evil",
    "rope@rerope:window=4+evil.py:Evil", "evil.py:Evil,", "evil.py:é", "./a:k=evil.py:Evil", "rope/evil.py:Evil/none",
]  # fmt: skip


@pytest.fixture
def evil(tmp_path, monkeypatch):
    """A folder with a module that leaves a file RAN where it is imported."""
    monkeypatch.chdir(tmp_path)
    for name in ("evil.py", "a:k=evil.py"):
        (tmp_path / name).write_text(f"open({str(tmp_path / 'RAN')!r}, 'w')\nclass Evil: pass\n")
    path = list(sys.path)
    yield tmp_path
    assert not (tmp_path / "RAN").exists()
    assert "evil" not in sys.modules
    assert sys.path == path


SETTINGS = [
    (name, setting)
    for name, command in cli.COMMANDS.items()
    for setting in command.settings().values()
    if setting.type in (str, str | None) or "str" in str(setting.type)
]


@pytest.mark.parametrize(("command", "setting"), SETTINGS, ids=[f"{c}-{s.key}" for c, s in SETTINGS])
def test_no_setting_of_a_file_imports(command, setting, evil, capsys):
    """Of every text of every command: it is refused when the file is read, or the command does not import."""
    refused = 0
    for form in FORMS:
        text = form.format(folder=evil)
        file = evil / "downloaded.yaml"
        file.write_text(f"{setting.key}: {json.dumps([text] if setting.many else text)}\n")
        try:
            parse(cli.COMMANDS[command], ["--config", str(file)])
        except (InputError, SystemExit) as error:
            refused += "names code" in str(error)
    refuses = setting.how.code or (command, setting.key) in NEVER_CODE
    assert refused == (len(FORMS) if refuses else 0)
    assert setting.how.code == ((command, setting.key) in CODE)


CODE = {
    ("compare", "encodings"),
    ("analyze", "subject"),
    ("bench", "encodings"),
    ("list", "cite"),
    ("check", "subject"),
}
"""The settings whose texts are imported from the command line."""
NEVER_CODE = {("analyze", "other")}
"""Settings that are refused in a file as the one before them is, and whose texts are never imported."""


def test_a_file_of_settings_names_the_flag_and_the_flag_imports(evil, capsys):
    (evil / "run.yaml").write_text("encodings: [none, 'evil.py:Evil']\n")
    assert cli.main(["compare", "--config", "run.yaml", "--out", "out"]) == 2
    assert "write it on the command line as well: --encodings none evil.py:Evil" in capsys.readouterr().err
    options = parse(cli.COMMANDS["compare"], ["--config", "run.yaml", "--encodings", "none", "evil.py:Evil"])
    assert options.encodings == ("none", "evil.py:Evil")
    assert not (evil / "out").exists()


def part(task="copy", encodings=("none",)):
    variant = VariantScores("none", True, {"1": [1.0]}, 1.0)
    record = RunRecord([variant], [1.0], 1, 0, 1.0, 1.0, 1)
    facts = {"task": task, "seed": 0, "settings": {}, "data": ""}
    return gzip.compress(encoded(Stored(record, facts | {"encoding": name}) for name in encodings))


@pytest.mark.parametrize("form", [form for form in FORMS if "/" not in form and "\\" not in form])
def test_no_archive_imports(form, evil):
    table = evil / "table"
    table.mkdir()
    for name, data in ((form, part(form)), ("copy", part(encodings=("none", form)))):
        file = table / f"{name}-0.json.gz"
        file.write_bytes(data)
        with pytest.raises(InputError, match="names code, and a text from a file runs none"):
            archives.compared(table)
        assert (
            cli.main(["compare", "--merge", "table", "--encodings", "alibi", "--out", "out", "--preset", "quick"]) == 2
        )
        file.unlink()


@pytest.mark.parametrize("form", FORMS)
def test_no_results_and_no_spec_import(form, evil):
    from posenc.report.compare import page

    text = form.format(folder=evil)
    for call in (
        lambda: page({"task": text, "settings": {}, "variants": []}),
        lambda: experiment(text),
        lambda: posenc.from_spec({"name": text}),
        lambda: create(text, head_dim=8, num_heads=2, dim=16, may_import=False),
        lambda: load_object(text, may_import=False),
    ):
        with pytest.raises(InputError):
            call()
    assert names_code(text)


@pytest.mark.parametrize(
    "text", ["rope", "rope:layout=half+alibi/none", "m_rope:sections=16,8,8", "key_value:keys=digits"]
)
def test_names_of_the_registry_are_no_code(text):
    assert not names_code(text)


class Bomb:
    def __reduce__(self):
        return open, ("RAN", "w")


@pytest.mark.parametrize("name", ["optimizer.pt", "scheduler.pt", "rng_state.pth"])
def test_no_checkpoint_of_a_training_runs_code(name, evil):
    given = {"text": torch.arange(3, 80), "steps": 2, "length": 8, "checkpoint": evil / "training"}
    posenc.finetune(small_model("llama"), **given)
    (file,) = (evil / "training").glob(f"checkpoint-*/{name}")
    torch.save({"a": Bomb()}, file)
    with pytest.raises(pickle.UnpicklingError, match="Weights only load failed"):
        posenc.finetune(small_model("llama"), **given | {"steps": 4})


def test_no_cell_of_another_folder_imports(evil, capsys):
    cells = evil / "other/cells"
    cells.mkdir(parents=True)
    cell = b'{"record":{"run":{"task":"evil.py:Evil"}}}'
    (cells / "evil.py:Evil.json").write_bytes(b'{"sha256":"%s","cell":%s}' % (sha256(cell).hexdigest().encode(), cell))
    assert cli.main(["compare", "--merge", "other", "--encodings", "alibi", "--preset", "quick", "--out", "out"]) == 2
    assert "nothing was merged" in capsys.readouterr().err


# ------------------------------------------------------------------------------------------ bounds


def test_the_bounds_that_security_states_are_those_of_the_code():
    stated = (SOURCE.parents[1] / "SECURITY.md").read_text(encoding="utf-8")
    imported = re.sub(r"\s+", " ", stated.partition("command line (")[2].partition(")")[0])
    assert set(re.findall(r"posenc (\w+)", imported)) == {command for command, _ in CODE}
    from posenc.pretrained.checked import SPARE

    for bound in (
        f"{MOST_LAYERS:,} layers", f"{MOST_TERMS} terms", f"{MOST_CHARACTERS:,} characters", f"{store.MOST_BYTES // 2**20} MiB",
        f"{MOST_BYTES // 2**30} GiB", f"{LARGEST_SHAPE['head_dim']:,}", f"{LARGEST_SHAPE['num_heads']:,} heads and layers", f"2 times the numbers in its files and {SPARE:,} more",
    ):  # fmt: skip
        assert bound in stated
    assert re.findall(r"^## (.+)", stated, re.MULTILINE) == [
        "Supported versions", "Reporting", "Trusted", "Not trusted", "Bounds", "Tested",
    ]  # fmt: skip


def test_texts_that_have_too_many_layers_are_refused():
    for text in (
        "rope_nope:every=1000000", "irope:every=10000000", "rope/" * 19_000 + "rope", "rope/" * 200_000 + "rope",
        "/".join(["rope_nope:every=1024"] * 1000), "/".join(["none"] * (MOST_LAYERS + 1)), f"local_rope:every={MOST_LAYERS + 1}",
    ):  # fmt: skip
        with pytest.raises(InputError, match=r"layers|characters"):
            create(text, head_dim=8, num_heads=2)
    assert create("/".join(["none"] * MOST_LAYERS)) is not None


@pytest.mark.parametrize(
    "text",
    [
        "shaw:clip=16777216",
        "fire:hidden=16777216",
        "deberta:max_relative_positions=16777216",
        "complex_order:dim=65536",
    ],
)
def test_options_that_take_too_much_are_refused(text):
    with pytest.raises(InputError, match=r"takes [\d,]+ bytes; give sizes that take at most 1,073,741,824"):
        create(text, head_dim=64, num_heads=32, dim=2048, max_positions=512)


def integer_options():
    for name, cls in ENCODINGS.items():
        yield from ((name, key) for key, of in cls.arguments().items() if "int" in str(of.annotation))


@pytest.mark.parametrize("name", ENCODINGS)
def test_no_integer_option_allocates_more_than_is_stated(name):
    """In an address space that holds what may be taken, and twice as much while it is made."""
    shape = {"dim": 64, "num_heads": 2, "max_positions": 128, "grid": (8, 16)}
    create(name, **shape)  # modules are imported
    for key in (key for other, key in integer_options() if other == name):
        for value in (2**16, 2**24):
            with little_memory(3 * MOST_BYTES), contextlib.suppress(InputError):
                create(f"{name}:{key}={value}", **shape)


@pytest.mark.parametrize("key", ["dim", "head_dim", "num_heads", "num_kv_heads", "num_layers"])
def test_a_models_shape_in_a_text_is_bounded(key):
    """Frequencies and heads are made one by one, which took minutes."""
    most, tried = LARGEST_SHAPE[key], 0
    for name in (name for name, of in integer_options() if of == key):
        with pytest.raises(InputError, match=rf"{key}={2**24}.*: must be at most {most}|takes [\d,]+ bytes"):
            create(f"{name}:{key}={2**24}", dim=64, num_heads=2, max_positions=128, grid=(8, 16))
        tried += 1
    assert tried > 5


def test_what_an_archive_unpacks_to_is_bounded(evil):
    with gzip.open(evil / "copy-0.json.gz", "wb") as file:
        for _ in range(store.MOST_BYTES // 2**20 + 1):
            file.write(b" " * 2**20)
    with pytest.raises(InputError, match="unpacks to more than 67,108,864 bytes"):
        archives.read(evil)


def test_nesting_is_bounded(evil, capsys):
    with pytest.raises(ValueError, match="nested too deep"):
        read_json("[" * 10**5)
    (evil / "copy-0.json.gz").write_bytes(gzip.compress(b'{"sha256":' + b"[" * 10**5))
    with pytest.raises(InputError, match="nested too deep"):
        archives.read(evil)
    for name, text in (("a.yaml", "seeds: " + "[" * 10**4 + "]" * 10**4), ("a.toml", "seeds = " + "[" * 10**4)):
        (evil / name).write_text(text)
        assert cli.main(["compare", "--config", name]) == 2
        assert capsys.readouterr().err.count("\n") == 1


# ------------------------------------------------------------------------------------------ a user's own code

FADE = "import posenc\nclass Fade(posenc.ALiBi):\n    rate = {}\n"


BESIDE = "import posenc\nfrom {} import rate as value\nclass Fade(posenc.ALiBi):\n    rate = value\n"


def test_code_that_fails_can_be_mended_and_nothing_is_left_on_the_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = list(sys.path)
    try:
        for target in ("trust_fade:Fade", "trust_fade.py:Fade"):
            for text in ("1 / 0\n", FADE.format(5)):
                Path("trust_fade.py").write_text(text)
                if "/" in text:
                    with pytest.raises(InputError, match="importing"):
                        posenc.create(target, num_heads=2)
            made = posenc.create(target, num_heads=2)
            assert made.rate == 5
            assert type(posenc.create(target, num_heads=2)) is type(made)
            assert type(pickle.loads(pickle.dumps(made))) is type(made)
        with pytest.raises(InputError, match="importing"):
            posenc.create("missing:A", num_heads=2)
        assert sys.path == path
    finally:
        forget()


def forget():
    for name in [name for name in sys.modules if name.startswith(("trust_", "_posenc_trust_"))]:
        del sys.modules[name]
    importlib.invalidate_caches()


@pytest.mark.parametrize(
    ("target", "files"),
    [
        ("trust_top.py:Fade", {"trust_top.py": "import posenc, trust_aid\nclass Fade(posenc.ALiBi):\n    rate = trust_aid.rate\n"}),
        ("trust_top:Fade", {"trust_top.py": "import posenc\nfrom trust_mid import Fade\n", "trust_mid.py": BESIDE.format("trust_aid")}),
        ("trust_kit.top:Fade", {"trust_kit/__init__.py": "", "trust_kit/top.py": BESIDE.format(".aid")}),
        ("trust_kit:Fade", {"trust_kit/__init__.py": "from .top import Fade\n", "trust_kit/top.py": "from . import aid\n" + BESIDE.format("trust_kit.aid")}),
        ("trust_kit.a.top:Fade", {"trust_kit/a/top.py": BESIDE.format("..aid")}),  # folders alone
    ],
)  # fmt: skip
def test_a_module_whose_file_has_changed_needs_a_new_process(target, files, tmp_path, monkeypatch):
    """Its file, or one of its folder that it imports."""
    monkeypatch.chdir(tmp_path)
    aid = Path("trust_kit/aid.py" if "kit" in target else "trust_aid.py")
    for name, text in files.items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(text)
    try:
        aid.write_text("rate = 1\n")
        digest = source_of(target)
        made = posenc.create(target, num_heads=2)
        assert made.rate == 1
        assert digest == source_of(target)
        assert b"rate = 1" in digest
        assert type(posenc.create(target, num_heads=2)) is type(made)
        assert type(pickle.loads(pickle.dumps(made))) is type(made)
        for changed in (aid, Path(next(iter(files)))):
            before = changed.read_text()
            changed.write_text(f"{before}# another\n")
            with pytest.raises(
                InputError, match=f"{changed.name}: has changed since it was loaded, .* start a new one"
            ):
                posenc.create(target, num_heads=2)
            changed.write_text(before)
        assert posenc.create(target, num_heads=2).rate == 1
    finally:
        forget()


def test_helpers_of_one_name_are_not_taken_from_elsewhere_and_installed_packages_stay(tmp_path, monkeypatch):
    for rate, folder in enumerate("xy"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "enc.py").write_text(BESIDE.format("trust_aid"))
        (tmp_path / folder / "trust_by_name.py").write_text("import numpy\n" + BESIDE.format("trust_aid"))
        (tmp_path / folder / "trust_aid.py").write_text(f"rate = {rate}\n")
        (tmp_path / folder / "numpy.py").write_text("1 / 0\n")
    import numpy

    try:
        for target in ("enc.py:Fade", "trust_by_name:Fade"):
            monkeypatch.chdir(tmp_path / "x")
            assert posenc.create(target, num_heads=2).rate == 0
            monkeypatch.chdir(tmp_path / "y")
            with pytest.raises(InputError, match=r"was loaded from .* start a new one"):
                posenc.create(target, num_heads=2)
        assert sys.modules["numpy"] is numpy
    finally:
        forget()


def test_two_files_of_one_name_are_two_modules(tmp_path):
    made = []
    for rate, folder in enumerate("xy"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "enc.py").write_text(FADE.format(rate))
        made.append(posenc.create(f"{tmp_path}/{folder}/enc.py:Fade", num_heads=2))
    torch.save(made, tmp_path / "both.pt")
    assert [each.rate for each in torch.load(tmp_path / "both.pt", weights_only=False)] == [0, 1]
    script = (
        "import posenc, sys, torch\n"
        "for f in 'xy': posenc.create(f'{sys.argv[1]}/{f}/enc.py:Fade', num_heads=2)\n"
        "print([e.rate for e in torch.load(sys.argv[1] + '/both.pt', weights_only=False)])\n"
    )
    printed = subprocess.run(
        [sys.executable, "-c", script, tmp_path], capture_output=True, text=True, check=True
    ).stdout
    assert printed == "[0, 1]\n"
