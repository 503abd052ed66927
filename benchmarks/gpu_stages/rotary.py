"""Rotating queries and keys, compared with a copy of the same bytes, at the heads of Llama 3 8B in bfloat16."""

from collections.abc import Callable
from itertools import product
from typing import Any

import torch
from torch import Tensor

from gpu_stages.checks import is_right
from gpu_stages.stage import Case, Row, Stage
from gpu_stages.timing import Call, device, markdown, measure, relative_error
from posenc import Rotary
from posenc.backends.triton import rotary_kernel
from posenc.functional import rotary

HEADS, KV_HEADS, HEAD_DIM, ROPE_THETA = 32, 8, 128, 500000.0
SHAPES = ("8x4096", "1x8192", "1x32768", "64x1", "1x1")
OURS, FORMULA, COMPILED = "posenc, one kernel", "posenc, formula", "posenc, formula compiled"


class RotaryKernel(Stage):
    SHARE = 1.5
    DECIDES = ("rotary",)

    def cases(self, dry: bool) -> list[Case]:
        shapes = ("1x4",) if dry else SHAPES
        keys = ("shape", "layout", "strides", "pass")
        order = product(shapes, ("half", "interleaved"), ("projection", "contiguous"), ("forward", "training"))
        return [dict(zip(keys, values, strict=True)) for values in order]

    def measure(self, case: Case, dry: bool) -> dict[str, Any]:
        calls, errors, moved = self.prepared(case, dry)
        found = measure(calls, "copy")
        for result in found.values():
            result["terabytes_per_second"] = moved / result["ms"] / 1e9
        return {"megabytes": moved / 1e6, "errors": errors, "candidates": found}

    def made(self, case: Case, dry: bool) -> tuple[dict[str, Call], dict[str, float], int]:
        """What is timed, each candidate's error, and the bytes that are read and written."""
        batch, tokens = map(int, case["shape"].split("x"))
        heads, kv_heads, width = (4, 2, 16) if dry else (HEADS, KV_HEADS, HEAD_DIM)

        def stored(heads: int) -> Tensor:
            if case["strides"] == "projection":  # as a projection leaves them: (batch, seq, heads, dim)
                x = torch.randn(batch, tokens, heads, width, device=device(), dtype=torch.bfloat16)
                return x.transpose(1, 2)
            return torch.randn(batch, heads, tokens, width, device=device(), dtype=torch.bfloat16)

        q, k, of_q, of_k = stored(heads), stored(kv_heads), stored(heads), stored(kv_heads)
        cos, sin = (
            Rotary(width, rope_theta=ROPE_THETA)
            .to(device())
            .cos_sin(torch.arange(tokens, device=device())[None], torch.float32)
        )
        end = slice(max(0, tokens - 64), None)
        exact = rotary(q[:1, :, end].double(), cos[:, :, end].double(), sin[:, :, end].double(), layout=case["layout"])
        training = case["pass"] == "training"
        copies = (q, k, of_q, of_k) if training else (q, k)
        calls: dict[str, Call] = {"copy": lambda: [x.clone() for x in copies]}
        errors = {}
        for name, turn in _candidates(cos, sin, case["layout"], q.dtype).items():
            errors[name] = relative_error(turn(q, k)[0][:1, :, end], exact)
            if not errors[name] < 0.02:
                continue  # its time would mean nothing

            def alone(turn: Callable[..., Any] = turn) -> object:
                with torch.no_grad():
                    return turn(q, k)

            def trained(turn: Callable[..., Any] = turn) -> object:
                inputs = q.detach().requires_grad_(), k.detach().requires_grad_()
                return torch.autograd.grad(turn(*inputs), inputs, (of_q, of_k))

            calls[name] = trained if training else alone
        for call in calls.values():
            call()
        return calls, errors, 2 * sum(x.nbytes for x in copies)

    def table(self, rows: list[Row]) -> str:
        names = list(dict.fromkeys(name for row in rows for name in row["result"]["candidates"]))
        lines = []
        for row in rows:
            found = row["result"]["candidates"]
            cells = [f"{found[n]['ms']:.4f} ms, {found[n]['ratio']:.2f}" if n in found else "" for n in names]
            lines.append([" ".join(row["case"].values()), f"{row['result']['megabytes']:.1f}", *cells])
        return "Milliseconds, and the ratio to a copy of the same bytes.\n\n" + markdown(["case", "MB", *names], lines)

    def verified(self, rows: Callable[[str], list[Row]]) -> dict[str, int]:
        timed = [row["result"].get("candidates", {}) for row in rows("rotary")]
        faster = len(timed) == len(self.cases(dry=False)) and all(
            OURS in found and found[OURS]["ms"] < found.get(FORMULA, {"ms": 0.0})["ms"] for found in timed
        )
        return {"rotary": 0} if faster and is_right(rows("checks"), "rotary kernel") else {}


def _candidates(cos: Tensor, sin: Tensor, layout: str, dtype: torch.dtype) -> dict[str, Callable[..., Any]]:
    found: dict[str, Callable[..., Any]] = {
        OURS: lambda q, k: rotary_kernel(q, k, cos, sin, layout=layout),
        FORMULA: lambda q, k: tuple(rotary(x, cos, sin, layout=layout) for x in (q, k)),
    }
    if torch.cuda.is_available():
        found[COMPILED] = torch.compile(found[FORMULA], dynamic=False)
    if layout != "half":
        return found
    wide = [torch.cat((t, t), -1)[:, 0].to(dtype) for t in (cos, sin)]
    try:
        from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

        found["transformers, eager"] = lambda q, k: apply_rotary_pos_emb(q, k, *wide)
    except ImportError:
        pass
    try:
        from liger_kernel.transformers.rope import liger_rotary_pos_emb

        found["liger-kernel"] = lambda q, k: liger_rotary_pos_emb(q, k, *wide)  # in place, hence the last
    except ImportError:
        pass
    return found
