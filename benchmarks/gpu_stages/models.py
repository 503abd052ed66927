"""Models of GPT-2's size: training and decoding throughput under several encodings."""

import statistics
import time
from collections.abc import Callable
from itertools import product
from typing import Any

import torch
from torch.nn import functional as F

from gpu_stages.stage import Case, Row, Stage
from gpu_stages.timing import device, markdown, memory
from posenc import Transformer, TransformerConfig
from posenc.cache import KVCache

ENCODINGS = "rope", "alibi", "none", "t5", "shaw:clip=64"
CONFIG = TransformerConfig(50304, dim=768, num_layers=12, num_heads=12)
TINY = TransformerConfig(64, dim=32, num_layers=2, num_heads=2)
STEPS, WARM_UP = 60, 10


def _model(encoding: str, dry: bool) -> Transformer:
    torch.manual_seed(0)
    return Transformer(TINY if dry else CONFIG, encoding).to(device())


def _waited() -> float:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


class Training(Stage):
    SHARE = 5.0

    def cases(self, dry: bool) -> list[Case]:
        compiled = (False,) if dry else (True, False)
        return [{"encoding": e, "compiled": c} for c, e in product(compiled, ENCODINGS[: 2 if dry else None])]

    def measure(self, case: Case, dry: bool) -> dict[str, Any]:
        model, step = self.prepared(case, dry)
        batch, length = _size(dry)
        losses = [step()]
        taken = memory(step)
        steps = 3 if dry else STEPS
        for _ in range(1 if dry else WARM_UP):
            step()
        begin = _waited()
        for _ in range(steps):
            losses.append(step())
        took = _waited() - begin
        assert losses[-1] < losses[0], f"the loss went from {losses[0]:.2f} to {losses[-1]:.2f}"
        return {
            "tokens_per_second": steps * batch * length / took, "peak_mib": taken / 2**20,
            "parameters": sum(p.numel() for p in model.parameters()), "loss": [float(losses[0]), float(losses[-1])],
        }  # fmt: skip

    def made(self, case: Case, dry: bool) -> tuple[Transformer, Callable[[], torch.Tensor]]:
        """The model, and a call that trains it for a step and returns the loss."""
        batch, length = _size(dry)
        model = _model(case["encoding"], dry)
        run = torch.compile(model) if case["compiled"] else model
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
        vocabulary = model.config.vocab_size
        # a text that repeats: whoever learns anything lowers its loss
        text = torch.randint(vocabulary, (batch, length + 1), device=device())
        text[:, length // 2 :] = text[:, : length + 1 - length // 2]

        def step() -> torch.Tensor:
            with torch.autocast(device(), torch.bfloat16):
                logits = run(text[:, :-1])
            loss = F.cross_entropy(logits.float().flatten(0, 1), text[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss.detach()

        step()
        return model, step

    def table(self, rows: list[Row]) -> str:
        lines = [
            [row["case"]["encoding"], "compiled" if row["case"]["compiled"] else "eager",
             f"{row['result']['parameters'] / 1e6:.1f} M", f"{row['result']['tokens_per_second']:.0f}",
             f"{row['result']['peak_mib']:.0f}"] for row in rows
        ]  # fmt: skip
        return markdown(["encoding", "mode", "parameters", "tokens a second", "peak MiB"], lines)


def _size(dry: bool) -> tuple[int, int]:
    """Batch and sequence length."""
    return (2, 16) if dry else (16, 1024)


class Decoding(Stage):
    SHARE = 1.5

    def cases(self, dry: bool) -> list[Case]:
        sizes = ((1, 16),) if dry else ((1, 2048), (16, 2048), (1, 16384))
        return [
            {"batch": b, "cached": n, "encoding": e} for (b, n), e in product(sizes, ENCODINGS[: 2 if dry else None])
        ]

    def prepare(self, case: Case, dry: bool) -> dict[str, Any]:
        return self.measure(case, dry=dry)

    def measure(self, case: Case, dry: bool) -> dict[str, Any]:
        model = _model(case["encoding"], dry).to(torch.bfloat16).eval()
        rotated = case["encoding"] == "rope"
        cache, steps = KVCache(rotated=rotated), 3 if dry else 64
        text = torch.randint(model.config.vocab_size, (case["batch"], case["cached"]), device=device())
        with torch.inference_mode():
            begin = _waited()
            token = model(text, cache=cache)[:, -1:].argmax(-1)
            prefill, times = _waited() - begin, []
            for _ in range(steps):
                begin = _waited()
                token = model(token, cache=cache)[:, -1:].argmax(-1)
                times.append(_waited() - begin)
        return {"prefill_ms": 1e3 * prefill, "tokens_per_second": case["batch"] / statistics.median(times)}

    def table(self, rows: list[Row]) -> str:
        lines = [
            [*row["case"].values(), f"{row['result']['tokens_per_second']:.0f}", f"{row['result']['prefill_ms']:.1f}"]
            for row in rows
        ]
        return markdown(["batch", "cached tokens", "encoding", "tokens a second", "first prefill, ms"], lines)
