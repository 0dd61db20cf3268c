"""HTTP on a socket: uvicorn's h11, with a bound on slow heads and our envelope for bad syntax.

h11 rather than httptools: it bounds the size of heads, chunk headers and trailers.
"""

import asyncio
import secrets
from typing import Any, Final

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from api.answers import ApiError, error_body

HEAD_TIMEOUT_S_DEFAULT: Final = 15.0


def http_protocol(head_timeout_s: float) -> type[H11Protocol]:
    """Return the protocol class with that bound; uvicorn makes one instance a connection."""
    return type("BoundHttpProtocol", (HttpProtocol,), {"head_timeout_s": head_timeout_s})


class HttpProtocol(H11Protocol):
    """One connection."""

    head_timeout_s = HEAD_TIMEOUT_S_DEFAULT
    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client that says nothing is not kept."""
        super().connection_made(transport)
        self._bound_the_head()

    def data_received(self, data: bytes) -> None:
        """Time a head from its first byte, however slowly the rest comes."""
        super().data_received(data)
        self._bound_the_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """See `H11Protocol`."""
        super().connection_lost(exc)
        self._stop_timer()

    def send_400_response(self, msg: str) -> None:
        """Answer bytes that are no HTTP, in the envelope and with a request id."""
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True  # the route must not answer as well
            self.cycle.message_event.set()
        if self.conn.our_state in {h11.IDLE, h11.SEND_RESPONSE}:
            self._send_refusal(error_body(ApiError(400, msg, code="invalid_http")))
        self.transport.close()

    def _send_refusal(self, body: bytes) -> None:
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (b"x-request-id", f"req_{secrets.token_hex(16)}".encode()),
            (b"connection", b"close"),
        ]
        events: list[Any] = [
            h11.Response(status_code=400, headers=headers, reason=b"Bad Request"),
            h11.Data(data=body),
            h11.EndOfMessage(),
        ]
        for event in events:
            self.transport.write(self.conn.send(event) or b"")

    def _bound_the_head(self) -> None:
        if not self._waits_unwatched():
            self._stop_timer()
        elif self._head_timer is None:
            self._head_timer = self.loop.call_later(self.head_timeout_s, self._give_up)

    def _waits_unwatched(self) -> bool:
        """Whether the client owes bytes that no route waits for: a head, or a refused body."""
        owes_a_head = self.conn.their_state is h11.IDLE
        owes_a_rest = self.conn.our_state is h11.DONE and self.conn.their_state is h11.SEND_BODY
        return (owes_a_head or owes_a_rest) and self.timeout_keep_alive_task is None

    def _give_up(self) -> None:
        self._head_timer = None
        if not self.transport.is_closing():
            self.transport.close()

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
