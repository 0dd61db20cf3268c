"""Goal: a call has one execution, one end and one charge, whatever arrives in whatever order."""

from collections.abc import Callable
from uuid import UUID

import pytest
from prometheus_client import REGISTRY

from api.http.errors import ApiError
from api.online.admit.admission import Charge, RateLimits
from api.online.answer.reply_responses import used_tokens
from api.online.await_reply.open_calls import RERUN_SILENCE_S_MAX, OpenCall, OpenCalls
from api.online.call_errors import (
    deadline_exceeded,
    job_cancelled,
    log_unavailable,
    queue_timeout,
    slow_reader,
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
    call: OpenCall, execution: UUID, *pieces: bytes, end: ReplyEnd | None = None
) -> list[Reply]:
    return [Reply(call.job.job_id, execution, list(pieces), end)]


def test_only_the_first_execution_is_used() -> None:
    calls, first, second = new_calls(), new_uuid(), new_uuid()
    call = opened(calls)
    calls.receive_replies(reply(call, first, b"a"), now_s=1.0)
    calls.receive_replies(reply(call, second, b"x", end=ReplyEnd(500, b"")), now_s=1.0)
    calls.receive_replies(reply(call, first, b"b", end=END), now_s=2.0)

    assert call.pieces == [b"a", b"b"]
    assert call.end == END
    assert call.replied_s == 1.0


def test_a_start_report_does_not_bind_a_call_to_an_execution() -> None:
    calls, first, second = new_calls(), new_uuid(), new_uuid()
    patient, begun = opened(calls), opened(calls)
    calls.receive_replies(reply(begun, first), now_s=1.0)
    for call in (patient, begun):
        call.expire_in_queue()
    assert patient.failure is not None
    assert patient.failure.code == "queue_timeout"
    assert not begun.has_ended
    assert calls.decide_rerun(begun.job.job_id, now_s=2.0)
    calls.receive_replies(reply(begun, second, b"a", end=END), now_s=3.0)
    assert (begun.pieces, begun.end, begun.replied_s) == ([b"a"], END, 3.0)


@pytest.mark.parametrize("first", ["end", "failure", "leave"])
def test_the_first_end_is_final(first: str) -> None:
    calls, execution = new_calls(), new_uuid()
    call = opened(calls)
    steps = {
        "end": lambda: calls.receive_replies(reply(call, execution, end=END), now_s=1.0),
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
    calls.receive_replies(reply(call, new_uuid(), b"a"), now_s=1.0)

    assert dropped() == before + 1
    assert call.pieces == []
    assert (len(calls), calls.count_by_tenant[TENANT], calls.count_by_pool["p"]) == (0, 0, 0)


def test_a_second_delivery_may_run_before_any_reply() -> None:
    calls = new_calls()
    call = opened(calls)
    assert calls.decide_rerun(call.job.job_id, now_s=1.0)
    assert not calls.decide_rerun(new_uuid(), now_s=1.0)

    calls.receive_replies(reply(call, new_uuid(), b"a"), now_s=1.0)
    assert not calls.decide_rerun(call.job.job_id, now_s=2.0)


def test_a_redelivered_stream_ends_unless_it_continues() -> None:
    calls, execution = new_calls(), new_uuid()
    dead, alive = opened(calls), opened(calls)
    for call in (dead, alive):
        calls.receive_replies(reply(call, execution, b"a"), now_s=1.0)
        calls.decide_rerun(call.job.job_id, now_s=2.0)
    calls.receive_replies(reply(alive, execution, b"b"), now_s=2.5)
    calls.decide_rerun(dead.job.job_id, now_s=2.9)  # asking again does not help it
    calls.fail_silent_executions(now_s=2.1 + RERUN_SILENCE_S_MAX)

    assert alive.failure is None
    assert isinstance(dead.failure, ApiError)
    assert dead.failure.code == stream_interrupted().code


def test_started_calls_of_a_dead_pool_end() -> None:
    calls = new_calls()
    begun, waiting = opened(calls), opened(calls)
    calls.receive_replies(reply(begun, new_uuid(), b"a"), now_s=1.0)
    calls.fail_calls_of_dead_pools(lambda pool: pool != begun.job.pool)
    assert not begun.has_ended

    calls.fail_calls_of_dead_pools(lambda pool: pool == begun.job.pool)
    assert isinstance(begun.failure, ApiError)
    assert begun.failure.code == stream_interrupted().code
    assert waiting.failure is None  # another replica may still run it, once


def test_calls_that_others_may_have_dropped_end() -> None:
    calls = new_calls()
    unheard, heard, durable = opened(calls), opened(calls), opened(calls, durable=True)
    calls.receive_replies(reply(heard, new_uuid(), b"a"), now_s=1.0)
    calls.fail_unanswered(5.0)

    codes = [call.failure.code if call.failure else None for call in (unheard, heard, durable)]
    assert codes == ["log_unavailable", "stream_interrupted", None]


def test_a_slow_reader_is_cut_off_by_bytes_or_time() -> None:
    calls = new_calls()
    by_bytes, by_time, fine = opened(calls), opened(calls), opened(calls)
    by_bytes.sending_since_s = by_time.sending_since_s = 1.0
    for call in (by_bytes, fine):
        calls.receive_replies(reply(call, new_uuid(), b"x" * 101), now_s=2.0)
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


PROMPT = 40
EXECUTION = new_uuid()


def lone_call(*, stream: bool = False, durable: bool = False) -> OpenCall:
    return OpenCall(call_job(stream=stream, durable=durable), now_s=0.0)


def hear(call: OpenCall, *pieces: bytes, end: ReplyEnd | None = None) -> None:
    call.receive_reply(Reply(call.job.job_id, EXECUTION, [*pieces], end), now_s=1.0)


def test_a_charge_is_settled_or_kept_once() -> None:
    buckets = RateLimits(requests_per_minute=9, tokens_per_minute=100).of_tenant(
        new_uuid(), now_s=0.0
    )
    buckets.admit(80, now_s=0.0)
    charge = Charge(buckets, 80)
    charge.settle(30, now_s=0.0)
    charge.settle(0, now_s=0.0)
    charge.keep_estimate()
    assert buckets.tokens.level(now_s=0.0) == 70

    buckets.admit(60, now_s=0.0)
    charge = Charge(buckets, 60)
    charge.keep_estimate()
    charge.settle(0, now_s=0.0)
    assert buckets.tokens.level(now_s=0.0) == 10


@pytest.mark.parametrize("durable", [False, True])
def test_an_end_has_the_used_tokens(durable: bool) -> None:
    call = lone_call(durable=durable)
    hear(call, end=ReplyEnd(200, b"", input_tokens=3, output_tokens=2))
    call.disconnect()
    assert used_tokens(call, PROMPT) == 5


NO_END, LEFT = "record not sent", "client left"


@pytest.mark.parametrize(
    ("stream", "durable", "pieces", "ends", "tokens"),
    [
        (False, False, b"", (NO_END, LEFT, deadline_exceeded, queue_timeout, log_unavailable), 0),
        (True, False, b"", (NO_END, LEFT, deadline_exceeded, queue_timeout, log_unavailable), 0),
        (
            True,
            False,
            b"abc",
            (LEFT, deadline_exceeded, stream_interrupted, slow_reader),
            PROMPT + 3,
        ),
        (False, True, b"", (NO_END, LEFT, log_unavailable), None),  # it continues elsewhere
        (False, True, b"", (deadline_exceeded, queue_timeout, job_cancelled), 0),
    ],
)
def test_a_call_without_an_end_is_charged_its_prompt_and_pieces(
    stream: bool,
    durable: bool,
    pieces: bytes,
    ends: tuple[str | Callable[[], ApiError], ...],
    tokens: int | None,
) -> None:
    for end in ends:
        call = lone_call(stream=stream, durable=durable)
        for piece in pieces:
            hear(call, bytes([piece]))
            call.drain_pieces()
        if end is LEFT:
            call.disconnect()
        elif callable(end):
            call.fail(end())
        if call.has_ended:
            hear(call, b"late")
        assert used_tokens(call, PROMPT) == tokens, end
