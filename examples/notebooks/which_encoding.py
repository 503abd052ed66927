# SPDX-License-Identifier: Apache-2.0
# %% [markdown]
# # Which encoding for my model?
#
# Three questions, in the order in which they exclude encodings: what it does not support, how it affects attention, and
# how well models predict *your* text with it. The last one is measured, here on a small scale.

# %%
import matplotlib.pyplot as plt

import posenc
from posenc.analysis import plots, scores
from posenc.lab import compare, data, text
from posenc.lab.engines import InProcess

NAMES = ("sinusoidal", "learned", "rope", "alibi")
STEPS = 120

# %% [markdown]
# ## What it does not support
#
# Every encoding declares this. *Last position*: the end of its table. *Shift invariant*: nothing changes when all
# positions move by the same amount, so a model reads the same words in the same way anywhere. *Caches*: if codes depend
# on the final length, keys cannot be cached. *Claimed*: the claim of its paper for texts longer than in training, which
# the last section tests.

# %%
print(f"{'':12} {'acts on':10} {'last position':14} {'shift invariant':16} {'caches':7} claimed")
for name in NAMES:
    encoding = posenc.create(name, dim=64, num_heads=4, max_positions=512, causal=True)
    last = "any" if encoding.max_positions is None else encoding.max_positions - 1
    caches = "no" if encoding.needs_length else "yes"
    invariant = "yes" if encoding.shift_invariant else "no"
    acts = ", ".join(encoding.sites())
    print(f"{name:12} {acts:10} {last!s:14} {invariant:16} {caches:7} {encoding.extrapolates}")

# %% [markdown]
# ## How it affects attention
#
# The effect of position on the score of two tokens, by their distance, before any training: for two identical tokens,
# and for two unrelated ones. ALiBi lowers both scores equally; RoPE lowers the score of identical tokens, more with
# distance; a sinusoidal code is added to the words and so mixes with them.

# %%
shown = ("sinusoidal", "rope", "alibi")
_, axes = plt.subplots(1, len(shown), figsize=(13, 3.5), layout="constrained")
for name, ax in zip(shown, axes, strict=True):
    plots.effective_scores(scores(name, 128), ax=ax)
    ax.set_title(name)
plt.show()

# %% [markdown]
# ## How well models predict text with it
#
# The same small Transformer is trained under each, on 32 bytes of Python's language reference at a time, and tested
# on texts up to eight times as long: always on the same bytes, so that only the text before them grows. For your text,
# pass its path to `data.load`.

# %%
settings = text.Settings(length=32, factors=(1, 2, 4, 8), steps=STEPS, dim=48, head_dim=None, targets=16)
comparison = compare.Comparison(NAMES, seeds=2, settings=settings)
results = compare.compare(comparison, data.load("pydoc"), "which-encoding", engine=InProcess())
print(*results["answer"], sep="\n")

# %%
_, (left, right) = plt.subplots(1, 2, figsize=(12, 4), layout="constrained")
for variant in results["variants"]:
    lengths, line = [at["length"] for at in variant["lengths"]], "-" if variant["trained"] else ":"
    left.plot(lengths, [at["loss"]["mean"] for at in variant["lengths"]], line, label=variant["name"])
    rise = [at["change"]["mean"] for at in variant["lengths"]]
    around = [at["change"]["high"] - at["change"]["mean"] for at in variant["lengths"]]
    right.errorbar(lengths, rise, around, linestyle=line, capsize=3, label=variant["name"])
for ax, what in ((left, "nats a byte"), (right, "nats above the trained length")):
    ax.set_xscale("log", base=2)
    ax.set(xlabel="bytes read", ylabel=what, xticks=lengths, xticklabels=lengths)
left.legend()
plt.show()

# %% [markdown]
# Left, the losses; the sentences above state which of their differences are significant on the same passages. Right, the
# rise of each past the trained length, with 95 % intervals. Dotted lines are RoPE's model with other frequencies and
# without retraining. Two trainings of models of this size decide little:
# `posenc compare --data book.txt` trains larger ones in as many processes as there are cores, and writes a report
# with every number.
