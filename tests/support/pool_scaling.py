"""Builds the records by which the autoscaler tells of pools."""

from typing import Any

from topics.records.codec import encode, kind_headers
from topics.records.received_record import ReceivedRecord
from topics.records.records import Record
from topics.records.scaling import PoolScaling


def pool_scaling(pool: str = "p", **fields: Any) -> PoolScaling:
    """Return the record of a pool at zero that nobody has woken: a start takes 20 s, a wake 2 s."""
    given: dict[str, Any] = {
        "epoch": 1,
        "sequence": 1,
        "at_s": 0.0,
        "mode": "active",
        "actuator": "embedded",
        "target": 0,
        "kinds": [],
        "removals": [],
        "awake": [],
        "standby": 0,
        "start_s": 20.0,
        "wake_s": 2.0,
    }
    return PoolScaling(pool=pool, **(given | fields))


def scaling_record(record: Record | None, key: str = "p") -> ReceivedRecord:
    """Return a record as it is read from `scaling`; None: a tombstone."""
    if record is None:
        return ReceivedRecord("scaling", 0, 0, key.encode(), [], None, 0)
    headers = kind_headers(type(record))
    return ReceivedRecord("scaling", 0, 0, key.encode(), headers, encode(record), 0)
