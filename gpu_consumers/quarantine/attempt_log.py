"""The log of attempts: what owners of redelivered batches were running when they ended.

A first delivery writes nothing here. Whoever meets a batch that may have run before reads the whole
topic, which is compacted and nearly empty, once for each assignment.
"""

import asyncio
import logging
from collections.abc import Iterable, Iterator
from time import monotonic
from typing import Final
from uuid import UUID

from topics.clients.producer import RecordProducer
from topics.errors import KafkaUnavailableError
from topics.records.catalogue import ATTEMPTS
from topics.records.codec import encode, kind_headers
from topics.records.received_record import ReceivedRecord
from topics.records.records import BatchAttempt
from topics.settings import KafkaSettings
from topics.tail_readers.tail_reader_thread import decode_records
from topics.tail_readers.topic_tail_reader import TopicTailReader

_LOG = logging.getLogger(__name__)
_SILENCE_S_MAX: Final = 5.0  # then with a new client; however long the whole takes
_AGAIN_S: Final = 0.5
_PARTITION: Final = 0


class AttemptLog:
    """Reads and writes attempts. Used on the event loop."""

    def __init__(self, kafka: KafkaSettings, producer: RecordProducer, *, client_id: str) -> None:
        """Connect to nothing yet."""
        self._kafka, self._producer = kafka, producer
        self._client_id = f"{client_id}-attempts"
        self._reading = asyncio.Lock()
        self._generation = 0  # of the assignment that `_attempts` was read after
        self._attempts: dict[UUID, BatchAttempt] = {}

    async def before(self, batch_id: UUID, generation: int) -> BatchAttempt | None:
        """Return what was said of a batch before assignment `generation`; waits for the log."""
        async with self._reading:
            while self._generation < generation:
                try:
                    self._attempts = await asyncio.to_thread(self._read)
                    self._generation = generation
                except KafkaUnavailableError:
                    _LOG.warning("the log of attempts is not read yet")
                    await asyncio.sleep(_AGAIN_S)  # it may have failed at once
        return self._attempts.get(batch_id)

    async def say(self, attempt: BatchAttempt) -> None:
        """Return when the attempt is acknowledged. Raises DeliveryError."""
        await self._send(attempt.batch_id, encode(attempt))

    async def forget(self, batch_id: UUID) -> None:
        """Return when nothing is said of the batch any more. Raises DeliveryError."""
        await self._send(batch_id, None)

    async def _send(self, batch_id: UUID, value: bytes | None) -> None:
        await self._producer.send_and_wait(
            ATTEMPTS.name,
            value,
            partition=_PARTITION,
            key=batch_id.bytes,
            headers=kind_headers(BatchAttempt),
        )

    def _read(self) -> dict[UUID, BatchAttempt]:
        tail = TopicTailReader(self._kafka, ATTEMPTS, client_id=self._client_id)
        try:
            return newest(_records(tail))
        finally:
            tail.close()


def _records(tail: TopicTailReader) -> Iterator[ReceivedRecord]:
    """Yield what the log holds now. Raises KafkaUnavailableError when nothing more comes of it."""
    ends = tail.end_offsets(_SILENCE_S_MAX)
    heard_s = monotonic()
    while not tail.has_read(ends):
        records = tail.poll(0.1)
        yield from records
        now_s = monotonic()
        if records:
            heard_s = now_s
        elif now_s - heard_s > _SILENCE_S_MAX:
            raise KafkaUnavailableError("the log of attempts fell silent")


def newest(records: Iterable[ReceivedRecord]) -> dict[UUID, BatchAttempt]:
    """Return the last attempt of each batch's latest owner; none of a batch that ended since.

    Raises SchemaTooNewError.
    """
    found: dict[bytes | None, BatchAttempt] = {}
    for record, attempt in decode_records(BatchAttempt, records):
        if attempt is None:
            found.pop(record.key, None)
            continue
        before = found.get(attempt.batch_id.bytes)
        if before is None or before.life <= attempt.life:
            found[attempt.batch_id.bytes] = attempt
    return {attempt.batch_id: attempt for attempt in found.values()}
