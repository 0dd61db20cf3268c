"""A TCP proxy between a host and a service that injects network faults, in a thread of its own.

Modes: `latency` delays each chunk; `throttle` limits the bytes a second; `blackhole` passes and
closes nothing; `refuse` resets all connections and accepts none. `reset` resets all connections
once.
"""

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from cli.stack.processes.ports import HOST

Mode = Literal["pass", "latency", "throttle", "blackhole", "refuse"]

CHUNK_BYTES = 64 * 1024
LATENCY_S = 0.1
BYTES_PER_S = 64 * 1024
_CALL_S_MAX = 10.0

T = TypeVar("T")
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass(slots=True, eq=False)
class Route:
    """One listening port and the service behind it."""

    connect: Callable[[], Awaitable[Streams]]
    mode: Mode = "pass"
    writers: set[asyncio.StreamWriter] = field(default_factory=set)
    tasks: set[asyncio.Task[None]] = field(default_factory=set)
    passable: asyncio.Event = field(default_factory=asyncio.Event)  # cleared by `blackhole`

    def __post_init__(self) -> None:
        self.passable.set()

    def set_mode(self, mode: Mode) -> None:
        """Set the mode of this route."""
        self.mode = mode
        if mode == "blackhole":
            self.passable.clear()
        else:
            self.passable.set()
        if mode == "refuse":
            self.reset_all()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Copy bytes between a client and the service until either side closes."""
        task = asyncio.current_task()
        assert task is not None
        self.tasks.add(task)
        self.writers.add(writer)
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            if self.mode == "refuse":
                reset(writer)
                return
            inner_reader, inner_writer = await self.connect()
            self.writers.add(inner_writer)
            copies = [
                asyncio.ensure_future(self._copy(reader, inner_writer)),
                asyncio.ensure_future(self._copy(inner_reader, writer)),
            ]
            try:  # one side's end closes both: neither protocol uses half-closed connections
                await asyncio.wait(copies, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for copy in copies:
                    copy.cancel()
                await asyncio.gather(*copies, return_exceptions=True)
                self._end(inner_writer)
        self._end(writer)
        self.tasks.discard(task)

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while chunk := await reader.read(CHUNK_BYTES):
            await self.passable.wait()
            if self.mode == "latency":
                await asyncio.sleep(LATENCY_S)
            elif self.mode == "throttle":
                await asyncio.sleep(len(chunk) / BYTES_PER_S)
            writer.write(chunk)
            await writer.drain()

    def reset_all(self) -> None:
        """Reset every connection."""
        for writer in list(self.writers):
            reset(writer)
            self.writers.discard(writer)

    def _end(self, writer: asyncio.StreamWriter) -> None:
        self.writers.discard(writer)
        writer.close()


def reset(writer: asyncio.StreamWriter) -> None:
    """Close a connection at once, with RST instead of FIN."""
    with contextlib.suppress(OSError):
        raw = writer.get_extra_info("socket")
        if raw is not None and raw.family != socket.AF_UNIX:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


class Proxy:
    """All routes of an installation; thread-safe."""

    def __init__(self) -> None:
        """Start the thread."""
        self._loop = asyncio.new_event_loop()
        self._routes: dict[str, list[Route]] = {}
        self._servers: list[asyncio.Server] = []
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._thread.start()

    def add(self, name: str, port: int, target: int | str) -> int:
        """Listen on a port, any free one for 0, and return it.

        Forwards to a local TCP port or to a Unix socket's path.
        """

        async def connect() -> Streams:
            if isinstance(target, str):
                return await asyncio.open_unix_connection(target)
            return await asyncio.open_connection(HOST, target)

        async def listen() -> int:
            route = Route(connect)
            self._routes.setdefault(name, []).append(route)
            server = await asyncio.start_server(route.serve, HOST, port)
            self._servers.append(server)
            bound: int = server.sockets[0].getsockname()[1]
            return bound

        return self._call(listen())

    def set_mode(self, name: str, mode: Mode) -> None:
        """Set the mode of the routes called `name`."""
        self._change(name, lambda route: route.set_mode(mode))

    def reset(self, name: str) -> None:
        """Reset every connection of the routes called `name` once."""
        self._change(name, Route.reset_all)

    def close(self) -> None:
        """Reset all connections and end the thread."""

        async def end() -> None:
            for server in self._servers:
                server.close()
            tasks = []
            for route in (route for routes in self._routes.values() for route in routes):
                route.reset_all()
                tasks += list(route.tasks)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        self._call(end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_CALL_S_MAX)
        self._loop.close()

    def _change(self, name: str, change: Callable[[Route], None]) -> None:
        async def change_all() -> None:
            for route in self._routes[name]:
                change(route)

        self._call(change_all())

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_CALL_S_MAX)
