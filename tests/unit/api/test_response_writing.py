"""Goal: a response is written at its client's pace, and dropped if the client stops reading."""

import asyncio
from uuid import UUID

import pytest
from prometheus_client import REGISTRY
from starlette.types import Message, Receive, Scope, Send

from api.http.client_connection import EXTENSION
from api.http.errors import ApiError
from api.http.middleware import RequestEnvelope, WriteDeadline
from api.online.exchange import CompleteResponse, Exchange, Recording, send_response
from api.online.memory_limits import LARGE_BYTES, ResponseMemoryLimit
from core.ids import new_uuid
from tests.support.online_calls import new_exchange

ME, OTHER = UUID(int=1), UUID(int=2)
LARGE = CompleteResponse(200, b"x" * (3 * LARGE_BYTES + 1), [])
SMALL = CompleteResponse(200, b"x" * LARGE_BYTES, [])
ONLINE, OTHERS = "/v1/embeddings", "/v1/files"


class Client:
    """A client that stops reading, perhaps, and its connection."""

    def __init__(self, reads: int = 100) -> None:
        self.sent: list[Message] = []
        self._reads = reads
        self.is_dropped = False
        self.is_stuck = asyncio.Event()

    @property
    def is_write_paused(self) -> bool:
        return self._reads <= len(self.sent)

    async def drain(self) -> None:
        if self.is_write_paused:
            self.is_stuck.set()
            await asyncio.Event().wait()

    async def send(self, message: Message) -> None:
        await self.drain()
        self.sent.append(message)

    def abort(self) -> None:
        self.is_dropped = True


def exchange(
    send: Send,
    response_limit: ResponseMemoryLimit | None = None,
    recording: Recording | None = None,
) -> Exchange:
    return new_exchange(
        send, tenant_id=ME, response_limit=response_limit or new_limit(), recording=recording
    )


def new_limit(bytes_max: int = 10 * len(LARGE.body)) -> ResponseMemoryLimit:
    return ResponseMemoryLimit(bytes_max)


async def serve(
    client: Client,
    answer: CompleteResponse,
    *,
    path: str = ONLINE,
    response_limit: ResponseMemoryLimit | None = None,
    online_s: float = 0.01,
) -> None:
    """Answer through the envelope, until it lets go of the request."""

    async def app(_: Scope, __: Receive, send: Send) -> None:
        await send_response(exchange(send, response_limit), answer)

    envelope = RequestEnvelope(
        app,
        in_flight_max=1,
        online_in_flight_max=1,
        write_deadline=WriteDeadline(2 * LARGE_BYTES, 0.02),
        online_write_deadline=WriteDeadline(LARGE_BYTES, online_s),
    )
    scope = {"type": "http", "path": path, "method": "POST", "extensions": {EXTENSION: client}}
    await envelope(scope, nothing, client.send)


async def nothing() -> Message:
    raise AssertionError


def is_free(response_limit: ResponseMemoryLimit, byte_count: int) -> bool:
    try:
        with response_limit.reserve(ME, byte_count):
            return True
    except ApiError:
        return False


def cut_count() -> float:
    labels = {"route": "unknown", "method": "POST", "status": "cut"}
    return REGISTRY.get_sample_value("millrace_api_requests_total", labels) or 0.0


async def test_a_response_is_one_head_and_one_body() -> None:
    for answer in (SMALL, LARGE):
        client = Client()
        await send_response(exchange(client.send), answer)
        head, body = client.sent
        assert (b"content-length", b"%d" % len(answer.body)) in head["headers"]
        assert (b"content-type", b"application/json") in head["headers"]
        assert body == {"type": "http.response.body", "body": answer.body}


@pytest.mark.parametrize(("path", "block_bytes"), [(ONLINE, LARGE_BYTES), (OTHERS, 131_072)])
async def test_a_large_response_is_sent_in_blocks(path: str, block_bytes: int) -> None:
    client = Client()
    await serve(client, LARGE, path=path)
    _, *blocks = client.sent
    assert b"".join(block["body"] for block in blocks) == LARGE.body
    assert max(len(block["body"]) for block in blocks) == block_bytes
    assert [block["more_body"] for block in blocks] == [*[True] * (len(blocks) - 1), False]
    # A view of the body would keep all of it in memory as long as its last bytes wait.
    assert {type(block["body"]) for block in blocks} == {bytes}


@pytest.mark.parametrize(
    ("reads", "answer"),
    [(5, LARGE), (2, LARGE), (0, LARGE), (2, SMALL), (0, CompleteResponse(200, b"", []))],
)
async def test_a_client_that_reads_nothing_is_disconnected(
    reads: int, answer: CompleteResponse
) -> None:
    """Also one that leaves the last bytes, or did not read the answer before this one."""
    client, response_limit, cut_before = Client(reads), new_limit(), cut_count()
    await serve(client, answer, response_limit=response_limit)
    assert client.is_dropped
    assert len(client.sent) == reads
    assert cut_count() == cut_before + 1
    assert is_free(response_limit, 5 * len(LARGE.body))


@pytest.mark.parametrize("reads", [5, 2])
async def test_memory_is_reserved_until_the_last_bytes_are_read(reads: int) -> None:
    client, response_limit = Client(reads), new_limit()
    serving = asyncio.create_task(
        serve(client, LARGE, response_limit=response_limit, online_s=60.0)
    )
    await client.is_stuck.wait()
    assert not is_free(response_limit, 5 * len(LARGE.body))
    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)


async def test_unread_responses_are_limited() -> None:
    client, response_limit = Client(), new_limit(2 * len(LARGE.body))
    with response_limit.reserve(ME, 1), pytest.raises(ApiError) as of_share:
        await send_response(exchange(client.send, response_limit), LARGE)
    with (
        response_limit.reserve(OTHER, len(LARGE.body)),
        response_limit.reserve(new_uuid(), 1),
        pytest.raises(ApiError) as no,
    ):
        await send_response(exchange(client.send, response_limit), LARGE)
    assert [(of_share.value.status, no.value.status), client.sent] == [(429, 503), []]
    await send_response(exchange(client.send, response_limit), LARGE)
    assert client.sent


async def test_a_response_above_the_limit_is_sent_alone() -> None:
    client, response_limit = Client(), new_limit(LARGE_BYTES)
    with response_limit.reserve(OTHER, 1), pytest.raises(ApiError):
        await send_response(exchange(client.send, response_limit), LARGE)
    with response_limit.reserve(ME, len(LARGE.body)):
        assert not any(is_free(response_limit, 1) for _ in range(2))
    await send_response(exchange(client.send, response_limit), LARGE)
    assert len(client.sent) == 2


async def test_a_small_response_reserves_no_memory() -> None:
    client = Client()
    await send_response(exchange(client.send, new_limit(0)), SMALL)
    assert len(client.sent) == 2


async def test_the_key_is_freed_before_a_failure_is_sent() -> None:
    client, told_before = Client(), []

    class Recorded:
        async def record(self, message: Message) -> None:
            raise AssertionError(message)

        async def close(self) -> None:
            told_before.append(len(client.sent))

    await send_response(
        exchange(client.send, recording=Recorded()), CompleteResponse(503, b"{}", [])
    )
    assert told_before == [0]
    assert len(client.sent) == 2
