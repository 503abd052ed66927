# SPDX-License-Identifier: Apache-2.0
"""A sequence that is spread over several processes: its parts, and how they come together.

`Positions.shard` says which tokens a process has; `posenc.attention` and the models take such positions.
"""

from typing import TYPE_CHECKING, Any

from posenc.distributed.shards import LAYOUTS, Shard

if TYPE_CHECKING:
    from posenc.distributed.exchange import gather, shard

__all__ = ["LAYOUTS", "Shard", "gather", "shard"]


def __getattr__(name: str) -> Any:
    # positions know shards, and the exchange knows positions
    if name not in ("gather", "shard"):
        raise AttributeError(f"module 'posenc.distributed' has no attribute {name!r}")
    from posenc.distributed import exchange

    return getattr(exchange, name)
