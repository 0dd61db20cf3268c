"""The results of a batch: JSON Lines up to now, or server-sent events until the batch ends."""

import asyncio
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import aclosing, suppress
from typing import Annotated, Final, TypeVar

import msgspec
from fastapi import APIRouter, Query, Request, Response

from api.auth.authentication import INTERVAL_S, KeyRevalidator, TenantRequest, TenantRequestDep
from api.http.errors import ApiError
from api.http.middleware import request_exit_stack
from api.http.responses import BoundedStream
from api.resources import batch_object
from api.runtime.database import DatabaseUnavailableError
from api.runtime.object_threads import BlockingCalls
from api.views.progress_poller import ProgressSnapshot, ProgressSubscription
from api.views.view_services import ViewServices, ViewServicesDep
from core.ids import JOB, parse_public_id
from jobs.errors import InvalidFieldError, JobNotFoundError
from results.views.result_sources import ResultSource, result_source
from results.views.sequenced_lines import Frame, SequencedLines, SequencedRow, jsonl, server_sent
from storage.objects.errors import ObjectNotFoundError

T = TypeVar("T")

LIMIT_MAX: Final = 10_000
"""Lines of one page."""

_KEEP_ALIVE: Final = b": keep-alive\n\n"
_RETRY_S: Final = 2.0  # pause while Postgres does not answer
_RETRY_FOR_S: Final = 30.0  # total time of the retries
_RELOADS_MAX: Final = 3  # of a page whose bodies have moved to other objects


class ResultStream:
    """The results of one batch for one client. It holds one page in memory. Close it."""

    def __init__(self, views: ViewServices, source: ResultSource, frame: Frame) -> None:
        """`frame` formats each line."""
        self._views, self._source, self._frame = views, source, frame
        self._rendered = SequencedLines(views.services.objects, source, frame)
        self._blocks: Generator[bytes, None, None] | None = None  # of the page
        self._calls = BlockingCalls()
        self._after = 0

    async def available_lines(self, after: int, limit: int | None) -> AsyncGenerator[bytes, None]:
        """Yield the results that have arrived by now, at most `limit` lines."""
        self._after = after
        last = self._source.ended_count if limit is None else after + limit
        with suppress(JobNotFoundError):  # deleted meanwhile
            while self._after < min(last, self._source.ended_count):
                page = await self._read_page(last - self._after, is_shared=False)
                if not page:
                    return
                async with aclosing(self._lines(page)) as lines:
                    async for block in lines:
                        yield block

    async def live_events(
        self, after: int, may_continue: Callable[[], Awaitable[bool]]
    ) -> AsyncGenerator[bytes, None]:
        """Yield past and future results until the batch has ended.

        `may_continue` checks the API key, and may raise DatabaseUnavailableError.
        """
        self._after = after
        source, views = self._source, self._views
        progress = ProgressSnapshot(source.ended_count, source.is_terminal)
        yield _KEEP_ALIVE  # sends the head of the response at once
        with views.progress_poller.subscribe(source.job_id, progress) as subscription:
            try:
                with suppress(JobNotFoundError):  # deleted meanwhile
                    async with aclosing(self._follow(subscription, may_continue)) as blocks:
                        async for block in blocks:
                            yield block
            finally:
                if views.progress_poller.subscriber_count(source.job_id) == 1:
                    views.pages.evict(source.job_id)

    async def close(self) -> None:
        """Close the files once no thread reads them. Close the generator before."""
        await self._calls.run_last(self._close)

    async def _follow(
        self, subscription: ProgressSubscription, may_continue: Callable[[], Awaitable[bool]]
    ) -> AsyncGenerator[bytes, None]:
        keep_alive_s = self._views.services.settings.follow_keep_alive_s
        clock_s = asyncio.get_running_loop().time
        due_s = clock_s() + keep_alive_s
        while subscription.progress.exists:
            progress = subscription.progress
            has_more = progress.is_terminal or self._after < progress.ended_count
            timeout_s = None if has_more else max(INTERVAL_S, due_s - clock_s())
            if not await _is_allowed(may_continue, timeout_s):
                return
            if progress.is_terminal and not self._source.is_terminal:
                await self._reload()
            if self._after < progress.ended_count:
                subscribers = self._views.progress_poller.subscriber_count(self._source.job_id)
                page = await self._read_page(LIMIT_MAX, is_shared=subscribers > 1)
                async with aclosing(self._lines(page)) as lines:
                    async for block in lines:
                        yield block
                if page:
                    due_s = clock_s() + keep_alive_s
                    continue
                if progress.is_terminal:  # deleted meanwhile: not a regular end
                    return
            if progress.is_terminal:
                yield self._end_event()
                return
            await subscription.wait_for_change(min(INTERVAL_S, max(0.0, due_s - clock_s())))
            if clock_s() >= due_s:
                yield _KEEP_ALIVE
                due_s = clock_s() + keep_alive_s

    async def _read_page(self, limit: int, *, is_shared: bool) -> list[SequencedRow]:
        """Read the next page. Raises DatabaseUnavailableError."""
        pages, source, after = self._views.pages, self._source, self._after
        if is_shared:
            return await _retry_outage(lambda: pages.read_shared(source, after))
        return await _retry_outage(lambda: pages.read(source, after, limit))

    async def _lines(self, page: list[SequencedRow]) -> AsyncGenerator[bytes, None]:
        """Yield the lines of a page. Bodies that moved to another object are looked up again."""
        if any(row.item_index >= self._source.total_count for _, row, _ in page):
            await self._reload()  # a file was appended meanwhile
        for _ in range(_RELOADS_MAX):
            rendered = self._rendered
            rest = [row for row in page if row.sequence > self._after]
            self._blocks = blocks = rendered.blocks(rest)
            reads_files = any(row.body_key or row.custom_id is None for _, row, _ in rest)
            try:
                while (block := await self._next(blocks, in_thread=reads_files)) is not None:
                    yield block
            except ObjectNotFoundError:
                self._after = max(self._after, rendered.after)
            else:
                self._after = max(self._after, rendered.after)
                return
            await self._reload()
        raise ObjectNotFoundError

    async def _next(self, blocks: Generator[bytes, None, None], *, in_thread: bool) -> bytes | None:
        """Return the next block, or None at the end. Files are read in a thread."""
        return await self._calls.run(next, blocks, None) if in_thread else next(blocks, None)

    async def _reload(self) -> None:
        """Query the batch again. Raises DatabaseUnavailableError, JobNotFoundError."""
        database = self._views.services.database
        tenant_id, job_id = self._source.tenant_id, self._source.job_id
        self._source = await _retry_outage(
            lambda: database.run_for_tenant(tenant_id, result_source, tenant_id, job_id)
        )
        await self._calls.run(self._close)
        self._rendered = SequencedLines(self._views.services.objects, self._source, self._frame)

    def _close(self) -> None:
        if self._blocks is not None:
            self._blocks.close()
        self._rendered.close()

    def _end_event(self) -> bytes:
        """Return the last event; its id follows that of the last result."""
        job = self._source.job
        data = msgspec.json.encode(batch_object(job))
        sequence = self._source.ended_count + 1
        return b"event: batch.%b\nid: %d\ndata: %b\n\n" % (job.state.encode(), sequence, data)


async def _is_allowed(may_continue: Callable[[], Awaitable[bool]], timeout_s: float | None) -> bool:
    """Whether the API key still works; True also when that is unknown after `timeout_s`.

    None: there are results to send, which requires an answer. Raises DatabaseUnavailableError.
    """
    if timeout_s is None:
        return await _retry_outage(may_continue)
    try:
        async with asyncio.timeout(timeout_s):
            return await may_continue()
    except (DatabaseUnavailableError, TimeoutError):
        return True


async def _retry_outage(operation: Callable[[], Awaitable[T]]) -> T:
    """Return what `operation` returns, retried in an outage. Raises DatabaseUnavailableError."""
    try:
        async with asyncio.timeout(_RETRY_FOR_S):
            while True:
                with suppress(DatabaseUnavailableError):
                    return await operation()
                await asyncio.sleep(_RETRY_S)
    except TimeoutError:
        raise DatabaseUnavailableError from None


router = APIRouter()

SEQUENCE_MAX: Final = 2**31 - 1
# Python refuses to parse numbers of thousands of digits
_SEQUENCE: Final = re.compile(r"[0-9]{1,10}")


@router.get("/v1/batches/{batch_id}/results")
async def show(
    batch_id: str,
    request: TenantRequestDep,
    views: ViewServicesDep,
    after: Annotated[int, Query(ge=0, le=SEQUENCE_MAX)] = 0,
    limit: Annotated[int | None, Query(ge=1, le=LIMIT_MAX)] = None,
) -> Response:
    """Return the results after `after` in the order of their arrival."""
    source = await request.run(result_source, parse_public_id(JOB, batch_id))
    revalidator = KeyRevalidator(request.http, request.services)
    if "text/event-stream" not in request.http.headers.get("accept", ""):
        stream = ResultStream(views, source, jsonl)
        content = stream.available_lines(after, limit)
        return _response(stream, content, revalidator, request, "application/x-ndjson")
    if limit is not None:
        message = "A stream has no limit: it continues to the end of the batch."
        raise InvalidFieldError(message, param="limit")
    after = _last_event_id(request.http, after)
    if source.is_terminal and after > source.ended_count:
        return Response(status_code=204)  # clients that reconnect by themselves stop now
    slot = views.stream_slots.acquire(request.tenant_id)
    request_exit_stack(request.http.scope).enter_context(slot)
    stream = ResultStream(views, source, server_sent)
    content = stream.live_events(after, lambda: _is_key_valid(revalidator))
    return _response(stream, content, revalidator, request, "text/event-stream; charset=utf-8")


async def _is_key_valid(revalidator: KeyRevalidator) -> bool:
    """Whether the API key still works. Raises DatabaseUnavailableError."""
    try:
        await revalidator.check_now()
    except ApiError:
        return False
    return True


def _response(
    stream: ResultStream,
    content: AsyncGenerator[bytes, None],
    revalidator: KeyRevalidator,
    request: TenantRequest,
    content_type: str,
) -> Response:
    async def close() -> None:
        await content.aclose()
        await stream.close()

    return BoundedStream(
        content,
        close,
        200,
        {"content-type": content_type, "cache-control": "no-cache", "x-accel-buffering": "no"},
        idle_timeout_s=request.services.settings.download_idle_timeout_s,
        key_revalidator=revalidator,
    )


def _last_event_id(request: Request, after: int) -> int:
    """Return where a stream continues: a client that reconnects sends it in a header."""
    text = request.headers.get("last-event-id", "").strip()
    if not text:
        return after
    if not (_SEQUENCE.fullmatch(text) and int(text) <= SEQUENCE_MAX):
        message = "The value is not an event id of this stream."
        raise InvalidFieldError(message, param="Last-Event-ID")
    return int(text)
