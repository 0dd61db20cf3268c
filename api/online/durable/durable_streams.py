"""Recordings of streams that have an idempotency key, so that a complete stream can be replayed.

A stream is recorded while it is sent, within a memory limit. A recording that exceeds the limit is
dropped at once, and the key is free when the stream ends. Before the last message is sent, the
recording of a complete stream is saved: a client that saw the whole stream cannot start a second
one with the same key. The key of a failed stream is freed, so that the client can retry.
"""

import asyncio
import logging
from typing import Final

from starlette.types import Message

from api.online import metrics
from api.online.answer.event_stream import STREAM_HEADERS
from api.online.memory_limits import MemoryLimit
from api.runtime.api_services import Services
from api.runtime.database import DatabaseUnavailableError
from api.runtime.object_threads import run_in_store_thread
from core.errors import MillraceError
from core.object_names import KEYED_ANSWERS
from jobs.store import idempotency
from jobs.store.idempotency import DEGRADED, MODEL_VERSION, IdempotencyClaim, StoredAnswer
from storage.objects.object_store import write_object

_LOG = logging.getLogger(__name__)

RECORD_BYTES_MAX: Final = 4 * 1024 * 1024
"""A longer stream is not replayed: its key is free when it ends."""

_INLINE_BYTES_MAX: Final = 256 * 1024  # a larger recording is an object of its own
_SAVE_S_MAX: Final = 5.0  # a recording that is not saved by then frees its key
_END: Final = b"data: [DONE]\n\n"
_COMMENT: Final = b":"
_DESCRIBED: Final = {MODEL_VERSION.encode(), DEGRADED.encode()}
_HEADERS: Final = tuple((name.decode(), value.decode()) for name, value in STREAM_HEADERS)


class StreamRecording:
    """The recording of one stream."""

    def __init__(self, services: Services, claim: IdempotencyClaim, limit: MemoryLimit) -> None:
        """The recording holds the key of `claim` and memory of `limit` until `close`."""
        self._services, self._claim, self._limit = services, claim, limit
        self._sent = bytearray()
        self._reserved_bytes = 0
        self._is_recording = False  # the stream can still be replayed
        self._described: tuple[tuple[str, str], ...] = ()  # headers that describe the call
        self._is_settled = False  # the recording is saved, or the key is free
        self._is_closed = False

    async def close(self) -> None:
        """Release the memory, and free the key unless the recording is saved.

        Call it however the call ended. Further calls have no effect.
        """
        self._discard()
        if not (self._is_settled or self._is_closed):
            self._is_closed = True
            await asyncio.shield(asyncio.ensure_future(self._free_key()))

    async def record(self, message: Message) -> None:
        """Record a message that is sent next. Before the last one, save or free the key."""
        if message["type"] == "http.response.start":
            self._is_recording = message["status"] == 200 and any(
                name == b"content-type" and value.startswith(b"text/event-stream")
                for name, value in message["headers"]
            )
            self._described = tuple(
                (name.decode(), value.decode())
                for name, value in message["headers"]
                if name in _DESCRIBED
            )
            return
        data: bytes = message.get("body", b"")
        if self._is_recording and not data.startswith(_COMMENT):
            self._append(data)
        if message.get("more_body", False):
            return
        if self._is_recording and self._sent.endswith(_END):
            await self._save()
        else:
            await self._free_key()

    def _append(self, data: bytes) -> None:
        """Append data; discard the recording when it exceeds a limit."""
        is_too_long = len(self._sent) + len(data) > RECORD_BYTES_MAX
        if not is_too_long and self._limit.reserve(self._claim.tenant_id, len(data)) is None:
            self._sent += data
            self._reserved_bytes += len(data)
            return
        metrics.RECORDINGS_DROPPED.labels("too_long" if is_too_long else "no_room").inc()
        self._discard()

    def _discard(self) -> None:
        self._is_recording, self._sent = False, bytearray()
        self._limit.release(self._claim.tenant_id, self._reserved_bytes)
        self._reserved_bytes = 0

    async def _save(self) -> None:
        """Save the recording, within a time limit: the client waits for the end of its stream."""
        body, self._sent = bytes(self._sent), bytearray()
        try:
            async with asyncio.timeout(_SAVE_S_MAX):
                await self._save_answer(body)
            self._is_settled = True
        except (MillraceError, TimeoutError) as failure:
            code = failure.code if isinstance(failure, MillraceError) else "timeout"
            _LOG.warning("a stream was not recorded", extra={"code": code})

    async def _save_answer(self, body: bytes) -> None:
        services, claim, key = self._services, self._claim, None
        if len(body) > _INLINE_BYTES_MAX:
            key = f"{KEYED_ANSWERS}{claim.holder.hex}"
            await run_in_store_thread(write_object, services.objects, key, body)
            body = b""
        answer = StoredAnswer(200, body, (*_HEADERS, *self._described), key)
        await services.database.run_for_tenant(
            claim.tenant_id, idempotency.complete_in_flight, claim, answer
        )

    async def _free_key(self) -> None:
        claim = self._claim
        try:
            await self._services.database.run_for_tenant(
                claim.tenant_id, idempotency.release_key, claim
            )
            self._is_settled = True
        except DatabaseUnavailableError:
            _LOG.warning("a key stays in flight until its deadline")
