"""Results as they come: as JSON Lines up to now, or as server-sent events that go on."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import aclosing, suppress
from typing import Annotated, Final

import msgspec
from fastapi import APIRouter, Query, Request, Response

from api.answers import ApiError
from api.database import DatabaseAwayError
from api.objects import batch_object
from api.principals import PrincipalOf, principal_by
from api.views.following import Follower, JobNews
from api.views.services import Views, ViewsOf, busy
from api.views.streaming import StreamedAnswer
from core.ids import JOB, parse_public_id
from results.views.sequenced_lines import Frame, SequencedLines, jsonl, server_sent
from results.views.sequences import SequencedRow
from results.views.sources import ResultSource, result_source
from storage.errors import ObjectMissingError
from tenancy.api_keys import Principal

router = APIRouter()

SEQUENCE_MAX: Final = 2**31 - 1
LIMIT_MAX: Final = 10_000

_KEEP_ALIVE: Final = b": keep-alive\n\n"
_KEY_CHECK_S: Final = 2.0  # a key that is revoked ends its streams, too
_AWAY_S: Final = 2.0  # pause while Postgres does not answer
_AWAY_TRIES_MAX: Final = 15
_MOVES_MAX: Final = 3  # times that an answer may move while it is looked for
_HEADERS: Final = {"cache-control": "no-cache", "x-accel-buffering": "no"}


@router.get("/v1/batches/{batch_id}/results")
async def show(
    request: Request,
    batch_id: str,
    principal: PrincipalOf,
    views: ViewsOf,
    after: Annotated[int, Query(ge=0, le=SEQUENCE_MAX)] = 0,
    limit: Annotated[int | None, Query(ge=1, le=LIMIT_MAX)] = None,
) -> Response:
    """Give the results behind `after` in the order in which they came."""
    wanted = parse_public_id(JOB, batch_id)
    database = views.services.database
    source = await database.run_for(principal.tenant_id, result_source, principal.tenant_id, wanted)
    if "text/event-stream" not in request.headers.get("accept", ""):
        stream = _ResultStream(views, principal, source, jsonl)
        return _answer(stream.present(after, limit), views, "application/x-ndjson")
    if limit is not None:
        raise ApiError(
            400, "A stream goes on to the end of the batch.", code="invalid_value", param="limit"
        )
    after = _last_event_id(request, after)
    if source.is_terminal and after > source.ended_count:
        return Response(status_code=204)  # clients that come back by themselves stop now
    if views.followers.count >= views.services.settings.followers_max:
        raise busy("followers")
    stream = _ResultStream(views, principal, source, server_sent)
    content = stream.followed(after, lambda: _may_go_on(request, views))
    return _answer(content, views, "text/event-stream")


async def _may_go_on(request: Request, views: Views) -> bool:
    """Whether the key still works. While that cannot be asked, there are no results to give."""
    headers = request.headers
    try:
        await principal_by(headers.get("authorization"), headers.get("x-api-key"), views.services)
    except ApiError:
        return False
    except DatabaseAwayError:
        pass
    return True


def _answer(content: AsyncGenerator[bytes, None], views: Views, media_type: str) -> Response:
    return StreamedAnswer(
        content,
        media_type=media_type,
        headers=_HEADERS,
        idle_timeout_s=views.services.settings.download_idle_timeout_s,
    )


def _last_event_id(request: Request, after: int) -> int:
    """Return where a stream goes on: a client that comes back says it in a header."""
    text = request.headers.get("last-event-id", "").strip()
    if not text:
        return after
    if not (text.isascii() and text.isdecimal() and int(text[:11]) <= SEQUENCE_MAX):
        raise ApiError(
            400, "This is no id of an event.", code="invalid_value", param="Last-Event-ID"
        )
    return int(text)


class _ResultStream:
    """The results of one batch for one client. It holds one page."""

    def __init__(
        self, views: Views, principal: Principal, source: ResultSource, frame: Frame
    ) -> None:
        self._views, self._tenant_id = views, principal.tenant_id
        self._source, self._frame = source, frame
        self._rendered = SequencedLines(views.services.objects, source, frame)
        self._after = 0

    async def present(self, after: int, limit: int | None) -> AsyncGenerator[bytes, None]:
        """Yield what has come by now, at most `limit` lines."""
        self._after = after
        last = self._source.ended_count if limit is None else after + limit
        try:
            while self._after < min(last, self._source.ended_count):
                page = await self._page(last - self._after, is_shared=False)
                if not page:
                    return
                async with aclosing(self._lines(page)) as lines:
                    async for block in lines:
                        yield block
        finally:
            self._rendered.close()

    async def followed(
        self, after: int, may_go_on: Callable[[], Awaitable[bool]]
    ) -> AsyncGenerator[bytes, None]:
        """Yield what has come and what comes, until the batch has ended."""
        self._after = after
        source, views = self._source, self._views
        news = JobNews(source.ended_count, source.is_terminal)
        yield _KEEP_ALIVE  # the head goes out at once
        with views.followers.follow(source.job_id, news) as follower:
            try:
                async with aclosing(self._follow(follower, may_go_on)) as blocks:
                    async for block in blocks:
                        yield block
            finally:
                self._rendered.close()
                if views.followers.of(source.job_id) == 1:
                    views.pages.forget(source.job_id)

    async def _follow(
        self, follower: Follower, may_go_on: Callable[[], Awaitable[bool]]
    ) -> AsyncGenerator[bytes, None]:
        keep_alive_s, quiet_s = self._views.services.settings.follow_keep_alive_s, 0.0
        while await may_go_on() and follower.news.exists:
            news = follower.news
            if news.is_terminal and not self._source.is_terminal:
                await self._reload()
            if self._after < news.ended_count:
                is_shared = self._views.followers.of(self._source.job_id) > 1
                page = await self._page(LIMIT_MAX, is_shared=is_shared)
                async with aclosing(self._lines(page)) as lines:
                    async for block in lines:
                        yield block
                quiet_s = 0.0
                if page:
                    continue
            if news.is_terminal:
                yield self._end()
                return
            if not await follower.changed(min(_KEY_CHECK_S, keep_alive_s)):
                quiet_s += _KEY_CHECK_S
            if quiet_s >= keep_alive_s:
                quiet_s = 0.0
                yield _KEEP_ALIVE

    async def _page(self, limit: int, *, is_shared: bool) -> list[SequencedRow]:
        """Read the next page; be patient with a database that is away. Raises DatabaseAwayError."""
        pages = self._views.pages
        for _ in range(_AWAY_TRIES_MAX):
            with suppress(DatabaseAwayError):
                if is_shared:
                    return await pages.shared(self._source, self._after)
                return await pages.read(self._source, self._after, limit)
            await asyncio.sleep(_AWAY_S)
        raise DatabaseAwayError

    async def _lines(self, page: list[SequencedRow]) -> AsyncGenerator[bytes, None]:
        """Yield the lines of a page. An answer that has moved is looked for where it is now."""
        if any(row.item_index >= self._source.total_count for _, row in page):
            await self._reload()  # a file was appended meanwhile
        for _ in range(_MOVES_MAX):
            rendered = self._rendered
            rest = [row for row in page if row.sequence > self._after]
            blocks = rendered.blocks(rest)
            reads_files = any(row.body_key or row.custom_id is None for _, row in rest)
            try:
                while (block := await _next(blocks, in_thread=reads_files)) is not None:
                    yield block
            except ObjectMissingError:
                self._after = max(self._after, rendered.after)
            else:
                self._after = max(self._after, rendered.after)
                return
            await self._reload()
        raise ObjectMissingError

    async def _reload(self) -> None:
        """Look again where the results lie. Raises DatabaseAwayError."""
        for _ in range(_AWAY_TRIES_MAX):
            with suppress(DatabaseAwayError):
                database = self._views.services.database
                self._source = await database.run_for(
                    self._tenant_id, result_source, self._tenant_id, self._source.job_id
                )
                self._rendered.close()
                objects = self._views.services.objects
                self._rendered = SequencedLines(objects, self._source, self._frame)
                return
            await asyncio.sleep(_AWAY_S)
        raise DatabaseAwayError

    def _end(self) -> bytes:
        """Return the last event; its id is one behind the last result's."""
        job = self._source.job
        data = msgspec.json.encode(batch_object(job))
        sequence = self._source.ended_count + 1
        return b"event: batch.%b\nid: %d\ndata: %b\n\n" % (job.state.encode(), sequence, data)


async def _next(blocks: Iterator[bytes], *, in_thread: bool) -> bytes | None:
    """Return the next block, or None at the end. What reads files does not hold up the loop."""
    return await asyncio.to_thread(next, blocks, None) if in_thread else next(blocks, None)
