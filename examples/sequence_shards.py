# SPDX-License-Identifier: Apache-2.0
"""One training step on a text that several processes share, started by torchrun; the loss is that of one process.

torchrun --nproc-per-node 2 examples/sequence_shards.py
"""

import torch
import torch.distributed as dist

import posenc
from posenc.distributed import shard
from posenc.lab.transformer import Transformer, TransformerConfig


def main() -> float:
    torch.manual_seed(0)
    model = Transformer(TransformerConfig(vocab_size=64, dim=32), posenc.create("rope+alibi", head_dim=8, num_heads=4))
    text = torch.randint(64, (1, 129))
    tokens, labels = text[:, :-1], text[:, 1:]  # shifted before they are sharded
    positions = posenc.Positions.arange(128).shard(dist.get_rank(), dist.get_world_size(), layout="zigzag")
    logits = model(shard(tokens, positions), positions)
    loss = torch.nn.functional.cross_entropy(logits[0], shard(labels, positions)[0], reduction="sum") / labels.numel()
    loss.backward()
    for tensor in (loss.detach(), *(parameter.grad for parameter in model.parameters())):
        dist.all_reduce(tensor)
    return loss.item()


if __name__ == "__main__":
    dist.init_process_group("gloo")
    print(f"{main():.6f}")
    dist.destroy_process_group()
