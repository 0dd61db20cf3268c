"""Goal: a reply that cannot be sent is not charged twice, and no client waits longer than it asked.

The failures: an object store that is unavailable, refuses, lost the body or hangs; a server that
stops; an exceeded memory limit.
"""

import asyncio
import threading
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from starlette.types import Message

from api.http.errors import ApiError
from api.online.admit.admission import RateLimits
from api.online.admit.token_charges import TokenCharges
from api.online.answer.event_stream import EventStreamResponse
from api.online.answer.reply_responses import ReplyResponses
from api.online.await_reply.open_calls import OpenCall
from api.online.calls import AdmittedCall, PlannedCall, PreparedCall, Timings
from api.online.exchange import CompleteResponse
from api.online.memory_limits import LARGE_BYTES, ResponseMemoryLimit
from api.online.pipeline import CallPipeline
from api.online.send.call_sender import LargeBodies
from api.online.settings import OnlineSettings
from api.runtime import object_threads
from core.bodies.token_estimates import RequestedTokens
from core.clock import SystemClock
from core.ids import new_uuid
from core.object_names import answer_prefix
from storage.objects.errors import ObjectStoreRefusedError, ObjectStoreUnavailableError
from storage.objects.object_store import ObjectBlocks
from tests.support.clock import ManualClock
from tests.support.memory_objects import MemoryStore
from tests.support.online_calls import call_job, new_exchange
from topics.metrics import FOREIGN_OBJECTS
from topics.records.records import JobRef, ReplyEnd

ME, OTHER = new_uuid(), new_uuid()
JOB = call_job()
BODY_KEY = f"{answer_prefix(JOB.job_id)}1"
BODY = b"x" * (LARGE_BYTES + 1)
TIMEOUT_S, WAIT_S = 30.0, 20.0
FAILURES = {
    "unavailable": (503, "service_unavailable"),
    "refused": (502, "stream_interrupted"),
    "missing": (502, "stream_interrupted"),
    "hanging": (504, "deadline_exceeded"),
    "stopping": (503, "server_restarting"),
    "memory": (503, "queue_full"),
}
CANCELLED = ReplyEnd(409, b'{"error":{"message":"m","type":"t","param":null,"code":"cancelled"}}')


class FailingStore(MemoryStore):
    """A store with one body, which fails in one way."""

    def __init__(self, failure: str) -> None:
        super().__init__()
        if failure != "missing":
            self.objects[BODY_KEY] = BODY
        self.failure = failure
        self.is_reading, self.may_continue = threading.Event(), threading.Event()
        self.is_deleted = threading.Event()

    def read(self, key: str, *, offset: int = 0, length: int | None = None) -> ObjectBlocks:
        self.is_reading.set()
        if self.failure == "unavailable":
            raise ObjectStoreUnavailableError
        if self.failure == "refused":
            raise ObjectStoreRefusedError
        if self.failure in {"hanging", "stopping"}:
            self.may_continue.wait(20)
        return super().read(key, offset=offset, length=length)

    def delete(self, key: str) -> None:
        if self.failure == "hanging delete":
            self.may_continue.wait(20)
        super().delete(key)
        self.is_deleted.set()


class AnsweredCall:
    """One call with a complete reply, whose body may not be available."""

    def __init__(
        self,
        failure: str = "",
        *,
        key: bool = False,
        status: int = 200,
        wait_s: float | None = None,
    ) -> None:
        self.store, self.sent = FailingStore(failure), list[Message]()
        self.response_limit = ResponseMemoryLimit(1 if failure == "memory" else 10 * len(BODY))
        timeout_s = 0.05 if failure == "hanging" else TIMEOUT_S
        self.exchange = new_exchange(self.send, tenant_id=ME, response_limit=self.response_limit)
        job = msgspec.structs.replace(call_job(tenant_id=ME, durable=key), job_id=JOB.job_id)
        online: Any = SimpleNamespace(
            settings=OnlineSettings(),
            clock=ManualClock(),
            charges=TokenCharges(RateLimits(requests_per_minute=9, tokens_per_minute=900)),
            bodies=LargeBodies(self.store),
            durable=SimpleNamespace(accept=lambda *_: CompleteResponse(202, b"{}", [])),
        )
        claim = cast("Any", object()) if key else None
        prepared = PreparedCall(job, wait_s=wait_s, claim=claim)
        self.admitted = admitted(job, prepared, exchange=self.exchange, timeout_s=timeout_s)
        self.pipeline, self.call = CallPipeline(online), OpenCall(job, now_s=0.0)
        self.call.end = ReplyEnd(status, b"", body_key=BODY_KEY)

    async def send(self, message: Message) -> None:
        self.sent.append(message)

    async def answer(self) -> ApiError | int:
        """Return the status, or the refusal. A server that stops cancels the answer."""
        answering = asyncio.create_task(self.pipeline._answer(self.admitted, self.call))
        if self.store.failure == "stopping":
            assert await asyncio.to_thread(self.store.is_reading.wait, 20)
            answering.cancel()
        try:
            with self.response_limit.reserve(OTHER, 1):
                await asyncio.wait_for(answering, 20)
        except ApiError as refusal:
            return refusal
        finally:
            self.store.may_continue.set()
        return int(self.sent[0]["status"])

    async def refusal(self) -> ApiError:
        refusal = await self.answer()
        assert isinstance(refusal, ApiError)
        return refusal


def admitted(
    job: JobRef, prepared: PreparedCall, *, exchange: Any = None, timeout_s: float = TIMEOUT_S
) -> AdmittedCall:
    unused: Any = None
    charges = TokenCharges(RateLimits(requests_per_minute=9, tokens_per_minute=900))
    source = (job.tenant_id, job.model, job.endpoint)
    charge = charges.reserve(source, RequestedTokens(1), now_s=0.0)
    parsed: Any = SimpleNamespace(body=b"", stream=False)
    planned = PlannedCall(job.job_id, unused, parsed, unused, job, timeout_s, None, 0.0)
    return AdmittedCall(exchange, planned, prepared, charge, [], None, Timings(0.0))


def advises_against_retry(refusal: ApiError) -> bool:
    return dict(refusal.headers or {}).get("x-should-retry") == "false"


@pytest.mark.parametrize("failure", FAILURES)
@pytest.mark.parametrize(
    ("key", "status", "is_retry_answered"),
    [(False, 200, False), (True, 200, True), (True, 400, False)],
)
async def test_errors_advise_against_a_retry_unless_its_key_has_the_answer(
    failure: str, key: bool, status: int, is_retry_answered: bool
) -> None:
    """A failed call frees its key. The key of a call that hangs is about to expire."""
    refusal = await AnsweredCall(failure, key=key, status=status).refusal()
    assert (refusal.status, refusal.code) == FAILURES[failure]
    is_retry_answered &= failure != "hanging"
    assert advises_against_retry(refusal) is not is_retry_answered


@pytest.mark.parametrize("failure", FAILURES)
async def test_a_client_that_prefers_a_wait_gets_a_202(failure: str) -> None:
    assert await AnsweredCall(failure, wait_s=WAIT_S).answer() == 202


async def test_the_object_of_another_call_is_neither_sent_nor_deleted() -> None:
    call = AnsweredCall()
    foreign = f"{answer_prefix(new_uuid())}1"
    call.store.objects[foreign] = b"of another tenant"
    call.call.end = ReplyEnd(200, b"", body_key=foreign)
    counted = FOREIGN_OBJECTS.labels("body_key")._value.get()
    refusal = await call.refusal()
    assert (refusal.status, refusal.code) == (502, "foreign_object")
    assert foreign in call.store.objects
    assert FOREIGN_OBJECTS.labels("body_key")._value.get() == counted + 1


async def test_a_preferred_wait_ends_while_the_store_hangs() -> None:
    call = AnsweredCall("stopping", wait_s=0.05)
    call.store.failure = "hanging"
    assert await call.answer() == 202


@pytest.mark.parametrize(
    ("now_s", "status", "code"),
    [(TIMEOUT_S - 0.1, 409, b"job_cancelled"), (TIMEOUT_S, 504, b"deadline_exceeded")],
)
async def test_a_job_closed_at_its_deadline_is_expired_not_cancelled(
    now_s: float, status: int, code: bytes
) -> None:
    job = call_job(durable=True)
    online: Any = SimpleNamespace(clock=ManualClock(now_s))
    call = OpenCall(job, now_s=0.0)
    call.end = CANCELLED
    response = await ReplyResponses(online, admitted(job, PreparedCall(job)), call).create()
    assert response.status == status
    assert code in response.body


async def test_the_response_does_not_wait_for_the_deletion_of_its_body(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(object_threads, "_DELETE_S_MAX", 60.0)
    call = AnsweredCall("hanging delete")
    await asyncio.wait_for(call.pipeline._answer(call.admitted, call.call), 20)
    assert [call.sent[0]["status"], call.sent[1]["body"]] == [200, BODY]
    assert not call.store.is_deleted.is_set()
    call.store.may_continue.set()
    assert await asyncio.to_thread(call.store.is_deleted.wait, 20)


async def test_concurrent_deletions_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_threads, "DELETIONS_MAX", 2)
    started: list[str] = []

    async def delete(_: object, key: str) -> None:
        started.append(key)
        await asyncio.sleep(0)

    monkeypatch.setattr(object_threads, "delete_object", delete)
    deletions = object_threads.ObjectDeletions(MemoryStore())
    for key in "abc":
        deletions.start(key)
    for _ in range(4):
        await asyncio.sleep(0)
    deletions.start("d")
    await asyncio.sleep(0)
    assert started == ["a", "b", "d"]


async def test_an_error_of_a_stream_above_the_memory_limit_advises_against_a_retry() -> None:
    call = AnsweredCall("memory", status=400)

    async def fetch_body(_: OpenCall, __: ReplyEnd) -> bytes:
        return BODY

    stream = EventStreamResponse(call.exchange, [], Timings(0.0), SystemClock(), fetch_body)
    with call.response_limit.reserve(OTHER, 1), pytest.raises(ApiError) as refused:
        await stream.run(call.call)
    assert (refused.value.code, refused.value.status) == ("queue_full", 503)
    assert advises_against_retry(refused.value)
