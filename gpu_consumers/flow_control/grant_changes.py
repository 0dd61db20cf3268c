"""Whether batchers need new grants before a busy replica repeats them.

All batchers of a class read the grants of all replicas, so a replica of bulk items sends few of
them (ADR 108). Pure.
"""

from collections.abc import Mapping
from typing import Final

from msgspec.structs import replace

from topics.records.records import ReplicaGrants

BUSY_REPEAT_S: Final = 0.6
"""Longest interval of grants for bulk items while the replica is busy. After a lost record it is
still below 1.5 s, the age from which batchers prefer other replicas."""

CHANGE_DIVISOR: Final = 8
"""A grant has changed by enough from an eighth of the limit on. It is less than a quarter of the
concurrency, the credit with which a batcher prefers a replica."""


def grants_have_changed(
    before: ReplicaGrants, newest: ReplicaGrants, *, arrived: Mapping[str, int], limit: int
) -> bool:
    """Return whether `newest` is to be sent now; both are of one replica.

    It is after a change of its state, for a batcher that is new, for one whose items have all
    arrived (`arrived`: cumulative items of each batcher) and that may send more, and when a grant
    has grown or fallen by 1/`CHANGE_DIVISOR` of `limit`.
    """
    if replace(before, granted={}) != replace(newest, granted={}):
        return True
    step = max(1, limit // CHANGE_DIVISOR)
    for batcher_id, granted in newest.granted.items():
        known = before.granted.get(batcher_id)
        if known is None or abs(granted - known) >= step:
            return True
        if granted > known <= arrived.get(batcher_id, 0):
            return True
    return False
