"""Streams with an idempotency key: bound to their connection, but given again once they ended well.

What is sent is recorded on its way. Before the client is told the end the record is saved, so that
nobody who saw a whole stream can start a second one with the same key; or the key is freed, so that
whoever saw one fail can ask again, otherwise.
"""

import asyncio
import logging
from typing import Final

from starlette.types import Message, Send

from api.database import DatabaseAwayError
from api.online.streams import STREAM_HEADERS
from api.services import Services
from core.errors import MillraceError
from core.object_names import KEYED_ANSWERS
from jobs import idempotency
from jobs.idempotency import MODEL_VERSION, Answer, Claim
from storage.whole_objects import write_object

_LOG = logging.getLogger(__name__)

RECORD_BYTES_MAX: Final = 4 * 1024 * 1024
"""A longer stream is not given again: its key is free when it ends."""

_INLINE_BYTES_MAX: Final = 256 * 1024  # a larger record is an object of its own
_END: Final = b"data: [DONE]\n\n"
_COMMENT: Final = b":"
_HEADERS: Final = tuple((name.decode(), value.decode()) for name, value in STREAM_HEADERS)


class StreamRecording:
    """The record of one stream."""

    def __init__(self, services: Services, claim: Claim) -> None:
        """`claim` is held until `close`."""
        self._services, self._claim = services, claim
        self._sent = bytearray()
        self._is_event_stream = False
        self._version: tuple[tuple[str, str], ...] = ()  # the header that says who answers
        self._is_settled = False  # saved, or the key is free

    def over(self, send: Send) -> Send:
        """Return what sends like `send` and records."""

        async def recorded(message: Message) -> None:
            await self._record(message)
            await send(message)

        return recorded

    async def close(self) -> None:
        """Free the key of a stream that did not end well; call it however the call ended."""
        if not self._is_settled:
            await asyncio.shield(asyncio.ensure_future(self._let_go()))

    async def _record(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._is_event_stream = message["status"] == 200 and any(
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
        is_kept = self._is_event_stream and len(self._sent) <= RECORD_BYTES_MAX
        if is_kept and not data.startswith(_COMMENT):
            self._sent += data
        if message.get("more_body", False):
            return
        if self._sent.endswith(_END) and len(self._sent) <= RECORD_BYTES_MAX:
            await self._save()
        else:
            await self._let_go()

    async def _save(self) -> None:
        """A record that cannot be saved is none: the client still gets its stream."""
        body = bytes(self._sent)
        services, claim = self._services, self._claim
        try:
            key = None
            if len(body) > _INLINE_BYTES_MAX:
                key, inline = f"{KEYED_ANSWERS}{claim.holder.hex}", b""
                await asyncio.to_thread(write_object, services.objects, key, body)
            else:
                inline = body
            answer = Answer(200, inline, (*_HEADERS, *self._version), key)
            await services.database.run_for(claim.tenant_id, idempotency.save_held, claim, answer)
            self._is_settled = True
        except MillraceError as failure:
            _LOG.warning("a stream was not recorded", extra={"code": failure.code})

    async def _let_go(self) -> None:
        claim = self._claim
        try:
            await self._services.database.run_for(claim.tenant_id, idempotency.let_go, claim)
            self._is_settled = True
        except DatabaseAwayError:
            _LOG.warning("a key stays in flight until its deadline")
