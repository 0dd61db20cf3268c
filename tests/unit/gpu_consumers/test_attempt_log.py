"""Goal: the log of attempts is read to its end, and an unavailable log is retried with pauses."""

import asyncio
from typing import Any, cast
from uuid import UUID

import pytest

from gpu_consumers.quarantine.attempt_log import AttemptLog, latest_attempts
from tests.support.recording_sender import SentRecords
from topics.clients.producer import RecordProducer
from topics.errors import KafkaUnavailableError
from topics.records.attempts import BatchAttempt
from topics.records.codec import encode, kind_headers
from topics.records.received_record import ReceivedRecord
from topics.settings import KafkaSettings


@pytest.fixture
def log() -> AttemptLog:
    kafka = KafkaSettings(bootstrap_servers="127.0.0.1:1")
    return AttemptLog(kafka, cast(RecordProducer, None), client_id="test")


async def test_reads_of_an_unavailable_log_are_retried_with_pauses(
    log: AttemptLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []

    def read() -> dict[UUID, object]:
        events.append("read")
        if events.count("read") < 3:
            raise KafkaUnavailableError
        return {}

    async def sleep(_seconds: float) -> None:
        events.append("pause")

    monkeypatch.setattr(log, "_read_topic", read)
    monkeypatch.setattr("gpu_consumers.quarantine.attempt_log.asyncio.sleep", sleep)

    assert await log.read_attempt(UUID(int=1), generation=1) is None
    assert events == ["read", "pause", "read", "pause", "read"]


def test_a_tombstone_deletes_only_the_attempt_of_its_key() -> None:
    attempt = BatchAttempt(UUID(int=1), 1, [], False)
    kind = kind_headers(BatchAttempt)
    said = ReceivedRecord("t", 0, 0, attempt.batch_id.bytes, kind, encode(attempt), 0)
    foreign = [ReceivedRecord("t", 0, 1, key, kind, None, 0) for key in (b"no id", b"", None)]
    ended = ReceivedRecord("t", 0, 2, attempt.batch_id.bytes, kind, None, 0)

    assert latest_attempts([said, *foreign]) == {attempt.batch_id: attempt}
    assert latest_attempts([said, *foreign, ended]) == {}


class SlowTail:
    """Returns one record per poll; each poll takes most of the silence limit."""

    def __init__(self, clock: list[float], count: int, is_silent: bool) -> None:
        self._clock, self._left, self._is_silent = clock, count, is_silent

    def end_offsets(self, _timeout_s: float) -> dict[int, int]:
        return {0: self._left}

    def has_read(self, _ends: dict[int, int]) -> bool:
        return not self._left

    def poll(self, _timeout_s: float) -> list[ReceivedRecord]:
        self._clock[0] += 4.0
        if self._is_silent:
            return []
        self._left -= 1
        attempt = BatchAttempt(UUID(int=self._left), 1, [], False)
        return [ReceivedRecord("t", 0, 0, None, kind_headers(BatchAttempt), encode(attempt), 0)]

    def close(self) -> None:
        """Close nothing."""


@pytest.mark.parametrize("is_silent", [False, True])
async def test_a_long_log_is_read_until_it_stops_returning_records(
    log: AttemptLog, monkeypatch: pytest.MonkeyPatch, is_silent: bool
) -> None:
    now_s = [0.0]
    tail = SlowTail(now_s, 100, is_silent)
    monkeypatch.setattr(
        "gpu_consumers.quarantine.attempt_log.TopicTailReader", lambda *_, **__: tail
    )
    monkeypatch.setattr("gpu_consumers.quarantine.attempt_log.monotonic", lambda: now_s[0])
    if is_silent:
        with pytest.raises(KafkaUnavailableError):
            log._read_topic()
    else:
        assert len(log._read_topic()) == 100


async def test_a_record_for_an_unavailable_topic_is_written_later() -> None:
    sent = SentRecords(acknowledges=True, unavailable={("attempts", 0)})

    class Producer(SentRecords):
        """A producer that acknowledges what `sent` acknowledges."""

        async def send_and_wait(self, topic: str, value: bytes | None, **options: Any) -> None:
            done = asyncio.get_running_loop().create_future()
            sent.send(topic, value, **options, on_delivery=done.set_result)
            await done

        def is_unavailable(self, topic: str, partition: int) -> bool:
            return sent.is_unavailable(topic, partition)

    producer = cast(RecordProducer, cast(Any, Producer()))
    kafka = KafkaSettings(bootstrap_servers="127.0.0.1:1")
    running: dict[UUID, BatchAttempt] = {}
    log = AttemptLog(kafka, producer, client_id="test", running=running)
    attempt = BatchAttempt(UUID(int=1), 1, [], is_running=False)
    assert not await log.record_unless_unavailable(attempt)
    assert log.is_unavailable

    sent.restore()
    assert await log.record_unless_unavailable(attempt)
    assert [record.key for record in sent.records] == [attempt.batch_id.bytes] * 2
