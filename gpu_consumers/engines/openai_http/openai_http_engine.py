"""An engine behind any OpenAI-compatible HTTP server. Bodies are sent as they are given, byte for
byte (`gpu_consumers.payloads.engine_bodies` prepares them); only streaming bodies have usage
requested, and a body that names another model than the settings gets theirs.

The upstream's response to an item is the item's answer; an unreachable upstream is a pool failure
and charges no item. A gateway's failure may be either: a probe of the upstream decides. Requests
that a busy upstream refuses are retried, with fewer at once.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Container, Sequence
from functools import partial

import msgspec

from core.bodies.own_fields import STREAMED_ENDPOINTS
from core.clock import Clock, SystemClock
from core.errors import PoolBusyError, PoolUnavailableError, SettingsError
from core.retry_after import retry_after_s
from gpu_consumers.engines.engine import EmitEvent, EngineAnswer, OnAnswer, UsageMeter
from gpu_consumers.engines.engine_slots import EngineSlots, SlottedEngine
from gpu_consumers.engines.error_answers import (
    is_transient,
    item_timeout_answer,
    stream_unsupported_answer,
    unknown_adapter_answer,
)
from gpu_consumers.engines.item_pool import ItemPool
from gpu_consumers.engines.model_names import (
    WriteModel,
    model_writer,
    other_model,
    with_model,
)
from gpu_consumers.engines.openai_http.http_client import (
    CannotConnectError,
    HttpClient,
    HttpRequestTemplate,
)
from gpu_consumers.engines.openai_http.origin import Origin
from gpu_consumers.engines.openai_http.response_reader import (
    DisconnectedError,
    HttpResponse,
    NotHttpError,
    ResponseTooLargeError,
    SseReader,
    retry_after,
)
from gpu_consumers.engines.openai_http.upstream_answers import (
    NOT_EVENTS,
    fault_answer,
    upstream_answer,
)
from gpu_consumers.engines.openai_http.upstream_failures import (
    STATED_S_MAX,
    CircuitBreaker,
    CongestionWindow,
    LoadRefusals,
)
from gpu_consumers.engines.settings import EngineSettings
from gpu_consumers.engines.stream_events import (
    StreamEvents,
    StreamOptions,
    choices_per_prompt,
    requested_stream_options,
    with_usage_requested,
)

BUSY_STATUSES = frozenset({402, 429, 503, 529})
"""Statuses of an upstream that accepts no more now. Some hosts send 529 when overloaded, and 402
when the remaining credits do not cover the call."""

POOL_FAILURE_STATUSES = BUSY_STATUSES | {401}
"""Statuses about the upstream, or about our key to it."""

GATEWAY_FAILURE_STATUSES = frozenset({502, 504})
"""Statuses of a gateway whose server is unavailable or was overwhelmed by the item."""

_PROBE_INTERVAL_S = 0.5
_ANY_STATUS = range(200, 1000)
_CLOCK = SystemClock()


class OpenAIHttpEngine(SlottedEngine):
    """Sends each item to `upstream`, at most `concurrency` at once over kept-alive connections."""

    def __init__(self, settings: EngineSettings, clock: Clock = _CLOCK) -> None:
        """`settings.upstream` must be given; nothing is connected. Raises SettingsError."""
        assert settings.upstream is not None
        super().__init__(EngineSlots(settings.items_at_once, settings.headroom))
        self._base = settings.upstream.rstrip("/").removesuffix("/v1")
        self._origin = Origin(self._base)
        self._model = settings.model_name
        self._fields = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
        if settings.upstream_api_key is not None:
            key = settings.upstream_api_key.get_secret_value()
            if not (key.isascii() and key.isprintable()):  # it would break the head
                raise SettingsError("The upstream's API key may hold printable ASCII only.")
            self._fields["Authorization"] = f"Bearer {key}"
        self._item_timeout_s = settings.item_timeout_s
        self._start_timeout_s = settings.start_timeout_s
        self._response_bytes_max = settings.answer_bytes_max
        self._templates: dict[str, HttpRequestTemplate] = {}  # by endpoint
        self._probe = self._template("GET", "/v1/models", settings.connect_timeout_s, _ANY_STATUS)
        self._client = HttpClient(
            self._origin,
            connect_timeout_s=settings.connect_timeout_s,
            content_bytes_max=settings.answer_bytes_max,
        )
        self._breaker = CircuitBreaker(
            settings.upstream_failures_max, settings.upstream_away_s_max, clock
        )
        self._clock = clock
        self._congestion = CongestionWindow(
            self._slots,
            busy_s_max=settings.upstream_busy_s_max,
            clock=clock,
            random=random.random,  # only for jitter
        )
        self._pool = ItemPool(self._run_item, self._slots, self._congestion)

    async def start(self) -> None:
        """Wait until the upstream responds. Raises PoolUnavailableError when it does not.

        May be called again after that.
        """
        try:
            async with asyncio.timeout(self._start_timeout_s):
                while True:
                    try:
                        await self._client.request(self._probe, None)
                    except (CannotConnectError, DisconnectedError, NotHttpError, TimeoutError):
                        await asyncio.sleep(_PROBE_INTERVAL_S)
                    else:
                        return
        except TimeoutError:
            raise PoolUnavailableError(upstream=self._base) from None

    async def execute(
        self, endpoint: str, bodies: Sequence[bytes], finished: OnAnswer, adapter: str = ""
    ) -> None:
        """See `Engine`."""
        if adapter:
            for index in range(len(bodies)):
                finished(index, unknown_adapter_answer())
            return
        await self._pool.execute(endpoint, bodies, finished)

    async def _serve(
        self,
        endpoint: str,
        body: bytes,
        emit: EmitEvent | None,
        meter: UsageMeter | None,
        adapter: str,
    ) -> EngineAnswer:
        if adapter:
            return unknown_adapter_answer()
        asked = other_model(body, self._model)
        if asked is None:
            return await self._serve_own(endpoint, body, emit, meter)
        write_model = model_writer(asked)
        written = None if emit is None else partial(_emit_written, emit, write_model)
        body = with_model(body, self._model)
        answer = await self._serve_own(endpoint, body, written, meter)
        return _with_written_model(answer, write_model)

    async def _serve_own(
        self, endpoint: str, body: bytes, emit: EmitEvent | None, meter: UsageMeter | None
    ) -> EngineAnswer:
        """Serve a body that names the upstream's model."""
        requested = None if emit is None else _requested_stream(endpoint, body)
        if emit is None or requested is None:
            return await self._retry_while_busy(lambda: self._answer(endpoint, body))
        events = StreamEvents(emit, requested, meter, choices_per_prompt=choices_per_prompt(body))
        with_usage = with_usage_requested(body)
        return await self._retry_while_busy(lambda: self._run(endpoint, with_usage, events))

    async def stop(self) -> None:
        """See `Engine`."""
        await self._client.close()

    def _template(
        self, method: str, endpoint: str, timeout_s: float, unread: Container[int]
    ) -> HttpRequestTemplate:
        head = self._origin.head(method, endpoint, self._fields)
        return HttpRequestTemplate(head, timeout_s, unread)

    async def _retry_while_busy(self, run: Callable[[], Awaitable[EngineAnswer]]) -> EngineAnswer:
        """Run an online call again until the upstream is not too busy for it."""
        refusals = LoadRefusals()
        while True:
            try:
                return await run()
            except PoolBusyError as busy:
                pause_s = self._congestion.record_refusal(refusals, busy)
            with self._congestion.paused_call():
                await asyncio.sleep(pause_s)

    async def _run_item(self, endpoint: str, body: bytes) -> EngineAnswer:
        """Answer a bulk item; while the circuit breaker is open its failure is the pool's."""
        asked = other_model(body, self._model)
        if asked is None:
            answer = await self._answer(endpoint, body)
        else:
            answer = await self._answer(endpoint, with_model(body, self._model))
            answer = _with_written_model(answer, model_writer(asked))
        if _is_transient_failure(answer) and self._breaker.record_failure():
            raise PoolUnavailableError(upstream=self._base, cause="failures in a row")
        return answer

    async def _answer(self, endpoint: str, body: bytes) -> EngineAnswer:
        if _requested_stream(endpoint, body) is not None:
            return stream_unsupported_answer()
        return await self._run(endpoint, body, None)

    async def _run(self, endpoint: str, body: bytes, events: StreamEvents | None) -> EngineAnswer:
        try:
            status, content = await self._post(endpoint, body, events)
        except CannotConnectError as failure:
            raise PoolUnavailableError(upstream=self._base, cause=str(failure)) from None
        except TimeoutError:
            timed_out = item_timeout_answer(self._item_timeout_s)
            return events.interrupted(timed_out) if events is not None else timed_out
        except (DisconnectedError, NotHttpError, ResponseTooLargeError) as fault:
            if events is not None and events.has_started:
                return events.interrupted()
            return self._recorded(fault_answer(fault))
        self._require_service(status, head=content)
        if status in GATEWAY_FAILURE_STATUSES and not await self._is_available():
            raise PoolUnavailableError(upstream=self._base, status_code=status)
        if events is not None and events.has_started:
            self._congestion.record_answer()
            return self._recorded(events.end())
        answer = upstream_answer(status, content)
        self._require_service(answer.status_code)  # a router may send it under a status of 200
        self._congestion.record_answer()
        if events is not None and not answer.is_error:
            return self._recorded(NOT_EVENTS)
        return self._recorded(answer)

    def _recorded(self, answer: EngineAnswer) -> EngineAnswer:
        """Return the answer; any but a transient failure closes the circuit breaker."""
        if not _is_transient_failure(answer):
            self._breaker.record_success()
        return answer

    def _require_service(self, status: int, head: bytes = b"") -> None:
        if status in BUSY_STATUSES:
            stated = retry_after_s(retry_after(head), self._clock.wall_s(), s_max=STATED_S_MAX)
            raise PoolBusyError(stated_s=stated, upstream=self._base, status_code=status)
        if status in POOL_FAILURE_STATUSES:
            raise PoolUnavailableError(upstream=self._base, status_code=status)

    async def _is_available(self) -> bool:
        """Whether the upstream responds to a probe: then its failure was about the item."""
        try:
            status, _ = await self._client.request(self._probe, None, fresh=True)
        except (CannotConnectError, DisconnectedError, NotHttpError, TimeoutError):
            return False
        return status not in POOL_FAILURE_STATUSES | GATEWAY_FAILURE_STATUSES

    async def _post(self, endpoint: str, body: bytes, events: StreamEvents | None) -> HttpResponse:
        template = self._templates.get(endpoint)
        if template is None:
            template = self._template("POST", endpoint, self._item_timeout_s, POOL_FAILURE_STATUSES)
            self._templates[endpoint] = template
        # One deadline for both tries: an item that takes twice its time looks like a stall.
        deadline_s = asyncio.get_running_loop().time() + self._item_timeout_s
        try:
            return await self._try_post(template, body, events, deadline_s)
        except DisconnectedError:
            if events is not None and events.has_started:
                raise
            # Usually a kept-alive connection that the server closed just then: retry.
            # A server that died refuses the second try, which is the pool's failure.
            return await self._try_post(template, body, events, deadline_s, fresh=True)

    async def _try_post(
        self,
        template: HttpRequestTemplate,
        body: bytes,
        events: StreamEvents | None,
        deadline_s: float,
        *,
        fresh: bool = False,
    ) -> HttpResponse:
        reader = SseReader(self._response_bytes_max, events.on_event) if events else None
        try:
            return await self._client.request(
                template, body, fresh=fresh, reader=reader, deadline_s=deadline_s
            )
        finally:
            if reader is not None:
                reader.release()


def _emit_written(emit: EmitEvent, write_model: WriteModel, event: bytes) -> None:
    emit(write_model(event))


def _with_written_model(answer: EngineAnswer, write_model: WriteModel) -> EngineAnswer:
    if answer.is_error or not answer.body:
        return answer
    return msgspec.structs.replace(answer, body=write_model(answer.body))


def _requested_stream(endpoint: str, body: bytes) -> StreamOptions | None:
    """Return the stream options of a body, or None if it will not stream."""
    return requested_stream_options(body) if endpoint in STREAMED_ENDPOINTS else None


def _is_transient_failure(answer: EngineAnswer) -> bool:
    """Whether the failure may be the upstream's rather than the request's."""
    return answer.is_error and is_transient(answer)
