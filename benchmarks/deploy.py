# SPDX-License-Identifier: Apache-2.0
"""Export a layer of attention under every encoding, by torch.export and to ONNX, and run it at other batches and lengths;
write benchmarks/deploy.json and the table of docs/deploy.md.

    python benchmarks/deploy.py [ENCODING ...]

With names, only their rows are measured again. ONNX needs: pip install onnx onnxruntime onnxscript
"""

import contextlib
import io
import json
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

import posenc
from posenc import Positions
from posenc.encoding import gates_of

ROOT = Path(__file__).parents[1]
PAGE, DATA = ROOT / "docs" / "deploy.md", ROOT / "benchmarks" / "deploy.json"
BEGIN, END = "<!-- matrix: written by benchmarks/deploy.py -->", "<!-- end of matrix -->"
PACKAGES = ("torch", "onnx", "onnxruntime", "onnxscript")
DIM, HEADS, WIDTH, LONGEST = 16, 2, 8, 64
TRACED, BATCHES, LENGTHS, OTHER = (2, 9), ((1, 9), (3, 9), (5, 9)), ((2, 2), (2, 17), (2, 40)), ((3, 17), (1, 40))
"""(rows, tokens) of the inputs: what is traced, and what the program is then run on; OTHER in onnxruntime."""
BOUND = 1e-5
"""Largest difference from the eager layer, in float32; the outputs are about 1."""


class Layer(nn.Module):
    """A layer of attention under an encoding, with every site of it: (batch, seq, DIM) -> (batch, HEADS, seq, WIDTH)."""

    def __init__(self, encoding: posenc.Encoding) -> None:
        super().__init__()
        self.encoding = encoding
        self.query, self.key, self.value = (nn.Linear(DIM, HEADS * WIDTH) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        positions = Positions.arange(x.shape[1], causal=True)
        self.encoding.share([(self.query, self.key)])
        x = self.encoding.embed(x, positions)
        q, k, v = (each(x).unflatten(-1, (HEADS, WIDTH)).transpose(1, 2) for each in (self.query, self.key, self.value))
        return posenc.attention(q, k, v, self.encoding, positions, gates=gates_of(self.encoding, x))


def layer_of(name: str) -> Layer:
    """A layer in eval mode whose parameters are drawn, since zeros and tiny ones would hide a term."""
    window = {"height": 8, "width": 8} if name == "swin_v2" else {}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        shape: dict[str, Any] = {"dim": DIM, "num_heads": HEADS, "head_dim": WIDTH, "max_positions": LONGEST}
        layer = Layer(posenc.create(name, causal=True, **shape, **window)).eval()
        for parameter in layer.encoding.parameters():
            nn.init.normal_(parameter, std=0.5)
    return layer


def given(rows: int, tokens: int) -> Tensor:
    return torch.randn(rows, tokens, DIM, generator=torch.Generator().manual_seed(tokens))


SIZES = ({0: Dim("batch", min=1, max=64), 1: Dim("length", min=2, max=LONGEST)},)


def exported(layer: nn.Module) -> ExportedProgram:
    """The program of a layer for any batch and length."""
    with torch.no_grad():
        return torch.export.export(layer, (given(*TRACED),), dynamic_shapes=SIZES)


def operators(program: ExportedProgram) -> set[str]:
    """The operators of a program that are not PyTorch's."""
    graphs = [each.graph for each in program.graph_module.modules() if isinstance(each, torch.fx.GraphModule)]
    calls = [node.target for graph in graphs for node in graph.nodes if isinstance(node.target, torch._ops.OpOverload)]
    return {str(call) for call in calls if call.namespace not in ("aten", "prims", "higher_order")}


def onnx_session(program: ExportedProgram | nn.Module) -> Callable[[Tensor], Tensor]:
    """The program, or a layer that is exported for it, in onnxruntime."""
    import onnxruntime

    options: dict[str, Any] = {} if isinstance(program, ExportedProgram) else {"dynamic_shapes": SIZES}
    inputs = () if isinstance(program, ExportedProgram) else (given(*TRACED),)
    with quiet(), torch.no_grad():
        model = torch.onnx.export(program, inputs, dynamo=True, verbose=False, **options)
    assert model is not None
    session = onnxruntime.InferenceSession(model.model_proto.SerializeToString(), providers=["CPUExecutionProvider"])
    (name,) = [each.name for each in session.get_inputs()]
    return lambda x: torch.from_numpy(session.run(None, {name: x.numpy()})[0])


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        yield


def difference(run: Callable[[Tensor], Tensor], layer: nn.Module, shapes: tuple[tuple[int, int], ...]) -> float:
    """The largest difference of an output from the eager layer's."""
    with torch.no_grad():
        each = [(run(x) - layer(x)).abs().max() for x in (given(*shape) for shape in shapes)]
    return float(torch.stack(each).max())  # NaN stays


def refusal(error: BaseException) -> str:
    """Why an export failed: our sentence, or the operator that ONNX lacks."""
    text = str(error)
    if ours := re.search(r"posenc\.errors\.InputError'>: (.*)", text):
        return ours.group(1)
    lacks = re.search(r"target=torch\.ops\.([\w.]+?)(?:\.default)?\]", text)
    return f"ONNX has no operator for {lacks.group(1)}" if lacks else text.strip().splitlines()[-1]


def measure(name: str, *, onnx: bool = True) -> dict[str, Any]:
    """A row: by column the largest difference from eager, or why there is none; operators that are not PyTorch's."""
    layer = layer_of(name)
    program = exported(layer)
    run = program.module()
    row: dict[str, Any] = {"operators": sorted(operators(program))}
    for column, shapes in (("export", (TRACED,)), ("batch", BATCHES), ("length", LENGTHS)):
        row[column] = difference(run, layer, shapes)
    if onnx:
        try:
            row["onnx"] = difference(onnx_session(layer), layer, OTHER)
        except Exception as error:
            row["onnx"] = refusal(error)
    return row


COLUMNS = {"export": "torch.export", "batch": "any batch", "length": "any length", "onnx": "ONNX"}


def matrix(rows: dict[str, dict[str, Any]]) -> str:
    """Of the rows a sentence that counts them, and as Markdown those in which something is refused."""
    served = {name: [column for column in COLUMNS if isinstance(row[column], float)] for name, row in rows.items()}
    counts = ", ".join(
        f"{title} {sum(column in each for each in served.values())}" for column, title in COLUMNS.items()
    )
    alone = [name for name, row in rows.items() if row["operators"]]
    worst = max(row[column] for name, row in rows.items() for column in served[name])
    lines = [
        f"Of {len(rows)} encodings: {counts}. The largest difference of an output from the eager layer's is {worst:.1e}, in "
        f"float32 ([each difference](../benchmarks/deploy.json)). Programs with an operator of posenc's: "
        f"{', '.join(f'`{name}`' for name in alone) or 'none'}.",
        "",
    ]
    for name, row in rows.items():
        lines += [
            f"- `{name}`, {title}: {row[column]}" for column, title in COLUMNS.items() if column not in served[name]
        ]
    return "\n".join(lines)


def main() -> None:
    known = json.loads(DATA.read_text(encoding="utf-8"))["rows"] if DATA.exists() else {}
    torch.set_num_threads(1)
    for name in sys.argv[1:] or posenc.ENCODINGS:
        known[name] = measure(name)
        print(name, known[name], flush=True)
        rows = {name: known[name] for name in posenc.ENCODINGS if name in known}
        data = {"versions": {package: version(package) for package in PACKAGES}, "rows": rows}
        DATA.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    before, rest = PAGE.read_text(encoding="utf-8").split(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n{matrix(rows)}\n{END}{rest.split(END)[1]}", encoding="utf-8")


if __name__ == "__main__":
    main()
