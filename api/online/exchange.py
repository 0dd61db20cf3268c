"""One HTTP request of an online call, read from raw ASGI."""

from dataclasses import dataclass
from uuid import UUID

from starlette.types import Receive, Scope, Send

from api.middleware import request_id_of
from api.online.calls import RawHeaders


@dataclass(frozen=True, slots=True)
class Exchange:
    """What came in, and the way out."""

    request_id: UUID
    endpoint: str
    headers: dict[bytes, bytes]  # by lower-case name; the last of a name counts
    receive: Receive
    send: Send
    arrived_s: float  # monotonic

    def text(self, name: bytes) -> str | None:
        """Return a header as text."""
        value = self.headers.get(name)
        return None if value is None else value.decode("latin-1")


def exchange_of(scope: Scope, receive: Receive, send: Send, *, now_s: float) -> Exchange:
    """Return the request that `scope` describes."""
    raw: RawHeaders = scope["headers"]
    return Exchange(request_id_of(scope), scope["path"], dict(raw), receive, send, now_s)
