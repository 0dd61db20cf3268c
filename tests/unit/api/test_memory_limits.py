"""Goal: no tenant takes a whole limit of slots or bytes, and every one is released."""

import asyncio
from collections.abc import Callable
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest
from fastapi import Request

from api.auth.authentication import TenantRequest
from api.batches import single_request_routes
from api.files import file_routes
from api.http.errors import ApiError
from api.http.middleware import request_exit_stack
from api.online.call_request import read_body
from api.online.memory_limits import (
    LARGE_BYTES,
    BodyReservation,
    MemoryLimit,
    ResponseMemoryLimit,
    body_memory_limit,
)
from api.online.settings import OnlineSettings
from api.runtime.tenant_slots import TenantSlots
from core.ids import SINGLE, new_uuid, public_id
from core.outcomes import Outcome
from core.states import JobState
from jobs.store.keyset_pages import Page, PageCursor
from tenancy.api_keys import Principal

ME, OTHER, THIRD = UUID(int=1), UUID(int=2), UUID(int=3)


def reservation(limit: MemoryLimit, tenant_id: UUID) -> BodyReservation:
    body = BodyReservation(limit)
    body.assign_tenant(tenant_id)
    return body


def refused(body: BodyReservation, byte_count: int) -> tuple[int, str | None]:
    with pytest.raises(ApiError) as refusal:
        body.grow_to(byte_count)
    assert refusal.value.headers == {"retry-after": "1"}
    return refusal.value.status, refusal.value.code


def test_a_tenant_may_reserve_half_of_the_limit() -> None:
    limit = body_memory_limit(100, body_bytes_max=10)
    mine = [reservation(limit, ME) for _ in range(5)]
    for body in mine:
        body.grow_to(6)
        body.grow_to(10)
    more, theirs, third = (reservation(limit, tenant) for tenant in (ME, OTHER, THIRD))

    assert refused(more, 1) == (429, "queue_full")
    theirs.grow_to(50)
    assert refused(third, 1) == (503, "queue_full")
    mine[0].release()
    mine[0].release()
    more.grow_to(10)
    assert refused(third, 1) == (503, "queue_full")


def test_a_tenant_may_always_reserve_one_body_of_full_size() -> None:
    limit = body_memory_limit(64, body_bytes_max=64)
    body = reservation(limit, ME)
    body.grow_to(64)
    body.release()
    reservation(limit, OTHER).grow_to(64)


class Upload:
    """The parts of an exchange that reading a body needs; a test sends the bytes."""

    has_whole_body = False

    def __init__(self, limit: MemoryLimit, declared: int) -> None:
        self.headers = {b"content-length": b"%d" % declared}
        self.connection = self
        self.body_reservation = reservation(limit, ME)
        self._messages: asyncio.Queue[dict[str, object]] = asyncio.Queue()

    async def receive(self) -> dict[str, object]:
        return await self._messages.get()

    def resume_reading(self) -> None:
        pass

    def send(self, body: bytes, *, more: bool) -> None:
        self._messages.put_nowait({"type": "http.request", "body": body, "more_body": more})


async def test_declared_bytes_reserve_no_memory() -> None:
    limit = body_memory_limit(1000, body_bytes_max=10)
    upload = Upload(limit, 500)
    reading = asyncio.create_task(read_body(cast(Any, upload), OnlineSettings()))
    await asyncio.sleep(0)
    other = reservation(limit, ME)
    other.grow_to(500)
    other.release()
    upload.send(b"x" * 400, more=True)
    upload.send(b"x" * 100, more=False)

    assert len(await reading) == 500
    assert refused(other, 1) == (429, "queue_full")


PRINCIPAL = Principal(new_uuid(), new_uuid())


class Site:
    """Services whose database says one thing, and room for two answers, one a tenant."""

    def __init__(self, found: object, answer_bytes: int) -> None:
        self._found = found
        limit = ResponseMemoryLimit(2 * answer_bytes)
        self.services: Any = SimpleNamespace(database=self, response_limit=limit)

    async def run_for_tenant(self, *_: object, **__: object) -> object:
        return self._found

    def request(self) -> TenantRequest:
        app = SimpleNamespace(state=SimpleNamespace(online=None))
        scope = {"type": "http", "app": app, "millrace.exit_stack": ExitStack()}
        return TenantRequest(Request(scope), PRINCIPAL, self.services)


def job(body: bytes) -> Any:
    moments = dict.fromkeys(single_request_routes._TIMESTAMPS)
    counts = dict.fromkeys(
        ("input_tokens", "cached_tokens", "output_tokens", "reasoning_tokens"), 1
    )
    return SimpleNamespace(
        id=new_uuid(),
        state=JobState.COMPLETED,
        endpoint="/v1/embeddings",
        model="m",
        model_version="1",
        degraded=None,
        status_code=200,
        outcome=Outcome.SUCCEEDED,
        body=body,
        body_key=None,
        **moments,
        **counts,
    )


async def show_job(request: TenantRequest) -> Any:
    return await single_request_routes.show(public_id(SINGLE, new_uuid()), request)


async def cancel_job(request: TenantRequest) -> Any:
    return await single_request_routes.cancel(public_id(SINGLE, new_uuid()), request)


async def list_files(request: TenantRequest) -> Any:
    return await file_routes.show_list(request, PageCursor(limit=10_000))


LARGE = b'"%b"' % (b"x" * LARGE_BYTES)
FILE: Any = SimpleNamespace(
    id=new_uuid(),
    size_bytes=1,
    created_at=None,
    expires_at=None,
    filename="x" * 200,
    purpose="batch",
)
PAGE = Page([FILE] * 400, has_more=False)


@pytest.mark.parametrize(
    ("found", "ask"), [(job(LARGE), show_job), (job(LARGE), cancel_job), (PAGE, list_files)]
)
async def test_a_large_response_reserves_memory_until_it_is_sent(
    found: object, ask: Callable[[TenantRequest], Any]
) -> None:
    answer = await ask(Site(found, 1 << 20).request())
    assert len(answer.body) > LARGE_BYTES
    site = Site(found, len(answer.body))
    first = site.request()
    await ask(first)
    with pytest.raises(ApiError) as refused:
        await ask(site.request())
    assert (refused.value.status, refused.value.code) == (429, "queue_full")
    request_exit_stack(first.http.scope).close()
    await ask(site.request())


@pytest.mark.parametrize(("found", "ask"), [(job(b"1"), show_job), (Page([], False), list_files)])
async def test_a_small_response_reserves_none(
    found: object, ask: Callable[[TenantRequest], Any]
) -> None:
    assert (await ask(Site(found, 0).request())).status_code == 200


def refusal(slots: TenantSlots, tenant_id: UUID) -> ApiError:
    with pytest.raises(ApiError) as refused, slots.acquire(tenant_id):
        pass
    return refused.value


@pytest.mark.parametrize(("count", "share"), [(1, 1), (2, 1), (5, 3), (512, 256)])
def test_a_tenant_may_use_half_of_the_slots(count: int, share: int) -> None:
    slots = TenantSlots("uploads", count, retry_after_s=2)
    with ExitStack() as taken:
        for _ in range(share):
            taken.enter_context(slots.acquire(ME))
        if count > share:
            mine = [refusal(slots, ME) for _ in range(count)]  # and none of these keeps a slot
            assert {(error.status, error.kind) for error in mine} == {(429, "rate_limit_exceeded")}
            assert mine[0].message == "Your organization has too many uploads at once."
        for _ in range(count - share):
            taken.enter_context(slots.acquire(OTHER))
        assert [refusal(slots, tenant_id).status for tenant_id in (ME, OTHER)] == [503, 503]
    for _ in range(2):
        with slots.acquire(ME):
            pass


def test_refusals_have_retry_after() -> None:
    slots = TenantSlots("uploads", 2, retry_after_s=2)
    with slots.acquire(ME):
        mine = refusal(slots, ME)
        with slots.acquire(OTHER):
            all_of_them = refusal(slots, OTHER)
    for error in (mine, all_of_them):
        assert (error.code, error.headers) == ("slow_down", {"retry-after": "2"})


def test_an_unassigned_slot_counts_for_the_total_only() -> None:
    slots = TenantSlots("requests_in_flight", 2)
    with slots.acquire_unassigned(), slots.acquire_unassigned() as claim:
        assert refusal(slots, ME).status == 503
        claim(ME)
    with slots.acquire_unassigned() as claim, slots.acquire(ME), pytest.raises(ApiError) as refused:
        claim(ME)
    assert refused.value.status == 429


def test_a_failure_releases_the_slot() -> None:
    slots = TenantSlots("audits", 1)
    for _ in range(2):
        with pytest.raises(LookupError), slots.acquire(ME):
            raise LookupError
