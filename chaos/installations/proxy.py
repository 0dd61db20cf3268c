"""A TCP proxy between a host and a service, which can be told to misbehave; its own thread.

`latency`: each piece comes later. `throttle`: few bytes a second. `blackhole`: nothing passes and
nothing is closed. `reset`: connections are cut off hard, once. `refuse`: they are cut and no new
one is let in.
"""

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Literal

from cli.stack.processes.ports import HOST

Mode = Literal["pass", "latency", "throttle", "blackhole", "refuse"]

PIECE_BYTES = 64 * 1024
LATENCY_S = 0.1
BYTES_PER_S = 64 * 1024
_CALL_S_MAX = 10.0

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass(slots=True, eq=False)
class Route:
    """One listening port and the service behind it."""

    port: int
    connect: Callable[[], Awaitable[Streams]]
    mode: Mode = "pass"
    writers: set[asyncio.StreamWriter] = field(default_factory=set)
    tasks: set[asyncio.Task[None]] = field(default_factory=set)
    passable: asyncio.Event = field(default_factory=asyncio.Event)  # cleared: a black hole

    def behave(self, mode: Mode) -> None:
        """Change the mode, from now on."""
        self.mode = mode
        if mode == "blackhole":
            self.passable.clear()
        else:
            self.passable.set()
        if mode == "refuse":
            self.cut_all()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Join a client and the service until one of them ends."""
        task = asyncio.current_task()
        assert task is not None
        self.tasks.add(task)
        self.writers.add(writer)
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            if self.mode == "refuse":
                cut_off(writer)
                return
            inner_reader, inner_writer = await self.connect()
            self.writers.add(inner_writer)
            ways = [
                asyncio.ensure_future(self._copy(reader, inner_writer)),
                asyncio.ensure_future(self._copy(inner_reader, writer)),
            ]
            try:  # one way's end is the end of both: neither protocol closes half a connection
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for way in ways:
                    way.cancel()
                await asyncio.gather(*ways, return_exceptions=True)
                self._end(inner_writer)
        self._end(writer)
        self.tasks.discard(task)

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while piece := await reader.read(PIECE_BYTES):
            await self.passable.wait()
            if self.mode == "latency":
                await asyncio.sleep(LATENCY_S)
            elif self.mode == "throttle":
                await asyncio.sleep(len(piece) / BYTES_PER_S)
            writer.write(piece)
            await writer.drain()

    def cut_all(self) -> None:
        """Reset every connection."""
        for writer in list(self.writers):
            cut_off(writer)
            self.writers.discard(writer)

    def _end(self, writer: asyncio.StreamWriter) -> None:
        self.writers.discard(writer)
        writer.close()


def cut_off(writer: asyncio.StreamWriter) -> None:
    """Close with RST instead of FIN, and at once."""
    with contextlib.suppress(OSError):
        raw = writer.get_extra_info("socket")
        if raw is not None and raw.family != socket.AF_UNIX:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


class Proxy:
    """All routes of a drill; every method may be called from any thread."""

    def __init__(self) -> None:
        """Start the thread."""
        self._loop = asyncio.new_event_loop()
        self._routes: dict[str, list[Route]] = {}
        self._servers: list[asyncio.Server] = []
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._thread.start()

    def add(self, name: str, port: int, target: int | str) -> None:
        """Listen on `port` for a TCP port of this host, or the path of a Unix socket."""

        async def connect() -> Streams:
            if isinstance(target, str):
                return await asyncio.open_unix_connection(target)
            return await asyncio.open_connection(HOST, target)

        route = Route(port, connect)
        route.passable.set()
        self._routes.setdefault(name, []).append(route)

        async def listen() -> None:
            self._servers.append(await asyncio.start_server(route.serve, HOST, port))

        self._call(listen())

    def set_mode(self, name: str, mode: Mode) -> None:
        """Change how the routes of `name` behave, from now on."""

        async def change() -> None:
            for route in self._routes[name]:
                route.behave(mode)

        self._call(change())

    def reset(self, name: str) -> None:
        """Cut every connection of `name` off, once."""

        async def cut() -> None:
            for route in self._routes[name]:
                route.cut_all()

        self._call(cut())

    def close(self) -> None:
        """Cut everything off and end the thread."""

        async def end() -> None:
            for server in self._servers:
                server.close()
            tasks = []
            for route in (route for routes in self._routes.values() for route in routes):
                route.cut_all()
                tasks += list(route.tasks)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        self._call(end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_CALL_S_MAX)
        self._loop.close()

    def _call(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(_CALL_S_MAX)
