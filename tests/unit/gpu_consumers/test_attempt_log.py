"""Goal: a log of attempts that cannot be read is asked again after a pause, never in a hot loop."""

from typing import cast
from uuid import UUID

import pytest

from gpu_consumers.quarantine.attempt_log import AttemptLog, newest
from topics.clients.producer import RecordProducer
from topics.errors import KafkaUnavailableError
from topics.records.codec import encode, kind_headers
from topics.records.received_record import ReceivedRecord
from topics.records.records import BatchAttempt
from topics.settings import KafkaSettings


async def test_a_log_that_fails_at_once_is_asked_with_pauses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kafka = KafkaSettings(bootstrap_servers="127.0.0.1:1")
    log = AttemptLog(kafka, cast(RecordProducer, None), client_id="test")
    happened: list[str] = []

    def read() -> dict[UUID, object]:
        happened.append("read")
        if happened.count("read") < 3:
            raise KafkaUnavailableError
        return {}

    async def sleep(_seconds: float) -> None:
        happened.append("pause")

    monkeypatch.setattr(log, "_read", read)
    monkeypatch.setattr("gpu_consumers.quarantine.attempt_log.asyncio.sleep", sleep)

    assert await log.before(UUID(int=1), generation=1) is None
    assert happened == ["read", "pause", "read", "pause", "read"]


def test_a_tombstone_of_anybody_ends_only_what_it_names() -> None:
    attempt = BatchAttempt(UUID(int=1), 1, [], False)
    kind = kind_headers(BatchAttempt)
    said = ReceivedRecord("t", 0, 0, attempt.batch_id.bytes, kind, encode(attempt), 0)
    foreign = [ReceivedRecord("t", 0, 1, key, kind, None, 0) for key in (b"no id", b"", None)]
    ended = ReceivedRecord("t", 0, 2, attempt.batch_id.bytes, kind, None, 0)

    assert newest([said, *foreign]) == {attempt.batch_id: attempt}
    assert newest([said, *foreign, ended]) == {}


class SlowTail:
    """Gives one record each time; every one takes most of what silence may."""

    def __init__(self, clock: list[float], count: int, falls_silent: bool) -> None:
        self._clock, self._left, self._falls_silent = clock, count, falls_silent

    def end_offsets(self, _timeout_s: float) -> dict[int, int]:
        return {0: self._left}

    def has_read(self, _ends: dict[int, int]) -> bool:
        return not self._left

    def poll(self, _timeout_s: float) -> list[ReceivedRecord]:
        self._clock[0] += 4.0
        if self._falls_silent:
            return []
        self._left -= 1
        attempt = BatchAttempt(UUID(int=self._left), 1, [], False)
        return [ReceivedRecord("t", 0, 0, None, kind_headers(BatchAttempt), encode(attempt), 0)]

    def close(self) -> None:
        """Nothing is open."""


@pytest.mark.parametrize("falls_silent", [False, True])
async def test_a_long_log_is_read_whole_however_long_it_takes(
    monkeypatch: pytest.MonkeyPatch, falls_silent: bool
) -> None:
    now_s = [0.0]
    tail = SlowTail(now_s, 100, falls_silent)
    monkeypatch.setattr(
        "gpu_consumers.quarantine.attempt_log.TopicTailReader", lambda *_, **__: tail
    )
    monkeypatch.setattr("gpu_consumers.quarantine.attempt_log.monotonic", lambda: now_s[0])
    log = AttemptLog(
        KafkaSettings(bootstrap_servers="-:1"), cast(RecordProducer, None), client_id="t"
    )
    if falls_silent:
        with pytest.raises(KafkaUnavailableError):
            log._read()
    else:
        assert len(log._read()) == 100
