"""Goal: a call has one execution and one end, whatever arrives in whatever order."""

from uuid import UUID

import pytest
from prometheus_client import REGISTRY

from api.http.errors import ApiError
from api.online.await_reply.open_calls import RERUN_SILENCE_S_MAX, OpenCall, OpenCalls
from api.online.call_errors import (
    deadline_exceeded,
    stream_interrupted,
)
from core.ids import new_uuid
from tests.support.online_calls import call_job
from topics.records.records import Reply, ReplyEnd

TENANT = new_uuid()
END = ReplyEnd(200, b"")


def opened(calls: OpenCalls, *, stream: bool = True, durable: bool = False) -> OpenCall:
    call = OpenCall(call_job(tenant_id=TENANT, stream=stream, durable=durable), now_s=0.0)
    calls.add(call)
    return call


def new_calls() -> OpenCalls:
    return OpenCalls(buffer_bytes_max=100)


def reply(
    call: OpenCall,
    execution: UUID,
    *pieces: bytes,
    end: ReplyEnd | None = None,
    only_here: bool = False,
) -> list[Reply]:
    return [Reply(call.job.job_id, execution, list(pieces), end, only_here)]


def test_only_the_first_execution_is_used() -> None:
    calls, first, second = new_calls(), new_uuid(), new_uuid()
    call = opened(calls)
    calls.receive_replies(reply(call, first, b"a"), replica_id="r", now_s=1.0)
    calls.receive_replies(
        reply(call, second, b"x", end=ReplyEnd(500, b"")), replica_id="r", now_s=1.0
    )
    calls.receive_replies(reply(call, first, b"b", end=END), replica_id="r", now_s=2.0)

    assert call.pieces == [b"a", b"b"]
    assert call.end == END
    assert call.replied_s == 1.0


def test_a_start_report_does_not_bind_a_call_to_an_execution() -> None:
    calls, first, second = new_calls(), new_uuid(), new_uuid()
    patient, begun = opened(calls), opened(calls)
    calls.receive_replies(reply(begun, first), replica_id="r", now_s=1.0)
    for call in (patient, begun):
        call.expire_in_queue()
    assert patient.failure is not None
    assert patient.failure.code == "queue_timeout"
    assert not begun.has_ended
    assert calls.decide_rerun(begun.job.job_id, now_s=2.0)
    calls.receive_replies(reply(begun, second, b"a", end=END), replica_id="r", now_s=3.0)
    assert (begun.pieces, begun.end, begun.replied_s) == ([b"a"], END, 3.0)


@pytest.mark.parametrize("first", ["end", "failure", "leave"])
def test_the_first_end_is_final(first: str) -> None:
    calls, execution = new_calls(), new_uuid()
    call = opened(calls)
    steps = {
        "end": lambda: calls.receive_replies(
            reply(call, execution, end=END), replica_id="r", now_s=1.0
        ),
        "failure": lambda: call.fail(deadline_exceeded()),
        "leave": call.disconnect,
    }
    for name in [first, *steps]:
        steps[name]()

    ends = [call.end is not None, call.failure is not None, call.is_disconnected]
    assert ends.count(True) == 1
    assert ends[list(steps).index(first)]


def dropped() -> float:
    labels = {"reason": "nobody_waits"}
    return REGISTRY.get_sample_value("millrace_online_replies_dropped_total", labels) or 0.0


def test_replies_without_an_open_call_are_dropped_and_counted() -> None:
    calls = new_calls()
    call = opened(calls)
    calls.remove(call)
    before = dropped()
    calls.receive_replies(reply(call, new_uuid(), b"a"), replica_id="r", now_s=1.0)

    assert dropped() == before + 1
    assert call.pieces == []
    assert (len(calls), calls.count_by_tenant[TENANT], calls.count_by_pool["p"]) == (0, 0, 0)


def test_a_second_delivery_may_run_before_any_reply() -> None:
    calls = new_calls()
    call = opened(calls)
    assert calls.decide_rerun(call.job.job_id, now_s=1.0)
    assert not calls.decide_rerun(new_uuid(), now_s=1.0)

    calls.receive_replies(reply(call, new_uuid(), b"a"), replica_id="r", now_s=1.0)
    assert not calls.decide_rerun(call.job.job_id, now_s=2.0)


def test_a_redelivered_stream_ends_unless_it_continues() -> None:
    calls, execution = new_calls(), new_uuid()
    dead, alive = opened(calls), opened(calls)
    for call in (dead, alive):
        calls.receive_replies(reply(call, execution, b"a"), replica_id="r", now_s=1.0)
        calls.decide_rerun(call.job.job_id, now_s=2.0)
    calls.receive_replies(reply(alive, execution, b"b"), replica_id="r", now_s=2.5)
    calls.decide_rerun(dead.job.job_id, now_s=2.9)  # asking again does not help it
    calls.fail_silent_executions(now_s=2.1 + RERUN_SILENCE_S_MAX)

    assert alive.failure is None
    assert isinstance(dead.failure, ApiError)
    assert dead.failure.code == stream_interrupted().code


def test_started_calls_of_a_dead_pool_end() -> None:
    calls = new_calls()
    begun, waiting = opened(calls), opened(calls)
    calls.receive_replies(reply(begun, new_uuid(), b"a"), replica_id="r", now_s=1.0)
    calls.fail_calls_of_dead_pools(lambda pool: pool != begun.job.pool)
    assert not begun.has_ended

    calls.fail_calls_of_dead_pools(lambda pool: pool == begun.job.pool)
    assert isinstance(begun.failure, ApiError)
    assert begun.failure.code == stream_interrupted().code
    assert waiting.failure is None  # another replica may still run it, once


def test_calls_that_others_may_have_dropped_end() -> None:
    calls = new_calls()
    unheard, heard, durable = opened(calls), opened(calls), opened(calls, durable=True)
    calls.receive_replies(reply(heard, new_uuid(), b"a"), replica_id="r", now_s=1.0)
    calls.fail_unanswered(5.0)

    codes = [call.failure.code if call.failure else None for call in (unheard, heard, durable)]
    assert codes == ["log_unavailable", "stream_interrupted", None]


def test_a_slow_reader_is_cut_off_by_bytes_or_time() -> None:
    calls = new_calls()
    by_bytes, by_time, fine = opened(calls), opened(calls), opened(calls)
    by_bytes.sending_since_s = by_time.sending_since_s = 1.0
    for call in (by_bytes, fine):
        calls.receive_replies(reply(call, new_uuid(), b"x" * 101), replica_id="r", now_s=2.0)
    calls.check_streams(now_s=5.0, keep_alive_s=10.0, slow_reader_s=3.0)

    assert [call.failure is not None for call in (by_bytes, by_time, fine)] == [True, True, False]


def test_only_silent_streams_send_keep_alives() -> None:
    calls = new_calls()
    stream, unary = opened(calls), opened(calls, stream=False)
    due = []
    for now_s in (9.0, 10.0):
        calls.check_streams(now_s=now_s, keep_alive_s=10.0, slow_reader_s=30.0)
        due.append((stream.keep_alive_due, unary.keep_alive_due))

    assert due == [(False, False), (True, False)]


def test_reserved_calls_are_counted() -> None:
    calls = new_calls()
    call = opened(calls)
    with calls.reserve(call.job):
        assert (calls.count, len(calls)) == (2, 1)
        assert (calls.count_by_tenant[TENANT], calls.count_by_pool["p"]) == (2, 2)
    assert (calls.count, calls.count_by_tenant[TENANT], calls.count_by_pool["p"]) == (1, 1, 1)
    calls.remove(call)
    assert (calls.count, TENANT in calls.count_by_tenant) == (0, False)


def test_streams_that_a_lost_replica_has_begun_end() -> None:
    calls = new_calls()
    begun, elsewhere, started, waiting = (opened(calls) for _ in range(4))
    calls.receive_replies(reply(begun, new_uuid(), b"a"), replica_id="lost", now_s=1.0)
    calls.receive_replies(reply(begun, new_uuid(), b"b"), replica_id="live", now_s=2.0)
    calls.receive_replies(reply(elsewhere, new_uuid(), b"a"), replica_id="live", now_s=1.0)
    calls.receive_replies(reply(started, new_uuid()), replica_id="lost", now_s=1.0)

    calls.fail_calls_of_lost_replicas(lambda replica_id: replica_id == "lost")
    assert isinstance(begun.failure, ApiError)
    assert begun.failure.code == stream_interrupted().code
    assert not any(call.has_ended for call in (elsewhere, started, waiting))


def test_calls_that_only_a_lost_replica_ran_end_unless_they_were_requeued_or_may_rerun() -> None:
    calls, execution = new_calls(), new_uuid()
    only, requeued, rerun, elsewhere = (opened(calls, stream=False) for _ in range(4))
    for call in (only, requeued, rerun):
        calls.receive_replies(reply(call, execution, only_here=True), replica_id="lost", now_s=1.0)
    calls.receive_replies(reply(elsewhere, execution, only_here=True), replica_id="b", now_s=1.0)
    calls.receive_replies(reply(requeued, execution), replica_id="lost", now_s=2.0)
    assert calls.decide_rerun(rerun.job.job_id, now_s=2.0)

    calls.fail_calls_of_lost_replicas(lambda replica_id: replica_id == "lost")
    assert isinstance(only.failure, ApiError)
    assert only.failure.code == stream_interrupted().code
    assert not any(call.has_ended for call in (requeued, rerun, elsewhere))
