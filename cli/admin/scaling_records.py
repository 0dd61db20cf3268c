"""Reads and writes the topics of scaling for operators: decisions, overrides, history."""

import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from typing import Final

import msgspec

from autoscaler.policy.scaling_decision import ScalingDecision
from cli.exits import CommandError, NotFoundError
from topics.clients.producer import RecordProducer
from topics.errors import KafkaUnavailableError
from topics.records.catalogue import SCALING, SCALING_DECISIONS
from topics.records.codec import decode_value, encode, kind_headers, kind_of
from topics.records.kinds import KINDS
from topics.records.received_record import ReceivedRecord
from topics.records.scaling import (
    OVERRIDE_KEY,
    AutoscalerEpoch,
    DecisionEntry,
    PoolScaling,
    ScalingOverride,
)
from topics.settings import KafkaSettings
from topics.tail_readers.offset_ranges import OffsetRange, OffsetRangeReader
from topics.tail_readers.topic_tail_reader import TopicTailReader

_CLIENT: Final = "millrace-scale"
_READ_S_MAX: Final = 30.0
_SEND_S_MAX: Final = 30.0
_SKEW_S_MAX: Final = 30.0  # from a decision until its append, clocks that differ included
_WINDOWS_S: Final = (3_600.0, 86_400.0)  # searched for an old decision before the whole topic


class NoDecisionError(NotFoundError):
    """The log has no decision about this pool."""


class UnreadableDecisionError(CommandError):
    """The decision of this record is not one of this release."""


@dataclass(slots=True)
class ScalingRecords:
    """The newest records of the topic `scaling`."""

    epoch: AutoscalerEpoch | None = None
    pools: dict[str, PoolScaling] = field(default_factory=dict)
    overrides: dict[str, ScalingOverride] = field(default_factory=dict)

    def add(self, records: Iterable[ReceivedRecord]) -> None:
        """Apply records in their order. One of a lower epoch than a pool has is left out.

        Raises RecordUnreadableError, SchemaTooNewError.
        """
        for record in records:
            key = (record.key or b"").decode(errors="replace")
            if record.value is None:
                self._remove(key)
                continue
            kind = kind_of(record.headers)
            if kind == KINDS[PoolScaling]:
                found = decode_value(PoolScaling, record.value)
                known = self.pools.get(found.pool)
                if known is None or found.epoch >= known.epoch:
                    self.pools[found.pool] = found
            elif kind == KINDS[ScalingOverride]:
                override = decode_value(ScalingOverride, record.value)
                self.overrides[override.pool] = override
            elif kind == KINDS[AutoscalerEpoch]:
                self.epoch = decode_value(AutoscalerEpoch, record.value)

    def _remove(self, key: str) -> None:
        if key.startswith(OVERRIDE_KEY):
            self.overrides.pop(key.removeprefix(OVERRIDE_KEY), None)
        else:
            self.pools.pop(key, None)

    def pool(self, name: str) -> PoolScaling:
        """Return the newest record of a pool. Raises NoDecisionError."""
        found = self.pools.get(name)
        if found is None:
            known = ", ".join(sorted(self.pools)) or "none"
            raise NoDecisionError(
                f"The log has no decision about the pool {name!r}; it has: {known}."
            )
        return found

    def override(self, name: str, now_s: float) -> ScalingOverride | None:
        """Return the override that is in force for a pool."""
        found = self.overrides.get(name)
        return found if found is not None and found.is_in_force(now_s) else None


def read_scaling(kafka: KafkaSettings) -> ScalingRecords:
    """Return the topic `scaling` up to its end. Raises KafkaUnavailableError."""
    log = ScalingRecords()
    with closing(TopicTailReader(kafka, SCALING, client_id=_CLIENT)) as reader:
        for records in reader.iter_to_end(_READ_S_MAX):
            log.add(records)
    return log


def decision_of(data: bytes, pool: str) -> ScalingDecision:
    """Return a decision. Raises NoDecisionError if there is none, UnreadableDecisionError."""
    if not data:
        raise NoDecisionError(f"The pool {pool!r} is paused and has no decision.")
    try:
        return msgspec.json.decode(data, type=ScalingDecision)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raise UnreadableDecisionError from None


def read_history(
    kafka: KafkaSettings, pool: str, since_s: float, limit: int
) -> list[DecisionEntry]:
    """Return the last `limit` entries about a pool since a time. Raises KafkaUnavailableError."""
    found: deque[DecisionEntry] = deque(maxlen=limit)
    with closing(_history_reader(kafka)) as reader:
        span = reader.range_since(0, int(max(0.0, since_s - _SKEW_S_MAX) * 1000))
        found.extend(one for one in _entries(reader, span, pool) if one.at_s >= since_s)
    return list(found)


def read_entry_at(kafka: KafkaSettings, pool: str, at_s: float) -> DecisionEntry:
    """Return the decision that was in force at a time. Raises NoDecisionError."""
    with closing(_history_reader(kafka)) as reader:
        end = reader.range_since(0, int((at_s + _SKEW_S_MAX) * 1000)).first
        for window_s in (*_WINDOWS_S, at_s):
            first = reader.range_since(0, int(max(0.0, at_s - window_s) * 1000)).first
            span = OffsetRange(0, min(first, end), end)
            entries = (one for one in _entries(reader, span, pool) if one.at_s <= at_s)
            if last := deque(entries, maxlen=1):
                return last[0]
    raise NoDecisionError(f"The log has no decision about the pool {pool!r} at that time.")


def write_override(kafka: KafkaSettings, override: ScalingOverride) -> None:
    """Write an override and wait until it is acknowledged. Raises DeliveryError."""
    producer = RecordProducer(kafka, client_id=_CLIENT)
    try:
        producer.send(
            SCALING.name,
            encode(override),
            partition=0,
            key=f"{OVERRIDE_KEY}{override.pool}".encode(),
            headers=kind_headers(ScalingOverride),
        )
        producer.flush(_SEND_S_MAX)
    finally:
        producer.close()


def _history_reader(kafka: KafkaSettings) -> OffsetRangeReader:
    return OffsetRangeReader(kafka, SCALING_DECISIONS, client_id=_CLIENT)


def _entries(reader: OffsetRangeReader, span: OffsetRange, pool: str) -> Iterator[DecisionEntry]:
    """Yield the entries of a range about a pool. Raises KafkaUnavailableError."""
    if span.first >= span.end:
        return
    key = pool.encode()
    for records in reader.read([span], time.monotonic() + _READ_S_MAX):
        for record in records:
            if record.key == key and record.value is not None:
                kind_of(record.headers)
                yield decode_value(DecisionEntry, record.value)
    if not reader.has_read_all([span]):
        raise KafkaUnavailableError("the end of a topic was not reached in time")
