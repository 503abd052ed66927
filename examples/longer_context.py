# SPDX-License-Identifier: Apache-2.0
"""A model trained to 8192 tokens reads a text three times as long, under methods that need no training.

    python examples/longer_context.py moby-dick.txt [results.json [auto | bfloat16 | float32]]

The baseline is not "none", the unmodified model, which breaks past the trained length, but "cut off": the same model on
truncated input, between half and all of that length before each token. Results are written to results.json method by
method; the same command resumes.
"""

import json
import sys
from pathlib import Path

import torch
from rich.progress import track

import posenc
from posenc.lab.statistics import estimate
from posenc.pretrained import loss_by_position, model_structure

ARMS = (
    "cut off", "none", "linear:factor=2", "linear:factor=4", "ntk:factor=2", "ntk:factor=4", "ntk_mixed:factor=4",
    "yarn:factor=2", "yarn:factor=4", "llama3:factor=4", "log_n", "ntk:factor=4+log_n", "rerope",
    "self_extend:window=1024:group=8", "dual_chunk",
)  # fmt: skip
BLOCK = 512  # tokens whose mean loss is one observation


def table(results: dict) -> str:
    """Markdown: nats per token by stretches of the trained length; compared with "cut off", with a 95 % interval, past it; and
    up to which token the loss is that of the unmodified model."""
    arms = {name: torch.tensor(arm["loss"]) for name, arm in results["arms"].items()}
    stretch = results["trained"] // BLOCK
    starts = range(0, len(arms["none"]), stretch)
    titles = [f"{start * BLOCK} to {(start + stretch) * BLOCK}" for start in starts]
    rows = [["method", *titles, "against cut off", "as before up to"], ["---", *["---:"] * (len(titles) + 2)]]
    for name, loss in arms.items():
        gap = estimate((loss - arms["cut off"])[None, stretch:])
        same = ((loss - arms["none"]).abs() < 0.01).cumprod(0).sum() * BLOCK
        means = [f"{part.mean():.3f}" for part in loss.split(stretch)]
        rows.append([name, *means, f"{gap.mean:+.3f} ± {gap.high - gap.mean:.3f}", f"{same}"])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def main(source: str, kept: str = "longer-context.json", dtype="auto", model="demo", stretches: int = 3) -> None:
    """Measure the arms that the file `kept` does not hold yet, on `stretches` times the trained length."""
    (lm, tokenizer), path = posenc.load(model, dtype=dtype), Path(kept)
    trained, computed = model_structure(lm).trained_length, str(lm.dtype)
    ids = torch.tensor(tokenizer(Path(source).read_text(encoding="utf-8"))["input_ids"][: stretches * trained])
    results = json.loads(path.read_text()) if path.exists() else {"trained": trained, "dtype": computed, "arms": {}}
    for name in track([name for name in ARMS if name not in results["arms"]], "arms"):
        if name != "cut off":  # each method replaces the one before
            posenc.extend(lm, name, target_length=None if "factor" in name else len(ids))
        loss = loss_by_position(lm, ids, chunk=2048, window=trained if name == "cut off" else None)
        results["arms"][name] = {"loss": [round(block.nanmean().item(), 5) for block in loss.split(BLOCK)]}
        path.write_text(json.dumps(results, indent=1))
    print(table(results))


if __name__ == "__main__":
    main(*sys.argv[1:])
