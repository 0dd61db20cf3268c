"""An engine behind any HTTP server of the OpenAI shape. Bodies go out as they came, byte for byte.

What the upstream says about an item is the item's answer; that it cannot be asked is the pool's
failure and charges no item.
"""

import asyncio
import io
from collections.abc import Sequence
from http import HTTPStatus

import aiohttp
from yarl import URL

from core.errors import PoolUnavailableError
from gpu_consumers.engines.engine import Answer, Finished
from gpu_consumers.engines.error_answers import (
    asks_to_stream,
    error_answer,
    item_timed_out,
    stream_refused,
)
from gpu_consumers.engines.item_pool import ItemPool
from gpu_consumers.engines.settings import EngineSettings
from gpu_consumers.engines.usage import answer_with_usage, is_json_object

POOL_FAILURES = frozenset({401, 429, 502, 503, 504, 529})
"""Statuses about the upstream or our key to it. 529 is what some hosts say when overloaded."""

_DISCONNECTED = "The upstream closed the connection before it had answered."
_PROBE_INTERVAL_S = 0.5
_LARGE_BODY_BYTES = 1024 * 1024  # aiohttp warns about larger plain bytes


class OpenAIHttpEngine:
    """Sends each item to `upstream`, at most `concurrency` at once over kept-alive connections."""

    def __init__(self, settings: EngineSettings) -> None:
        """Connect to nothing yet; `settings.upstream` must be given."""
        assert settings.upstream is not None
        self._base = settings.upstream.rstrip("/").removesuffix("/v1")
        self._headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
        if settings.upstream_api_key is not None:
            self._headers["Authorization"] = (
                f"Bearer {settings.upstream_api_key.get_secret_value()}"
            )
        self._concurrency = settings.items_at_once
        self._timeout = aiohttp.ClientTimeout(
            total=settings.item_timeout_s, sock_connect=settings.connect_timeout_s
        )
        self._start_timeout_s = settings.start_timeout_s
        self._answer_bytes_max = settings.answer_bytes_max
        self._urls: dict[str, URL] = {}  # parsed once an endpoint
        self._session: aiohttp.ClientSession | None = None
        self._pool = ItemPool(self._ask, self._concurrency)

    @property
    def concurrency(self) -> int:
        """See `Engine`."""
        return self._concurrency

    async def start(self) -> None:
        """Wait until the upstream answers anything. Raises PoolUnavailableError when it does not.

        May be called again after that.
        """
        session = self._open()
        probe = aiohttp.ClientTimeout(total=self._timeout.sock_connect)
        try:
            async with asyncio.timeout(self._start_timeout_s):
                while True:
                    try:
                        async with session.get(f"{self._base}/v1/models", timeout=probe):
                            return
                    except (aiohttp.ClientError, TimeoutError):
                        await asyncio.sleep(_PROBE_INTERVAL_S)
        except TimeoutError:
            raise PoolUnavailableError(upstream=self._base) from None

    async def execute(self, endpoint: str, bodies: Sequence[bytes], finished: Finished) -> None:
        """See `Engine`."""
        await self._pool.execute(endpoint, bodies, finished)

    async def stop(self) -> None:
        """See `Engine`."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                # The pool bounds the connections; a limit here would only add a queue.
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=30.0),
                cookie_jar=aiohttp.DummyCookieJar(),
                headers=self._headers,
                skip_auto_headers=("User-Agent", "Accept"),
                auto_decompress=False,
            )
        return self._session

    async def _ask(self, endpoint: str, body: bytes) -> Answer:
        if asks_to_stream(body):
            return stream_refused()
        for attempt in (1, 2):
            try:
                return await self._post(endpoint, body)
            except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as away:
                facts = {"upstream": self._base, "cause": type(away).__name__}
                raise PoolUnavailableError(**facts) from None
            except TimeoutError:
                return item_timed_out(self._timeout.total)
            except (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError):
                # Most often a kept-alive connection that the server closed just then: ask again.
                # A server that died refuses the second try, which is the pool's failure.
                if attempt == 2:
                    return _upstream_fault("upstream_disconnected", _DISCONNECTED)
            except aiohttp.ClientError:
                return _upstream_fault("answer_not_http", "The upstream's answer is not HTTP.")
        raise AssertionError("unreachable")

    async def _post(self, endpoint: str, body: bytes) -> Answer:
        url = self._urls.get(endpoint)
        if url is None:
            url = self._urls.setdefault(endpoint, URL(self._base + endpoint))
        async with self._open().post(
            url,
            data=body if len(body) < _LARGE_BODY_BYTES else io.BytesIO(body),
            timeout=self._timeout,
            allow_redirects=False,
        ) as response:
            if response.status in POOL_FAILURES:
                response.close()
                raise PoolUnavailableError(upstream=self._base, status_code=response.status)
            content = await self._read(response)
            if content is None:
                response.close()  # reading the rest to keep the connection could take for ever
                return _upstream_fault("answer_too_large", "The upstream's answer is too large.")
            return _judged(response.status, content)

    async def _read(self, response: aiohttp.ClientResponse) -> bytes | None:
        """Return the whole content, or None above the limit."""
        parts: list[bytes] = []
        room = self._answer_bytes_max
        while part := await response.content.readany():
            room -= len(part)
            if room < 0:
                return None
            parts.append(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)


def _judged(status_code: int, content: bytes) -> Answer:
    """Make the answer of one line of JSON; anything else becomes an error envelope."""
    if b"\n" in content or b"\r" in content:  # in JSON these can only be white space
        content = content.replace(b"\n", b" ").replace(b"\r", b" ")
    if HTTPStatus.OK <= status_code < HTTPStatus.MULTIPLE_CHOICES:
        answer = answer_with_usage(HTTPStatus.OK, content)
        return answer or _upstream_fault("answer_not_json", "The upstream's answer is not JSON.")
    if status_code < HTTPStatus.BAD_REQUEST:
        return _upstream_fault("upstream_redirect", "The upstream answered with a redirect.")
    if is_json_object(content):
        return Answer(status_code, content)
    kind = "server_error" if status_code >= HTTPStatus.INTERNAL_SERVER_ERROR else None
    message = f"The upstream answered {status_code} without a JSON body."
    return error_answer(status_code, message, type_=kind or "invalid_request_error")


def _upstream_fault(code: str, message: str) -> Answer:
    """Say that the upstream got the item and gave nothing usable for it."""
    return error_answer(HTTPStatus.BAD_GATEWAY, message, type_="server_error", code=code)
