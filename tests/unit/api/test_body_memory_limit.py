"""Goal: only received bytes count, no tenant takes the whole limit, and every byte is released."""

import asyncio
from typing import Any, cast
from uuid import UUID

import pytest

from api.http.errors import ApiError
from api.online.call_request import read_body
from api.online.memory_limits import BodyReservation, MemoryLimit, body_memory_limit
from api.online.settings import OnlineSettings

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
