"""Writes the state of pools to `scaling` and the history of decisions to `scaling_decisions`."""

import logging
from typing import Final, Protocol

import msgspec
from msgspec.structs import replace

from autoscaler.policy.scaling_decision import (
    ScalingDecision,
    WarmPoolChange,
    decision_document,
    warm_pool_change,
)
from topics.clients.producer import PartitionSender
from topics.errors import DeliveryError
from topics.records.catalogue import SCALING, SCALING_DECISIONS, Topic
from topics.records.codec import Headers, encode, kind_headers
from topics.records.scaling import DecisionEntry, PoolScaling

STATE_S: Final = 5.0
"""Interval at which an unchanged state is written again."""

HISTORY_S: Final = 60.0
"""Interval at which an unchanged decision is written again."""

DOCUMENT_BYTES_MAX: Final = 256 * 1024
"""A larger decision is written without the list of its additions and removals."""

_LOG = logging.getLogger(__name__)


class ScalingSender(PartitionSender, Protocol):
    """The part of `RecordProducer` that the writer uses."""

    async def send_and_wait(
        self,
        topic: str,
        value: bytes | None,
        *,
        partition: int,
        key: bytes | None = None,
        headers: Headers | None = None,
    ) -> None:
        """Send a record and wait until it is acknowledged. Raises DeliveryError."""
        ...


class ScalingWriter:
    """Writes each change, and what did not change at intervals."""

    def __init__(self, producer: ScalingSender) -> None:
        """Start without knowledge of what was written."""
        self._producer = producer
        self._states: dict[str, tuple[PoolScaling, float]] = {}
        self._entries: dict[str, tuple[object, float]] = {}
        self._warm_changes: dict[str, WarmPoolChange] = {}  # of the last decision

    def forget(self) -> None:
        """Write all again: a new epoch began."""
        self._states, self._entries, self._warm_changes = {}, {}, {}

    async def write_state(self, record: PoolScaling) -> None:
        """Write the state of a pool and wait until the log has it. Raises DeliveryError."""
        self._states[record.pool] = _comparable(record), record.at_s
        await self._producer.send_and_wait(
            SCALING.name,
            encode(record),
            partition=0,
            key=record.pool.encode(),
            headers=kind_headers(PoolScaling),
        )

    def is_state_due(self, record: PoolScaling) -> bool:
        """Return whether a state has changed or was written `STATE_S` ago."""
        known = self._states.get(record.pool)
        # A time before the last one is of a clock that went back: readers hear the new time.
        if known is None or not 0 <= record.at_s - known[1] < STATE_S:
            return True
        return known[0] != _comparable(record)

    def repeat_state(self, record: PoolScaling) -> None:
        """Write a state that no order follows; one that does not fit the queue is left out."""
        self._states[record.pool] = _comparable(record), record.at_s
        self._send(SCALING, encode(record), record.pool, kind_headers(PoolScaling))

    def write_decision(self, entry: DecisionEntry, decision: ScalingDecision) -> None:
        """Write a decision whose target, reasons or failure changed, or that is due again.

        One that orders a change of the warm pool is written, too, and not again while the next ones
        repeat it, as in a dry run. The entry comes without the decision's JSON.
        """
        withheld = tuple((one.reason, one.standby) for one in decision.withheld)
        essence = decision.target, decision.reason, withheld, entry.failure, entry.applied
        known, change = self._entries.get(entry.pool), warm_pool_change(decision)
        is_change = any(change) and change != self._warm_changes.get(entry.pool)
        self._warm_changes[entry.pool] = change
        is_same = known is not None and known[0] == essence
        if known and is_same and not is_change and 0 <= entry.at_s - known[1] < HISTORY_S:
            return
        self._entries[entry.pool] = essence, entry.at_s
        entry = replace(entry, decision=decision_json(decision))
        self._send(SCALING_DECISIONS, encode(entry), entry.pool, kind_headers(DecisionEntry))

    def _send(self, topic: Topic, value: bytes, pool: str, headers: Headers) -> None:
        if not self._producer.has_space(topic.name, 0):
            return  # a newer one follows
        try:
            self._producer.send(topic.name, value, partition=0, key=pool.encode(), headers=headers)
        except DeliveryError as error:
            _LOG.warning("a record was not sent", extra={"topic": topic.name, "reason": str(error)})


def decision_json(decision: ScalingDecision) -> bytes:
    """Return a decision as JSON of at most `DOCUMENT_BYTES_MAX`."""
    data = msgspec.json.encode(decision_document(decision))
    if len(data) <= DOCUMENT_BYTES_MAX:
        return data
    return msgspec.json.encode(decision_document(replace(decision, additions=(), removals=())))


def _comparable(record: PoolScaling) -> PoolScaling:
    return replace(record, at_s=0.0, sequence=0, decision=b"", memory=b"", start_s=0.0, wake_s=0.0)
