"""Goal: a stop waits for no broker and no database, and no thread blocks the exit."""

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from batcher import periodic
from batcher.database_clock import DatabaseClock
from batcher.faust_app.ordered_acks import AckTicket, OrderedAcks
from batcher.inbound.record_handler import RecordHandler
from batcher.periodic import PeriodicTasks
from batcher.queueing.drop_policy import DropPolicy, ObsoleteItems
from batcher.queueing.queues import Queues
from batcher.role import BatcherDeps, run_batcher
from batcher.settings import BatcherSettings
from batcher.watchdog import Watchdog
from core.clock import SystemClock
from core.runtime.futures import completes_before_stop, run_in_daemon_thread
from tests.unit.batcher.builders import JobStates, items_of, job_ref
from topics.clients.producer import OnDelivery
from topics.errors import KafkaUnavailableError
from topics.records.codec import chunk_headers, encode
from topics.records.received_record import ReceivedRecord
from topics.records.records import Chunk
from topics.settings import KafkaSettings

Blocks = Callable[..., Any]


def run_watchdog(blocks: Blocks) -> Coroutine[Any, Any, None]:
    fields_ = dict.fromkeys(field.name for field in fields(PeriodicTasks))
    fields_ |= {"job_class": "bulk", "admin": SimpleNamespace(lag=blocks)}
    return PeriodicTasks(**fields_).run_watchdog(Watchdog(60.0))  # type: ignore[arg-type]


def read_database_time(blocks: Blocks) -> Coroutine[Any, Any, None]:
    return DatabaseClock(SystemClock(), blocks).run()


def check_redeliveries(blocks: Blocks) -> Coroutine[Any, Any, None]:
    acks = OrderedAcks(lambda _: None)
    policy = DropPolicy(JobStates(), DatabaseClock(SystemClock(), None))
    handler = RecordHandler(
        Queues(items_max=100, bytes_max=10**9),
        acks,
        obsolete_items=ObsoleteItems(acks, policy),
        find_finished=blocks,
        clock=SystemClock(),
    )
    chunk = Chunk(job_ref(), items_of([0]))
    record = ReceivedRecord(
        "requests.bulk", 3, 0, None, chunk_headers(chunk, "bulk"), encode(chunk), 0
    )
    handler.on_assign({("requests.bulk", 3): 1})
    handler.handle_record(record, None, report_unreadable=lambda *_: 0, settle=unused)
    return handler.check_redeliveries(lambda: None)


def unused(ticket: AckTicket, item_count: int) -> OnDelivery:
    raise AssertionError


@pytest.mark.parametrize("work", [run_watchdog, read_database_time, check_redeliveries])
def test_stop_does_not_wait_for_blocking_calls(
    monkeypatch: pytest.MonkeyPatch, work: Callable[[Blocks], Coroutine[Any, Any, None]]
) -> None:
    monkeypatch.setattr(periodic, "WATCHDOG_INTERVAL_S", 0.0)
    is_called, may_return = threading.Event(), threading.Event()

    def blocks(*_: object) -> None:
        is_called.set()
        may_return.wait(40)

    async def stopped() -> None:
        task = asyncio.create_task(work(blocks))
        await run_in_daemon_thread(is_called.wait, name="test")
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    began_s = time.monotonic()
    try:
        asyncio.run(stopped())
    finally:
        may_return.set()
    assert time.monotonic() - began_s < 30


async def test_batcher_waiting_for_its_broker_stops_on_signal(tmp_path: Path) -> None:
    stop = threading.Event()
    deps = BatcherDeps(
        kafka=KafkaSettings(bootstrap_servers="127.0.0.1:1"),
        find_finished=None,
        read_database_time=None,
        clock=SystemClock(),
        datadir=tmp_path,
    )
    signal = threading.Timer(0.2, stop.set)
    signal.start()
    async with asyncio.timeout(20):
        await run_batcher(BatcherSettings(start_timeout_s=60), deps, stop)
    signal.join()


async def test_completed_work_returns_true_and_failures_are_raised() -> None:
    stop = threading.Event()
    assert await completes_before_stop(asyncio.sleep(0), stop)
    with pytest.raises(KafkaUnavailableError):
        await completes_before_stop(run_in_daemon_thread(refuse, name="test"), stop)


def refuse() -> None:
    raise KafkaUnavailableError("no broker")


async def test_stop_cancels_the_work() -> None:
    stop = threading.Event()
    stop.set()
    assert not await completes_before_stop(asyncio.sleep(3600), stop)


def test_closing_the_loop_does_not_wait_for_abandoned_threads() -> None:
    may_end, stop = threading.Event(), threading.Event()
    began_s = time.monotonic()

    async def begin() -> bool:
        asyncio.get_running_loop().call_later(0.1, stop.set)
        return await completes_before_stop(
            run_in_daemon_thread(lambda: may_end.wait(40), name="test"), stop
        )

    assert not asyncio.run(begin())
    assert time.monotonic() - began_s < 30
    may_end.set()
