"""Around every request: its id, its numbers, the bound on how many, and an answer when we crash."""

import asyncio
import logging
import time
import traceback
from collections.abc import Awaitable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api import metrics
from api.http.client_connection import EXTENSION, ClientConnection
from api.http.responses import ApiError, error_response, internal_error_response
from api.online.answer.call_failures import shutting_down
from api.runtime.tenant_slots import TenantSlots
from core.ids import REQUEST, new_uuid, public_id
from registry.models import ENDPOINTS

log = logging.getLogger(__name__)

_ID_KEY: Final = "millrace.request_id"
_HELD_KEY: Final = "millrace.held"
_CLAIM_KEY: Final = "millrace.claim"
_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_ALWAYS: Final = frozenset({"/healthz", "/readyz", "/metrics"})  # answered under any load


@dataclass(frozen=True, slots=True)
class WriteDeadline:
    """How a whole answer is handed over: a client that takes no block in time is dropped."""

    block_bytes: int
    idle_s: float


_PACE: Final = WriteDeadline(1024 * 1024, 60.0)


class RequestEnvelope:
    """The outermost layer of the application."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        in_flight_max: int,
        online_in_flight_max: int,
        pace: WriteDeadline = _PACE,
        online_pace: WriteDeadline = _PACE,
    ) -> None:
        """More requests at once are refused; online calls wait long and are counted apart."""
        self._app = app
        online = TenantSlots(
            "online_requests", online_in_flight_max, kind="online calls", retry_after_s=1
        )
        others = TenantSlots("requests_in_flight", in_flight_max, kind="requests", retry_after_s=1)
        self._online, self._others = (online, online_pace), (others, pace)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        slots, pace = self._online if scope["path"] in ENDPOINTS else self._others
        exchange = _ResponseWriter(scope, send, pace)
        metrics.IN_FLIGHT.inc()
        try:
            with ExitStack() as held:
                scope[_HELD_KEY] = held
                refusal = self._let_in(scope, slots, held)
                if refusal is None:
                    await self._serve(scope, receive, exchange)
                else:
                    await error_response(refusal)(scope, receive, exchange.send)
        finally:
            metrics.IN_FLIGHT.dec()
            exchange.count()

    def _let_in(self, scope: Scope, slots: TenantSlots, held: ExitStack) -> ApiError | None:
        """Take a slot until the request is answered, or return why there is none."""
        if scope["path"] in _ALWAYS:
            return None
        try:
            scope[_CLAIM_KEY] = held.enter_context(slots.unclaimed())
        except ApiError as refusal:
            return refusal
        return None

    async def _serve(self, scope: Scope, receive: Receive, exchange: "_ResponseWriter") -> None:
        try:
            await self._app(scope, receive, exchange.send)
        except asyncio.CancelledError:  # only by a server that stops and whose grace is over
            if exchange.status is not None:
                raise  # the server closes the connection
            await error_response(shutting_down())(scope, receive, exchange.send)
        except Exception as error:  # noqa: BLE001  the process loop of a server
            metrics.CRASHES.inc()
            # Frames but no message: messages of drivers quote what clients sent.
            log.error(  # noqa: TRY400
                "request crashed",
                extra={
                    "request_id": exchange.request_id,
                    "error": type(error).__name__,
                    "frames": "".join(traceback.format_tb(error.__traceback__)),
                },
            )
            if exchange.is_whole:
                return  # the framework answered with `internal_error_response` and raised again
            if exchange.status is not None:
                raise ConnectionAbortedError from None  # the server closes the connection
            await internal_error_response()(scope, receive, exchange.send)


def request_id_of(scope: Scope) -> UUID:
    """Return the id that the envelope gave to a request; an answer's head shows it."""
    request_id = scope[_ID_KEY]
    assert isinstance(request_id, UUID)
    return request_id


def count_for_tenant(scope: Scope, tenant_id: UUID) -> None:
    """Count a request among those of its tenant that are in flight. Raises ApiError (429)."""
    scope[_CLAIM_KEY](tenant_id)


def request_exit_stack(scope: Scope) -> ExitStack:
    """Return what gives back, once a request is answered to its end, all that it was handed."""
    held = scope[_HELD_KEY]
    assert isinstance(held, ExitStack)
    return held


class _ResponseWriter:
    """One request and its answer, which ends when its client has it: until then it takes a slot."""

    def __init__(self, scope: Scope, send: Send, pace: WriteDeadline) -> None:
        request_id = new_uuid()
        scope[_ID_KEY] = request_id
        self.request_id = public_id(REQUEST, request_id)
        self.status: int | None = None  # None: not answered yet
        self.is_whole = False  # all was sent, and of a whole answer all but the last bytes taken
        self._scope = scope
        self._send = send
        self._pace = pace
        self._is_stream = False  # which bounds by itself what waits
        self._is_dropped = False  # its client took too long
        self._connection: ClientConnection | None = scope.get("extensions", {}).get(EXTENSION)
        self._begun_s = time.monotonic()

    async def send(self, message: Message) -> None:
        """Pass on a message of the answer, with the request's id on its head."""
        if self._is_dropped:
            return
        connection = self._connection
        if message["type"] == "http.response.start":
            self.status = message["status"]
            head = (b"x-request-id", self.request_id.encode())
            message = {**message, "headers": [*message.get("headers", ()), head]}
            if connection is not None and connection.is_behind:  # with the answer before
                await self._in_time(self._send(message))
            else:
                await self._send(message)
            return
        self._is_stream |= message.get("more_body", False)
        if self._is_stream:
            await self._send(message)
            self.is_whole = not message.get("more_body", False)
            return
        if len(message.get("body", b"")) > self._pace.block_bytes:
            await self._send_in_blocks(message)
        else:
            await self._send(message)
        if connection is not None and connection.is_behind:
            await self._in_time(connection.caught_up())
        self.is_whole = not self._is_dropped

    async def _send_in_blocks(self, message: Message) -> None:
        """Send a large body as it is taken: whole, all of it would lie in the transport."""
        body, size = message["body"], self._pace.block_bytes
        for start in range(0, len(body), size):
            end = start + size
            # A copy: of a view the last bytes that wait would keep the whole body in memory.
            block = {**message, "body": bytes(body[start:end]), "more_body": end < len(body)}
            await self._in_time(self._send(block))
            if self._is_dropped:
                return

    async def _in_time(self, taking: Awaitable[None]) -> None:
        try:
            async with asyncio.timeout(self._pace.idle_s):
                await taking
        except TimeoutError:
            assert self._connection is not None
            self._connection.drop()
            self._is_dropped = True

    def count(self) -> None:
        """Put the request into the metrics, under its route and not its path."""
        route = getattr(self._scope.get("route"), "path", "unknown")
        method = self._scope["method"] if self._scope["method"] in _METHODS else "other"
        status = str(self.status) if self.is_whole else "cut"
        metrics.REQUESTS.labels(route, method, status).inc()
        metrics.REQUEST_SECONDS.labels(route).observe(time.monotonic() - self._begun_s)
