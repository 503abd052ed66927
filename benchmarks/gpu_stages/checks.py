"""Every encoding and backend on the GPU against the float64 reference on the CPU: outputs and, where a backend has them,
gradients."""

import copy
import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from gpu_stages.stage import Case, Row, Stage
from gpu_stages.timing import device, markdown, relative_error
from posenc import Encoding, InputError, Positions
from posenc.backends.triton import rotary_kernel
from posenc.cache import KVCache
from posenc.conformance.fixtures import CHECKED_AS, DECODER, EncodingUnderTest, attend, named, tokens
from posenc.encodings import ENCODINGS, create
from posenc.functional import Layout, rotary
from posenc.lab.transformer import TransformerConfig

TOLERANCE = {"float32": 1e-3, "bfloat16": 2e-2}
"""Of the relative error; with the two dtypes' rounding it was below a third of this on CPUs."""
FIRST = ("rope", "alibi", "t5", "shaw", "transformer_xl", "tupe", "deberta", "projected_relative", "none", "sinusoidal")
KEYS_ONLY = "shaw:clip=16:terms=keys", "deberta:terms=c2p:max_relative_positions=16"
"""What our kernels serve of encodings that they refuse by default."""
WIDTHS = 64, 72
LENGTH, LONG = 150, 700
"""Tokens; LONG: of our kernel, whose tiles then are of every kind."""


class Checks(Stage):
    SHARE = 3.0
    TIMED = False

    def cases(self, dry: bool) -> list[Case]:
        names = sorted(ENCODINGS, key=lambda name: (name not in FIRST, name))
        names = ["alibi", KEYS_ONLY[0]] if dry else [*KEYS_ONLY, *names]
        cases: list[Case] = [{"what": "rotary kernel", "layout": layout} for layout in ("half", "interleaved")]
        layouts = list(_layouts(LENGTH))

        def calls(layouts: list[str], backends: tuple[str, ...], names: list[str]) -> list[Case]:
            order = itertools.product(layouts, backends, names)
            return [
                {"what": "attention", "encoding": name, "backend": backend, "layout": layout}
                for layout, backend, name in order
            ]

        first = names[: len(KEYS_ONLY) + len(FIRST)]
        ours = calls(["contiguous", "cached", "chunk"], ("triton",), names)
        others = [calls([layout], ("auto", "sdpa", "flex"), names) for layout in layouts if layout != "chunk"]
        models = [{"what": "model", "encoding": name} for name in names]
        begin = [*ours, *cases, *calls(layouts[:1], ("auto",), first)]
        rest = itertools.chain(others[0], models, *others[1:])
        return [*begin, *(case for case in rest if case not in begin)]

    def measure(self, case: Case, dry: bool) -> dict[str, Any]:
        torch.set_float32_matmul_precision("highest")
        if case["what"] == "rotary kernel":
            return _checked(_rotations(case["layout"], dry))
        if case["what"] == "model":
            return _checked(_models(case["encoding"]))
        return _checked(_calls(case["encoding"], case["backend"], case["layout"], dry))

    def table(self, rows: list[Row]) -> str:
        lines = []
        for row in rows:
            case, result = row["case"], row["result"]
            name = " ".join(filter(None, (case.get("encoding"), case.get("backend"), case["what"], case.get("layout"))))
            lines.append([name, len(result["errors"]), f"{max(result['errors'].values(), default=0):.1e}",
                          "; ".join(result["wrong"]) or "none", len(result["refused"])])  # fmt: skip
        return markdown(["check", "cases", "largest relative error", "wrong", "refused"], lines)


def is_right(rows: list[Row], backend: str) -> bool:
    """Whether all that was checked of a backend, or of "rotary kernel", is right, and something was."""
    of_it = [row["result"] for row in rows if backend in (row["case"].get("backend"), row["case"]["what"])]
    return any(result.get("errors") for result in of_it) and not any(
        result.get("wrong", ["failed"]) for result in of_it
    )


def _checked(results: Iterator[tuple[str, float | str]]) -> dict[str, Any]:
    """errors by case, those beyond the tolerance of their dtype, which ends the name, and refusals with their reasons."""
    errors: dict[str, float] = {}
    refused: dict[str, str] = {}
    for name, result in results:
        if isinstance(result, str):
            refused[name] = result
        else:
            errors[name] = result
    wrong = [f"{name}: {error:.1e}" for name, error in errors.items() if not error <= TOLERANCE[name.split()[-1]]]
    return {"errors": errors, "wrong": wrong, "refused": refused}


def _rotations(layout: Layout, dry: bool) -> Iterator[tuple[str, float]]:
    for width, pairs in ((8, 4), (12, 5)) if dry else ((64, 32), (128, 64), (80, 40), (96, 16), (256, 128)):
        for dtype in (torch.float32, torch.bfloat16):
            torch.manual_seed(0)
            drawn = [torch.randn(2, 9, heads, width, device=device(), dtype=dtype) for heads in (4, 2)]
            angles = torch.randn(2, 1, 9, pairs, device=device())
            inputs = [x.transpose(1, 2).requires_grad_() for x in drawn]
            exact = [x.detach().double().requires_grad_() for x in inputs]
            out = rotary_kernel(inputs[0], inputs[1], angles.cos(), angles.sin(), layout=layout)
            cos, sin = angles.double().cos(), angles.double().sin()
            want = [rotary(x, cos, sin, layout=layout) for x in exact]
            name = f"{width} {str(dtype).removeprefix('torch.')}"
            yield name, max(map(relative_error, out, want))
            weights = [torch.randn_like(x) for x in out]
            found = torch.autograd.grad(out, inputs, weights)
            wanted = torch.autograd.grad(want, exact, [x.double() for x in weights])
            yield f"gradient, {name}", max(map(relative_error, found, wanted))


def _made(name: str, config: TransformerConfig) -> Encoding:
    return create(
        CHECKED_AS.get(name, name), dim=config.dim, num_heads=config.num_heads, head_dim=config.width,
        num_kv_heads=config.kv_heads, num_layers=config.num_layers, max_positions=LONG + 1, causal=config.causal,
    )  # fmt: skip


def _layouts(length: int) -> dict[str, Positions]:
    mask = torch.ones(2, length, dtype=torch.long)
    mask[1, : length // 3] = 0
    return {
        "contiguous": Positions.arange(length),
        "cached": Positions.arange(1, length - 1),
        "chunk": Positions.arange(length // 3, length - length // 3),
        "padded": Positions.from_mask(mask),
        "packed": Positions.packed([length // 3, length - length // 3]),
    }


def _calls(name: str, backend: str, layout: str, dry: bool) -> Iterator[tuple[str, float | str]]:
    """attention() alone, by width and dtype; for other backends than ours, other widths than the first of WIDTHS where positions
    are contiguous."""
    ours = backend == "triton"
    length = 20 if dry else LONG if ours else LENGTH
    for width in (16,) if dry else WIDTHS if ours or layout == "contiguous" else WIDTHS[:1]:
        config = replace(DECODER, dim=4 * width, num_layers=1)
        exact = EncodingUnderTest(partial(_made, name)).model(config).encoding
        if exact.needs_length and layout in ("cached", "chunk"):
            continue
        positions = _layouts(length)[layout].with_causal(True)
        sizes = [(2, config.num_heads, positions.num_queries, width)]
        sizes += [(2, config.kv_heads, positions.num_keys, width)] * 2 + [(2, positions.num_keys, config.dim)]
        torch.manual_seed(0)
        drawn = [torch.randn(size, dtype=torch.float64) for size in (*sizes, sizes[0])]
        dtypes = [torch.float32, torch.bfloat16]
        if ours and (width, layout) != (WIDTHS[0], "contiguous"):
            del dtypes[:-1]  # float32 takes ten seconds to compile
        for dtype in dtypes:
            label = f"{width} {str(dtype).removeprefix('torch.')}"
            *inputs, weights = (x.to(dtype).double() for x in drawn)  # both are given the same numbers
            encoding = copy.deepcopy(exact).to(device=device(), dtype=torch.float32)
            cast = [x.to(device(), dtype) for x in inputs]
            try:
                found = _outputs(encoding, cast, positions.to(device()), weights.to(device(), dtype), backend, ours)
            except InputError as refusal:
                yield label, str(refusal)
                continue
            try:
                wanted = _outputs(exact, inputs, positions, weights, "reference", ours)
            except InputError as refusal:  # other positions than it is for
                yield label, f"the reference: {refusal}"
                continue
            if not all(bool(x.isfinite().all()) for x in wanted):
                yield label, "the reference is not finite for these weights and positions"
                continue
            single = [copy.deepcopy(exact).float(), [x.float() for x in inputs], positions, weights.float()]
            yield from _checkable(label, found, wanted, partial(_outputs, *single, "reference", ours))


def _checkable(
    label: str, found: list[Tensor], wanted: list[Tensor], on_cpu: Callable[[], list[Tensor]]
) -> Iterator[tuple[str, float | str]]:
    """The errors; or, of one beyond the tolerance, that float32 on the CPU is beyond it, too, so that it says nothing of a GPU."""
    single = None
    for name, error in _errors(label, found, wanted).items():
        if not error <= TOLERANCE[label.split()[-1]]:
            single = single or _errors(label, on_cpu(), wanted)
            if not single[name] <= TOLERANCE[label.split()[-1]]:
                yield name, "float32 does not hold what is computed with these weights, on the CPU either"
                continue
        yield name, error


def _errors(label: str, found: list[Tensor], wanted: list[Tensor]) -> dict[str, float]:
    """Of the output and, where there are any, of the gradients."""
    errors = {label: relative_error(found[0], wanted[0])}
    return errors | ({f"gradient, {label}": _gradient_error(found[1:], wanted[1:])} if wanted[1:] else {})


def _outputs(
    encoding: Encoding, inputs: list[Tensor], positions: Positions, weights: Tensor, backend: str, alone: bool
) -> list[Tensor]:
    """The output and, unless it is alone, gradients of queries, keys, values and of the encoding's parameters that take part."""
    if alone:
        with torch.no_grad():
            return [attend(encoding, inputs, positions, backend=backend)]
    leaves = [x.clone().requires_grad_() for x in inputs]
    out = attend(encoding, leaves, positions, backend=backend)
    learned = [p for p in encoding.parameters() if p.requires_grad]
    grads = torch.autograd.grad(out, [*leaves[:3], *learned], weights, allow_unused=True)
    return [out, *(g for g in grads if g is not None)]


def _gradient_error(found: list[Tensor], wanted: list[Tensor]) -> float:
    """The largest, relative to its tensor or, where that nearly cancels, to a tenth of the largest of all."""
    least = 0.1 * max(float(x.norm()) for x in wanted)
    return max(relative_error(a, b) * min(1.0, float(b.norm()) / least) for a, b in zip(found, wanted, strict=True))


def _models(name: str) -> Iterator[tuple[str, float | str]]:
    """A small model: logits and all gradients in float32, and tokens read one by one with a cache."""
    tested = EncodingUnderTest(named(name))
    exact = tested.model(DECODER)
    model = copy.deepcopy(exact).float().to(device())
    ids = tokens(2, 24)
    wanted, found = exact(ids), model(ids.to(device()))
    yield "logits float32", relative_error(found, wanted)
    wanted.square().mean().backward()
    found.square().mean().backward()
    pairs = [(a.grad, b.grad) for a, b in zip(model.parameters(), exact.parameters(), strict=True)]
    yield "gradients float32", max(relative_error(a, b) for a, b in pairs if a is not None and b is not None)
    if exact.encoding.needs_length:
        return
    with torch.no_grad():
        cache = KVCache()
        read = torch.cat([model(ids[:, n : n + 1].to(device()), cache=cache) for n in range(ids.shape[1])], 1)
    yield "cached float32", relative_error(read, wanted)
