"""Goal: a tenant's token limit is charged what its calls used, however they ended."""

from collections.abc import Callable
from uuid import UUID

import pytest
from msgspec.structs import replace

from api.http.errors import ApiError
from api.online.admit.admission import RateLimits
from api.online.admit.token_charges import Charge, TokenCharges
from api.online.answer.reply_responses import settle_charge
from api.online.await_reply.open_calls import OpenCall
from api.online.call_errors import (
    deadline_exceeded,
    job_cancelled,
    log_unavailable,
    queue_timeout,
    slow_reader,
    stream_interrupted,
)
from core.bodies.output_estimator import OUTPUT_TOKENS_PRIOR
from core.bodies.token_estimates import RequestedTokens
from core.ids import new_uuid
from tests.support.online_calls import call_job
from topics.records.records import Reply, ReplyEnd

TENANT, EXECUTION = new_uuid(), new_uuid()
CHAT = "/v1/chat/completions"
SOURCE = (TENANT, "m", CHAT)
LIMIT, PROMPT, OUTPUT = 10_000, 40, 60
REQUESTED = RequestedTokens(PROMPT, 1, OUTPUT)
RESERVED = PROMPT + OUTPUT


class Limited:
    """The charges of one process, and the level of one tenant's bucket."""

    def __init__(self) -> None:
        self.limits = RateLimits(requests_per_minute=1_000, tokens_per_minute=LIMIT)
        self.charges = TokenCharges(self.limits)

    def reserve(self, requested: RequestedTokens = REQUESTED, model: str = "m") -> Charge:
        return self.charges.reserve((TENANT, model, CHAT), requested, now_s=0.0)

    def settle(self, charge: Charge, call: OpenCall) -> None:
        settle_charge(self.charges, charge, call, now_s=0.0)

    def report(self, call: OpenCall, end: ReplyEnd | None) -> None:
        reply = Reply(call.job.job_id, EXECUTION, [], end)
        self.charges.receive_replies([reply], now_s=0.0)

    @property
    def charged(self) -> float:
        return LIMIT - self.limits.of_tenant(TENANT, now_s=0.0).tokens.level(now_s=0.0)


def open_call(*, durable: bool = False, pieces: int = 0, started: bool = False) -> OpenCall:
    call = OpenCall(call_job(stream=pieces > 0, durable=durable), now_s=0.0)
    if started:
        hear(call)
    for _ in range(pieces):
        hear(call, b"piece")
    return call


def hear(call: OpenCall, *pieces: bytes, end: ReplyEnd | None = None) -> None:
    call.receive_reply(Reply(call.job.job_id, EXECUTION, [*pieces], end), replica_id="r", now_s=1.0)


def usage(output: int, *, prompt: int = PROMPT, status: int = 200, body: bytes = b"") -> ReplyEnd:
    return ReplyEnd(status, body, input_tokens=prompt, output_tokens=output)


@pytest.mark.parametrize("output", [0, 5, OUTPUT, 900])  # settled down, and up
@pytest.mark.parametrize("durable", [False, True])
def test_the_usage_of_a_reply_replaces_the_reservation(output: int, durable: bool) -> None:
    limited, call = Limited(), open_call(durable=durable)
    charge = limited.reserve()
    assert limited.charged == RESERVED
    hear(call, end=usage(output))
    call.disconnect()  # after the end
    limited.settle(charge, call)
    assert limited.charged == PROMPT + output
    limited.settle(charge, call)
    assert limited.charged == PROMPT + output


def test_calls_without_a_limit_of_their_own_do_not_use_up_the_tenants_limit() -> None:
    # The context of the model has 128k tokens; so many were reserved once for each call.
    body = RequestedTokens(PROMPT, 1, None)
    assert body.estimate(OUTPUT_TOKENS_PRIOR, context_tokens=131_072).output_bound > LIMIT
    limited = Limited()
    charges = [limited.reserve(body) for _ in range(20)]
    assert limited.charged == 20 * (PROMPT + OUTPUT_TOKENS_PRIOR)
    for charge in charges:
        call = open_call(started=True)
        hear(call, end=usage(100))
        limited.settle(charge, call)
    assert limited.charged == 20 * (PROMPT + 100)


def test_a_limit_that_the_client_named_is_reserved_whole() -> None:
    limited = Limited()
    limited.reserve(RequestedTokens(PROMPT, 1, LIMIT - PROMPT))
    assert limited.charged == LIMIT
    with pytest.raises(ApiError):
        limited.reserve(RequestedTokens(PROMPT, 1, LIMIT // 10))


def test_results_teach_about_a_version_however_its_model_is_spelled() -> None:
    limited = Limited()
    digest = "a1" * 32
    names = ["m", "an-alias", f"m@{digest[:12]}", f"m@{digest[:13]}"]
    jobs = [replace(call_job(tenant_id=TENANT, version=digest), model=name) for name in names]
    asked = RequestedTokens(PROMPT, 1, None)
    for job in jobs:
        charge = limited.reserve(asked, job.model)
        limited.charges.note_served_by(charge, job)
        call = open_call(started=True)
        hear(call, end=usage(10))
        limited.settle(charge, call)
    expected = {limited.reserve(asked, name).charged for name in names}
    assert len(expected) == 1
    assert expected.pop() < PROMPT + OUTPUT_TOKENS_PRIOR
    assert {source[1] for source, _ in limited.charges._outputs.recent(100)} == {f"p@{digest}"}


def test_a_reservation_follows_the_results_of_the_tenant() -> None:
    limited, body = Limited(), RequestedTokens(PROMPT, 1, None)
    for _ in range(40):
        call = open_call()
        hear(call, end=usage(10, prompt=0))
        limited.settle(limited.reserve(body), call)
    before = limited.charged
    limited.reserve(body)
    assert limited.charged - before < PROMPT + 30
    before = limited.charged
    limited.reserve(body, model="another")
    assert limited.charged - before == PROMPT + OUTPUT_TOKENS_PRIOR


@pytest.mark.parametrize("prompt", [PROMPT, 0])  # reported, or estimated
def test_a_client_that_left_is_charged_what_its_replica_reports(prompt: int) -> None:
    limited, call = Limited(), open_call(pieces=7)
    charge = limited.reserve()
    call.disconnect()
    limited.settle(charge, call)
    assert limited.charged == RESERVED  # until the report
    limited.report(call, usage(9, prompt=prompt, status=499))
    assert limited.charged == PROMPT + 9
    limited.report(call, usage(99, status=499))  # a second execution
    assert limited.charged == PROMPT + 9


def test_a_lost_report_leaves_the_reservation_or_what_was_delivered() -> None:
    for pieces, charged in ((7, RESERVED), (500, PROMPT + 500)):
        limited, call = Limited(), open_call(pieces=pieces)
        charge = limited.reserve()
        call.disconnect()
        limited.settle(charge, call)
        assert limited.charged == charged


def test_a_call_that_starts_after_its_client_left_is_charged() -> None:
    limited, call = Limited(), open_call()
    charge = limited.reserve()
    call.disconnect()
    limited.settle(charge, call)
    assert limited.charged == 0
    limited.report(call, None)  # its start
    assert limited.charged == RESERVED
    limited.report(call, usage(3, status=499))
    assert limited.charged == PROMPT + 3


LEFT = "client left"
Ending = str | Callable[[], ApiError]


@pytest.mark.parametrize("ending", [LEFT, deadline_exceeded, queue_timeout, log_unavailable])
def test_a_call_that_did_not_start_is_given_back(ending: Ending) -> None:
    assert charged_after(open_call(), ending) == 0


@pytest.mark.parametrize("ending", [LEFT, deadline_exceeded, stream_interrupted, slow_reader])
def test_a_call_that_started_keeps_its_reservation_until_the_report(ending: Ending) -> None:
    assert charged_after(open_call(started=True), ending) == RESERVED


@pytest.mark.parametrize("ending", [LEFT, log_unavailable])
def test_a_durable_call_that_goes_on_elsewhere_keeps_its_reservation(ending: Ending) -> None:
    assert charged_after(open_call(durable=True), ending) == RESERVED


@pytest.mark.parametrize("ending", [deadline_exceeded, queue_timeout, job_cancelled])
def test_a_durable_call_whose_job_ended_before_it_started_is_given_back(ending: Ending) -> None:
    assert charged_after(open_call(durable=True), ending) == 0


def charged_after(call: OpenCall, ending: Ending) -> float:
    limited = Limited()
    charge = limited.reserve()
    if callable(ending):
        call.fail(ending())
    else:
        call.disconnect()
    limited.settle(charge, call)
    return limited.charged


def test_a_call_in_the_background_is_settled_by_its_later_reply() -> None:
    limited, call = Limited(), open_call(durable=True)
    limited.settle(limited.reserve(), call)
    assert limited.charged == RESERVED
    limited.report(call, usage(5))
    assert limited.charged == PROMPT + 5


@pytest.mark.parametrize("status", [400, 503, 504])
def test_a_refusal_or_a_failure_before_execution_is_given_back(status: int) -> None:
    limited, call = Limited(), open_call()
    hear(call, end=ReplyEnd(status, b"{}"))
    limited.settle(limited.reserve(), call)
    assert limited.charged == 0


@pytest.mark.parametrize("is_left", [False, True])
def test_an_aborted_execution_that_was_not_counted_keeps_its_reservation(is_left: bool) -> None:
    limited, call = Limited(), open_call()
    end = ReplyEnd(499 if is_left else 504, b"{}", execution_s=1.5)
    if is_left:
        call.disconnect()
    else:
        hear(call, end=end)
    limited.settle(limited.reserve(), call)
    if is_left:
        assert limited.charged == 0
        limited.report(call, end)
    assert limited.charged == RESERVED


def test_a_reservation_above_the_limit_blocks_for_at_most_a_minute() -> None:
    limited, call = Limited(), open_call()
    giant = RequestedTokens(50 * LIMIT, 1, None)
    charge = limited.reserve(giant)
    assert limited.charged == LIMIT
    hear(call, end=usage(2 * LIMIT, prompt=0))  # what was used counts in full
    limited.settle(charge, call)
    assert limited.charged == 2 * LIMIT


def test_the_calls_that_wait_for_a_report_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("api.online.admit.token_charges._REPORTS_MAX", 2)
    limited, calls = Limited(), [open_call(started=True) for _ in range(3)]
    for call in calls:
        call.disconnect()
        limited.settle(limited.reserve(), call)
    for call in calls:
        limited.report(call, usage(0, status=499))
    assert limited.charged == RESERVED + 2 * PROMPT  # the oldest keeps its reservation


def test_tenants_have_own_charges() -> None:
    limited, other = Limited(), UUID(int=1)
    limited.reserve()
    limited.charges.reserve((other, "m", CHAT), REQUESTED, now_s=0.0)
    assert limited.charged == RESERVED
