"""Goal: a start stops at once on a signal and leaves no thread that blocks the exit."""

import asyncio
import threading
import time
from pathlib import Path

import pytest

from batcher.role import BatcherDeps, completes_before_stop, run_batcher
from batcher.settings import BatcherSettings
from core.clock import SystemClock
from core.futures import run_in_daemon_thread
from topics.errors import KafkaUnavailableError
from topics.settings import KafkaSettings


async def test_batcher_waiting_for_its_broker_stops_on_signal(tmp_path: Path) -> None:
    stop = threading.Event()
    surroundings = BatcherDeps(
        kafka=KafkaSettings(bootstrap_servers="127.0.0.1:1"),
        find_finished=None,
        read_database_time=None,
        clock=SystemClock(),
        datadir=tmp_path,
    )
    signal = threading.Timer(0.2, stop.set)
    signal.start()
    async with asyncio.timeout(5):
        await run_batcher(BatcherSettings(start_timeout_s=10), surroundings, stop)
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
            run_in_daemon_thread(lambda: may_end.wait(10), name="test"), stop
        )

    assert not asyncio.run(begin())
    assert time.monotonic() - began_s < 5
    may_end.set()
