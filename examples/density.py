# SPDX-License-Identifier: Apache-2.0
"""How close together may positions be? Interpolation by several factors, on texts within the context length.

    python examples/density.py [FOLDER [MODEL]]

The texts are within the context length, so only the density is new: positions are s times as close (PI), or only the slow
pairs of channels are slowed (NTK). The table has the rise of the loss on running text, in nats per token above the
unmodified model, and the accuracy of the next token. FOLDER has the results.json and report.html; the same command resumes.
"""

import sys

import posenc
from posenc.report.evaluate import files

FACTORS = (1.5, 2, 4, 8, 16)
KINDS = {"PI": "linear:factor={}", "PI + resonance": "linear:factor={}+resonance", "NTK": "ntk:factor={}"}


def table(results: dict) -> str:
    """Markdown: a row for each factor; rise of the loss with its 95 % interval, and accuracy, under each kind."""
    methods = {method["method"]: method for method in results["tasks"][0]["methods"]}
    accuracy = {name: f"{100 * method['cells'][0]['accuracy']['mean']:.1f} %" for name, method in methods.items()}
    rows = [["stretch", *KINDS], ["---:", *["---:"] * len(KINDS)], ["1", *[f"0 ({accuracy['none']})"] * len(KINDS)]]
    for factor in FACTORS:
        rows.append([f"{factor:g}"])
        for kind in KINDS.values():
            rise = methods[kind.format(factor)]["by_length"][0]["against_none"]["loss"]
            rows[-1].append(
                f"{rise['mean']:+.3f} ± {rise['high'] - rise['mean']:.3f} ({accuracy[kind.format(factor)]})"
            )
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def main(folder: str = "density", model: str = "demo", length: int = 1024, samples: int = 8) -> None:
    """Measure what is not in the folder yet."""
    lm, tokenizer = posenc.load(model)
    methods = [kind.format(factor) for kind in KINDS.values() for factor in FACTORS]
    chosen = {"tasks": ["perplexity"], "methods": methods, "lengths": [length], "samples": samples}
    results = posenc.evaluate(lm, tokenizer, **chosen, name=model, directory=folder, pages=files)
    print(table(results))


if __name__ == "__main__":
    main(*sys.argv[1:])
