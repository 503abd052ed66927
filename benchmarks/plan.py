"""An estimate of comparing encodings at 1 B parameters and 131072 tokens on 64 GPUs: counted, checked, priced.

    python benchmarks/plan.py [measure]

Counted: the operations, and the tensors stored for the backward pass, of the real model at its real size, run on tensors
without storage. Checked ("measure", a few minutes on an idle machine): small models are measured and compared with the same
count. Priced: with published throughput, for lack of GPUs. Writes benchmarks/plan.json and the tables of
benchmarks/plan.md; run from the root of the repository.
"""

import json
import sys
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

import posenc
from posenc.lab.machine import describe, peak
from posenc.transformer import Transformer, TransformerConfig

KEPT, PAGE = Path("benchmarks/plan.json"), Path("benchmarks/plan.md")
MODEL = TransformerConfig(vocab_size=32768, dim=2048, num_layers=22, num_heads=32, num_kv_heads=8, head_dim=64)
SMALL = TransformerConfig(vocab_size=256, dim=256, num_layers=4, num_heads=4, head_dim=64)
HIDDEN = round(MODEL.mlp_ratio * MODEL.dim * 2 / 3)
MATRICES = (
    *[(MODEL.dim, heads * MODEL.width) for heads in (MODEL.num_heads, MODEL.kv_heads, MODEL.kv_heads, MODEL.num_heads)],
    *[(MODEL.dim, HIDDEN)] * 3,
)
"""Of a block."""
ENCODINGS = ("none", "rope", "alibi", "t5", "fire", "xlnet", "sinusoidal")
GPUS, SHARDS, SHORT, LONG = 64, 8, 8192, 131072
"""SHARDS: GPUs that share a sequence of LONG tokens; those of one node."""
TOKENS, LAST, SEEDS = 20e9, 2e9, 2
"""Twenty a parameter; how many of them at full length where the rest is trained at SHORT; trainings per encoding."""
TITAN = {SHORT: 5762.0, LONG: 1071.0}
"""Tokens a second and GPU of Llama 3.1 8B on 8 H100s: tables 1 (bfloat16) and 2 (float8 in linear layers, 4 GPUs a
sequence) of torchtitan's benchmarks/llama3_h100_202412_torchtitan.md."""
LLAMA = {"parameters": 8.03e9 - 128256 * 4096, "layers": 32, "width": 4096}
"""parameters: those that multiply; the embedding is looked up."""


@dataclass(frozen=True)
class Count:
    """One forward pass of a model. stored: bytes for the backward pass, without weights and logits; logits: bytes."""

    parameters: int
    matmul_flops: int
    stored: int
    logits: int


def count(config: TransformerConfig, name: str, tokens: int, dtype: torch.dtype) -> Count:
    """Run a model on one sequence of tensors without storage."""
    storages: dict[int, tuple[int, torch.Tensor]] = {}

    def pack(saved: torch.Tensor) -> torch.Tensor:
        storage = saved.untyped_storage()
        storages[storage._cdata] = storage.nbytes(), saved  # a reference, so that no other takes its address
        return saved

    with FakeTensorMode():
        model = _model(config, name, tokens, dtype)
        size = sum(p.numel() for p in model.parameters())
        ids = torch.zeros(1, tokens, dtype=torch.long)
        with (
            FlopCounterMode(display=False) as flops,
            torch.autograd.graph.saved_tensors_hooks(pack, lambda saved: saved),
        ):
            F.cross_entropy(model(ids).flatten(0, 1).float(), ids.flatten())
        logits = 4 * tokens * config.vocab_size
        return Count(
            size, flops.get_total_flops(), sum(n for n, _ in storages.values()) - size * dtype.itemsize, logits
        )


def extrapolated(config: TransformerConfig, name: str, tokens: int, dtype: torch.dtype) -> Count:
    """The count of a deep model and a long text from one and two layers and a shorter text: all of it grows by the layer
    and by the token (the attention of every encoding here keeps memory in proportion to the text)."""
    some = 2048
    one, two = (count(replace(config, num_layers=layers), name, some, dtype) for layers in (1, 2))

    def deep(field: str) -> int:
        first, second = getattr(one, field), getattr(two, field)
        return first + (config.num_layers - 1) * (second - first)

    return Count(
        deep("parameters"),
        deep("matmul_flops") * tokens // some,
        deep("stored") * tokens // some,
        one.logits * tokens // some,
    )


def attention_flops(layers: float, width: float, tokens: float) -> float:
    """Scores and values of one causal forward pass: 4 n width operations a pair of n, half of them visible."""
    return 2 * layers * width * tokens**2


def step_flops(config: TransformerConfig, counted: Count, tokens: int) -> float:
    """Forward and backward, nothing computed twice: three times the forward pass."""
    return 3 * (counted.matmul_flops + attention_flops(config.num_layers, config.num_heads * config.width, tokens))


def _model(config: TransformerConfig, name: str, tokens: int, dtype: torch.dtype) -> Transformer:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        sizes = {"dim": config.dim, "num_heads": config.num_heads, "head_dim": config.width}
        encoding = posenc.create(name, **sizes, num_layers=config.num_layers, max_positions=tokens, causal=True)
        return Transformer(config, encoding)
    finally:
        torch.set_default_dtype(before)


# -------------------------------------------------------------------- compared with this machine


def measured() -> dict:
    """Measured memory and time of small models."""
    torch.set_num_threads(1)
    return {"machine": describe(torch.device("cpu")), "memory": _memory(), "time": _time(), "encodings": _encodings()}


def _step(model: nn.Module, ids: torch.Tensor) -> None:
    F.cross_entropy(model(ids).flatten(0, 1), ids.flatten()).backward()
    for parameter in model.parameters():
        parameter.grad = None


def _memory() -> list[dict]:
    found = []
    for layers, tokens in ((4, 2048), (4, 4096), (8, 4096), (8, 8192)):
        config = TransformerConfig(
            SMALL.vocab_size, dim=SMALL.dim, num_layers=layers, num_heads=SMALL.num_heads, head_dim=SMALL.head_dim
        )
        counted = count(config, "rope", tokens, torch.float32)
        model, ids = _model(config, "rope", tokens, torch.float32), torch.zeros(1, tokens, dtype=torch.long)
        _step(model, ids[:, :64])  # what is allocated once
        taken = peak(lambda m=model, t=ids: _step(m, t), torch.device("cpu"))
        found.append({"layers": layers, "tokens": tokens, "counted": counted.stored, "peak": taken})
    return found


def _seconds(model: nn.Module, ids: torch.Tensor, rounds: int = 5) -> float:
    _step(model, ids)
    best = float("inf")
    for _ in range(rounds):
        started = time.perf_counter()
        _step(model, ids)
        best = min(best, time.perf_counter() - started)
    return best


def _time() -> list[dict]:
    """The rate of a complete step over that of plain matrix products, at lengths where attention is little and most."""
    a = torch.randn(2048, SMALL.dim), torch.randn(SMALL.dim, 4 * SMALL.dim)
    found = []
    for tokens in (1024, 4096, 8192):
        started, rounds = time.perf_counter(), 200
        for _ in range(rounds):
            a[0] @ a[1]
        matmul = rounds * 2 * 2048 * 4 * SMALL.dim**2 / (time.perf_counter() - started)
        counted = count(SMALL, "rope", tokens, torch.float32)
        model, ids = _model(SMALL, "rope", tokens, torch.float32), torch.zeros(1, tokens, dtype=torch.long)
        flops = step_flops(SMALL, counted, tokens)
        share = 1 - 3 * counted.matmul_flops / flops
        found.append(
            {"tokens": tokens, "attention": share, "flops": flops, "seconds": _seconds(model, ids, 3), "matmul": matmul}
        )
    return found


def _encodings(tokens: int = 4096) -> dict[str, float]:
    """A step under each encoding over the same step without positions, least of interleaved rounds."""
    ids = torch.zeros(1, tokens, dtype=torch.long)
    models = {name: _model(SMALL, name, tokens, torch.float32) for name in ENCODINGS}
    best = dict.fromkeys(models, float("inf"))
    for _ in range(3):
        for name, model in models.items():
            best[name] = min(best[name], _seconds(model, ids, 1))
    return {name: seconds / best["none"] for name, seconds in best.items()}


# -------------------------------------------------------------------- priced


def planned(here: dict) -> dict:
    """The plan's figures, from the count and the measurements of this machine."""
    local = LONG // SHARDS
    counts = {name: extrapolated(MODEL, name, local, torch.bfloat16) for name in ENCODINGS}
    rope = counts["rope"]
    overhead = max(row["peak"] / row["counted"] for row in here["memory"])
    table = MODEL.vocab_size * MODEL.dim
    states = 4 * rope.parameters + 4 * (rope.parameters - table) + 8 * table + 4 * rope.parameters
    block = (rope.parameters - table) / MODEL.num_layers
    gathered = 2 * 2 * LONG * MODEL.kv_heads * MODEL.width
    rotated = 1 + 1 / (2 * SHARDS)  # zig-zag: a call up to each of two ends, which together lie so far into the text
    memory = {
        "weights in float32, Muon's and AdamW's states, gradients, over 64 GPUs": states / GPUS,
        "weights of two blocks and the embedding, gathered in bfloat16": 2 * (2 * block + table),
        f"stored for the backward pass, {local} tokens, nothing recomputed": rope.stored - rope.logits,
        f"keys and values of {LONG} tokens and the keys once more, rotated, cached in {MODEL.num_layers} layers": (
            round(gathered * (1 + rotated / 2) * MODEL.num_layers)
        ),
        "logits in float32, their softmax and gradient": 3 * rope.logits,
    }
    rate = {n: TITAN[n] * _llama_flops(n) for n in TITAN}
    flops = {n: step_flops(MODEL, extrapolated(MODEL, "rope", n, torch.bfloat16), n) / n for n in (SHORT, LONG)}
    speed = {n: GPUS * rate[n] / flops[n] for n in rate}
    hours = {
        f"all {TOKENS / 1e9:g} B tokens at {LONG}": TOKENS / speed[LONG] / 3600,
        f"{(TOKENS - LAST) / 1e9:g} B at {SHORT}, then {LAST / 1e9:g} B at {LONG}": (
            (TOKENS - LAST) / speed[SHORT] + LAST / speed[LONG]
        )
        / 3600,
        f"all at {SHORT}, tested to {LONG}": TOKENS / speed[SHORT] / 3600,
    }
    return {
        "parameters": rope.parameters,
        "memory": memory,
        "overhead": overhead,
        "kept": {name: counted.stored / local for name, counted in counts.items()},
        "flops_per_token": flops,
        "rate": rate,
        "tokens_per_second": speed,
        "hours": hours,
        "gathered": gathered,
        "muon_flops": MODEL.num_layers * sum(map(muon_flops, *zip(*MATRICES, strict=True))),
        "weights_moved": 2 * 2 * rope.parameters + 4 * rope.parameters,
    }


def muon_flops(rows: int, columns: int) -> int:
    """Of one matrix: five Newton-Schulz steps a X + (b A + c A A) X with A = X X', X the wide way round."""
    short, long = sorted((rows, columns))
    return 5 * (2 * 2 * short**2 * long + 2 * short**3)


def _llama_flops(tokens: int) -> float:
    """Of a training step, a token."""
    return 6 * LLAMA["parameters"] + 3 * attention_flops(LLAMA["layers"], LLAMA["width"], tokens) / tokens


# -------------------------------------------------------------------- written


def tables(plan: dict, here: dict) -> dict[str, str]:
    """Marker in benchmarks/plan.md -> Markdown."""
    memory = [["on each GPU", "GiB"], *([name, f"{size / 2**30:.2f}"] for name, size in plan["memory"].items())]
    total = sum(plan["memory"].values())
    memory.append(["**together**", f"**{total / 2**30:.1f}**"])
    worst = total + (plan["overhead"] - 1) * sum(plan["memory"].values())
    memory.append(
        [
            f"if all of it peaks as far above its count as small models do here ({plan['overhead']:.2f})",
            f"{worst / 2**30:.1f}",
        ]
    )
    runs = len(ENCODINGS) * SEEDS
    hours = [["design", "hours a run", f"days for {len(ENCODINGS)} encodings x {SEEDS} seeds"]]
    hours += [[name, f"{h:.1f}", f"{h * runs / 24:.1f}"] for name, h in plan["hours"].items()]
    speed = [["tokens a sequence", "operations a token", "operations a second and GPU", "tokens a second, 64 GPUs"]]
    speed += [
        [
            str(n),
            f"{float(plan['flops_per_token'][n]) / 1e9:.1f} G",
            f"{plan['rate'][n] / 1e12:.0f} T",
            f"{plan['tokens_per_second'][n] / 1e3:.0f} k",
        ]
        for n in plan["rate"]
    ]
    checks = [["layers", "tokens", "counted, MiB", "measured peak, MiB", "ratio"]]
    checks += [
        [
            str(r["layers"]),
            str(r["tokens"]),
            f"{r['counted'] / 2**20:.0f}",
            f"{r['peak'] / 2**20:.0f}",
            f"{r['peak'] / r['counted']:.2f}",
        ]
        for r in here["memory"]
    ]
    rates = [["tokens", "attention's share of the operations", "step, s", "rate over that of plain matrix products"]]
    rates += [
        [
            str(r["tokens"]),
            f"{100 * r['attention']:.0f} %",
            f"{r['seconds']:.2f}",
            f"{r['flops'] / r['seconds'] / r['matmul']:.2f}",
        ]
        for r in here["time"]
    ]
    encodings = [
        ["encoding", "stored per token, MB (1 B model, counted)", "step over none (small model, 4096 tokens, this CPU)"]
    ]
    encodings += [[f"`{n}`", f"{plan['kept'][n] / 1e6:.3f}", f"{here['encodings'][n]:.2f}"] for n in ENCODINGS]
    found = {"memory": memory, "hours": hours, "speed": speed, "checks": checks, "rates": rates, "encodings": encodings}
    return {name: _markdown(rows) for name, rows in found.items()}


def _markdown(rows: list[list[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in (rows[0], ["---"] * len(rows[0]), *rows[1:]))


def drawn(page: str, made: dict[str, str]) -> str:
    """The page with the tables between its markers."""
    for name, table in made.items():
        begin, end = f"<!-- {name}: written by benchmarks/plan.py -->", f"<!-- end of {name} -->"
        head, rest = page.split(begin)
        page = f"{head}{begin}\n\n{table}\n\n{end}{rest.split(end)[1]}"
    return page


def main(*arguments: str) -> None:
    here = measured() if arguments == ("measure",) else json.loads(KEPT.read_text(encoding="utf-8"))["measured"]
    plan = planned(here)
    KEPT.write_text(
        json.dumps({"model": asdict(MODEL), "measured": here, "plan": plan}, indent=1) + "\n", encoding="utf-8"
    )
    PAGE.write_text(drawn(PAGE.read_text(encoding="utf-8"), tables(plan, here)), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
