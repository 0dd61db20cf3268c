"""Around every request: its id, its metrics, the limit of requests in flight, crashes, HEAD."""

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
from api.http.access_log import log_access
from api.http.client_connection import EXTENSION, ClientConnection
from api.http.errors import ApiError, error_response, internal_error_response
from api.online.call_errors import shutting_down
from api.runtime.tenant_slots import TenantSlots
from core.ids import REQUEST, new_uuid, public_id
from registry.models import ENDPOINTS

log = logging.getLogger(__name__)

_ID_KEY: Final = "millrace.request_id"
_EXIT_STACK_KEY: Final = "millrace.exit_stack"
_ASSIGN_TENANT_KEY: Final = "millrace.assign_tenant"
_ACTOR_KEY: Final = "millrace.actor"
_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_UNLIMITED_PATHS: Final = frozenset({"/healthz", "/readyz", "/metrics"})  # served under any load


@dataclass(frozen=True, slots=True)
class WriteDeadline:
    """Time for a client to read each block of a complete response, before it is disconnected."""

    block_bytes: int
    timeout_s: float


_WRITE_DEADLINE: Final = WriteDeadline(1024 * 1024, 60.0)


class RequestEnvelope:
    """The outermost layer of the application."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        in_flight_max: int,
        online_in_flight_max: int,
        write_deadline: WriteDeadline = _WRITE_DEADLINE,
        online_write_deadline: WriteDeadline = _WRITE_DEADLINE,
        has_access_log: bool = False,
    ) -> None:
        """Requests beyond a limit are refused. Online calls wait long and have their own limit."""
        self._app = app
        self._has_access_log = has_access_log
        online = TenantSlots(
            "online_requests", online_in_flight_max, kind="online calls", retry_after_s=1
        )
        others = TenantSlots("requests_in_flight", in_flight_max, kind="requests", retry_after_s=1)
        self._online, self._others = (online, online_write_deadline), (others, write_deadline)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        slots, deadline = self._online if scope["path"] in ENDPOINTS else self._others
        writer = _ResponseWriter(scope, send, deadline)
        metrics.IN_FLIGHT.inc()
        try:
            with ExitStack() as exit_stack:
                scope[_EXIT_STACK_KEY] = exit_stack
                try:  # the slot is kept until the response is sent
                    if scope["path"] not in _UNLIMITED_PATHS:
                        assign_tenant = exit_stack.enter_context(slots.acquire_unassigned())
                        scope[_ASSIGN_TENANT_KEY] = assign_tenant
                except ApiError as refusal:
                    await error_response(refusal)(scope, receive, writer.send)
                else:
                    await self._serve(scope, receive, writer)
        finally:
            metrics.IN_FLIGHT.dec()
            writer.record_end(has_access_log=self._has_access_log)

    async def _serve(self, scope: Scope, receive: Receive, writer: "_ResponseWriter") -> None:
        try:
            await self._app(scope, receive, writer.send)
        except asyncio.CancelledError:  # the server stops and its grace period is over
            if writer.status is not None:
                raise  # the server closes the connection
            await error_response(shutting_down())(scope, receive, writer.send)
        except Exception as error:  # noqa: BLE001  the outermost loop
            metrics.CRASHES.inc()
            # Frames without the message: messages of drivers quote data of clients.
            log.error(  # noqa: TRY400
                "request crashed",
                extra={
                    "request_id": writer.request_id,
                    "error": type(error).__name__,
                    "frames": "".join(traceback.format_tb(error.__traceback__)),
                },
            )
            if writer.is_complete:
                return  # FastAPI sent `internal_error_response` and raised again
            if writer.status is not None:
                raise ConnectionAbortedError from None  # the server closes the connection
            await internal_error_response()(scope, receive, writer.send)


def request_id_of(scope: Scope) -> UUID:
    """Return the id of a request, which the head of its response shows."""
    request_id: UUID = scope[_ID_KEY]
    return request_id


def count_for_tenant(scope: Scope, tenant_id: UUID, key_id: str) -> None:
    """Count a request in flight for its tenant. Raises ApiError (429).

    `key_id` is the public id of the key that authenticated it, for the access log.
    """
    scope[_ACTOR_KEY] = key_id
    scope[_ASSIGN_TENANT_KEY](tenant_id)


def request_exit_stack(scope: Scope) -> ExitStack:
    """Return the exit stack that is closed when the response is sent."""
    exit_stack: ExitStack = scope[_EXIT_STACK_KEY]
    return exit_stack


class _ResponseWriter:
    """Writes the response of one request, which keeps its slot until the client has it."""

    def __init__(self, scope: Scope, send: Send, deadline: WriteDeadline) -> None:
        request_id = new_uuid()
        scope[_ID_KEY] = request_id
        self.request_id = public_id(REQUEST, request_id)
        self.status: int | None = None  # None: the response has not started
        self.is_complete = False  # all is sent and nearly all of it read
        self._scope = scope
        self._send = send
        self._deadline = deadline
        self._is_stream = False  # streams limit unread bytes by themselves
        self._is_aborted = False  # its client read too slowly
        self._connection: ClientConnection | None = scope.get("extensions", {}).get(EXTENSION)
        self._started_s = time.monotonic()

    async def send(self, message: Message) -> None:
        """Send a message, with the request id in the head."""
        if self._is_aborted:
            return
        connection = self._connection
        if message["type"] == "http.response.start":
            self.status = message["status"]
            head = (b"x-request-id", self.request_id.encode())
            message = {**message, "headers": [*message.get("headers", ()), head]}
            if connection is not None and connection.is_write_paused:  # by the previous response
                await self._within_deadline(self._send(message))
            else:
                await self._send(message)
            return
        self._is_stream |= message.get("more_body", False)
        if self._is_stream:
            await self._send(message)
            self.is_complete = not message.get("more_body", False)
            return
        if len(message.get("body", b"")) > self._deadline.block_bytes:
            await self._send_in_blocks(message)
        else:
            await self._send(message)
        if connection is not None and connection.is_write_paused:
            await self._within_deadline(connection.drain())
        self.is_complete = not self._is_aborted

    async def _send_in_blocks(self, message: Message) -> None:
        """Send a large body in blocks as the client reads. At once, all of it would be buffered."""
        body, size = message["body"], self._deadline.block_bytes
        for start in range(0, len(body), size):
            end = start + size
            # A copy: a view would keep the whole body in memory until the last bytes are read.
            block = {**message, "body": bytes(body[start:end]), "more_body": end < len(body)}
            await self._within_deadline(self._send(block))
            if self._is_aborted:
                return

    async def _within_deadline(self, write: Awaitable[None]) -> None:
        try:
            async with asyncio.timeout(self._deadline.timeout_s):
                await write
        except TimeoutError:
            assert self._connection is not None
            self._connection.abort()
            self._is_aborted = True

    def record_end(self, *, has_access_log: bool) -> None:
        """Record the request in metrics and access log, under its route instead of its path."""
        route = getattr(self._scope.get("route"), "path", "unknown")
        method = self._scope["method"] if self._scope["method"] in _METHODS else "other"
        status = str(self.status) if self.is_complete else "cut"
        metrics.REQUESTS.labels(route, method, status).inc()
        duration_s = time.monotonic() - self._started_s
        metrics.REQUEST_SECONDS.labels(route).observe(duration_s)
        if has_access_log and self._scope["path"] not in _UNLIMITED_PATHS:
            facts = {
                "request_id": self.request_id,
                "key": self._scope.get(_ACTOR_KEY),
                "seconds": round(duration_s, 6),
            }
            log_access(self._scope, method=method, route=route, status=status, facts=facts)


class _HeadSentError(Exception):
    """The head is sent; stops the route before it creates the body."""


class HeadAsGet:
    """Serves HEAD with the route of GET, and stops the route after the head.

    Some bodies are long, and an event stream may be endless.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self._app(scope, receive, send)
            return

        async def send_head(message: Message) -> None:
            await send(message)
            await send({"type": "http.response.body", "body": b""})
            raise _HeadSentError

        # Ranges apply only to GET (RFC 9110, 14.2).
        headers = [pair for pair in scope["headers"] if pair[0] != b"range"]
        get_scope = {**scope, "method": "GET", "headers": headers}
        try:
            await self._app(get_scope, receive, send_head)
        except _HeadSentError:
            pass
        finally:
            # for metrics and access log of the middleware
            for name in ("route", "path_params", _ACTOR_KEY):
                if name in get_scope:
                    scope[name] = get_scope[name]
