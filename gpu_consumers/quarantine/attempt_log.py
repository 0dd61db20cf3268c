"""The `attempts` topic: which units of redelivered batches their owners were running.

A first delivery writes no attempt. The topic is compacted and nearly empty, so a replica that
receives a redelivered batch reads all of it, once for each partition assignment.
"""

import asyncio
import logging
from collections.abc import Iterable, Iterator
from time import monotonic
from typing import Final
from uuid import UUID

from topics.clients.producer import RecordProducer
from topics.errors import KafkaUnavailableError
from topics.records.attempts import BatchAttempt
from topics.records.catalogue import ATTEMPTS
from topics.records.codec import encode, kind_headers
from topics.records.received_record import ReceivedRecord
from topics.settings import KafkaSettings
from topics.tail_readers.tail_reader_thread import decode_records
from topics.tail_readers.topic_tail_reader import TopicTailReader

_LOG = logging.getLogger(__name__)
_SILENCE_S_MAX: Final = 5.0  # without a record; then a new client reads from the start
_RETRY_DELAY_S: Final = 0.5
_PARTITION: Final = 0
_CHECK_S: Final = 0.5  # between two looks whether the topic is unavailable


class AttemptsUnavailableError(KafkaUnavailableError):
    """The topic of attempts acknowledges nothing; an execution that it must record waits."""


class AttemptLog:
    """Reads and writes attempts. Used on the event loop."""

    def __init__(
        self,
        kafka: KafkaSettings,
        producer: RecordProducer,
        *,
        client_id: str,
        running: dict[UUID, BatchAttempt] | None = None,
    ) -> None:
        """Keep in `running` the attempts that are recorded as running."""
        self._kafka, self._producer = kafka, producer
        self._running = {} if running is None else running
        self._client_id = f"{client_id}-attempts"
        self._read_lock = asyncio.Lock()
        self._generation = 0  # of the assignment after which `_attempts` was read
        self._attempts: dict[UUID, BatchAttempt] = {}

    async def read_attempt(self, batch_id: UUID, generation: int) -> BatchAttempt | None:
        """Return the attempt recorded for a batch before assignment `generation`.

        Waits, and retries, until the topic is readable.
        """
        async with self._read_lock:
            while self._generation < generation:
                try:
                    self._attempts = await asyncio.to_thread(self._read_topic)
                    self._generation = generation
                except KafkaUnavailableError:
                    _LOG.warning("the log of attempts is not read yet")
                    await asyncio.sleep(_RETRY_DELAY_S)  # the read may have failed at once
        return self._attempts.get(batch_id)

    async def read_latest(self) -> list[BatchAttempt]:
        """Return the present records of batches, calls and processes; none if unreadable."""
        try:
            return [*(await asyncio.to_thread(self._read_topic)).values()]
        except KafkaUnavailableError:
            return []

    async def record_attempt(self, attempt: BatchAttempt) -> None:
        """Write an attempt; return when it is acknowledged. Raises DeliveryError."""
        if attempt.is_running:
            self._running[attempt.batch_id] = attempt
        await self._send(attempt.batch_id, encode(attempt))
        if not attempt.is_running:
            self._running.pop(attempt.batch_id, None)

    async def record_unless_unavailable(self, attempt: BatchAttempt) -> bool:
        """Write an attempt; return False when the topic is unavailable, so that it waits there.

        For owners of locks: other work must not wait for the topic. Raises DeliveryError.
        """
        writing = asyncio.ensure_future(self.record_attempt(attempt))
        writing.add_done_callback(_retrieve_failure)
        while not writing.done():
            await asyncio.wait([writing], timeout=_CHECK_S)
            if not writing.done() and self.is_unavailable:
                return False
        await writing
        return True

    @property
    def is_unavailable(self) -> bool:
        """Whether records wait for the topic and none was acknowledged for long."""
        return self._producer.is_unavailable(ATTEMPTS.name, _PARTITION)

    async def delete_attempt(self, batch_id: UUID) -> None:
        """Write a tombstone; return when it is acknowledged. Raises DeliveryError."""
        await self._send(batch_id, None)
        self._running.pop(batch_id, None)

    async def _send(self, batch_id: UUID, value: bytes | None) -> None:
        await self._producer.send_and_wait(
            ATTEMPTS.name,
            value,
            partition=_PARTITION,
            key=batch_id.bytes,
            headers=kind_headers(BatchAttempt),
        )

    def _read_topic(self) -> dict[UUID, BatchAttempt]:
        return read_attempts(self._kafka, client_id=self._client_id)


def _retrieve_failure(writing: asyncio.Future[None]) -> None:
    if not writing.cancelled():
        writing.exception()  # of a writer that did not wait; later records fail as well


def read_attempts(kafka: KafkaSettings, *, client_id: str) -> dict[UUID, BatchAttempt]:
    """Return the latest attempts of the whole topic.

    Raises KafkaUnavailableError, SchemaTooNewError.
    """
    tail = TopicTailReader(kafka, ATTEMPTS, client_id=client_id)
    try:
        return latest_attempts(_records_to_end(tail))
    finally:
        tail.close()


def _records_to_end(tail: TopicTailReader) -> Iterator[ReceivedRecord]:
    """Yield the records up to the present end.

    Raises KafkaUnavailableError when they stop coming.
    """
    ends = tail.end_offsets(_SILENCE_S_MAX)
    received_s = monotonic()
    while not tail.has_read(ends):
        records = tail.poll(0.1)
        yield from records
        now_s = monotonic()
        if records:
            received_s = now_s
        elif now_s - received_s > _SILENCE_S_MAX:
            raise KafkaUnavailableError("The topic of attempts returned no records for too long.")


def latest_attempts(records: Iterable[ReceivedRecord]) -> dict[UUID, BatchAttempt]:
    """Return the last attempt of the latest owner of each batch; deleted attempts are left out.

    Raises SchemaTooNewError.
    """
    latest: dict[bytes | None, BatchAttempt] = {}
    for record, attempt in decode_records(BatchAttempt, records):
        if attempt is None:
            latest.pop(record.key, None)
            continue
        known = latest.get(attempt.batch_id.bytes)
        if known is None or known.life <= attempt.life:
            latest[attempt.batch_id.bytes] = attempt
    return {attempt.batch_id: attempt for attempt in latest.values()}
