"""Goal: calls are abandoned only for aborts, leaving callers and proven timeouts."""

import threading
from collections.abc import Iterator
from typing import cast
from uuid import UUID, uuid4

import msgspec
import pytest

from tests.unit.batcher.builders import job_ref
from topics.errors import KafkaUnavailableError
from topics.records.codec import encode, kind_headers
from topics.records.received_record import ReceivedRecord
from topics.records.records import CallerHeartbeat, CallRef, JobRef
from topics.settings import KafkaSettings
from topics.tail_readers import caller_liveness as callers_module
from topics.tail_readers.caller_liveness import (
    ABORTED_CALLS_MAX,
    CALLER_TIMEOUT_S,
    CallerHeartbeatReader,
    CallerLiveness,
)

CALLER = "api-1"


def online(*, durable: bool = False, deadline_s: float = 1e12, begin_by_s: float = 0.0) -> JobRef:
    call = CallRef(CALLER, 0, durable=durable, begin_by_s=begin_by_s)
    return job_ref(job_id=uuid4(), deadline_s=deadline_s, call=call)


def heartbeat(now_s: float, *aborted: UUID, leaving: bool = False) -> CallerHeartbeat:
    return CallerHeartbeat(CALLER, now_s, aborted=list(aborted), leaving=leaving)


@pytest.fixture
def liveness() -> CallerLiveness:
    return CallerLiveness(since_s=0.0)


def is_abandoned(
    liveness: CallerLiveness, job: JobRef, now_s: float, *, since_s: float = 0.0
) -> bool:
    return liveness.is_abandoned(job, since_s=since_s, now_s=now_s)


def test_an_unknown_caller_is_dead_only_after_the_timeout() -> None:
    liveness = CallerLiveness(since_s=100.0)
    liveness.mark_complete_until(100.0 + CALLER_TIMEOUT_S)
    assert not is_abandoned(liveness, online(), 100.0 + CALLER_TIMEOUT_S)
    liveness.mark_complete_until(100.1 + CALLER_TIMEOUT_S)
    assert is_abandoned(liveness, online(), 100.2 + CALLER_TIMEOUT_S)


def test_heartbeats_keep_calls_and_a_timeout_abandons_them(liveness: CallerLiveness) -> None:
    liveness.record_heartbeat(heartbeat(5.0), now_s=50.0)
    liveness.mark_complete_until(52.0)
    assert not is_abandoned(liveness, online(), 52.0)
    assert not liveness.needs_end_offsets(now_s=50.0 + CALLER_TIMEOUT_S)
    assert liveness.needs_end_offsets(now_s=50.1 + CALLER_TIMEOUT_S)
    liveness.mark_complete_until(50.1 + CALLER_TIMEOUT_S)
    assert is_abandoned(liveness, online(), 50.2 + CALLER_TIMEOUT_S)
    assert not liveness.needs_end_offsets(now_s=1e6)


def test_unread_heartbeats_do_not_time_out_a_caller(liveness: CallerLiveness) -> None:
    liveness.record_heartbeat(heartbeat(0.0), now_s=1.0)
    liveness.mark_complete_until(2.0)
    assert liveness.is_silent(CALLER, now_s=1e6)
    assert not is_abandoned(liveness, online(), 1e6)
    liveness.record_heartbeat(heartbeat(0.0), now_s=1e6)  # appended earlier, read late
    liveness.mark_complete_until(1e6)
    assert not is_abandoned(liveness, online(), 1e6 + 1.0)


def test_a_death_known_before_a_call_arrived_does_not_abandon_it(liveness: CallerLiveness) -> None:
    liveness.record_heartbeat(heartbeat(0.0), now_s=1.0)
    liveness.mark_complete_until(50.0)
    assert is_abandoned(liveness, online(), 51.0, since_s=49.0)
    assert not liveness.needs_end_offsets(now_s=51.0)
    assert not is_abandoned(liveness, online(), 51.0, since_s=50.0)
    assert liveness.needs_end_offsets(now_s=51.0)
    liveness.mark_complete_until(51.5)
    assert is_abandoned(liveness, online(), 52.0, since_s=50.0)
    assert not liveness.needs_end_offsets(now_s=52.0)


def test_a_durable_call_outlives_its_caller_and_not_its_abort(liveness: CallerLiveness) -> None:
    liveness.mark_complete_until(1e6)
    job = online(durable=True)
    assert not is_abandoned(liveness, job, 1e6)
    assert not is_abandoned(liveness, job_ref(), 1e6)  # of a batch, which has no caller
    liveness.record_heartbeat(heartbeat(0.0, job.job_id), now_s=1e6)
    assert is_abandoned(liveness, job, 1e6)


def test_a_leaving_caller_abandons_its_calls_at_once(liveness: CallerLiveness) -> None:
    liveness.record_heartbeat(heartbeat(0.0, leaving=True), now_s=10.0)
    assert is_abandoned(liveness, online(), 10.0)
    assert not is_abandoned(liveness, online(durable=True), 10.0)


def test_deadlines_and_start_waits_are_by_the_clock_of_the_caller(liveness: CallerLiveness) -> None:
    job = online(deadline_s=1_001.0, begin_by_s=1_000.0)
    assert not liveness.is_expired(job, now_s=1e9)  # its clock is unknown
    assert liveness.start_wait_left_s(job, now_s=1e9) is None
    liveness.record_heartbeat(heartbeat(999.0), now_s=7.0)
    assert liveness.start_wait_left_s(job, now_s=7.75) == 0.25
    assert liveness.start_wait_left_s(job, now_s=8.5) == -0.5
    assert not liveness.is_expired(job, now_s=8.9)
    assert liveness.is_expired(job, now_s=9.1)
    assert liveness.start_wait_left_s(online(), now_s=8.5) is None


def test_old_aborts_and_stale_callers_are_evicted(liveness: CallerLiveness) -> None:
    first = online()
    liveness.record_heartbeat(heartbeat(0.0, first.job_id), now_s=1.0)
    many = [uuid4() for _ in range(ABORTED_CALLS_MAX)]
    liveness.record_heartbeat(heartbeat(0.0, *many), now_s=2.0)
    assert not is_abandoned(liveness, first, 2.0)
    liveness.evict_stale(now_s=10_000.0)
    assert not liveness.is_expired(msgspec.structs.replace(first, deadline_s=-1.0), now_s=10_000.0)


class TickingClock:
    """Advances a little with each read, and as a test sets it."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def wall_s(self) -> float:
        return self.now_s

    def monotonic_s(self) -> float:
        self.now_s += 0.0001
        return self.now_s


class SteppedReader:
    """A tail reader whose polls return when a test lets them."""

    def __init__(self) -> None:
        self.is_unavailable = False
        self.end = self._read = 0
        self.request_count = 0
        self._next_records: list[ReceivedRecord] = []
        self._polled, self._may_return = threading.Semaphore(0), threading.Semaphore(0)

    def seek_to_end(self, timeout_s: float) -> None:
        self._read = self.end

    def step(self, *heartbeats: CallerHeartbeat) -> None:
        """Let one poll return these heartbeats; return when they are handled."""
        self._polled.acquire()
        headers = kind_headers(CallerHeartbeat)
        self._next_records = [
            ReceivedRecord("callers", 0, 0, None, headers, encode(n), 0) for n in heartbeats
        ]
        self._may_return.release()
        self._polled.acquire()
        self._polled.release()

    def poll(self, timeout_s: float) -> list[ReceivedRecord]:
        self._polled.release()
        self._may_return.acquire()
        self._read += len(self._next_records)
        return self._next_records

    def end_offsets(self, timeout_s: float) -> dict[int, int]:
        self.request_count += 1
        if self.is_unavailable:
            raise KafkaUnavailableError
        return {0: self.end}

    def has_read(self, ends: dict[int, int]) -> bool:
        return self._read >= ends[0]

    def close(self) -> None:
        pass


class ReaderBench:
    """A heartbeat reader on a stepped tail reader that has read one heartbeat."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock, self.tail = TickingClock(), SteppedReader()
        monkeypatch.setattr(callers_module, "_CallersTail", lambda *_args, **_named: self.tail)
        self.heartbeats = CallerHeartbeatReader(
            cast(KafkaSettings, None), client_id="test", clock=self.clock
        )
        self.heartbeats.start(1.0)
        self.append(1)

    def append(self, count: int) -> None:
        """Append heartbeats and let them be read."""
        self.tail.end = max(self.tail.end, self.tail._read + count)
        self.tail.step(*(heartbeat(0.0) for _ in range(count)))

    def is_abandoned(self) -> bool:
        return self.heartbeats.is_abandoned(online(), since_s=100.0)

    def stop(self) -> None:
        self.tail._may_return.release()
        self.heartbeats.stop()


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[ReaderBench]:
    bench = ReaderBench(monkeypatch)
    yield bench
    bench.stop()


def test_no_caller_is_dead_while_kafka_is_unavailable(bench: ReaderBench) -> None:
    bench.tail.is_unavailable = True
    bench.clock.now_s += 60.0
    bench.tail.step()
    assert bench.tail.request_count == 1
    assert not bench.is_abandoned()
    bench.tail.is_unavailable = False
    bench.tail.step()
    assert bench.is_abandoned()
    bench.tail.step()
    assert bench.tail.request_count == 2


def test_a_paused_reader_catches_up_before_a_caller_is_dead(bench: ReaderBench) -> None:
    bench.clock.now_s += 5.0
    bench.tail.end += 10  # appended while the reader was paused
    bench.tail.step()
    assert not bench.is_abandoned()
    bench.append(10)
    assert not bench.is_abandoned()
    bench.clock.now_s += 1.0
    bench.tail.step()
    assert not bench.is_abandoned()


def test_the_only_caller_times_out(bench: ReaderBench) -> None:
    bench.clock.now_s += CALLER_TIMEOUT_S - 0.1
    bench.tail.step()
    assert (bench.is_abandoned(), bench.tail.request_count) == (False, 0)
    bench.clock.now_s += 0.2
    bench.tail.step()
    assert bench.is_abandoned()
