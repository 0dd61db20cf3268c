"""Goal: an answer that is there and cannot be given is not paid for twice, and is not waited for
any longer than its client waits.
"""

import asyncio
import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest
from starlette.types import Message

from api.http.responses import ApiError
from api.online.admit.body_room import BodyHold, BodyRoom
from api.online.admit.readers import LARGE_BYTES, Readers
from api.online.answer.event_stream import EventStreamResponse
from api.online.answer.timings import Timings
from api.online.await_reply.open_call import OpenCall
from api.online.await_reply.running_call import RunningCall
from api.online.calls import CompleteResponse, PlannedCall
from api.online.receive.exchange import Exchange
from api.online.send import store_threads
from api.online.send.large_bodies import LargeBodies
from core.clock import SystemClock
from core.ids import new_uuid
from storage.objects.errors import ObjectStoreAwayError, ObjectStoreRefusedError
from storage.objects.object_store import Blocks
from tests.support.memory_objects import MemoryStore
from topics.records.records import CallRef, JobRef, ReplyEnd

ME, OTHER = new_uuid(), new_uuid()
PLACE = "answers/1"
BODY = b"x" * (LARGE_BYTES + 1)
TIMEOUT_S, WAIT_S = 30.0, 20.0
WAYS = {
    "away": (503, "service_unavailable"),
    "refused": (502, "stream_interrupted"),
    "gone": (502, "stream_interrupted"),
    "slow": (504, "deadline_exceeded"),
    "stopping": (503, "server_restarting"),
    "no room": (503, "queue_full"),
}


class Store(MemoryStore):
    """A store with one answer, in trouble."""

    def __init__(self, trouble: str) -> None:
        super().__init__()
        if trouble != "gone":
            self.objects[PLACE] = BODY
        self.trouble = trouble
        self.is_asked, self.is_over = threading.Event(), threading.Event()
        self.is_deleted = threading.Event()

    def read(self, key: str, *, offset: int = 0, length: int | None = None) -> Blocks:
        self.is_asked.set()
        if self.trouble == "away":
            raise ObjectStoreAwayError
        if self.trouble == "refused":
            raise ObjectStoreRefusedError
        if self.trouble in {"slow", "stopping"}:
            self.is_over.wait(20)
        return super().read(key, offset=offset, length=length)

    def delete(self, key: str) -> None:
        if self.trouble == "slow to delete":
            self.is_over.wait(20)
        super().delete(key)
        self.is_deleted.set()


class Site:
    """One call with an answer, and what its client is told."""

    def __init__(self, trouble: str = "", *, key: bool = False, status: int = 200) -> None:
        self.store, self.sent = Store(trouble), list[Message]()
        self.readers = Readers(1 if trouble == "no room" else 10 * len(BODY))
        job = _job(durable=key)
        unasked: Any = None
        parsed: Any = SimpleNamespace(body=b"", stream=False)
        timeout_s = 0.05 if trouble == "slow" else TIMEOUT_S
        planned = PlannedCall(job.job_id, unasked, parsed, unasked, job, timeout_s, None, 0.0)
        online: Any = SimpleNamespace(
            clock=SimpleNamespace(monotonic_s=lambda: 0.0),
            bodies=LargeBodies(self.store),
            durable=SimpleNamespace(accepted=lambda *_: CompleteResponse(202, b"{}", [])),
        )
        running = RunningCall(online, exchange(self), planned, unasked, [], None)
        running._claim = cast("Any", object()) if key else None
        self.running, self.call = running, OpenCall(job, now_s=0.0)
        self.call.end = ReplyEnd(status, b"", body_key=PLACE)

    async def send(self, message: Message) -> None:
        self.sent.append(message)

    async def told(self, wait_s: float | None = None) -> ApiError | int:
        """Return the status, or why there is none; a process that stops cuts the fetch."""
        answering = asyncio.create_task(self.running._answer(self.call, wait_s))
        if self.store.trouble == "stopping":
            assert await asyncio.to_thread(self.store.is_asked.wait, 20)
            answering.cancel()
        try:
            with self.readers.hold(OTHER, 1):
                await asyncio.wait_for(answering, 20)
        except ApiError as refusal:
            return refusal
        finally:
            self.store.is_over.set()
        return int(self.sent[0]["status"])


def _job(*, durable: bool) -> JobRef:
    return JobRef(
        job_id=new_uuid(),
        day=0,
        tenant_id=ME,
        model="m",
        model_version="1",
        pool="p",
        endpoint="/v1/completions",
        input_key="",
        deadline_s=0.0,
        call=CallRef("c", 0, durable=durable),
    )


def exchange(site: Any) -> Exchange:
    hold = BodyHold(BodyRoom(1, body_bytes_max=1))
    hold.assign_tenant(ME)
    parts = SimpleNamespace(
        send=site.send,
        readers=site.readers,
        recording=None,
        body_reservation=hold,
        connection=None,
        arrived_s=0.0,
    )
    parts.reserve_response_memory = lambda count: Exchange.reserve_response_memory(cast("Exchange", parts), count)
    return cast("Exchange", parts)


def headers(refusal: ApiError) -> dict[str, str]:
    return dict(refusal.headers or {})


in_every_way = pytest.mark.parametrize("way", [*WAYS])


@in_every_way
async def test_without_a_key_a_repeat_is_advised_against(way: str) -> None:
    refusal = await Site(way).told()
    assert isinstance(refusal, ApiError)
    assert (refusal.status, refusal.code) == WAYS[way]
    assert headers(refusal)["x-should-retry"] == "false"


async def test_under_a_key_that_may_be_free_soon_a_repeat_is_advised_against() -> None:
    refusal = await Site("slow", key=True).told()
    assert isinstance(refusal, ApiError)
    assert headers(refusal)["x-should-retry"] == "false"


@pytest.mark.parametrize("way", [way for way in WAYS if way != "slow"])
async def test_under_a_key_the_answer_is_given_to_a_repeat(way: str) -> None:
    refusal = await Site(way, key=True).told()
    assert isinstance(refusal, ApiError)
    assert (refusal.status, refusal.code) == WAYS[way]
    assert "x-should-retry" not in headers(refusal)


@in_every_way
async def test_a_failure_frees_the_key_so_that_a_repeat_would_run(way: str) -> None:
    refusal = await Site(way, key=True, status=400).told()
    assert isinstance(refusal, ApiError)
    assert headers(refusal)["x-should-retry"] == "false"


@in_every_way
async def test_who_prefers_a_wait_is_told_of_the_job(way: str) -> None:
    assert await Site(way).told(WAIT_S) == 202


async def test_a_wait_ends_while_the_store_hangs() -> None:
    site = Site("stopping")
    site.store.trouble = "slow"
    assert await site.told(0.05) == 202


async def test_nobody_waits_for_the_removal_of_what_was_fetched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(store_threads, "_DROP_S_MAX", 60.0)
    site = Site("slow to delete")
    answering = asyncio.create_task(site.running._answer(site.call, None))
    await asyncio.wait_for(answering, 10)
    assert [site.sent[0]["status"], site.sent[1]["body"]] == [200, BODY]
    assert not site.store.is_deleted.is_set()
    site.store.is_over.set()
    assert await asyncio.to_thread(site.store.is_deleted.wait, 20)


async def test_only_so_many_removals_are_on_their_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_threads, "DELETIONS_MAX", 2)
    begun: list[str] = []

    async def drop(_: object, key: str) -> None:
        begun.append(key)
        await asyncio.sleep(0)

    monkeypatch.setattr(store_threads, "delete_object", drop)
    drops = store_threads.ObjectDeletions(MemoryStore())
    for key in "abc":
        drops.begin(key)
    for _ in range(4):
        await asyncio.sleep(0)
    drops.begin("d")
    await asyncio.sleep(0)
    assert begun == ["a", "b", "d"]


async def test_a_failed_stream_whose_reason_has_no_room_is_not_asked_for_again() -> None:
    site = Site("no room", status=400)

    async def whole_body(_: OpenCall, __: ReplyEnd) -> bytes:
        return BODY

    answer = EventStreamResponse(exchange(site), [], Timings(0.0), SystemClock(), whole_body)
    with site.readers.hold(OTHER, 1), pytest.raises(ApiError) as refused:
        await answer.run(site.call)
    assert (refused.value.code, refused.value.status) == ("queue_full", 503)
    assert headers(refused.value)["x-should-retry"] == "false"
