# SPDX-License-Identifier: Apache-2.0
"""The exchange between processes that share a sequence: parts of tensors, and how they come together.

`Positions.shard` says which tokens a process has; `posenc.attention` and the models take such positions.
"""

from posenc.distributed.exchange import gather, shard
from posenc.positions.shards import LAYOUTS, Shard

__all__ = ["LAYOUTS", "Shard", "gather", "shard"]
