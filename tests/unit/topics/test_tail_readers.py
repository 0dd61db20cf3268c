"""Goal: a tail reader returns every record that it read; its thread skips unreadable ones."""

import threading
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest
from confluent_kafka import KafkaError

from core.errors import SchemaTooNewError
from core.states import CloseReason
from tests.support.clock import ManualClock
from tests.support.until import until
from topics.errors import KafkaAuthorizationError, KafkaUnavailableError
from topics.records.catalogue import CONTROL
from topics.records.codec import Headers, encode, kind_headers
from topics.records.received_record import ReceivedRecord
from topics.records.records import JobControl
from topics.settings import KafkaSettings
from topics.tail_readers import tail_reader_thread, topic_tail_reader
from topics.tail_readers.tail_reader_thread import TailReaderThread, decode_records
from topics.tail_readers.topic_tail_reader import TopicTailReader

CLOSED = JobControl(job_id=UUID(int=1), version=1, closed=CloseReason.CANCELLED)


def record(value: bytes | None, headers: Headers | None = None) -> ReceivedRecord:
    return ReceivedRecord("control", 0, 7, b"k", headers or kind_headers(JobControl), value, 0)


class ScriptedReader:
    """Returns or raises each given poll, then returns nothing; seeks fail `seek_failures` times."""

    def __init__(self, *polls: list[ReceivedRecord] | Exception, seek_failures: int = 0) -> None:
        self._polls: Iterator[list[ReceivedRecord] | Exception] = iter(polls)
        self.seek_failures = seek_failures
        self.seek_count = self.records_before = 0
        self.is_closed = False

    def seek_to_end(self, timeout_s: float) -> None:
        self.seek_count += 1
        if self.seek_count <= self.seek_failures:
            raise KafkaUnavailableError

    def seek_before_end(self, count: int, timeout_s: float) -> None:
        self.records_before = count
        self.seek_to_end(timeout_s)

    def poll(self, timeout_s: float) -> list[ReceivedRecord]:
        polled = next(self._polls, None)
        if isinstance(polled, Exception):
            raise polled
        if polled is None:
            threading.Event().wait(0.001)
        return polled or []

    def close(self) -> None:
        self.is_closed = True


def thread_of(
    reader: ScriptedReader, records: list[ReceivedRecord], **options: Any
) -> TailReaderThread:
    return TailReaderThread(cast(TopicTailReader, reader), records.extend, name="test", **options)


@pytest.fixture(autouse=True)
def short_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tail_reader_thread, "_RETRY_S", 0.001)


def test_unreadable_records_are_skipped_and_tombstones_and_newer_schemas_are_not() -> None:
    no_kind = record(encode(CLOSED), [("kind", b"no such kind")])
    records = [record(b"junk"), record(encode(CLOSED)), record(None), no_kind]
    assert [value for _, value in decode_records(JobControl, records)] == [CLOSED, None]
    with pytest.raises(SchemaTooNewError):
        list(decode_records(JobControl, [record(b"", [("kind", b"control"), ("schema", b"99")])]))


@pytest.mark.parametrize("failure", [KafkaUnavailableError("deleted"), ZeroDivisionError()])
def test_the_first_failure_is_kept_and_reported(failure: Exception) -> None:
    handled: list[ReceivedRecord] = []
    failures: list[Exception] = []
    reader = ScriptedReader([record(None)], failure)
    thread = thread_of(reader, handled, on_failure=failures.append)
    thread.raise_failure()
    thread.start()
    until(lambda: failures)
    assert (handled, failures) == ([record(None)], [failure])
    with pytest.raises(type(failure)):
        thread.raise_failure()
    thread.stop()
    assert reader.is_closed


def test_a_whole_topic_is_read_once_kafka_is_available() -> None:
    handled: list[ReceivedRecord] = []
    reader = ScriptedReader([record(None)], seek_failures=3)
    thread = thread_of(reader, handled)
    thread.start_before_end(1000)
    until(lambda: handled)
    thread.stop()
    assert (reader.seek_count, reader.records_before) == (4, 1000)
    assert thread.is_caught_up


@pytest.mark.parametrize("at_end", [False, True], ids=["while polling", "while seeking"])
def test_a_stop_ends_the_thread_and_closes_the_reader(at_end: bool) -> None:
    reader = ScriptedReader(seek_failures=10**9)
    thread = thread_of(reader, [])
    (thread.start_at_end if at_end else thread.start)()
    assert thread.is_caught_up is not at_end
    thread.request_stop()
    thread.stop()
    assert thread.is_caught_up is not at_end
    assert not thread._thread.is_alive()
    assert reader.is_closed
    thread.raise_failure()


def test_a_start_at_the_end_retries_the_seek_until_kafka_is_available() -> None:
    reader = ScriptedReader([record(None)], seek_failures=2)
    handled: list[ReceivedRecord] = []
    thread = thread_of(reader, handled)
    thread.start_at_end()
    until(lambda: handled)
    assert thread.is_caught_up
    assert reader.seek_count == 3
    thread.stop()


def test_polls_are_retried_while_kafka_is_unavailable_and_access_refusals_are_not() -> None:
    handled: list[ReceivedRecord] = []
    failures: list[Exception] = []
    refusal = KafkaAuthorizationError("no access")
    reader = ScriptedReader(KafkaUnavailableError(), [record(None)], refusal)
    thread = thread_of(reader, handled, unavailable_s_max=60.0, on_failure=failures.append)
    thread.start()
    until(lambda: failures)
    assert (handled, failures) == ([record(None)], [refusal])
    thread.stop()


def test_the_wait_of_a_stop_counts_from_its_request_and_a_hanging_reader_stays_open() -> None:
    has_polled, may_return = threading.Event(), threading.Event()

    class HangingReader:
        def poll(self, _: float) -> list[ReceivedRecord]:
            has_polled.set()
            may_return.wait(20)
            return []

    reader = cast("TopicTailReader", HangingReader())
    thread = TailReaderThread(reader, lambda _: None, name="test", stop_s_max=0.0)
    thread.start()
    assert has_polled.wait(20)
    thread.request_stop()
    thread.stop()  # returns although the poll hangs; closing the reader would raise AttributeError
    may_return.set()


def message(offset: int = 0, error: int | None = None) -> Any:
    values: dict[str, object] = {
        "error": None if error is None else KafkaError(error),
        "topic": "control",
        "partition": 0,
        "offset": offset,
        "key": b"k",
        "headers": [],
        "value": b"v",
        "timestamp": (1, 2),
    }
    return SimpleNamespace(**{name: lambda value=value: value for name, value in values.items()})


class ScriptedConsumer:
    """Returns one batch, then nothing."""

    def __init__(self, batch: Sequence[Any]) -> None:
        self._left = list(batch)
        self.timeouts_s: list[float] = []

    def consume(self, count: int, timeout_s: float) -> list[Any]:
        self.timeouts_s.append(timeout_s)
        taken, self._left = self._left[:count], self._left[count:]
        return taken

    def assign(self, _places: object) -> None:
        pass


def tail_of(monkeypatch: pytest.MonkeyPatch, *batch: Any) -> TopicTailReader:
    monkeypatch.setattr(
        "topics.tail_readers.topic_tail_reader.Consumer", lambda *_, **__: ScriptedConsumer(batch)
    )
    return TopicTailReader(KafkaSettings(bootstrap_servers="nobody:1"), CONTROL, client_id="test")


def test_records_before_a_missing_topic_error_are_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    lost = message(error=KafkaError.UNKNOWN_TOPIC_OR_PART)
    tail = tail_of(monkeypatch, message(7), lost, message(8))

    assert [record.offset for record in tail.poll(0)] == [7, 8]
    with pytest.raises(KafkaUnavailableError):
        tail.poll(0)
    assert tail.poll(0) == []


def test_a_paced_poll_takes_what_has_arrived_at_once_and_waits_for_one_record_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    consumer = ScriptedConsumer([message(7), message(8)])
    monkeypatch.setattr(topic_tail_reader, "Consumer", lambda *_, **__: consumer)
    settings = KafkaSettings(bootstrap_servers="nobody:1")
    tail = TopicTailReader(settings, CONTROL, client_id="test", poll_interval_s=1e-9)

    assert [record.offset for record in tail.poll(0.5)] == [7, 8]
    assert consumer.timeouts_s == [0]
    assert tail.poll(0.5) == []
    assert consumer.timeouts_s == [0, 0, 0.5]


@pytest.mark.parametrize(
    "code", [KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.GROUP_AUTHORIZATION_FAILED]
)
def test_an_authorization_error_is_raised(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    with pytest.raises(KafkaUnavailableError):
        tail_of(monkeypatch, message(error=code)).poll(0)


def test_a_reader_with_an_interval_polls_less_often_while_it_is_busy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = ManualClock(100.0)
    time = SimpleNamespace(monotonic=clock.monotonic_s, sleep=clock.advance)
    monkeypatch.setattr(topic_tail_reader, "time", time)
    settings = KafkaSettings(bootstrap_servers="127.0.0.1:1")
    reader = TopicTailReader(settings, CONTROL, client_id="test", poll_interval_s=0.01)
    waits_s = []
    for count in (1, 9, 11, 40, 19):
        reader._plan_next_poll(count)
        before_s = clock.now_s
        reader._pace()
        waits_s.append(round(clock.now_s - before_s, 6))
    assert waits_s == [0.01, 0.01, 0.02, 0.04, 0.01]
    reader.close()
