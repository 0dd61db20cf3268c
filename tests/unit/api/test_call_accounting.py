"""Goal: a call is charged for the tokens it used, once."""

from collections.abc import Callable

import pytest

from api.http.errors import ApiError
from api.online.admit.rate_limits import Charge, RateLimits
from api.online.answer.reply_responses import used_tokens
from api.online.await_reply.open_calls import OpenCall
from api.online.call_errors import (
    deadline_exceeded,
    job_cancelled,
    log_unavailable,
    queue_timeout,
    slow_reader,
    stream_interrupted,
)
from core.ids import new_uuid
from topics.records.records import CallRef, JobRef, Reply, ReplyEnd

PROMPT = 40
EXECUTION = new_uuid()
Word = Callable[[OpenCall], object]


def opened(*, stream: bool = False, durable: bool = False) -> OpenCall:
    job = JobRef(
        job_id=new_uuid(),
        day=0,
        tenant_id=new_uuid(),
        model="m",
        model_version="1",
        pool="p",
        endpoint="/v1/completions",
        input_key="",
        deadline_s=0.0,
        call=CallRef("c", 0, stream=stream, durable=durable),
    )
    return OpenCall(job, now_s=0.0)


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
    call = opened(durable=durable)
    hear(call, end=ReplyEnd(200, b"", input_tokens=3, output_tokens=2))
    call.disconnect()
    assert used_tokens(call, PROMPT) == 5


@pytest.mark.parametrize(
    "end",
    [
        OpenCall.disconnect,
        lambda call: call.fail(deadline_exceeded()),
        lambda call: call.fail(queue_timeout()),
        lambda call: call.fail(log_unavailable()),
        lambda _: None,  # its record could not be sent
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_call_without_a_reply_is_not_charged(end: Word, stream: bool) -> None:
    call = opened(stream=stream)
    end(call)
    assert used_tokens(call, PROMPT) == 0


@pytest.mark.parametrize(
    "end",
    [
        OpenCall.disconnect,
        lambda call: call.fail(deadline_exceeded()),
        lambda call: call.fail(stream_interrupted()),
        lambda call: call.fail(slow_reader()),
    ],
)
def test_a_cut_off_stream_is_charged_its_prompt_and_pieces(end: Word) -> None:
    call = opened(stream=True)
    hear(call, b"a", b"b")
    call.drain_pieces()
    hear(call, b"c")
    end(call)
    hear(call, b"d")
    assert used_tokens(call, PROMPT) == PROMPT + 3


@pytest.mark.parametrize(
    "end",
    [OpenCall.disconnect, lambda call: call.fail(log_unavailable()), lambda _: None],
)
def test_a_durable_call_outlives_its_connection(end: Word) -> None:
    call = opened(durable=True)
    end(call)
    assert used_tokens(call, PROMPT) is None


@pytest.mark.parametrize("failure", [deadline_exceeded, queue_timeout, job_cancelled])
def test_a_durable_call_ends_with_its_deadline_or_job(failure: Callable[[], ApiError]) -> None:
    call = opened(durable=True)
    call.fail(failure())
    assert used_tokens(call, PROMPT) == 0
