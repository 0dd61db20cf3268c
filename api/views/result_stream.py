"""The results of one batch on their way to one client, in the order in which they came."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import aclosing, suppress
from typing import Final, TypeVar

import msgspec

from api.auth.key_revalidation import INTERVAL_S
from api.resources import batch_object
from api.runtime.blocking_calls import BlockingCalls
from api.runtime.database import DatabaseUnavailableError
from api.views.progress_poller import JobProgress, ProgressSubscription
from api.views.view_services import ViewServices
from jobs.errors import JobMissingError
from results.views.result_sequence import SequencedRow
from results.views.result_sources import ResultSource, result_source
from results.views.sequenced_lines import Frame, SequencedLines
from storage.objects.errors import ObjectMissingError
from tenancy.api_keys import Principal

T = TypeVar("T")

LIMIT_MAX: Final = 10_000
"""Lines of one page."""

_KEEP_ALIVE: Final = b": keep-alive\n\n"
_AWAY_S: Final = 2.0  # pause while Postgres does not answer
_PATIENCE_S: Final = 30.0  # with it, however long each of its silences is
_MOVES_MAX: Final = 3  # times that an answer may move while it is looked for


class ResultStream:
    """The results of one batch for one client. It holds one page. Close it."""

    def __init__(
        self, views: ViewServices, principal: Principal, source: ResultSource, frame: Frame
    ) -> None:
        """Nothing is read yet. `frame` makes what is sent of each line."""
        self._views, self._tenant_id = views, principal.tenant_id
        self._source, self._frame = source, frame
        self._rendered = SequencedLines(views.services.objects, source, frame)
        self._blocks: Generator[bytes, None, None] | None = None  # of the page
        self._calls = BlockingCalls()
        self._after = 0

    async def present(self, after: int, limit: int | None) -> AsyncGenerator[bytes, None]:
        """Yield what has come by now, at most `limit` lines."""
        self._after = after
        last = self._source.ended_count if limit is None else after + limit
        with suppress(JobMissingError):  # deleted since
            while self._after < min(last, self._source.ended_count):
                page = await self._page(last - self._after, is_shared=False)
                if not page:
                    return
                async with aclosing(self._lines(page)) as lines:
                    async for block in lines:
                        yield block

    async def followed(
        self, after: int, may_go_on: Callable[[], Awaitable[bool]]
    ) -> AsyncGenerator[bytes, None]:
        """Yield what has come and what comes, until the batch has ended.

        `may_go_on` tells whether the key still works, and may raise DatabaseUnavailableError.
        """
        self._after = after
        source, views = self._source, self._views
        news = JobProgress(source.ended_count, source.is_terminal)
        yield _KEEP_ALIVE  # the head goes out at once
        with views.progress_poller.subscribe(source.job_id, news) as subscription:
            try:
                with suppress(JobMissingError):  # deleted since
                    async with aclosing(self._follow(subscription, may_go_on)) as blocks:
                        async for block in blocks:
                            yield block
            finally:
                if views.progress_poller.of(source.job_id) == 1:
                    views.pages.forget(source.job_id)

    async def close(self) -> None:
        """Give the files back, once no thread reads them; close what yields before."""
        await self._calls.run_last(self._close)

    async def _follow(
        self, subscription: ProgressSubscription, may_go_on: Callable[[], Awaitable[bool]]
    ) -> AsyncGenerator[bytes, None]:
        keep_alive_s = self._views.services.settings.follow_keep_alive_s
        clock_s = asyncio.get_running_loop().time
        due_s = clock_s() + keep_alive_s
        while subscription.news.exists:
            news = subscription.news
            has_more = news.is_terminal or self._after < news.ended_count
            patience_s = None if has_more else max(INTERVAL_S, due_s - clock_s())
            if not await _is_allowed(may_go_on, patience_s):
                return
            if news.is_terminal and not self._source.is_terminal:
                await self._reload()
            if self._after < news.ended_count:
                is_shared = self._views.progress_poller.of(self._source.job_id) > 1
                page = await self._page(LIMIT_MAX, is_shared=is_shared)
                async with aclosing(self._lines(page)) as lines:
                    async for block in lines:
                        yield block
                if page:
                    due_s = clock_s() + keep_alive_s
                    continue
                if news.is_terminal:  # deleted since: no end is told that has not been reached
                    return
            if news.is_terminal:
                yield self._end()
                return
            await subscription.changed(min(INTERVAL_S, max(0.0, due_s - clock_s())))
            if clock_s() >= due_s:
                yield _KEEP_ALIVE
                due_s = clock_s() + keep_alive_s

    async def _page(self, limit: int, *, is_shared: bool) -> list[SequencedRow]:
        """Read the next page. Raises DatabaseUnavailableError."""
        pages, source, after = self._views.pages, self._source, self._after
        if is_shared:
            return await _patiently(lambda: pages.shared(source, after))
        return await _patiently(lambda: pages.read(source, after, limit))

    async def _lines(self, page: list[SequencedRow]) -> AsyncGenerator[bytes, None]:
        """Yield the lines of a page. An answer that has moved is looked for where it is now."""
        if any(row.item_index >= self._source.total_count for _, row in page):
            await self._reload()  # a file was appended meanwhile
        for _ in range(_MOVES_MAX):
            rendered = self._rendered
            rest = [row for row in page if row.sequence > self._after]
            self._blocks = blocks = rendered.blocks(rest)
            reads_files = any(row.body_key or row.custom_id is None for _, row in rest)
            try:
                while (block := await self._next(blocks, in_thread=reads_files)) is not None:
                    yield block
            except ObjectMissingError:
                self._after = max(self._after, rendered.after)
            else:
                self._after = max(self._after, rendered.after)
                return
            await self._reload()
        raise ObjectMissingError

    async def _next(self, blocks: Generator[bytes, None, None], *, in_thread: bool) -> bytes | None:
        """Return the next block, or None at the end. What reads files does not hold up the loop."""
        return await self._calls.run(next, blocks, None) if in_thread else next(blocks, None)

    async def _reload(self) -> None:
        """Look again where the results lie. Raises DatabaseUnavailableError, JobMissingError."""
        database, job_id = self._views.services.database, self._source.job_id
        self._source = await _patiently(
            lambda: database.run_for_tenant(self._tenant_id, result_source, self._tenant_id, job_id)
        )
        await self._calls.run(self._close)
        self._rendered = SequencedLines(self._views.services.objects, self._source, self._frame)

    def _close(self) -> None:
        if self._blocks is not None:
            self._blocks.close()
        self._rendered.close()

    def _end(self) -> bytes:
        """Return the last event; its id is one behind the last result's."""
        job = self._source.job
        data = msgspec.json.encode(batch_object(job))
        sequence = self._source.ended_count + 1
        return b"event: batch.%b\nid: %d\ndata: %b\n\n" % (job.state.encode(), sequence, data)


async def _is_allowed(may_go_on: Callable[[], Awaitable[bool]], patience_s: float | None) -> bool:
    """Whether the key still works; True also when that is not known after `patience_s`.

    Without a patience there is something to give, which takes an answer. Raises DatabaseUnavailableError.
    """
    if patience_s is None:
        return await _patiently(may_go_on)
    try:
        async with asyncio.timeout(patience_s):
            return await may_go_on()
    except (DatabaseUnavailableError, TimeoutError):
        return True


async def _patiently(ask: Callable[[], Awaitable[T]]) -> T:
    """Return what is asked for; be patient with a Postgres away. Raises DatabaseUnavailableError."""
    try:
        async with asyncio.timeout(_PATIENCE_S):
            while True:
                with suppress(DatabaseUnavailableError):
                    return await ask()
                await asyncio.sleep(_AWAY_S)
    except TimeoutError:
        raise DatabaseUnavailableError from None
