# SPDX-License-Identifier: Apache-2.0
"""A small GPT, trained with any encoding, reads up to four times as far as it was trained.

    python examples/train_gpt.py alibi
    python examples/train_gpt.py rope+alibi 1000

The text is the language reference of Python's standard library, as bytes; 1000 is the number of steps. Printed are the
training loss in nats per byte, then the loss on held-out text at the training length, twice and four times that: of the
last 32 bytes of the same passages each time, so only the text before them grows. Then the model continues a prompt.
`posenc list` names the encodings; for one that is undefined past the training length, the reason is printed.
"""

import sys
from pydoc_data.topics import topics

import torch
from torch.nn import functional as F

import posenc

LENGTH, SCORED = 64, 32


def passages(text: torch.Tensor, count: int, length: int) -> torch.Tensor:
    """(count, length + 1), which end at random positions, the same ones for every length."""
    return text[torch.randint(4 * LENGTH, len(text), (count, 1)) + torch.arange(-length, 1)].long()


def loss(model: posenc.Transformer, tokens: torch.Tensor, scored: int) -> torch.Tensor:
    """Nats per byte, over the last `scored` bytes of each passage."""
    return F.cross_entropy(model(tokens[:, :-1])[:, -scored:].flatten(0, 1), tokens[:, -scored:].flatten())


def main(encoding: str = "rope", steps: int | str = 300, seed: int = 0) -> dict[int, float]:
    """Length -> loss on held-out text."""
    torch.manual_seed(seed)
    text = torch.tensor(list("\n".join(topics.values()).encode()), dtype=torch.uint8)
    train, held_out = text.tensor_split([len(text) * 9 // 10])
    shape = {"dim": 96, "num_heads": 4, "num_layers": 2}
    positions = posenc.create(encoding, **shape, max_positions=LENGTH, causal=True)
    model, found = posenc.Transformer(posenc.TransformerConfig(256, **shape), positions), {}
    optimizer = torch.optim.AdamW(posenc.parameter_groups(model, lr=3e-3))
    for step in range(int(steps)):
        now = loss(model, passages(train, 32, LENGTH), LENGTH)
        optimizer.zero_grad()
        now.backward()
        optimizer.step()
        if step % 50 == 0:
            print(f"step {step:4}: {now.item():.2f}")
    model.eval().requires_grad_(False)
    for length in (LENGTH, 2 * LENGTH, 4 * LENGTH):
        torch.manual_seed(seed)
        try:
            found[length] = loss(model, passages(held_out, 128, length), SCORED).item()
            print(f"held out, {length} bytes: {found[length]:.2f}")
        except posenc.InputError as error:
            print(f"held out, {length} bytes: {error}")
    answer = torch.tensor([list(b"The following statement")])
    while answer.shape[1] < 160:
        answer = torch.cat((answer, (model(answer[:, -LENGTH:])[:, -1] / 0.7).softmax(-1).multinomial(1)), 1)
    print(bytes(answer[0].tolist()).decode(errors="replace"))
    return found


if __name__ == "__main__":
    main(*sys.argv[1:])
