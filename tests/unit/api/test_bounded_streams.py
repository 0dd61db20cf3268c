"""Goal: a stream that cannot continue is dropped without a crash and without blocking the loop."""

import asyncio
import logging
import threading
from collections.abc import AsyncGenerator, Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from fastapi import FastAPI, Response
from prometheus_client import REGISTRY
from starlette.types import Message, Scope, Send

from api.auth.authentication import KeyRevalidator
from api.files.file_routes import object_response
from api.http.client_connection import EXTENSION, ClientConnection
from api.http.errors import ApiError, install_error_handlers
from api.http.middleware import RequestEnvelope
from api.http.responses import BoundedStream
from api.runtime.database import DatabaseUnavailableError
from core.errors import MillraceError
from jobs.errors import JobNotFoundError
from storage.objects.errors import ObjectNotFoundError, ObjectStoreUnavailableError
from storage.objects.object_store import ObjectBlocks


class Watch:
    """A key that works until `revoked` is set."""

    revoked = False

    async def check_if_due(self) -> None:
        if self.revoked:
            raise ApiError(401, "Revoked.")


def watch() -> KeyRevalidator:
    return cast(KeyRevalidator, Watch())


class Pieces(BoundedStream):
    """What a test yields."""

    def __init__(
        self, content: AsyncGenerator[bytes, None], key_revalidator: KeyRevalidator
    ) -> None:
        self.closed = asyncio.Event()
        super().__init__(
            content, self._set_closed, 200, {}, idle_timeout_s=5, key_revalidator=key_revalidator
        )

    async def _set_closed(self) -> None:
        await asyncio.sleep(0)  # a wait, which a cancelled group would cut
        self.closed.set()


class Client:
    """One request and what its client saw of the answer."""

    def __init__(self) -> None:
        self.sent: list[Message] = []
        self.dropped = asyncio.Event()
        self.leaves = asyncio.Event()
        transport = SimpleNamespace(abort=self.dropped.set)
        flow = SimpleNamespace(write_paused=False)
        protocol = SimpleNamespace(pipeline=[], transport=transport, flow=flow)
        self.scope: Scope = {
            "type": "http",
            "asgi": {"spec_version": "2.3"},
            "method": "GET",
            "path": "/",
            "query_string": b"",
            "headers": [],
            "extensions": {EXTENSION: ClientConnection(cast(Any, protocol))},
        }

    async def receive(self) -> Message:
        await self.leaves.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        self.sent.append(message)

    async def ask(self, make: Callable[[], Response]) -> None:
        """Ask an application whose one route returns what `make` does."""
        app = FastAPI()
        install_error_handlers(app)
        app.add_api_route("/", make, methods=["GET"], response_class=Response)
        envelope = RequestEnvelope(app, in_flight_max=1, online_in_flight_max=1)
        await envelope(self.scope, self.receive, self.send)


def crashes() -> float | None:
    return REGISTRY.get_sample_value("millrace_api_crashes_total")


@pytest.mark.parametrize(
    "failure",
    [DatabaseUnavailableError, ObjectStoreUnavailableError, ObjectNotFoundError, JobNotFoundError],
)
async def test_an_outage_in_the_middle_drops_the_connection_without_a_crash(
    failure: type[MillraceError], caplog: pytest.LogCaptureFixture
) -> None:
    async def pieces() -> AsyncGenerator[bytes, None]:
        yield b"begun"
        raise failure

    stream = Pieces(pieces(), watch())
    client, before = Client(), crashes()
    with caplog.at_level(logging.WARNING):
        await client.ask(lambda: stream)

    assert client.dropped.is_set()
    assert client.sent[-1]["more_body"]  # nobody was told that this was all
    assert crashes() == before
    (record,) = caplog.records
    assert (record.levelno, vars(record)["error"]) == (logging.WARNING, failure.code)
    assert stream.closed.is_set()


async def test_an_unexpected_error_in_the_middle_is_a_crash() -> None:
    async def pieces() -> AsyncGenerator[bytes, None]:
        yield b"begun"
        raise ValueError

    client, before = Client(), crashes()
    with pytest.raises(ConnectionAbortedError):
        await client.ask(lambda: Pieces(pieces(), watch()))
    assert crashes() == (before or 0) + 1


async def test_a_revoked_key_ends_the_stream() -> None:
    key = Watch()

    async def pieces() -> AsyncGenerator[bytes, None]:
        yield b"allowed"
        key.revoked = True
        yield b"too late"

    client, before = Client(), crashes()
    await client.ask(lambda: Pieces(pieces(), cast(KeyRevalidator, key)))

    assert client.dropped.is_set()
    assert [message.get("body") for message in client.sent] == [None, b"allowed"]
    assert crashes() == before


async def test_a_disconnect_during_a_read_does_not_block_the_loop() -> None:
    reading, may_go_on = threading.Event(), threading.Event()
    closed_by: list[str] = []

    def read(size: int) -> bytes:
        reading.set()
        assert may_go_on.wait(20)
        return b"x" * size

    def close() -> None:
        assert may_go_on.is_set()  # not while a thread reads
        closed_by.append(threading.current_thread().name)

    def download() -> Response:
        return object_response(
            ObjectBlocks(read, close, 10), 200, {}, idle_timeout_s=5, key_revalidator=watch()
        )

    client = Client()
    asking = asyncio.create_task(client.ask(download))
    assert await asyncio.to_thread(reading.wait, 20)
    client.leaves.set()
    done, _ = await asyncio.wait([asking], timeout=0.1)
    assert not done  # its place is taken while its thread is
    assert not closed_by
    may_go_on.set()
    await asking
    assert closed_by
    assert threading.main_thread().name not in closed_by


async def test_an_error_before_the_head_is_answered() -> None:
    class Early(Pieces):
        async def stream_response(self, send: Send) -> None:
            raise DatabaseUnavailableError

    async def pieces() -> AsyncGenerator[bytes, None]:
        yield b""

    client = Client()
    await client.ask(lambda: Early(pieces(), watch()))
    assert client.sent[0]["status"] == 503
    assert not client.dropped.is_set()
