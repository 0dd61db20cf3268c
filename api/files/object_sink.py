"""A streaming upload into the object store: the event loop buffers, threads write."""

from types import TracebackType
from typing import Self

from api.runtime.blocking_calls import BlockingCalls
from storage.objects.object_store import BLOCK_BYTES, ObjectStore, StoredObject, Upload


class ObjectSink:
    """An upload. Leaving its block aborts it unless it is complete.

    It buffers at most a block and one read of the socket, however large the file. When the task is
    cancelled, a running write completes before the upload is aborted.
    """

    def __init__(self, objects: ObjectStore, key: str) -> None:
        """`key` is created with the first block."""
        self._objects = objects
        self._key = key
        self._buffer = bytearray()
        self._upload: Upload | None = None
        self._calls = BlockingCalls()
        self.size_bytes = 0  # buffered or written

    def buffer(self, data: bytes) -> None:
        """Buffer bytes. Call `flush_full_blocks` soon."""
        self._buffer += data
        self.size_bytes += len(data)

    async def flush_full_blocks(self) -> None:
        """Write when a block is full. Raises the errors of the object store."""
        if len(self._buffer) >= BLOCK_BYTES:
            await self._write()

    async def complete(self) -> StoredObject:
        """Make the object durable and visible. Raises the errors of the object store."""
        await self._write()
        assert self._upload is not None
        return await self._calls.run(self._upload.complete, if_absent=True)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, _kind: type[BaseException] | None, _e: BaseException | None, _t: TracebackType | None
    ) -> None:
        """Abort unless complete, also when cancelled again."""
        await self._calls.run_last(self._abort)

    async def _write(self) -> None:
        data, self._buffer = bytes(self._buffer), bytearray()
        if self._upload is None:
            await self._calls.run(self._begin)
        assert self._upload is not None
        await self._calls.run(self._upload.write, data)

    def _begin(self) -> None:
        """Begin in a thread, which sets the upload itself: the task may be cancelled by then."""
        self._upload = self._objects.begin_upload(self._key)

    def _abort(self) -> None:
        if self._upload is not None:
            self._upload.abort()
