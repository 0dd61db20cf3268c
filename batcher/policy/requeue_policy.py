"""Whether a record that waits long is handed back to the tail of its topic (ADR 17)."""

from collections.abc import Set as AbstractSet
from typing import Final

PIN_GAIN: Final = {"bulk": 4.0, "interactive": 1.0}
"""By class: bytes of finished records for each byte that is rewritten to have them committed.

A crash reads them again (ADR 17). They are only read, their rows are there; while Postgres is away
a durable call is executed again at once. Their values are not kept in memory until then.
"""

RECORD_OVERHEAD_BYTES: Final = 2048
"""Assumed size of a held record beside its value, in memory: its headers and Faust's own."""

POOL_SEARCH_S: Final = 600.0
"""Time after something of a pool came in which more of it is sought behind what waits for others.

Long enough to read the largest read-ahead of intake once, at a hold limit of 30 s (ADR 17).
"""


def should_requeue(*, age_s: float, limit_s: float, pins: bool, crowds: bool) -> bool:
    """Whether the record's undispatched items go to the tail again.

    `pins`: later records of its partition are finished, and a crash would repeat them: more than
    is rewritten, see `PIN_GAIN`.
    `crowds`: the queues are full and another pool has credit that its items would use.
    Without either, rewriting it gains nothing: a pool that is away for a day must not make the
    topic grow by everything that is held, again and again.
    """
    return age_s >= limit_s and (pins or crowds)


def has_other_pool(pools: AbstractSet[str], pool: str) -> bool:
    """Whether `pools` has another one than `pool`."""
    return len(pools) > (pool in pools)
