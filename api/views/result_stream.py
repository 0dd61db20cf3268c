"""The results of one batch on their way to one client, in the order in which they came."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import aclosing, suppress
from typing import Final

import msgspec

from api.database import DatabaseAwayError
from api.objects import batch_object
from api.views.following import Follower, JobNews
from api.views.services import Views
from results.views.sequenced_lines import Frame, SequencedLines
from results.views.sequences import SequencedRow
from results.views.sources import ResultSource, result_source
from storage.errors import ObjectMissingError
from tenancy.api_keys import Principal

LIMIT_MAX: Final = 10_000
"""Lines of one page."""

_KEEP_ALIVE: Final = b": keep-alive\n\n"
_KEY_CHECK_S: Final = 2.0  # a key that is revoked ends its streams, too
_AWAY_S: Final = 2.0  # pause while Postgres does not answer
_AWAY_TRIES_MAX: Final = 15
_MOVES_MAX: Final = 3  # times that an answer may move while it is looked for


class ResultStream:
    """The results of one batch for one client. It holds one page."""

    def __init__(
        self, views: Views, principal: Principal, source: ResultSource, frame: Frame
    ) -> None:
        """Nothing is read yet. `frame` makes what is sent of each line."""
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
                if news.is_terminal:  # deleted since: no end is told that has not been reached
                    return
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
