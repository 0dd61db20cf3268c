"""The client's end of a connection, for who must know at once that it is gone, or be rid of it."""

from collections.abc import Callable
from typing import Final

from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

EXTENSION: Final = "millrace.connection"
"""Its name among the extensions of an ASGI scope."""

CUT_S: Final = 2.0
"""How long a connection that was cut may take to accept its last words."""


class ClientConnection:
    """One connection; it may serve several requests, one after the other."""

    def __init__(self, protocol: HttpToolsProtocol) -> None:
        """The connection of `protocol`, which is open."""
        self._protocol = protocol
        self._is_lost = False
        self._watchers: list[Callable[[], None]] = []
        self._served: RequestResponseCycle | None = None

    @property
    def has_whole_body(self) -> bool:
        """Whether the body of the newest request, and so of all before it, has arrived."""
        return not self._protocol.cycle.more_body

    @property
    def is_behind(self) -> bool:
        """Whether what was written waits for the client, so that the next write would, too."""
        return self._protocol.flow.write_paused

    async def caught_up(self) -> None:
        """Wait until the client has taken nearly all that was written, or is gone."""
        await self._protocol.flow.drain()

    def notice_leaving(self) -> None:
        """Read on, so that its end is noticed: the body of the newest request was taken.

        What came with the last of a large body left the socket unread. A request sent ahead is
        still left there, or a client could fill memory with them.
        """
        if not self._protocol.pipeline:
            self._protocol.flow.resume_reading()

    def begin(self, cycle: RequestResponseCycle) -> None:
        """Note which request is served now; the protocol knows only the newest that came."""
        self._served = cycle

    def watch(self, on_lost: Callable[[], None]) -> None:
        """Call `on_lost` when the client is gone; at once when it is already."""
        if self._is_lost:
            on_lost()
        else:
            self._watchers.append(on_lost)

    def forget(self, on_lost: Callable[[], None]) -> None:
        """Undo `watch`."""
        if on_lost in self._watchers:
            self._watchers.remove(on_lost)

    def lost(self) -> None:
        """Tell the watchers."""
        self._is_lost = True
        watchers, self._watchers = self._watchers, []
        for on_lost in watchers:
            on_lost()

    def drop(self) -> None:
        """End the connection in the middle of an answer that its client does not take."""
        self._write_no_more()
        self._protocol.transport.abort()

    def cut(self, last: bytes) -> None:
        """End an answer of unknown length with `last` behind all that waits to be read, and close.

        A client that does not take it in time is dropped with all that waits for it.
        """
        protocol, served = self._protocol, self._served
        assert served is not None
        self._write_no_more()
        transport = protocol.transport
        is_old = served.scope["http_version"] == "1.0"  # which knows no chunks
        transport.write(last if is_old else b"%x\r\n%s\r\n0\r\n\r\n" % (len(last), last))
        transport.close()
        protocol.loop.call_later(CUT_S, transport.abort)

    def _write_no_more(self) -> None:
        """Let what routes still send go nowhere, also those of requests that were sent ahead."""
        ahead = [cycle for cycle, _ in self._protocol.pipeline]
        for cycle in (*ahead, self._served):
            if cycle is not None:
                cycle.disconnected = True


def client_connection(scope: Scope) -> ClientConnection:
    """Return the connection that a request came by; our server puts it there."""
    connection = scope["extensions"][EXTENSION]
    assert isinstance(connection, ClientConnection)
    return connection
