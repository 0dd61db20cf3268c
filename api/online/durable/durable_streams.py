"""Streams with an idempotency key: bound to their connection, but given again once they ended well.

What is sent is recorded on its way, as far as there is room: a stream that outgrows it is forgotten
at once, and its key is free when it ends. Before the client is told the end the record is saved, so
that nobody who saw a whole stream can start a second one with the same key; or the key is freed, so
that whoever saw one fail can ask again, otherwise.
"""

import asyncio
import logging
from typing import Final

from starlette.types import Message

from api.online import metrics
from api.online.admit.recording_room import RecordingRoom
from api.online.answer.event_stream import STREAM_HEADERS
from api.online.send.store_threads import run_in_store_thread
from api.runtime.database import DatabaseUnavailableError
from api.runtime.services import Services
from core.errors import MillraceError
from core.object_names import KEYED_ANSWERS
from jobs.store import idempotency
from jobs.store.idempotency import MODEL_VERSION, Answer, Claim
from storage.objects.whole_objects import write_object

_LOG = logging.getLogger(__name__)

RECORD_BYTES_MAX: Final = 4 * 1024 * 1024
"""A longer stream is not given again: its key is free when it ends."""

_INLINE_BYTES_MAX: Final = 256 * 1024  # a larger record is an object of its own
_SAVE_S_MAX: Final = 5.0  # what is not saved by then frees its key
_END: Final = b"data: [DONE]\n\n"
_COMMENT: Final = b":"
_HEADERS: Final = tuple((name.decode(), value.decode()) for name, value in STREAM_HEADERS)


class StreamRecording:
    """The record of one stream."""

    def __init__(self, services: Services, claim: Claim, room: RecordingRoom) -> None:
        """`claim`, and what it takes of `room`, are held until `close`."""
        self._services, self._claim, self._room = services, claim, room
        self._sent = bytearray()
        self._held_bytes = 0  # of the room
        self._is_kept = False  # so far it is a stream that can be given again
        self._version: tuple[tuple[str, str], ...] = ()  # the header that says who answers
        self._is_settled = False  # saved, or the key is free
        self._is_closed = False

    async def close(self) -> None:
        """Free the room, and the key of a stream that did not end well.

        Call it however the call ended; the first time counts.
        """
        self._forget()
        if not (self._is_settled or self._is_closed):
            self._is_closed = True
            await asyncio.shield(asyncio.ensure_future(self._let_go()))

    async def record(self, message: Message) -> None:
        """Remember a message that will be sent next; before the last one, settle the key."""
        if message["type"] == "http.response.start":
            self._is_kept = message["status"] == 200 and any(
                name == b"content-type" and value.startswith(b"text/event-stream")
                for name, value in message["headers"]
            )
            self._version = tuple(
                (MODEL_VERSION, value.decode())
                for name, value in message["headers"]
                if name == MODEL_VERSION.encode()
            )
            return
        data: bytes = message.get("body", b"")
        if self._is_kept and not data.startswith(_COMMENT):
            self._keep(data)
        if message.get("more_body", False):
            return
        if self._is_kept and self._sent.endswith(_END):
            await self._save()
        else:
            await self._let_go()

    def _keep(self, data: bytes) -> None:
        """Remember one part more, or from now on nothing of this stream."""
        is_too_long = len(self._sent) + len(data) > RECORD_BYTES_MAX
        if not is_too_long and self._room.take(self._claim.tenant_id, len(data)) is None:
            self._sent += data
            self._held_bytes += len(data)
            return
        metrics.RECORDINGS_DROPPED.labels("too_long" if is_too_long else "no_room").inc()
        self._forget()

    def _forget(self) -> None:
        self._is_kept, self._sent = False, bytearray()
        self._room.give_back(self._claim.tenant_id, self._held_bytes)
        self._held_bytes = 0

    async def _save(self) -> None:
        """A record that cannot be saved soon is none: a client waits for the end of its stream."""
        body, self._sent = bytes(self._sent), bytearray()
        try:
            async with asyncio.timeout(_SAVE_S_MAX):
                await self._save_held(body)
            self._is_settled = True
        except (MillraceError, TimeoutError) as failure:
            code = failure.code if isinstance(failure, MillraceError) else "timeout"
            _LOG.warning("a stream was not recorded", extra={"code": code})

    async def _save_held(self, body: bytes) -> None:
        services, claim, key = self._services, self._claim, None
        if len(body) > _INLINE_BYTES_MAX:
            key = f"{KEYED_ANSWERS}{claim.holder.hex}"
            await run_in_store_thread(write_object, services.objects, key, body)
            body = b""
        answer = Answer(200, body, (*_HEADERS, *self._version), key)
        await services.database.run_for(claim.tenant_id, idempotency.save_held, claim, answer)

    async def _let_go(self) -> None:
        claim = self._claim
        try:
            await self._services.database.run_for(claim.tenant_id, idempotency.let_go, claim)
            self._is_settled = True
        except DatabaseUnavailableError:
            _LOG.warning("a key stays in flight until its deadline")
