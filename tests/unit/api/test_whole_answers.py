"""Goal: a whole answer reaches its reader at the reader's pace, and a reader without one ends."""

import asyncio
from types import SimpleNamespace
from typing import cast
from uuid import UUID

import pytest
from starlette.types import Message

from api.answers import ApiError
from api.online.answering import BLOCK_BYTES, send_finished
from api.online.body_room import BodyHold, BodyRoom
from api.online.calls import Finished, Recording
from api.online.exchange import Exchange
from api.online.readers import Readers
from core.ids import new_uuid

ME, OTHER = UUID(int=1), UUID(int=2)
LARGE = Finished(200, b"x" * (3 * BLOCK_BYTES + 1), [])


class Client:
    """A client that stops reading, perhaps, and its connection."""

    def __init__(self, reads: int = 100) -> None:
        self.sent: list[Message] = []
        self._reads = reads
        self.is_dropped = False

    @property
    def is_behind(self) -> bool:
        return self._reads <= len(self.sent)

    async def send(self, message: Message) -> None:
        if self.is_behind:
            await asyncio.Event().wait()
        self.sent.append(message)

    def drop(self) -> None:
        self.is_dropped = True


def exchange(client: Client, readers: Readers, recording: Recording | None = None) -> Exchange:
    hold = BodyHold(BodyRoom(1, body_bytes_max=1))
    hold.belong_to(ME)
    parts = SimpleNamespace(
        send=client.send, connection=client, readers=readers, recording=recording, body_hold=hold
    )
    parts.hold_answer = lambda count: Exchange.hold_answer(cast("Exchange", parts), count)
    return cast("Exchange", parts)


def readers(bytes_max: int = 10 * len(LARGE.body)) -> Readers:
    return Readers(bytes_max, slow_reader_s=0.01)


def is_free(room: Readers, byte_count: int) -> bool:
    try:
        with room.hold(ME, byte_count):
            return True
    except ApiError:
        return False


async def test_a_small_answer_is_written_at_once() -> None:
    client = Client()
    await send_finished(exchange(client, readers(0)), Finished(200, b"x" * BLOCK_BYTES, []))
    head, body = client.sent
    assert (b"content-length", b"%d" % BLOCK_BYTES) in head["headers"]
    assert (b"content-type", b"application/json") in head["headers"]
    assert body == {"type": "http.response.body", "body": b"x" * BLOCK_BYTES}


async def test_a_large_answer_goes_out_in_blocks() -> None:
    client = Client()
    await send_finished(exchange(client, readers()), LARGE)
    head, *blocks = client.sent
    assert (b"content-length", b"%d" % len(LARGE.body)) in head["headers"]
    assert b"".join(block["body"] for block in blocks) == LARGE.body
    assert max(len(block["body"]) for block in blocks) == BLOCK_BYTES
    assert [block.get("more_body", False) for block in blocks] == [True, True, True, False]


@pytest.mark.parametrize(("reads", "answer"), [(2, LARGE), (0, LARGE), (0, Finished(200, b"", []))])
async def test_a_reader_that_takes_nothing_is_dropped(reads: int, answer: Finished) -> None:
    """Also one that did not read the answer before this one."""
    client, room = Client(reads), readers()
    await send_finished(exchange(client, room), answer)
    assert client.is_dropped
    assert len(client.sent) == reads
    assert is_free(room, 5 * len(LARGE.body))


async def test_answers_that_wait_for_their_readers_have_a_bound() -> None:
    client, room = Client(), readers(2 * len(LARGE.body))
    with room.hold(ME, 1), pytest.raises(ApiError) as of_share:
        await send_finished(exchange(client, room), LARGE)
    with room.hold(OTHER, len(LARGE.body)), room.hold(new_uuid(), 1), pytest.raises(ApiError) as no:
        await send_finished(exchange(client, room), LARGE)
    assert [(of_share.value.status, no.value.status), client.sent] == [(429, 503), []]
    await send_finished(exchange(client, room), LARGE)
    assert client.sent


async def test_a_key_is_free_before_a_failure_is_told() -> None:
    client, told_before = Client(), []

    class Recorded:
        async def record(self, message: Message) -> None:
            raise AssertionError(message)

        async def close(self) -> None:
            told_before.append(len(client.sent))

    await send_finished(exchange(client, readers(), Recorded()), Finished(503, b"{}", []))
    assert told_before == [0]
    assert len(client.sent) == 2
