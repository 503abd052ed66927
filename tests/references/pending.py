"""Faults that are known, and mended elsewhere at this moment: a test of one fails, and says so as soon as it does not."""

import pytest

MEMO = pytest.mark.xfail(
    strict=True, reason="what a pass remembers rides in Positions (review 5.1), until it leaves them"
)
OF_SHARDS = pytest.mark.xfail(strict=True, reason="visible_counts of a shard forget a branch's limit")
PENDING = {"calls_do_not_remember"}
"""Checks that fail because of the first."""


def pending(name, check):
    """The marks of a check on an encoding."""
    if check in PENDING:
        return [pytest.mark.xfail(strict=False, reason=MEMO.kwargs["reason"])]
    if check == "no_graph_is_kept" and name.startswith("floater"):
        return [MEMO]
    if check == "shards_are_whole" and "streaming" in name and "log_n" in name:
        return [OF_SHARDS]
    return []
