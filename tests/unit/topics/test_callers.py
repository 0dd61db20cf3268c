"""Who still waits for an online call."""

from uuid import UUID, uuid4

import msgspec

from topics.callers import ABORTED_MAX, SILENCE_S_MAX, KnownCallers
from topics.records import CallerNews, CallRef, JobRef

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


def news(now_s: float, *aborted: UUID, leaving: bool = False) -> CallerNews:
    return CallerNews(CALLER, now_s, aborted=list(aborted), leaving=leaving)


def test_a_batch_is_never_gone() -> None:
    batch = msgspec.structs.replace(online(), call=None)
    assert not KnownCallers(since_s=0.0).is_gone(batch, now_s=1e9)


def test_a_caller_never_heard_of_is_dead_only_after_the_silence() -> None:
    known = KnownCallers(since_s=100.0)
    assert not known.is_gone(online(), now_s=100.0 + SILENCE_S_MAX)
    assert known.is_gone(online(), now_s=100.1 + SILENCE_S_MAX)


def test_a_beat_keeps_calls_and_silence_ends_them() -> None:
    known = KnownCallers(since_s=0.0)
    known.heard(news(5.0), now_s=50.0)
    assert not known.is_gone(online(), now_s=52.0)
    assert known.is_gone(online(), now_s=50.1 + SILENCE_S_MAX)


def test_a_durable_call_outlives_its_caller_and_not_its_abort() -> None:
    known = KnownCallers(since_s=0.0)
    job = online(durable=True)
    assert not known.is_gone(job, now_s=1e6)
    known.heard(news(0.0, job.job_id), now_s=1e6)
    assert known.is_gone(job, now_s=1e6)


def test_the_last_word_ends_connection_bound_calls_at_once() -> None:
    known = KnownCallers(since_s=0.0)
    known.heard(news(0.0, leaving=True), now_s=10.0)
    assert known.is_gone(online(), now_s=10.0)
    assert not known.is_gone(online(durable=True), now_s=10.0)


def test_deadlines_are_by_the_clock_of_the_caller() -> None:
    known = KnownCallers(since_s=0.0)
    job = online(deadline_s=1_000.0)
    assert not known.is_expired(job, now_s=1e9)  # its clock is unknown
    known.heard(news(999.0), now_s=7.0)
    assert not known.is_expired(job, now_s=7.9)
    assert known.is_expired(job, now_s=8.1)


def test_patience_is_by_the_clock_of_the_caller_where_a_call_has_a_moment_to_begin() -> None:
    known = KnownCallers(since_s=0.0)
    job = online(begin_by_s=1_000.0)
    assert known.patience_s(job, now_s=1e9) is None  # its clock is unknown
    known.heard(news(999.0), now_s=7.0)
    assert known.patience_s(job, now_s=7.75) == 0.25
    assert known.patience_s(job, now_s=8.5) == -0.5
    assert not known.is_expired(job, now_s=8.5)
    assert known.patience_s(online(), now_s=8.5) is None


def test_old_aborts_and_silent_callers_are_forgotten() -> None:
    known = KnownCallers(since_s=0.0)
    first = online()
    known.heard(news(0.0, first.job_id), now_s=1.0)
    known.heard(news(0.0, *(uuid4() for _ in range(ABORTED_MAX))), now_s=2.0)
    assert not known.is_gone(first, now_s=2.0)
    known.forget_silent(now_s=10_000.0)
    assert not known.is_expired(msgspec.structs.replace(first, deadline_s=-1.0), now_s=10_000.0)
