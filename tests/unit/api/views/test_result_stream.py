"""Goal: a stream of results waits for Postgres for a limited time, and its end blocks nothing."""

import asyncio
import threading
from collections.abc import AsyncGenerator
from contextlib import aclosing
from types import SimpleNamespace
from typing import Any, cast

import pytest
from fastapi import Request

from api.runtime.database import DatabaseUnavailableError
from api.settings import ApiSettings
from api.views import result_routes
from api.views.progress_poller import ProgressPoller
from api.views.result_routes import SEQUENCE_MAX, ResultStream, _last_event_id
from api.views.view_services import ResultPageCache, ViewServices
from jobs.errors import InvalidFieldError, JobNotFoundError
from results.views.result_sources import result_source
from results.views.sequenced_lines import SequencedRow, jsonl, server_sent
from storage.objects.object_store import ObjectBlocks
from tests.unit.results.views.stored import MemoryObjects, row, source

LINE = b'{"custom_id":"a","method":"POST","url":"/v1/embeddings","body":{}}\n'


class Database:
    """Gives pages as a test says, or hangs."""

    def __init__(self, *pages: list[SequencedRow]) -> None:
        self.pages = list(pages)
        self.hangs = False
        self.is_gone = False

    async def run_for_tenant(self, _tenant_id: object, work: Any, *_: object, **__: object) -> Any:
        if self.hangs:
            await asyncio.Event().wait()
        if work is result_source and self.is_gone:
            raise JobNotFoundError
        return self.pages.pop(0) if self.pages else []


def views(objects: MemoryObjects, database: Database, **given: object) -> ViewServices:
    settings = ApiSettings.model_validate(given)
    services: Any = SimpleNamespace(objects=objects, database=database, settings=settings)
    progress_poller = ProgressPoller(cast(Any, database), interval_s=10)
    pages = ResultPageCache(cast(Any, database))
    unused = cast(Any, None)
    return ViewServices(services, None, progress_poller, unused, pages, unused)


def stream(objects: MemoryObjects, database: Database, *, live: bool = False) -> ResultStream:
    its = source(objects, succeeded=1)
    return ResultStream(views(objects, database), its, server_sent if live else jsonl)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(result_routes, "_RETRY_FOR_S", 0.1)
    monkeypatch.setattr(result_routes, "_RETRY_S", 0.01)


@pytest.mark.usefixtures("impatient")
async def test_retries_of_an_outage_share_one_time_limit() -> None:
    database = Database()
    database.hangs = True
    with pytest.raises(DatabaseUnavailableError):
        async with asyncio.timeout(20):
            await read(stream(MemoryObjects({}), database).available_lines(0, None))


@pytest.mark.usefixtures("impatient")
async def test_no_results_are_sent_while_the_key_cannot_be_checked() -> None:
    database = Database([SequencedRow(1, row(0))])

    async def unavailable() -> bool:
        raise DatabaseUnavailableError

    live_events = stream(MemoryObjects({}), database, live=True).live_events(0, unavailable)
    async with aclosing(live_events):
        assert await anext(live_events) == b": keep-alive\n\n"
        with pytest.raises(DatabaseUnavailableError):
            await anext(live_events)
    assert database.pages  # nobody asked for it


async def test_keep_alives_are_sent_while_the_key_cannot_be_checked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(result_routes, "INTERVAL_S", 0.01)
    database, objects = Database(), MemoryObjects({})
    database.hangs = True  # so does the look for news, which nobody waits for

    async def hang() -> bool:
        await asyncio.Event().wait()
        return False

    its = views(objects, database, follow_keep_alive_s=0.1)
    live_events = ResultStream(its, source(objects), server_sent).live_events(0, hang)
    async with aclosing(live_events), asyncio.timeout(20):
        for _ in range(3):
            assert await anext(live_events) == b": keep-alive\n\n"


async def test_deleting_the_batch_ends_the_stream() -> None:
    database = Database([SequencedRow(1, row(500))])  # of a file that was appended since
    database.is_gone = True
    assert await read(stream(MemoryObjects({}), database).available_lines(0, None)) == b""


async def test_files_are_closed_after_the_last_read() -> None:
    reading, may_go_on = threading.Event(), threading.Event()
    closed_by: list[str] = []

    class Slow(MemoryObjects):
        def read(self, key: str, *, offset: int = 0, length: int | None = None) -> ObjectBlocks:
            blocks = super().read(key, offset=offset, length=length)

            def take(size: int) -> bytes:
                reading.set()
                assert may_go_on.wait(20)
                return blocks._read(size)

            def close() -> None:
                assert may_go_on.is_set()
                closed_by.append(threading.current_thread().name)

            return ObjectBlocks(take, close, length)

    objects = Slow({"input": LINE})
    mine = stream(objects, Database([SequencedRow(1, row(0, custom_id=None))]))
    asking = asyncio.create_task(read(mine.available_lines(0, None)))
    assert await asyncio.to_thread(reading.wait, 20)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    closing = asyncio.create_task(mine.close())
    await asyncio.sleep(0.05)
    assert not closing.done()
    may_go_on.set()
    await closing
    assert closed_by
    assert threading.main_thread().name not in closed_by


async def read(blocks: AsyncGenerator[bytes, None]) -> bytes:
    async with aclosing(blocks):
        return b"".join([block async for block in blocks])


def after(header: str | None) -> int:
    headers = [] if header is None else [(b"last-event-id", header.encode("latin-1"))]
    return _last_event_id(Request({"type": "http", "headers": headers}), 7)


@pytest.mark.parametrize(
    ("header", "expected"),
    [(None, 7), ("", 7), (" ", 7), ("0", 0), (" 31 ", 31), (str(SEQUENCE_MAX), SEQUENCE_MAX)],
)
def test_a_stream_continues_after_last_event_id(header: str | None, expected: int) -> None:
    assert after(header) == expected


@pytest.mark.parametrize(
    "header", ["x", "-1", "1e3", "\xb2", str(SEQUENCE_MAX + 1), "9" * 40, "0" * 11 + "9" * 4400]
)
def test_an_invalid_last_event_id_is_refused(header: str) -> None:
    with pytest.raises(InvalidFieldError) as refusal:
        after(header)
    assert refusal.value.param == "Last-Event-ID"
