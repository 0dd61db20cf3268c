"""A server that is nothing but bytes: a test writes what a broken or hostile upstream would."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

from gpu_consumers.engines.openai_http.openai_http_engine import OpenAIHttpEngine
from tests.integration.engines.upstream import engine_of

Handle = Callable[["Peer"], Awaitable[None]]

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
ANSWER = HEAD + b"Content-Length: 2\r\n\r\n{}"


class Peer:
    """One connection from a client, seen from the server."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def request(self) -> tuple[bytes, bytes] | None:
        """Return head and body of the next request; None when the client closed first."""
        try:
            head = await self._reader.readuntil(b"\r\n\r\n")
            _, _, length = head.lower().partition(b"content-length:")
            return head, await self._reader.readexactly(int(length.split(b"\r\n")[0] or 0))
        except (asyncio.IncompleteReadError, ConnectionError):
            return None

    async def head(self) -> bytes:
        """Return the head of the next request; its body stays unread."""
        return await self._reader.readuntil(b"\r\n\r\n")

    async def send(self, content: bytes) -> None:
        self._writer.write(content)
        await self._writer.drain()

    async def gone(self) -> None:
        """Return when the client has closed."""
        try:
            while await self._reader.read(65536):
                pass
        except ConnectionError:
            pass

    async def close(self) -> None:
        self._writer.close()
        with suppress(ConnectionError, ssl.SSLError):
            await self._writer.wait_closed()


class RawServer:
    """Its URL, and every connection it got, in order."""

    def __init__(self, handle: Handle) -> None:
        self.url = ""
        self.peers: list[Peer] = []
        self.requests = 0
        self._handle = handle
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        peer = Peer(reader, writer)
        self.peers.append(peer)
        try:
            await self._handle(peer)
        except ConnectionError:
            pass
        except asyncio.CancelledError:
            writer.transport.abort()
            return
        finally:
            self._tasks.discard(task)
        await peer.close()

    async def stop(self) -> None:
        for task in [*self._tasks]:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)


@asynccontextmanager
async def raw_server(handle: Handle, tls: ssl.SSLContext | None = None) -> AsyncIterator[RawServer]:
    """Run `handle` for every connection and close it when that returns."""
    server = RawServer(handle)
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0, ssl=tls, backlog=1024)
    port = listening.sockets[0].getsockname()[1]
    server.url = f"https://localhost:{port}" if tls else f"http://127.0.0.1:{port}"
    try:
        yield server
    finally:
        listening.close()
        await server.stop()
        await listening.wait_closed()


@asynccontextmanager
async def engine_before(
    handle: Handle, **fields: object
) -> AsyncIterator[tuple[OpenAIHttpEngine, RawServer]]:
    """Run a server of bytes, and an engine for it."""
    async with raw_server(handle) as server, engine_of(server.url, **fields) as engine:
        yield engine, server


def answering(post: Callable[[Peer], Awaitable[bool]]) -> Handle:
    """Answer probes; pass each POST to `post`, which returns whether to keep the connection."""

    async def handle(peer: Peer) -> None:
        while (request := await peer.request()) is not None:
            if request[0].startswith(b"GET"):
                await peer.send(ANSWER)
            elif not await post(peer):
                return

    return handle


def sending(content: bytes, *, keeps: bool = True) -> Handle:
    """Answer probes; answer each POST with `content`, and keep or close its connection."""

    async def post(peer: Peer) -> bool:
        await peer.send(content)
        return keeps

    return answering(post)
