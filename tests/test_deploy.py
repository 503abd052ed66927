"""Programs that are exported: torch.export for any batch and length, ONNX in onnxruntime, AOTInductor; and docs/deploy.md."""

import ast
import json
import re
import shutil
import sys
from pathlib import Path

import pytest
import torch

import posenc
from posenc import InputError, Positions, attention
from posenc.encoding import gates_of
from posenc.pretrained import multimodal

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "benchmarks"))
from deploy import BEGIN, BOUND, COLUMNS, DATA, END, OTHER, PAGE, Layer, difference, exported, given, layer_of, matrix, measure, operators, onnx_session  # noqa: E402, I001  # fmt: skip

ROWS = json.loads(DATA.read_text(encoding="utf-8"))["rows"]
QUICK = ("rope", "learned", "t5", "shaw", "sink", "fox", "dape", "floater")
"""One of each site; the rest are slow."""
EVERY = [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in posenc.ENCODINGS]
IN_ONNX = [
    name if name in ("rope", "alibi") else pytest.param(name, marks=pytest.mark.slow) for name in posenc.ENCODINGS
]


def is_served(cell):
    return isinstance(cell, float)


@pytest.mark.parametrize("name", EVERY)
def test_every_encoding_is_exported_for_any_batch_and_length(name):
    row = measure(name, onnx=False)
    assert all(row[column] <= BOUND for column in ("export", "batch", "length"))
    assert row["operators"] == ROWS[name]["operators"]


@pytest.mark.parametrize("name", IN_ONNX)
def test_onnxruntime_computes_what_the_page_says(name):
    pytest.importorskip("onnxruntime")
    row = measure(name)
    if is_served(ROWS[name]["onnx"]):
        assert row["onnx"] <= BOUND
    else:
        assert row["onnx"] == ROWS[name]["onnx"]


def test_the_page_is_what_was_measured():
    assert set(ROWS) <= set(posenc.ENCODINGS), "run: python benchmarks/deploy.py"
    page = PAGE.read_text(encoding="utf-8")
    assert page[page.index(BEGIN) + len(BEGIN) : page.index(END)].strip() == matrix(ROWS)
    for name, row in ROWS.items():
        assert all(is_served(row[column]) and row[column] <= BOUND for column in list(COLUMNS)[:3]), name
        assert is_served(row["onnx"]) or len(row["onnx"]) > 20


@pytest.mark.parametrize("name", QUICK)
def test_a_program_rounds_no_biases_nor_angles_under_autocast(name):
    layer = layer_of(name)
    layer.query = layer.key = layer.value = torch.nn.Identity()
    run = exported(layer).module()
    with torch.autocast("cpu", torch.bfloat16):
        assert difference(run, layer, OTHER) <= BOUND


def test_formulas_are_taken_unless_the_operator_is_asked_for():
    def layer(backend):
        class Asks(Layer):
            def forward(self, x):
                q = self.query(x).unflatten(-1, (2, 8)).transpose(1, 2)
                return attention(q, q, q, self.encoding, causal=True, backend=backend)

        return Asks(posenc.ALiBi(2)).eval()

    assert operators(exported(layer("auto"))) == set()
    assert operators(exported(layer("sdpa"))) == {"posenc.attend.default"}


class Masked(torch.nn.Module):
    """Attention of the last tokens of rows that are padded on the left."""

    def __init__(self, encoding):
        super().__init__()
        self.encoding = encoding

    def forward(self, q, k, v, mask):
        return attention(q, k, v, self.encoding, Positions.from_mask(mask, q.shape[2], causal=True))


@pytest.mark.parametrize("name", ["rope", "alibi", pytest.param("t5", marks=pytest.mark.slow)])
def test_a_decoding_step_of_padded_rows(name):
    def inputs(rows, keys):
        mask = torch.ones(rows, keys, dtype=torch.long)
        mask[0, :3] = 0
        return torch.randn(rows, 2, 1, 8), torch.randn(rows, 2, keys, 8), torch.randn(rows, 2, keys, 8), mask

    model = Masked(layer_of(name).encoding)
    batch, keys = torch.export.Dim("batch", min=1, max=64), torch.export.Dim("keys", min=2, max=64)
    sizes = ({0: batch}, {0: batch, 2: keys}, {0: batch, 2: keys}, {0: batch, 1: keys})
    with torch.no_grad():
        program = torch.export.export(model, inputs(2, 9), dynamic_shapes=sizes)
        for rows, n in ((1, 9), (4, 30)):
            step = inputs(rows, n)
            torch.testing.assert_close(program.module()(*step), model(*step))


LAYOUTS = {
    "ids": lambda ids: Positions.from_ids(ids, causal=True, packed=False),
    "restarts": lambda ids: Positions.from_ids(ids, causal=True, packed=True),
    "documents": lambda ids: Positions.packed(document_ids=ids // 4, causal=True),
}
"""Positions of (batch, n) integers that are an input of the program."""


@pytest.mark.parametrize(
    ("name", "layout"), [("fire", "ids"), ("swin_v2", "ids"), ("log_n", "restarts"), ("fox", "documents"), ("normalized", "documents")]
)  # fmt: skip
def test_a_program_for_positions_of_any_rows(name, layout):
    class Reads(Layer):
        def forward(self, x, ids):
            positions = LAYOUTS[layout](ids)
            x = self.encoding.embed(x, positions)
            q, k, v = (each(x).unflatten(-1, (2, 8)).transpose(1, 2) for each in (self.query, self.key, self.value))
            return attention(q, k, v, self.encoding, positions, gates=gates_of(self.encoding, x))

    model = Reads(layer_of(name).encoding).eval()
    sizes = {0: torch.export.Dim("batch", min=1, max=64), 1: torch.export.Dim("length", min=2, max=64)}

    def inputs(rows, n):
        return given(rows, n), torch.arange(n).repeat(rows, 1) % 9

    with torch.no_grad():
        program = torch.export.export(model, inputs(2, 9), dynamic_shapes=(sizes, sizes)).module()
        for shape in ((1, 2), (3, 17)):
            torch.testing.assert_close(program(*inputs(*shape)), model(*inputs(*shape)))


class OnGrid(torch.nn.Module):
    """Attention of patches whose coordinates are given."""

    def __init__(self, encoding):
        super().__init__()
        self.encoding = encoding

    def forward(self, q, coordinates):
        return attention(q, q, q, self.encoding, Positions.from_ids(coordinates))


@pytest.mark.parametrize("name", ["axial_rope", "mixed_rope", "grid_alibi"])
def test_coordinates_of_any_grid(name):
    def inputs(rows, height, width):
        grid = torch.cartesian_prod(torch.arange(height), torch.arange(width))
        return torch.randn(rows, 2, height * width, 8), grid.repeat(rows, 1, 1)

    model, other = OnGrid(layer_of(name).encoding), inputs(3, 5, 6)
    batch, patches = torch.export.Dim("batch", min=1, max=64), torch.export.Dim("patches", min=2, max=64)
    dynamic = ({0: batch, 2: patches}, {0: batch, 1: patches})
    with torch.no_grad():
        program = torch.export.export(model, inputs(2, 3, 4), dynamic_shapes=dynamic)
        torch.testing.assert_close(program.module()(*other), model(*other))


@pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler")
@pytest.mark.parametrize("name", ["rope", "sink"])  # ALiBi's is the page's
def test_aotinductor_compiles_the_program(name, tmp_path):
    layer = layer_of(name)
    package = torch._inductor.aoti_compile_and_package(exported(layer), package_path=str(tmp_path / "layer.pt2"))
    run = torch._inductor.aoti_load_package(package)
    for shape in ((2, 9), (3, 17), (1, 40)):
        with torch.no_grad():
            torch.testing.assert_close(run(given(*shape)), layer(given(*shape)), rtol=1e-4, atol=1e-5)


def test_the_page_runs_as_it_is_printed(tmp_path, monkeypatch):
    onnxruntime = pytest.importorskip("onnxruntime")
    first, onnx, package = re.findall(r"```(?:python|py)\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "page"}
    exec(first, names)
    exec(onnx, names)
    (out,) = onnxruntime.InferenceSession("layer.onnx").run(None, {"x": names["x"].numpy()})
    torch.testing.assert_close(torch.from_numpy(out), names["layer"](names["x"]).detach(), rtol=1e-4, atol=1e-5)
    if shutil.which("g++"):
        exec(package, names)
        torch.testing.assert_close(names["out"], names["layer"](names["x"]), rtol=1e-4, atol=1e-5)


# -------------------------------------------------------------------- what is refused


def test_what_cannot_be_exported_says_so():
    layer = layer_of("alibi")
    with pytest.raises(InputError, match=r"torch\.jit\.trace makes tensors of sizes; use torch\.export\.export"):
        torch.jit.trace(layer, given(2, 9))
    padded, x = Positions.from_mask(torch.ones(2, 9).tril(7) > 0), torch.randn(2, 2, 9, 8)
    with pytest.raises(InputError, match=r"torch\.jit\.trace makes"):
        torch.jit.trace(lambda q: attention(q, q, q, posenc.ALiBi(2), padded, softcap=2.0), x)

    class Ragged(torch.nn.Module):
        def forward(self, q, offset):
            return attention(q, q, q, posenc.Rotary(8), Positions.arange(1, offset))

    with pytest.raises(InputError, match=r"^offset is a tensor: .*pass Positions\.from_mask\(mask, num_queries\)$"):
        torch.export.export(Ragged(), (torch.randn(2, 2, 9, 8), torch.tensor([3, 8])))


@pytest.mark.parametrize(
    ("positions", "message"),
    [
        (lambda x: Positions.packed([4, 5]), r"^packed: lengths .*; pass document_ids=$"),
        (lambda x: Positions.packed(x), r"^packed: lengths .*; pass document_ids=$"),
        (lambda x: Positions.packed(cu_seqlens=x), r"^packed: lengths .*; pass document_ids=$"),
        (lambda x: multimodal([1, (2, 4)]), r"^multimodal: .*Positions\.from_ids\(ids\)$"),
    ],
)
def test_positions_of_values_that_a_program_cannot_read_are_refused_in_one_line(positions, message):
    class Reads(torch.nn.Module):
        def forward(self, q, x):
            return attention(q, q, q, None, positions(x))

    with pytest.raises(InputError, match=message) as refusal:
        torch.export.export(Reads(), (torch.randn(1, 2, 9, 8), torch.tensor([0, 9])))
    assert "\n" not in str(refusal.value)


def test_positions_made_outside_are_in_the_program():
    blocks, ids = Positions.arange(5, causal=True).with_blocks(2), torch.tensor([0, 0, 0, 1, 1])

    class Knows(torch.nn.Module):
        def forward(self, q, ids):
            first = attention(q, q, q, posenc.ALiBi(2), blocks)
            return attention(first, q, q, None, Positions.packed(document_ids=ids, causal=True))

    q = torch.randn(1, 2, 5, 8)
    program = torch.export.export(Knows(), (q, ids))
    for documents in (ids, torch.tensor([0, 1, 1, 1, 2])):
        torch.testing.assert_close(program.module()(q, documents), Knows()(q, documents))


def test_what_onnx_cannot_say_is_refused_in_one_line():
    pytest.importorskip("onnxscript")
    with pytest.raises(Exception, match=r"FLOATER: ONNX has no operator") as caught:
        onnx_session(layer_of("floater"))
    refusal = caught.value.__cause__
    assert isinstance(refusal, InputError)
    said = "FLOATER: ONNX has no operator for its flow, which takes a step for each position: use torch.export, or `learned`"
    assert str(refusal) == said


def test_the_order_of_padded_tokens_is_refused_in_onnx():
    pytest.importorskip("onnxscript")
    encoding = layer_of("selective_attention").encoding

    class Padded(torch.nn.Module):
        def forward(self, q, mask):
            return attention(q, q, q, encoding, Positions.from_mask(mask, causal=True), gates=q[:, :1])

    with pytest.raises(
        Exception, match=r"ONNX has no operator for a stable sort: use torch\.export, or pass Positions\.arange"
    ):
        torch.onnx.export(
            Padded(), (torch.randn(2, 2, 9, 8), torch.ones(2, 9, dtype=torch.long)), dynamo=True, verbose=False
        )


# -------------------------------------------------------------------- the rule that keeps batches dynamic

SIZELESS = {"tolist", "item", "size", "dim", "numel", "shape", "dtype", "device", "unbind", "split", "chunk", "stride"}
"""What a tensor has that is no tensor."""
HOOKS = ["attention", "cache", "encoding", "functional", "position_maps", "transformer", "vision"]


def lengths_of_tensors(tree):
    """The lines of len(tensor), as far as annotations and assignments say what a tensor is."""
    found = []

    def annotated(node):
        return isinstance(node, ast.AST) and ast.unparse(node) in ("Tensor", "Tensor | None", "nn.Parameter")

    def visit(function, fields):
        known = {a.arg for a in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs) if annotated(a.annotation)}  # fmt: skip

        def is_tensor(node):
            match node:
                case ast.Name(id=name):
                    return name in known
                case ast.Attribute(value=ast.Name(id="self"), attr=name):
                    return name in fields
                case ast.Attribute(value=value, attr=name):
                    return is_tensor(value) and name not in SIZELESS
                case ast.Call(func=ast.Attribute(value=ast.Name(id="torch"))):
                    return True
                case ast.Call(func=ast.Attribute(value=value, attr=name)):
                    return is_tensor(value) and name not in SIZELESS
                case ast.Subscript(value=value):
                    return is_tensor(value)
                case ast.BinOp(left=left, right=right):
                    return is_tensor(left) or is_tensor(right)
            return False

        for node in ast.walk(function):
            match node:
                case ast.Assign(targets=[ast.Name(id=name)], value=value) if is_tensor(value):
                    known.add(name)
                case ast.AnnAssign(target=ast.Name(id=name), annotation=annotation) if annotated(annotation):
                    known.add(name)
        for node in ast.walk(function):
            match node:
                case ast.Call(func=ast.Name(id="len"), args=[argument]) if is_tensor(argument):
                    found.append(f"line {node.lineno}: {ast.unparse(node)}")

    for owner in (tree, *(node for node in tree.body if isinstance(node, ast.ClassDef))):
        given = [node for node in ast.walk(owner) if isinstance(node, ast.AnnAssign) and annotated(node.annotation)]
        fields = {getattr(each.target, "attr", None) or getattr(each.target, "id", "") for each in given}
        for node in owner.body:
            if isinstance(node, ast.FunctionDef):
                visit(node, fields if owner is not tree else set())
    return sorted(set(found))


def test_the_rule_finds_lengths_of_tensors():
    code = """
def f(x: Tensor, y: Tensor | None, z: list[Tensor]):
    scores = x @ y.mT
    return len(x), len(y[0]), len(scores), len(torch.cat(z)), len(z), len(x.shape), len(x.tolist())
"""
    assert [line.partition(": ")[2] for line in lengths_of_tensors(ast.parse(code))] == [
        "len(scores)", "len(torch.cat(z))", "len(x)", "len(y[0])",
    ]  # fmt: skip


def test_nothing_takes_the_length_of_a_tensor():
    """len() must return an int, so that a program would be for that batch alone: write x.shape[0]."""
    source = ROOT / "src" / "posenc"
    files = [
        each
        for folder in ("attention", "backends", "bias", "encoding", "encodings", "positions")
        for each in (source / folder).glob("*.py")
    ]
    found = {each.name: lengths_of_tensors(ast.parse(each.read_text(encoding="utf-8"))) for each in files}
    assert not {name: lines for name, lines in found.items() if lines}
