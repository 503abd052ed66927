# SPDX-License-Identifier: Apache-2.0
# %% [markdown]
# # Longer context, step by step
#
# A model with RoPE is trained on short texts, breaks on longer ones, and is extended without training. Here it is a
# small Llama that this notebook trains within seconds. For your own model, use
# `model, tokenizer = posenc.load("path/to/model")` and its tokens, and start at the second step.

# %%
from pydoc_data.topics import topics

import matplotlib.pyplot as plt
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import posenc
from posenc import frequencies
from posenc.pretrained import loss_by_position

LENGTH, FACTOR = 64, 4
STEPS = 300

# %% [markdown]
# ## 1. A model that was trained on 64 bytes at a time

# %%
torch.manual_seed(0)
text = torch.tensor(list("\n".join(topics.values()).encode()))
train, held_out = text.tensor_split([len(text) * 9 // 10])
sizes = {"hidden_size": 96, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 2}
model = LlamaForCausalLM(LlamaConfig(**sizes, vocab_size=256, max_position_embeddings=LENGTH))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
for _ in range(STEPS):
    tokens = train[torch.randint(len(train) - LENGTH, (32, 1)) + torch.arange(LENGTH)]
    loss = model(tokens, labels=tokens).loss
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
model.eval()
print(f"{loss.item():.2f} nats a byte at the end of training")

# %% [markdown]
# ## 2. Where it breaks
#
# The loss of each byte of 64 held-out texts that are four times as long, by position of the byte.

# %%
ids = held_out[: len(held_out) // (FACTOR * LENGTH) * FACTOR * LENGTH].view(-1, FACTOR * LENGTH)[:64]
losses = {"none": loss_by_position(model, ids)}


def draw(names):
    """Loss by position: the mean over texts and over 16 neighbours."""
    _, ax = plt.subplots(figsize=(7, 4), layout="constrained")
    for name in names:
        ax.plot(torch.arange(8, FACTOR * LENGTH, 16), losses[name].unflatten(1, (-1, 16)).nanmean((0, 2)), label=name)
    ax.axvline(LENGTH, color="grey", linestyle="--")
    ax.set(xlabel="position", ylabel="nats a byte")
    ax.legend()
    plt.show()


draw(losses)

# %% [markdown]
# ## 3. The reason, and the effect of a schedule
#
# RoPE rotates each pair of channels at a different speed. Left: the part of a turn that each pair made in training (grey)
# and makes in the longer text. If a line is above the grey, the pair reaches angles that did not occur in training.
# Right: the cost, since neighbours are closer together. Interpolation ("linear") leaves every pair within the grey and
# compresses all of them; NTK and YaRN do not change the fast pairs, which distinguish neighbours.

# %%
plain = frequencies.default(48)
schedules = {
    "default": plain,
    "linear": frequencies.linear(48, factor=FACTOR),
    "ntk": frequencies.ntk(48, factor=FACTOR),
    "yarn": frequencies.yarn(48, factor=FACTOR, original_max_positions=LENGTH),
}
_, (left, right) = plt.subplots(1, 2, figsize=(12, 4), layout="constrained")
for name, schedule in schedules.items():
    left.plot((FACTOR * LENGTH * schedule.inv_freq / (2 * torch.pi)).clamp(max=1), label=name)
    right.plot(plain.inv_freq / schedule.inv_freq, label=name)
left.fill_between(
    range(24), (LENGTH * plain.inv_freq / (2 * torch.pi)).clamp(max=1), color="lightgrey", label="in training"
)
left.set(xlabel="pair", ylabel="part of a turn")
right.set(xlabel="pair", ylabel="times nearer than in training")
left.legend()
plt.show()

# %% [markdown]
# ## 4. Extend
#
# One call extends the model in place, and reports what it changed and what to expect. Each call replaces the one before,
# and `posenc.restore` restores the model bit for bit. ReRoPE, the last one, changes no frequency: it clamps distances to
# its window.

# %%
for method in ("linear", "ntk", "yarn", "rerope:window=32"):
    report = posenc.extend(model, method, target_length=FACTOR * LENGTH)
    losses[method] = loss_by_position(model, ids)
print(report)
posenc.restore(model)
print("restored, to the bit:", torch.equal(losses["none"][:, 1:], loss_by_position(model, ids)[:, 1:]))
draw(losses)

# %% [markdown]
# ## 5. Compare with truncated input
#
# A loss below that of the unmodified model means little, because that model is broken there. The baseline is the same
# model on truncated input: the last 64 bytes (windows of 64 that advance by 32). A method is worth its cost only where
# it is below that line.

# %%
losses["cut off"] = loss_by_position(model, ids, window=LENGTH)
print(f"{'':18} {'trained length':>15} {'past it':>9} {'against cut off':>17}")
for name, loss in losses.items():
    gap = (loss - losses["cut off"])[:, LENGTH:].mean(1)
    error = 1.96 * gap.std() / len(gap) ** 0.5
    within, past = loss[:, 1:LENGTH].mean(), loss[:, LENGTH:].mean()
    print(f"{name:18} {within:15.2f} {past:9.2f} {gap.mean():+10.2f} ± {error:.2f}")

# %% [markdown]
# ## 6. Costs
#
# The column "trained length" above is one cost: a schedule that changes frequencies changes short texts, too, and a map
# does not, up to its window. The cache is the other, as it grows with every token; the report printed in step 4 has
# both. From the shell the same steps are `posenc doctor`, `posenc extend --text` and `posenc eval`.
