"""A small HTTP/1.1 client for one server, with as many kept-alive connections as calls at once."""

import asyncio

from gpu_consumers.engines.openai_http.http_connection import HttpConnection, HttpRequestTemplate
from gpu_consumers.engines.openai_http.origin import Origin
from gpu_consumers.engines.openai_http.response_reader import HttpResponse, ResponseReader

_CHECK_INTERVAL_S = 0.25  # precision of deadlines; one timer for all calls
_IDLE_S_MAX = 30.0
_CLOSE_ITERATIONS_MAX = 100  # of the loop; a transport reports its loss in the first few


class CannotConnectError(Exception):
    """No connection to the server; the message names the class of the cause."""


class HttpClient:
    """Runs requests on one event loop. The caller bounds how many at once."""

    def __init__(self, origin: Origin, *, connect_timeout_s: float, content_bytes_max: int) -> None:
        """Connections are opened by requests."""
        self._origin = origin
        self._connect_timeout_s = connect_timeout_s
        self._content_bytes_max = content_bytes_max
        self._opened: set[HttpConnection] = set()
        self._idle: dict[HttpConnection, float] = {}  # idle since, newest last
        self._check: asyncio.TimerHandle | None = None

    async def request(
        self,
        template: HttpRequestTemplate,
        body: bytes | None,
        *,
        fresh: bool = False,
        reader: ResponseReader | None = None,
        deadline_s: float | None = None,
    ) -> HttpResponse:
        """Send one request, over a new connection if `fresh`, and return its response.

        `deadline_s`, by the loop's clock, may cover several requests; without it the template's
        timeout starts now. Cancelling closes the connection. Raises CannotConnectError,
        DisconnectedError, NotHttpError, ResponseTooLargeError; TimeoutError after the deadline.
        """
        loop = asyncio.get_running_loop()
        if deadline_s is None:
            deadline_s = loop.time() + template.timeout_s
        connection = None if fresh else self._newest_idle()
        if connection is None:
            connection = await self._connect(deadline_s)
        try:
            return await connection.request(template, body, deadline_s, reader)
        finally:
            if connection.is_reusable:
                self._idle[connection] = loop.time()
            else:
                connection.abort()

    async def close(self) -> None:
        """Close every connection; no request is running."""
        if self._check is not None:
            self._check.cancel()
            self._check = None
        self._idle.clear()
        for connection in [*self._opened]:
            connection.abort()
        for _ in range(_CLOSE_ITERATIONS_MAX):
            if not self._opened:
                return
            await asyncio.sleep(0)

    def _newest_idle(self) -> HttpConnection | None:
        """Remove and return the connection used last, so that surplus ones become old and close."""
        while self._idle:
            connection, _ = self._idle.popitem()
            if connection.is_reusable:  # the server may have closed it
                return connection
        return None

    async def _connect(self, deadline_s: float) -> HttpConnection:
        """Try the host's addresses in turn, each with its share of the remaining time."""
        loop = asyncio.get_running_loop()
        until_s = min(deadline_s, loop.time() + self._connect_timeout_s)
        failure: OSError = OSError()
        try:
            async with asyncio.timeout_at(until_s):
                addresses = await self._origin.addresses()
            for tried, address in enumerate(addresses):
                share_s = (until_s - loop.time()) / (len(addresses) - tried)
                try:
                    async with asyncio.timeout(share_s):
                        return await self._connect_to(address)
                except OSError as refusal:  # TimeoutError is one
                    failure = refusal
                    self._origin.drop_address(address)
        except OSError as unknown:
            failure = unknown
        if isinstance(failure, TimeoutError) and until_s == deadline_s:
            raise failure
        raise CannotConnectError(type(failure).__name__) from failure

    async def _connect_to(self, address: str) -> HttpConnection:
        loop = asyncio.get_running_loop()
        tls = self._origin.tls
        _, connection = await loop.create_connection(
            lambda: HttpConnection(self._opened, self._content_bytes_max),
            address,
            self._origin.port,
            ssl=tls,
            server_hostname=self._origin.host if tls else None,
        )
        if self._check is None:
            self._check = loop.call_later(_CHECK_INTERVAL_S, self._check_connections)
        return connection

    def _check_connections(self) -> None:
        """End requests past their deadline and close connections that are idle for too long."""
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        for connection in self._opened:
            connection.expire(now_s)
        while self._idle:
            oldest, since_s = next(iter(self._idle.items()))
            if oldest.is_reusable and now_s - since_s < _IDLE_S_MAX:
                break
            del self._idle[oldest]
            oldest.abort()
        self._check = (
            loop.call_later(_CHECK_INTERVAL_S, self._check_connections) if self._opened else None
        )
