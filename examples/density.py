# SPDX-License-Identifier: Apache-2.0
"""How close together may positions stand before a model loses them? The stretch of interpolation, the length kept.

    python examples/density.py [FOLDER [MODEL]]

Texts stay within the trained length, so that nothing is new but the density: positions are s times as close (PI), or only
those pairs of channels are slowed that turn slowly (NTK). Told is the loss on running text, in nats a token
above the model as it is, and how many of the next tokens it still predicts. FOLDER keeps what has been measured, its
results.json and report.html: the same command goes on.
"""

import sys

import posenc
from posenc.report.evaluate import page

FACTORS = (1.5, 2, 4, 8, 16)
KINDS = {"PI": "linear:factor={}", "PI + resonance": "linear:factor={}+resonance", "NTK": "ntk:factor={}"}


def table(results: dict) -> str:
    """Markdown: a row for each stretch; rise of the loss with its 95 % interval, and accuracy, under each kind."""
    arms = {arm["method"]: arm for arm in results["tasks"][0]["methods"]}
    accuracy = {name: f"{100 * arm['cells'][0]['accuracy']['mean']:.1f} %" for name, arm in arms.items()}
    rows = [["stretch", *KINDS], ["---:", *["---:"] * len(KINDS)], ["1", *[f"0 ({accuracy['none']})"] * len(KINDS)]]
    for factor in FACTORS:
        rows.append([f"{factor:g}"])
        for kind in KINDS.values():
            rise = arms[kind.format(factor)]["by_length"][0]["against_none"]["loss"]
            rows[-1].append(
                f"{rise['mean']:+.3f} ± {rise['high'] - rise['mean']:.3f} ({accuracy[kind.format(factor)]})"
            )
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def main(folder: str = "density", model: str = "demo", length: int = 1024, samples: int = 8) -> None:
    """Measure what the folder does not hold yet."""
    lm, tokenizer = posenc.load(model)
    methods = [kind.format(factor) for kind in KINDS.values() for factor in FACTORS]
    chosen = {"tasks": ["perplexity"], "attention": False, "methods": methods, "lengths": [length], "samples": samples}
    results = posenc.evaluate(lm, tokenizer, **chosen, name=model, directory=folder, render=page)
    print(table(results))


if __name__ == "__main__":
    main(*sys.argv[1:])
