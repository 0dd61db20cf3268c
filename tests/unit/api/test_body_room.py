"""Goal: only bytes that came take room, no tenant takes all of it, and all of it comes back."""

import asyncio
from typing import Any, cast
from uuid import UUID

import pytest

from api.http.responses import ApiError
from api.online.admit.body_room import BodyHold, BodyRoom
from api.online.receive.body_reading import read_body
from api.online.settings import OnlineSettings

ME, OTHER, THIRD = UUID(int=1), UUID(int=2), UUID(int=3)


def hold(room: BodyRoom, tenant_id: UUID) -> BodyHold:
    body = BodyHold(room)
    body.assign_tenant(tenant_id)
    return body


def refused(body: BodyHold, byte_count: int) -> tuple[int, str | None]:
    with pytest.raises(ApiError) as refusal:
        body.reach(byte_count)
    assert refusal.value.headers == {"retry-after": "1"}
    return refusal.value.status, refusal.value.code


def test_a_tenant_has_half_and_others_the_rest() -> None:
    room = BodyRoom(100, body_bytes_max=10)
    mine = [hold(room, ME) for _ in range(5)]
    for body in mine:
        body.reach(6)
        body.reach(10)
    more, theirs, third = hold(room, ME), hold(room, OTHER), hold(room, THIRD)

    assert refused(more, 1) == (429, "queue_full")
    theirs.reach(50)
    assert refused(third, 1) == (503, "queue_full")
    mine[0].release()
    mine[0].release()
    more.reach(10)
    assert refused(third, 1) == (503, "queue_full")


def test_a_tenant_has_room_for_one_body_however_little_there_is() -> None:
    room = BodyRoom(64, body_bytes_max=64)
    body = hold(room, ME)
    body.reach(64)
    body.release()
    hold(room, OTHER).reach(64)


class Upload:
    """The parts of an exchange that a body needs; its bytes come when a test sends them."""

    has_whole_body = False

    def __init__(self, room: BodyRoom, declared: int) -> None:
        self.headers = {b"content-length": b"%d" % declared}
        self.connection = self
        self.body_reservation = hold(room, ME)
        self._messages: asyncio.Queue[dict[str, object]] = asyncio.Queue()

    async def receive(self) -> dict[str, object]:
        return await self._messages.get()

    def resume_reading(self) -> None:
        pass

    def send(self, body: bytes, *, more: bool) -> None:
        self._messages.put_nowait({"type": "http.request", "body": body, "more_body": more})


async def test_what_is_only_announced_takes_no_room() -> None:
    settings = OnlineSettings()
    room = BodyRoom(1000, body_bytes_max=10)
    upload = Upload(room, 500)
    reading = asyncio.create_task(read_body(cast(Any, upload), settings))
    await asyncio.sleep(0)
    announced = hold(room, ME)
    announced.reach(500)
    announced.release()
    upload.send(b"x" * 400, more=True)
    upload.send(b"x" * 100, more=False)

    assert len(await reading) == 500
    assert refused(announced, 1) == (429, "queue_full")
