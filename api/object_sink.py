"""Bytes of a file on their way from the event loop into the object store, block by block."""

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar

from storage.objects import BLOCK_BYTES, ObjectStore, StoredObject, Upload

P = ParamSpec("P")
T = TypeVar("T")


class ObjectSink:
    """An upload that is written by threads; it is aborted on leaving its block unless complete.

    It holds a block and what one read of the socket brings, however large the file. A thread
    cannot be cancelled: what it does when the task is, is awaited before the upload is aborted.
    """

    def __init__(self, objects: ObjectStore, key: str) -> None:
        """`key` is not taken before the first block."""
        self._objects = objects
        self._key = key
        self._buffer = bytearray()
        self._upload: Upload | None = None
        self._running: asyncio.Future[Any] | None = None  # the last that a thread was given
        self.size_bytes = 0  # taken so far

    def take(self, data: bytes) -> None:
        """Accept bytes; call `relieve` soon."""
        self._buffer += data
        self.size_bytes += len(data)

    async def relieve(self) -> None:
        """Write when a block is full. Raises ObjectStoreFullError, ObjectStoreAwayError."""
        if len(self._buffer) >= BLOCK_BYTES:
            await self._write()

    async def complete(self) -> StoredObject:
        """Make the object durable and visible. Raises ObjectStoreFullError, …AwayError."""
        await self._write()
        assert self._upload is not None
        return await self._in_thread(self._upload.complete, if_absent=True)

    async def __aenter__(self) -> Self:
        """Start the block."""
        return self

    async def __aexit__(
        self, _kind: type[BaseException] | None, _e: BaseException | None, _t: TracebackType | None
    ) -> None:
        """Abort unless complete, also when cancelled once more."""
        await asyncio.shield(asyncio.ensure_future(self._abort()))

    async def _write(self) -> None:
        data, self._buffer = bytes(self._buffer), bytearray()
        if self._upload is None:
            await self._in_thread(self._begin)
        assert self._upload is not None
        await self._in_thread(self._upload.write, data)

    def _begin(self) -> None:
        """Begin; the thread itself keeps the upload, as its task may be cancelled by then."""
        self._upload = self._objects.begin(self._key)

    async def _abort(self) -> None:
        if self._running is not None:
            # What it raised is told already, or its task was cancelled.
            await asyncio.gather(self._running, return_exceptions=True)
        if self._upload is not None:
            await asyncio.to_thread(self._upload.abort)

    async def _in_thread(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        running = asyncio.ensure_future(asyncio.to_thread(work, *args, **kwargs))
        self._running = running
        return await asyncio.shield(running)
