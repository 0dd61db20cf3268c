"""One HTTP request of an online call, read from raw ASGI."""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from uuid import UUID

from starlette.types import Receive, Scope, Send

from api.http.client_connection import ClientConnection, client_connection
from api.http.middleware import count_for_tenant, request_id_of
from api.online.admit.body_room import BodyHold, BodyRoom
from api.online.admit.readers import Readers
from api.online.calls import Recording


@dataclass(frozen=True, slots=True)
class Exchange:
    """What came in, and the way out."""

    request_id: UUID
    endpoint: str
    headers: dict[bytes, bytes]  # by lower-case name; the last of a name counts, but of lists
    receive: Receive
    send: Send
    connection: ClientConnection
    body_hold: BodyHold
    arrived_s: float  # monotonic
    count_for_tenant: Callable[[UUID], None]  # see `belong_to`
    readers: Readers
    recording: Recording | None = None  # of a stream that may be given again

    def text(self, name: bytes) -> str | None:
        """Return a header as text."""
        value = self.headers.get(name)
        return None if value is None else value.decode("latin-1")

    def belong_to(self, tenant_id: UUID) -> None:
        """Count it as a call of its tenant, and its body as well. Raises ApiError (429)."""
        self.count_for(tenant_id)
        self.body_hold.belong_to(tenant_id)

    def hold_answer(self, byte_count: int) -> AbstractContextManager[None]:
        """Hold room for a large answer to its tenant. Raises ApiError when entered: 503, 429."""
        tenant_id = self.body_hold.tenant_id
        assert tenant_id is not None  # what is said to strangers is short
        return self.readers.hold(tenant_id, byte_count)


def exchange_from_scope(
    scope: Scope, receive: Receive, send: Send, *, room: BodyRoom, readers: Readers, now_s: float
) -> Exchange:
    """Return the request that `scope` describes."""
    return Exchange(
        request_id=request_id_of(scope),
        endpoint=scope["path"],
        headers=_by_name(scope["headers"]),
        receive=receive,
        send=send,
        connection=client_connection(scope),
        body_hold=BodyHold(room),
        arrived_s=now_s,
        count_for=partial(count_for_tenant, scope),
        readers=readers,
    )


def _by_name(headers: Iterable[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    """Several lines of a list are one (RFC 9110, 5.3); `prefer` is the one list that we read."""
    found: dict[bytes, bytes] = {}
    for name, value in headers:
        is_more = name == b"prefer" and name in found
        found[name] = b"%b, %b" % (found[name], value) if is_more else value
    return found
