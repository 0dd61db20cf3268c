"""Goal: whoever follows a topic learns that the news have ended, and no bad record ends them."""

import threading
from collections.abc import Iterator
from typing import cast
from uuid import UUID

import pytest

from core.errors import SchemaTooNewError
from core.states import CloseReason
from topics.errors import KafkaUnavailableError
from topics.records.codec import Headers, encode, kind_headers
from topics.records.received_record import ReceivedRecord
from topics.records.records import JobControl
from topics.tail_readers.tail_reader_thread import TailReaderThread, decode_records
from topics.tail_readers.topic_tail_reader import TopicTailReader

CLOSED = JobControl(job_id=UUID(int=1), version=1, closed=CloseReason.CANCELLED)


def record(value: bytes | None, headers: Headers | None = None) -> ReceivedRecord:
    return ReceivedRecord("control", 0, 7, b"k", headers or kind_headers(JobControl), value, 0)


class ScriptedTail:
    """Brings what it was given, then nothing; `fails` ends it."""

    def __init__(self, *pieces: list[ReceivedRecord], fails: Exception | None = None) -> None:
        self._pieces: Iterator[list[ReceivedRecord]] = iter(pieces)
        self._fails = fails
        self.is_closed = False

    def poll(self, timeout_s: float) -> list[ReceivedRecord]:
        if (piece := next(self._pieces, None)) is not None:
            return piece
        if self._fails is not None:
            raise self._fails
        threading.Event().wait(0.001)
        return []

    def close(self) -> None:
        self.is_closed = True


def test_unreadable_records_are_left_out_and_tombstones_are_not() -> None:
    records = [
        record(b"junk"),
        record(encode(CLOSED)),
        record(None),
        record(encode(CLOSED), [("kind", b"no such kind")]),
    ]
    assert [said for _, said in decode_records(JobControl, records)] == [CLOSED, None]


def test_a_newer_schema_is_raised() -> None:
    newer_control = [("kind", b"control"), ("schema", b"99")]
    with pytest.raises(SchemaTooNewError):
        list(decode_records(JobControl, [record(b"", newer_control)]))


@pytest.mark.parametrize("failure", [KafkaUnavailableError("gone"), ZeroDivisionError()])
def test_what_ended_the_following_is_told(failure: Exception) -> None:
    taken: list[ReceivedRecord] = []
    tail = ScriptedTail([record(None)], fails=failure)
    following = TailReaderThread(cast(TopicTailReader, tail), taken.extend, name="test")
    following.raise_failure()
    following.start()
    following._thread.join(10)
    assert taken == [record(None)]
    with pytest.raises(type(failure)):
        following.raise_failure()
    following.stop()
    assert tail.is_closed


def test_a_stop_ends_the_thread_and_closes_the_tail() -> None:
    tail = ScriptedTail()
    following = TailReaderThread(cast(TopicTailReader, tail), lambda _: None, name="test")
    following.start()
    following.stop()
    assert not following._thread.is_alive()
    assert tail.is_closed
    following.raise_failure()
