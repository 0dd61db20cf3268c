"""Around every request: its id, its numbers, the bound on how many, and an answer when we crash."""

import asyncio
import logging
import time
import traceback
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api import metrics
from api.answers import crash_answer, error_answer, unavailable
from api.online.call_failures import shutting_down
from core.ids import REQUEST, new_uuid, public_id
from registry.models import ENDPOINTS

log = logging.getLogger(__name__)

_ID_KEY: Final = "millrace.request_id"
_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_ALWAYS: Final = frozenset({"/healthz", "/readyz", "/metrics"})  # answered under any load


@dataclass(slots=True)
class _InFlight:
    """Requests of one sort that are being served."""

    count_max: int
    count: int = 0


class RequestEnvelope:
    """The outermost layer of the application."""

    def __init__(self, app: ASGIApp, *, in_flight_max: int, online_in_flight_max: int) -> None:
        """More requests at once are refused; online calls wait long and are counted apart."""
        self._app = app
        self._online = _InFlight(online_in_flight_max)
        self._others = _InFlight(in_flight_max)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        exchange = _Exchange(scope, send)
        path = scope["path"]
        in_flight = self._online if path in ENDPOINTS else self._others
        in_flight.count += 1
        metrics.IN_FLIGHT.inc()
        try:
            if in_flight.count > in_flight.count_max and path not in _ALWAYS:
                metrics.SHED.labels("requests_in_flight").inc()
                refusal = unavailable(
                    "Too many requests at once.", retry_after_s=1, code="slow_down"
                )
                await error_answer(refusal)(scope, receive, exchange.send)
            else:
                await self._serve(scope, receive, exchange)
        finally:
            in_flight.count -= 1
            metrics.IN_FLIGHT.dec()
            exchange.count()

    async def _serve(self, scope: Scope, receive: Receive, exchange: "_Exchange") -> None:
        try:
            await self._app(scope, receive, exchange.send)
        except asyncio.CancelledError:  # only by a server that stops and whose grace is over
            if exchange.status is not None:
                exchange.cut = not exchange.is_whole
                raise  # the server closes the connection
            await error_answer(shutting_down())(scope, receive, exchange.send)
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
                return  # the framework answered with `crash_answer` and raised again
            if exchange.status is not None:
                exchange.cut = True
                raise ConnectionAbortedError from None  # the server closes the connection
            await crash_answer()(scope, receive, exchange.send)


def request_id_of(scope: Scope) -> UUID:
    """Return the id that the envelope gave to a request; an answer's head shows it."""
    request_id = scope[_ID_KEY]
    assert isinstance(request_id, UUID)
    return request_id


class _Exchange:
    """One request and its answer."""

    def __init__(self, scope: Scope, send: Send) -> None:
        request_id = new_uuid()
        scope[_ID_KEY] = request_id
        self.request_id = public_id(REQUEST, request_id)
        self.status: int | None = None  # None: not answered yet
        self.is_whole = False  # the answer's last byte was sent
        self.cut = False  # the answer began and broke off
        self._scope = scope
        self._send = send
        self._begun_s = time.monotonic()

    async def send(self, message: Message) -> None:
        """Pass on a message of the answer, with the request's id on its head."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            head = (b"x-request-id", self.request_id.encode())
            message = {**message, "headers": [*message.get("headers", ()), head]}
        await self._send(message)
        if message["type"] == "http.response.body" and not message.get("more_body", False):
            self.is_whole = True

    def count(self) -> None:
        """Put the request into the metrics, under its route and not its path."""
        route = getattr(self._scope.get("route"), "path", "unknown")
        method = self._scope["method"] if self._scope["method"] in _METHODS else "other"
        status = "cut" if self.cut or self.status is None else str(self.status)
        metrics.REQUESTS.labels(route, method, status).inc()
        metrics.REQUEST_SECONDS.labels(route).observe(time.monotonic() - self._begun_s)
