"""The HTTP request of an online call and its response, as raw ASGI messages."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, Protocol
from uuid import UUID

from starlette.types import Message, Receive, Send

from api.http.client_connection import ClientConnection
from api.http.errors import ApiError, error_body
from api.online.memory_limits import LARGE_BYTES, BodyReservation, ResponseMemoryLimit
from core.ids import KEY, public_id
from tenancy.api_keys import Principal

RawHeaders = list[tuple[bytes, bytes]]

_JSON: Final = (b"content-type", b"application/json")


@dataclass(frozen=True, slots=True)
class CompleteResponse:
    """A response that is sent at once, as opposed to a stream."""

    status: int
    body: bytes
    headers: RawHeaders
    input_tokens: int = 0
    output_tokens: int = 0


class Recording(Protocol):
    """Records a stream while it is sent, so that it can be replayed."""

    async def record(self, message: Message) -> None:
        """Record one ASGI message, before it is sent."""
        ...

    async def close(self) -> None:
        """End the recording. Called at the end of every call, perhaps more than once."""
        ...


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request and its response."""

    request_id: UUID
    endpoint: str
    headers: dict[bytes, bytes]  # by lower-case name; of repeated headers the last one
    receive: Receive
    send: Send
    connection: ClientConnection
    body_reservation: BodyReservation
    arrived_s: float  # monotonic
    count_for_tenant: Callable[[UUID, str], None]  # see `assign_tenant`
    response_limit: ResponseMemoryLimit
    recording: Recording | None = None  # of a stream that may be replayed
    client_address: str | None = None

    def text(self, name: bytes) -> str | None:
        """Return a header as text."""
        value = self.headers.get(name)
        return None if value is None else value.decode("latin-1")

    def assign_tenant(self, principal: Principal) -> None:
        """Count the call and its body for its tenant. Raises ApiError (429)."""
        self.count_for_tenant(principal.tenant_id, public_id(KEY, principal.key_id))
        self.body_reservation.assign_tenant(principal.tenant_id)


def headers_by_name(headers: Iterable[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    """Join the lines of a list header (RFC 9110, 5.3). `prefer` is the only one that is read."""
    found: dict[bytes, bytes] = {}
    for name, value in headers:
        is_continued = name == b"prefer" and name in found
        found[name] = b"%b, %b" % (found[name], value) if is_continued else value
    return found


async def send_response(exchange: Exchange, response: CompleteResponse) -> None:
    """Send a response, as JSON unless its headers name another type.

    The middleware waits until the client has read it. Raises ApiError, before anything is sent,
    when large responses of slow clients exceed their memory limit.
    """
    if exchange.recording is not None:
        await exchange.recording.close()  # not a stream: free its key before the client knows
    if len(response.body) <= LARGE_BYTES:
        await _send(exchange, response)
        return
    tenant_id = exchange.body_reservation.tenant_id
    assert tenant_id is not None  # responses before authentication are short
    with exchange.response_limit.reserve(tenant_id, len(response.body)):
        await _send(exchange, response)


def error_as_response(error: ApiError, headers: RawHeaders) -> CompleteResponse:
    """Return an error in its JSON envelope, with the headers of the call."""
    own = [(name.encode(), value.encode()) for name, value in (error.headers or {}).items()]
    return CompleteResponse(error.status, error_body(error), [*headers, *own])


async def _send(exchange: Exchange, response: CompleteResponse) -> None:
    has_type = any(name == _JSON[0] for name, _ in response.headers)
    headers = [
        *(() if has_type else (_JSON,)),
        (b"content-length", b"%d" % len(response.body)),
        *response.headers,
    ]
    head = {"type": "http.response.start", "status": response.status, "headers": headers}
    await exchange.send(head)
    await exchange.send({"type": "http.response.body", "body": response.body})
