"""Whether a record that waits long is requeued: appended again to the end of its topic (ADR 17)."""

from collections.abc import Set as AbstractSet
from typing import Final

PIN_GAIN: Final = {"bulk": 4.0, "interactive": 1.0}
"""By class: bytes of finished records per byte that is rewritten to have them committed.

After a crash finished records are read again (ADR 17). Bulk records are only read: their items have
rows. A durable call is executed again if Postgres is unavailable. Their values are not buffered.
"""

RECORD_OVERHEAD_BYTES: Final = 2048
"""Assumed memory of a buffered record besides its value: its headers and Faust's objects."""

POOL_SEARCH_S: Final = 600.0
"""How long after a pool's last arrival other records are requeued to reach more for that pool.

Long enough to read intake's largest read-ahead once, at a hold limit of 30 s (ADR 17).
"""


def should_requeue(*, age_s: float, limit_s: float, pins: bool, crowds: bool) -> bool:
    """Whether the record's undispatched items are requeued.

    `pins`: later records of its partition are finished but cannot be committed, and a crash would
    repeat more than requeueing rewrites, see `PIN_GAIN`.
    `crowds`: the queues are full and another pool has credit for items that do not fit in.
    Otherwise requeueing gains nothing: with a pool unavailable for a day, the topic must not grow
    by everything that is buffered again and again.
    """
    return age_s >= limit_s and (pins or crowds)


def has_other_pool(pools: AbstractSet[str], pool: str) -> bool:
    """Whether `pools` contains a pool other than `pool`."""
    return len(pools) > (pool in pools)
