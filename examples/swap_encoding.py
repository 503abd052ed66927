# SPDX-License-Identifier: Apache-2.0
"""A Llama of transformers with another encoding instead of its RoPE: any that acts in attention.

    python examples/swap_encoding.py alibi
    python examples/swap_encoding.py rope/none 500

The model's rotation is disabled, and its attention is `posenc.attention`, registered with transformers. Encodings become
parts of the layers, trained and saved with them; with "rope", the logits do not change. The second argument is the number
of training steps on the language reference of Python's standard library. Then two prompts are continued in a batch, padded
on the left and with a cache: each token is the most likely one in a pass over that text alone.
"""

import sys
from pydoc_data.topics import topics

import torch
from transformers import AttentionInterface, AttentionMaskInterface, LlamaConfig, LlamaForCausalLM

import posenc

SIZES = {"hidden_size": 96, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4}


def attend(layer, q, k, v, mask, dropout=0.0, **others):
    """The function that transformers calls in each layer. mask: (batch, keys), False where there is padding; None: there is none."""
    mask = torch.ones(len(k), k.shape[2], device=k.device) if mask is None else mask
    at = posenc.Positions.from_mask(mask, q.shape[2], causal=True)
    return posenc.attention(q, k, v, layer.encoding, at, layer=layer.layer_idx, dropout_p=dropout).transpose(1, 2), None


def swap(model, name):
    """Replace the encoding of a Llama, in place."""
    c = model.config
    shape = {"dim": c.hidden_size, "num_heads": c.num_attention_heads, "num_kv_heads": c.num_key_value_heads}
    shape |= {"head_dim": c.head_dim, "max_positions": c.max_position_embeddings, "causal": True}
    for layer in model.model.layers:
        layer.self_attn.encoding = posenc.create(name, **shape)
        assert not {"embed", "augment"} & set(layer.self_attn.encoding.sites()), f"{name} acts before the first layer"
    model.model.rotary_emb.inv_freq.zero_()  # angles of 0: no rotation
    AttentionInterface.register("example", attend)
    AttentionMaskInterface.register("example", lambda attention_mask=None, **others: attention_mask)
    model.set_attn_implementation("example")


def main(name="alibi", steps=150, seed=0):
    torch.manual_seed(seed)
    model = LlamaForCausalLM(LlamaConfig(**SIZES, vocab_size=256, max_position_embeddings=64))
    swap(model, name)
    text, optimizer = torch.tensor(list("".join(topics.values()).encode())), torch.optim.AdamW(model.parameters(), 3e-3)
    for _ in range(int(steps)):
        tokens = text[torch.randint(len(text) - 64, (32, 1)) + torch.arange(64)]
        loss = model(tokens, labels=tokens).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"{name}: {loss.item():.2f} nats a byte after {steps} steps; log 256 = 5.55 before")
    batch = torch.tensor([list(prompt.rjust(16, b"\0")) for prompt in (b"The", b"An expression is")])
    written = model.generate(batch, attention_mask=(batch > 0).long(), max_new_tokens=40, do_sample=False)
    same = [torch.equal(model(row[None, row > 0]).logits[0, -41:-1].argmax(-1), row[-40:]) for row in written]
    print("as a pass over each text alone:", same, *(bytes(row[row > 0].tolist()) for row in written), sep="\n  ")
    return loss.item(), same


if __name__ == "__main__":
    main(*sys.argv[1:])
