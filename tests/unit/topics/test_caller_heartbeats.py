"""Who still waits for an online call."""

import threading
from typing import cast
from uuid import UUID, uuid4

import msgspec
import pytest

from topics.errors import KafkaUnavailableError
from topics.records.codec import encode, kind_headers
from topics.records.received_record import ReceivedRecord
from topics.records.records import CallerHeartbeat, CallRef, JobRef
from topics.settings import KafkaSettings
from topics.tail_readers import caller_heartbeats as callers_module
from topics.tail_readers.caller_heartbeats import CallerHeartbeatReader
from topics.tail_readers.caller_liveness import ABORTED_CALLS_MAX, CALLER_TIMEOUT_S, CallerLiveness

CALLER = "api-1"


def online(*, durable: bool = False, deadline_s: float = 1e12, begin_by_s: float = 0.0) -> JobRef:
    return JobRef(
        job_id=uuid4(),
        day=1,
        tenant_id=uuid4(),
        model="m",
        model_version="1",
        pool="p",
        endpoint="/v1/embeddings",
        input_key="",
        deadline_s=deadline_s,
        call=CallRef(CALLER, 0, durable=durable, begin_by_s=begin_by_s),
    )


def news(now_s: float, *aborted: UUID, leaving: bool = False) -> CallerHeartbeat:
    return CallerHeartbeat(CALLER, now_s, aborted=list(aborted), leaving=leaving)


def is_gone(known: CallerLiveness, job: JobRef, now_s: float, *, since_s: float = 0.0) -> bool:
    return known.is_abandoned(job, since_s=since_s, now_s=now_s)


def test_a_batch_is_never_abandoned() -> None:
    batch = msgspec.structs.replace(online(), call=None)
    known = CallerLiveness(since_s=0.0)
    known.mark_complete_until(1e9)
    assert not is_gone(known, batch, 1e9)


def test_an_unknown_caller_is_dead_only_after_the_timeout() -> None:
    known = CallerLiveness(since_s=100.0)
    known.mark_complete_until(100.0 + CALLER_TIMEOUT_S)
    assert not is_gone(known, online(), 100.0 + CALLER_TIMEOUT_S)
    known.mark_complete_until(100.1 + CALLER_TIMEOUT_S)
    assert is_gone(known, online(), 100.2 + CALLER_TIMEOUT_S)


def test_heartbeats_keep_calls_and_a_timeout_abandons_them() -> None:
    known = CallerLiveness(since_s=0.0)
    known.record_heartbeat(news(5.0), now_s=50.0)
    known.mark_complete_until(52.0)
    assert not is_gone(known, online(), 52.0)
    assert not known.needs_end_offsets(now_s=50.0 + CALLER_TIMEOUT_S)
    assert known.needs_end_offsets(now_s=50.1 + CALLER_TIMEOUT_S)
    known.mark_complete_until(50.1 + CALLER_TIMEOUT_S)
    assert is_gone(known, online(), 50.2 + CALLER_TIMEOUT_S)
    assert not known.needs_end_offsets(now_s=1e6)


def test_unread_heartbeats_do_not_time_out_a_caller() -> None:
    known = CallerLiveness(since_s=0.0)
    known.record_heartbeat(news(0.0), now_s=1.0)
    known.mark_complete_until(2.0)
    assert known.is_silent(CALLER, now_s=1e6)
    assert not is_gone(known, online(), 1e6)
    known.record_heartbeat(news(0.0), now_s=1e6)  # what was said meanwhile comes late
    known.mark_complete_until(1e6)
    assert not is_gone(known, online(), 1e6 + 1.0)


def test_a_death_known_before_a_call_arrived_does_not_abandon_it() -> None:
    known = CallerLiveness(since_s=0.0)
    known.record_heartbeat(news(0.0), now_s=1.0)
    known.mark_complete_until(50.0)
    assert is_gone(known, online(), 51.0, since_s=49.0)
    assert not known.needs_end_offsets(now_s=51.0)
    assert not is_gone(known, online(), 51.0, since_s=50.0)
    assert known.needs_end_offsets(now_s=51.0)
    known.mark_complete_until(51.5)
    assert is_gone(known, online(), 52.0, since_s=50.0)
    assert not known.needs_end_offsets(now_s=52.0)


def test_a_durable_call_outlives_its_caller_and_not_its_abort() -> None:
    known = CallerLiveness(since_s=0.0)
    known.mark_complete_until(1e6)
    job = online(durable=True)
    assert not is_gone(known, job, 1e6)
    known.record_heartbeat(news(0.0, job.job_id), now_s=1e6)
    assert is_gone(known, job, 1e6)


def test_a_leaving_caller_abandons_its_calls_at_once() -> None:
    known = CallerLiveness(since_s=0.0)
    known.record_heartbeat(news(0.0, leaving=True), now_s=10.0)
    assert is_gone(known, online(), 10.0)
    assert not is_gone(known, online(durable=True), 10.0)


def test_deadlines_are_by_the_clock_of_the_caller() -> None:
    known = CallerLiveness(since_s=0.0)
    job = online(deadline_s=1_000.0)
    assert not known.is_expired(job, now_s=1e9)  # its clock is unknown
    known.record_heartbeat(news(999.0), now_s=7.0)
    assert not known.is_expired(job, now_s=7.9)
    assert known.is_expired(job, now_s=8.1)


def test_the_start_wait_is_by_the_clock_of_the_caller() -> None:
    known = CallerLiveness(since_s=0.0)
    job = online(begin_by_s=1_000.0)
    assert known.start_wait_left_s(job, now_s=1e9) is None  # its clock is unknown
    known.record_heartbeat(news(999.0), now_s=7.0)
    assert known.start_wait_left_s(job, now_s=7.75) == 0.25
    assert known.start_wait_left_s(job, now_s=8.5) == -0.5
    assert not known.is_expired(job, now_s=8.5)
    assert known.start_wait_left_s(online(), now_s=8.5) is None


def test_old_aborts_and_stale_callers_are_evicted() -> None:
    known = CallerLiveness(since_s=0.0)
    first = online()
    known.record_heartbeat(news(0.0, first.job_id), now_s=1.0)
    known.record_heartbeat(news(0.0, *(uuid4() for _ in range(ABORTED_CALLS_MAX))), now_s=2.0)
    assert not is_gone(known, first, 2.0)
    known.evict_stale(now_s=10_000.0)
    assert not known.is_expired(msgspec.structs.replace(first, deadline_s=-1.0), now_s=10_000.0)


class HeldClock:
    """Moves by a little with each look, and else as a test says."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def wall_s(self) -> float:
        return self.now_s

    def monotonic_s(self) -> float:
        self.now_s += 0.0001
        return self.now_s


class HeldTail:
    """A feed that a test holds in its hands, poll by poll."""

    def __init__(self) -> None:
        self.is_away = False
        self.end = self._read = 0
        self.ask_count = 0
        self._coming: list[ReceivedRecord] = []
        self._polled, self._may_return = threading.Semaphore(0), threading.Semaphore(0)

    def seek_to_end(self, timeout_s: float) -> None:
        self._read = self.end

    def turn(self, *come: CallerHeartbeat) -> None:
        """Let one poll return these news; come back when they are taken in."""
        self._polled.acquire()
        headers = kind_headers(CallerHeartbeat)
        self._coming = [ReceivedRecord("callers", 0, 0, None, headers, encode(n), 0) for n in come]
        self._may_return.release()
        self._polled.acquire()
        self._polled.release()

    def poll(self, timeout_s: float) -> list[ReceivedRecord]:
        self._polled.release()
        self._may_return.acquire()
        self._read += len(self._coming)
        return self._coming

    def end_offsets(self, timeout_s: float) -> dict[int, int]:
        self.ask_count += 1
        if self.is_away:
            raise KafkaUnavailableError
        return {0: self.end}

    def has_read(self, ends: dict[int, int]) -> bool:
        return self._read >= ends[0]

    def close(self) -> None:
        pass


class Followed:
    """Callers that follow such a feed and have heard of one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock, self.tail = HeldClock(), HeldTail()
        monkeypatch.setattr(callers_module, "TopicTailReader", lambda *_args, **_named: self.tail)
        self.callers = CallerHeartbeatReader(
            cast(KafkaSettings, None), client_id="test", clock=self.clock
        )
        self.callers.start(1.0)
        self.said(1)

    def said(self, count: int) -> None:
        """News that are on the log are read."""
        self.tail.end = max(self.tail.end, self.tail._read + count)
        self.tail.turn(*(news(0.0) for _ in range(count)))

    def is_gone(self) -> bool:
        return self.callers.is_abandoned(online(), since_s=100.0)

    def stop(self) -> None:
        self.tail._may_return.release()
        self.callers.stop()


def test_no_caller_is_dead_while_kafka_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    followed = Followed(monkeypatch)
    followed.tail.is_away = True
    followed.clock.now_s += 60.0
    followed.tail.turn()
    assert followed.tail.ask_count == 1
    assert not followed.is_gone()
    followed.tail.is_away = False
    followed.tail.turn()
    assert followed.is_gone()
    followed.tail.turn()
    assert followed.tail.ask_count == 2
    followed.stop()


def test_a_paused_reader_catches_up_before_a_caller_is_dead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    followed = Followed(monkeypatch)
    followed.clock.now_s += 5.0
    followed.tail.end += 10  # said while nobody here was reading
    followed.tail.turn()
    assert not followed.is_gone()
    followed.said(10)
    assert not followed.is_gone()
    followed.clock.now_s += 1.0
    followed.tail.turn()
    assert not followed.is_gone()
    followed.stop()


def test_the_only_caller_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    followed = Followed(monkeypatch)
    followed.clock.now_s += CALLER_TIMEOUT_S - 0.1
    followed.tail.turn()
    assert (followed.is_gone(), followed.tail.ask_count) == (False, 0)
    followed.clock.now_s += 0.2
    followed.tail.turn()
    assert followed.is_gone()
    followed.stop()
