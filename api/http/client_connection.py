"""The connection of a client: notification of a disconnect, and ways to end the connection."""

from collections.abc import Callable
from typing import Final

from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

EXTENSION: Final = "millrace.connection"
"""Name of the connection among the extensions of an ASGI scope."""

CLOSE_S: Final = 2.0
"""Time that a connection has to accept its last bytes after the response was cut off."""


class ClientConnection:
    """One connection. It may serve several requests, one after the other."""

    def __init__(self, protocol: HttpToolsProtocol) -> None:
        self._protocol = protocol
        self._is_disconnected = False
        self._disconnect_listeners: list[Callable[[], None]] = []
        self._served: RequestResponseCycle | None = None

    @property
    def has_whole_body(self) -> bool:
        """Whether the body of the newest request has arrived, and so those of all before it."""
        return not self._protocol.cycle.more_body

    @property
    def is_write_paused(self) -> bool:
        """Whether written bytes wait for the client, so that the next write would wait too."""
        return self._protocol.flow.write_paused

    async def drain(self) -> None:
        """Wait until the client has read nearly all written bytes, or has disconnected."""
        await self._protocol.flow.drain()

    def resume_reading(self) -> None:
        """Read the socket again, to notice a disconnect after the newest body was consumed.

        The end of a large body leaves reading paused. With a pipelined request it stays paused:
        otherwise a client could fill memory with requests.
        """
        if not self._protocol.pipeline:
            self._protocol.flow.resume_reading()

    def set_served(self, cycle: RequestResponseCycle) -> None:
        """Set the request that is served now; the protocol only knows the newest request."""
        self._served = cycle

    def add_disconnect_listener(self, on_disconnect: Callable[[], None]) -> None:
        """Call `on_disconnect` when the client disconnects; at once if it already has."""
        if self._is_disconnected:
            on_disconnect()
        else:
            self._disconnect_listeners.append(on_disconnect)

    def remove_disconnect_listener(self, on_disconnect: Callable[[], None]) -> None:
        """Undo `add_disconnect_listener`."""
        if on_disconnect in self._disconnect_listeners:
            self._disconnect_listeners.remove(on_disconnect)

    def notify_disconnected(self) -> None:
        """Call the listeners."""
        self._is_disconnected = True
        listeners, self._disconnect_listeners = self._disconnect_listeners, []
        for on_disconnect in listeners:
            on_disconnect()

    def abort(self) -> None:
        """Close the connection in the middle of a response that its client does not read."""
        self.discard_writes()
        self._protocol.transport.abort()

    def write_last_and_close(self, last: bytes) -> None:
        """End a response of unknown length with `last`, after all unread bytes, and close.

        The connection is aborted when the client does not read the rest within CLOSE_S.
        """
        protocol, served = self._protocol, self._served
        assert served is not None
        self.discard_writes()
        transport = protocol.transport
        is_http10 = served.scope["http_version"] == "1.0"  # has no chunked encoding
        transport.write(last if is_http10 else b"%x\r\n%s\r\n0\r\n\r\n" % (len(last), last))
        transport.close()
        protocol.loop.call_later(CLOSE_S, transport.abort)

    def discard_writes(self) -> None:
        """Discard everything that routes still send, also for pipelined requests."""
        pipelined = [cycle for cycle, _ in self._protocol.pipeline]
        for cycle in (*pipelined, self._served):
            if cycle is not None:
                cycle.disconnected = True


def client_connection(scope: Scope) -> ClientConnection:
    """Return the connection of a request, which `HttpProtocol` puts into its scope."""
    connection: ClientConnection = scope["extensions"][EXTENSION]
    return connection
