"""Goal: a stop waits for no answer of a broker or a database, which may be away."""

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import fields
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from batcher import periodic
from batcher.database_clock import DatabaseClock
from batcher.faust_app.ordered_acks import AckTicket, OrderedAcks
from batcher.inbound.record_handler import RecordHandler
from batcher.periodic import PeriodicTasks
from batcher.queueing.drop_policy import DropPolicy
from batcher.queueing.queues import Queues
from batcher.watchdog import Watchdog
from core.clock import SystemClock
from core.futures import in_daemon
from tests.unit.batcher.no_controls import NoControls
from topics.clients.producer import OnDelivery
from topics.records.codec import encode
from topics.records.headers import chunk_headers
from topics.records.received import Received
from topics.records.records import Chunk, Item, JobRef

Blocks = Callable[..., Any]


def watching(blocks: Blocks) -> Coroutine[Any, Any, None]:
    parts = dict.fromkeys(field.name for field in fields(PeriodicTasks))
    parts |= {"job_class": "bulk", "admin": SimpleNamespace(lag=blocks)}
    return PeriodicTasks(**parts).run_watchdog(Watchdog(60.0))  # type: ignore[arg-type]


def following(blocks: Blocks) -> Coroutine[Any, Any, None]:
    return DatabaseClock(SystemClock(), blocks).run()


def checking(blocks: Blocks) -> Coroutine[Any, Any, None]:
    arrivals = RecordHandler(
        Queues(items_max=100, bytes_max=10**9),
        OrderedAcks(lambda _: None),
        drop_policy=DropPolicy(NoControls(), DatabaseClock(SystemClock(), None)),
        find_finished=blocks,
        clock=SystemClock(),
    )
    chunk = Chunk(JobRef(UUID(int=1), 1, UUID(int=1), "m", "1", "p", "e", "k", 1e9), [])
    chunk.items.append(Item(0, "c", b"{}", 1))
    record = Received("requests.bulk", 3, 0, None, chunk_headers(chunk, "bulk"), encode(chunk), 0)
    arrivals.on_assign({("requests.bulk", 3): 1})
    arrivals.handle_record(record, None, report_unreadable=lambda *_: 0, settle=unused)
    return arrivals.check_redeliveries(lambda: None)


def unused(ticket: AckTicket, item_count: int) -> OnDelivery:
    raise AssertionError


@pytest.mark.parametrize("work", [watching, following, checking])
def test_an_answer_that_does_not_come_delays_no_stop(
    monkeypatch: pytest.MonkeyPatch, work: Callable[[Blocks], Coroutine[Any, Any, None]]
) -> None:
    monkeypatch.setattr(periodic, "WATCHDOG_INTERVAL_S", 0.0)
    is_asked, is_over = threading.Event(), threading.Event()

    def blocks(*_: object) -> None:
        is_asked.set()
        is_over.wait(15)

    async def stopped() -> None:
        task = asyncio.create_task(work(blocks))
        await in_daemon(is_asked.wait, name="test")
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    began_s = time.monotonic()
    try:
        asyncio.run(stopped())
    finally:
        is_over.set()
    assert time.monotonic() - began_s < 10
