"""An engine behind any HTTP server of the OpenAI shape. Bodies go out as they came, byte for byte;
only one that streams has usage asked for.

What the upstream says about an item is the item's answer; that it cannot be asked is the pool's
failure and charges no item. What a gateway says may be either: the upstream is asked. One that is
busy is asked again, and for less at once.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Container, Sequence
from http import HTTPStatus

from core.clock import Clock, SystemClock
from core.errors import PoolBusyError, PoolUnavailableError, SettingsError
from core.retry_after import retry_after_s
from core.streaming import STREAMED_ENDPOINTS
from gpu_consumers.engines.engine import EmitEvent, EngineAnswer, OnItemFinished, UsageMeter
from gpu_consumers.engines.engine_slots import EngineSlots, SlotCounts
from gpu_consumers.engines.error_answers import (
    is_transient,
    item_timeout_answer,
    stream_unsupported_answer,
)
from gpu_consumers.engines.item_pool import ItemPool
from gpu_consumers.engines.openai_http.circuit_breaker import CircuitBreaker
from gpu_consumers.engines.openai_http.congestion_window import (
    STATED_S_MAX,
    CongestionWindow,
    LoadRefusals,
)
from gpu_consumers.engines.openai_http.http_client import CannotConnectError, HttpClient
from gpu_consumers.engines.openai_http.http_connection import HttpRequestTemplate
from gpu_consumers.engines.openai_http.origin import Origin
from gpu_consumers.engines.openai_http.response_reader import (
    DisconnectedError,
    HttpResponse,
    NotHttpError,
    ResponseTooLargeError,
    retry_after,
)
from gpu_consumers.engines.openai_http.sse_reader import SseReader
from gpu_consumers.engines.openai_http.upstream_answers import (
    NOT_EVENTS,
    fault_answer,
    upstream_answer,
)
from gpu_consumers.engines.settings import EngineSettings
from gpu_consumers.engines.stream_events import StreamEvents
from gpu_consumers.engines.stream_options import (
    StreamOptions,
    choices_per_prompt,
    requested_stream_options,
    with_usage_requested,
)

BUSY_STATUSES = frozenset({402, 429, 503, 529})
"""Statuses of an upstream that takes this much no more, or not now. 529 is what some hosts say when
overloaded, 402 that what is left of our credits does not cover the call."""

POOL_FAILURE_STATUSES = BUSY_STATUSES | {401}
"""Statuses about the upstream or our key to it."""

GATEWAY_FAILURE_STATUSES = frozenset({502, 504})
"""Statuses of a gateway before a server that is away, or that this one item was too much for."""

_PROBE_INTERVAL_S = 0.5
_ANY_STATUS = range(200, 1000)
_CLOCK = SystemClock()


class OpenAIHttpEngine:
    """Sends each item to `upstream`, at most `concurrency` at once over kept-alive connections."""

    def __init__(self, settings: EngineSettings, clock: Clock = _CLOCK) -> None:
        """Connect to nothing yet; `settings.upstream` must be given. Raises SettingsError."""
        assert settings.upstream is not None
        self._base = settings.upstream.rstrip("/").removesuffix("/v1")
        self._origin = Origin(self._base)
        self._fields = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
        if settings.upstream_api_key is not None:
            self._fields["Authorization"] = _bearer(settings.upstream_api_key.get_secret_value())
        self._slots = EngineSlots(settings.items_at_once, settings.headroom)
        self._item_timeout_s = settings.item_timeout_s
        self._connect_timeout_s = settings.connect_timeout_s
        self._start_timeout_s = settings.start_timeout_s
        self._answer_bytes_max = settings.answer_bytes_max
        self._calls: dict[str, HttpRequestTemplate] = {}  # by endpoint, made once
        self._probe = self._call("GET", "/v1/models", self._connect_timeout_s, _ANY_STATUS)
        self._client: HttpClient | None = None
        self._breaker = CircuitBreaker(
            settings.upstream_failures_max, settings.upstream_away_s_max, clock
        )
        self._clock = clock
        self._congestion = CongestionWindow(
            self._slots,
            busy_s_max=settings.upstream_busy_s_max,
            clock=clock,
            random=random.random,  # how pauses are spread decides nothing
        )
        self._pool = ItemPool(self._ask_item, self._slots, self._congestion)

    @property
    def concurrency(self) -> int:
        """See `Engine`."""
        return self._slots.total

    @property
    def headroom(self) -> int:
        """See `Engine`."""
        return self._slots.headroom

    @property
    def slots(self) -> SlotCounts:
        """See `Engine`."""
        return self._slots.counts

    async def start(self) -> None:
        """Wait until the upstream answers anything. Raises PoolUnavailableError when it does not.

        May be called again after that.
        """
        try:
            async with asyncio.timeout(self._start_timeout_s):
                while True:
                    try:
                        await self._open().run(self._probe, None)
                    except (CannotConnectError, DisconnectedError, NotHttpError, TimeoutError):
                        await asyncio.sleep(_PROBE_INTERVAL_S)
                    else:
                        return
        except TimeoutError:
            raise PoolUnavailableError(upstream=self._base) from None

    async def execute(
        self, endpoint: str, bodies: Sequence[bytes], finished: OnItemFinished
    ) -> None:
        """See `Engine`."""
        await self._pool.execute(endpoint, bodies, finished)

    async def serve(
        self, endpoint: str, body: bytes, emit: EmitEvent | None, meter: UsageMeter | None = None
    ) -> EngineAnswer:
        """See `Engine`."""
        wanted = None if emit is None else _wanted(endpoint, body)
        await self._slots.enter()
        try:
            if meter is not None:
                meter.began()
            if emit is None or wanted is None:
                return await self._until_taken(lambda: self._ask(endpoint, body))
            events = StreamEvents(emit, wanted, meter, choices_per_prompt=choices_per_prompt(body))
            asking = with_usage_requested(body)
            return await self._until_taken(lambda: self._run(endpoint, asking, events))
        finally:
            self._slots.leave()

    async def stop(self) -> None:
        """See `Engine`."""
        if self._client is not None:
            await self._client.close()
            self._client = None

    def _open(self) -> HttpClient:
        if self._client is None:
            self._client = HttpClient(
                self._origin,
                connect_timeout_s=self._connect_timeout_s,
                content_bytes_max=self._answer_bytes_max,
            )
        return self._client

    def _call(
        self, method: str, endpoint: str, timeout_s: float, unread: Container[int]
    ) -> HttpRequestTemplate:
        return HttpRequestTemplate(
            self._origin.head(method, endpoint, self._fields), timeout_s, unread
        )

    async def _until_taken(self, ask: Callable[[], Awaitable[EngineAnswer]]) -> EngineAnswer:
        """Ask for an online call until the upstream is not too busy for it."""
        refusals = LoadRefusals()
        while True:
            try:
                return await ask()
            except PoolBusyError as busy:
                pause_s = self._congestion.refused(refusals, busy)
            with self._congestion.pausing():
                await asyncio.sleep(pause_s)

    async def _ask_item(self, endpoint: str, body: bytes) -> EngineAnswer:
        """As `_ask`, for a bulk item: who fails with all others is not to blame."""
        answer = await self._ask(endpoint, body)
        if _is_failure(answer) and self._breaker.failed():
            raise PoolUnavailableError(upstream=self._base, cause="failures in a row")
        return answer

    async def _ask(self, endpoint: str, body: bytes) -> EngineAnswer:
        if _wanted(endpoint, body) is not None:
            return stream_unsupported_answer()
        return await self._run(endpoint, body, None)

    async def _run(self, endpoint: str, body: bytes, events: StreamEvents | None) -> EngineAnswer:
        try:
            status, content = await self._post(endpoint, body, events)
        except CannotConnectError as away:
            raise PoolUnavailableError(upstream=self._base, cause=str(away)) from None
        except TimeoutError:
            timed_out = item_timeout_answer(self._item_timeout_s)
            return events.interrupted(timed_out) if events is not None else timed_out
        except (DisconnectedError, NotHttpError, ResponseTooLargeError) as fault:
            if events is not None and events.began:
                return events.interrupted()
            return self._noted(fault_answer(fault))
        self._require_service(status, head=content)
        if status in GATEWAY_FAILURE_STATUSES and not await self._is_there():
            raise PoolUnavailableError(upstream=self._base, status_code=status)
        if events is not None and events.began:
            self._congestion.answered()
            return self._noted(events.end())
        answer = upstream_answer(status, content)
        self._require_service(answer.status_code)  # a router may say so under a status of 200
        self._congestion.answered()
        if events is not None and answer.status_code < HTTPStatus.BAD_REQUEST:
            return self._noted(NOT_EVENTS)
        return self._noted(answer)

    def _noted(self, answer: EngineAnswer) -> EngineAnswer:
        """An upstream that does its work, on an item or a call, is not away for other items."""
        if not _is_failure(answer):
            self._breaker.answered()
        return answer

    def _require_service(self, status: int, head: bytes = b"") -> None:
        if status in BUSY_STATUSES:
            stated = retry_after_s(retry_after(head), self._clock.wall_s(), s_max=STATED_S_MAX)
            raise PoolBusyError(stated_s=stated, upstream=self._base, status_code=status)
        if status in POOL_FAILURE_STATUSES:
            raise PoolUnavailableError(upstream=self._base, status_code=status)

    async def _is_there(self) -> bool:
        """Whether the upstream answers what is no item: then its failure was about the item."""
        try:
            status, _ = await self._open().run(self._probe, None, fresh=True)
        except (CannotConnectError, DisconnectedError, NotHttpError, TimeoutError):
            return False
        return status not in POOL_FAILURE_STATUSES | GATEWAY_FAILURE_STATUSES

    async def _post(self, endpoint: str, body: bytes, events: StreamEvents | None) -> HttpResponse:
        call = self._calls.get(endpoint)
        if call is None:
            call = self._call("POST", endpoint, self._item_timeout_s, POOL_FAILURE_STATUSES)
            self._calls[endpoint] = call
        # Of both tries: an item that takes twice its time looks like an engine that hangs.
        until_s = asyncio.get_running_loop().time() + self._item_timeout_s
        try:
            return await self._try(call, body, events, until_s, fresh=False)
        except DisconnectedError:
            if events is not None and events.began:
                raise
            # Most often a kept-alive connection that the server closed just then: ask again.
            # A server that died refuses the second try, which is the pool's failure.
            return await self._try(call, body, events, until_s, fresh=True)

    async def _try(
        self,
        call: HttpRequestTemplate,
        body: bytes,
        events: StreamEvents | None,
        until_s: float,
        *,
        fresh: bool,
    ) -> HttpResponse:
        if events is None:
            return await self._open().run(call, body, fresh=fresh, deadline_s=until_s)
        reader = SseReader(self._answer_bytes_max, events.take)
        try:
            return await self._open().run(
                call, body, fresh=fresh, reader=reader, deadline_s=until_s
            )
        finally:
            reader.release()


def _wanted(endpoint: str, body: bytes) -> StreamOptions | None:
    """Return what a body wants of its stream, or None where there will be none."""
    return requested_stream_options(body) if endpoint in STREAMED_ENDPOINTS else None


def _is_failure(answer: EngineAnswer) -> bool:
    """Whether it may be the upstream's, and no verdict on what was asked."""
    return answer.status_code >= HTTPStatus.BAD_REQUEST and is_transient(answer)


def _bearer(key: str) -> str:
    """Return the field's value. Raises SettingsError: the key would break the request's head."""
    if not (key.isascii() and key.isprintable()):
        raise SettingsError("The upstream's API key may hold printable ASCII only.")
    return f"Bearer {key}"
