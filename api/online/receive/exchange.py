"""The HTTP request of an online call and the way to respond, read from raw ASGI."""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from uuid import UUID

from starlette.types import Receive, Scope, Send

from api.http.client_connection import ClientConnection, client_connection
from api.http.middleware import count_for_tenant, request_id_of
from api.online.calls import ParsedCall, Recording
from api.online.memory_limits import BodyReservation, MemoryLimit, ResponseMemoryLimit
from tenancy.api_keys import Principal


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
    count_for_tenant: Callable[[UUID], None]  # see `assign_tenant`
    response_limit: ResponseMemoryLimit
    recording: Recording | None = None  # of a stream that may be replayed

    def text(self, name: bytes) -> str | None:
        """Return a header as text."""
        value = self.headers.get(name)
        return None if value is None else value.decode("latin-1")

    def assign_tenant(self, tenant_id: UUID) -> None:
        """Count the call and its body for its tenant. Raises ApiError (429)."""
        self.count_for_tenant(tenant_id)
        self.body_reservation.assign_tenant(tenant_id)

    def reserve_response_memory(self, byte_count: int) -> AbstractContextManager[None]:
        """Reserve memory for a large response. Raises ApiError when entered: 503, 429."""
        tenant_id = self.body_reservation.tenant_id
        assert tenant_id is not None  # responses before authentication are short
        return self.response_limit.reserve(tenant_id, byte_count)


@dataclass(frozen=True, slots=True)
class ReceivedCall:
    """An authenticated call as its client sent it."""

    exchange: Exchange
    principal: Principal
    parsed: ParsedCall


def exchange_from_scope(
    scope: Scope,
    receive: Receive,
    send: Send,
    *,
    body_limit: MemoryLimit,
    response_limit: ResponseMemoryLimit,
    now_s: float,
) -> Exchange:
    """Return the exchange that an ASGI `scope` describes."""
    return Exchange(
        request_id=request_id_of(scope),
        endpoint=scope["path"],
        headers=_by_name(scope["headers"]),
        receive=receive,
        send=send,
        connection=client_connection(scope),
        body_reservation=BodyReservation(body_limit),
        arrived_s=now_s,
        count_for_tenant=partial(count_for_tenant, scope),
        response_limit=response_limit,
    )


def _by_name(headers: Iterable[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    """Join the lines of a list header (RFC 9110, 5.3). `prefer` is the only one that is read."""
    found: dict[bytes, bytes] = {}
    for name, value in headers:
        is_continued = name == b"prefer" and name in found
        found[name] = b"%b, %b" % (found[name], value) if is_continued else value
    return found
