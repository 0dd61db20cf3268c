"""Bytes of a file on their way from the event loop into the object store, block by block."""

from types import TracebackType
from typing import Self

from api.runtime.blocking_calls import BlockingCalls
from storage.objects.object_store import BLOCK_BYTES, ObjectStore, StoredObject, Upload


class ObjectSink:
    """An upload that is written by threads; it is aborted on leaving its block unless complete.

    It holds a block and what one read of the socket brings, however large the file. What a thread
    does when the task is cancelled is awaited before the upload is aborted.
    """

    def __init__(self, objects: ObjectStore, key: str) -> None:
        """`key` is not taken before the first block."""
        self._objects = objects
        self._key = key
        self._buffer = bytearray()
        self._upload: Upload | None = None
        self._calls = BlockingCalls()
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
        return await self._calls.make(self._upload.complete, if_absent=True)

    async def __aenter__(self) -> Self:
        """Start the block."""
        return self

    async def __aexit__(
        self, _kind: type[BaseException] | None, _e: BaseException | None, _t: TracebackType | None
    ) -> None:
        """Abort unless complete, also when cancelled once more."""
        await self._calls.end(self._abort)

    async def _write(self) -> None:
        data, self._buffer = bytes(self._buffer), bytearray()
        if self._upload is None:
            await self._calls.make(self._begin)
        assert self._upload is not None
        await self._calls.make(self._upload.write, data)

    def _begin(self) -> None:
        """Begin; the thread itself keeps the upload, as its task may be cancelled by then."""
        self._upload = self._objects.begin_upload(self._key)

    def _abort(self) -> None:
        if self._upload is not None:
            self._upload.abort()
