"""Goal: whoever starts hears a signal at once, whatever it waits for, and nobody waits for it."""

import asyncio
import threading
import time
from pathlib import Path

import pytest

from batcher.role import run_batcher
from batcher.settings import BatcherSettings
from batcher.startup import completes_before_stop
from batcher.wiring import BatcherDeps
from core.clock import SystemClock
from core.futures import in_daemon
from topics.errors import LogUnavailableError
from topics.settings import KafkaSettings


async def test_a_batcher_that_waits_for_its_broker_hears_the_signal(tmp_path: Path) -> None:
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


async def test_work_that_ends_before_the_signal_says_so_and_what_failed_it_is_raised() -> None:
    stop = threading.Event()
    assert await completes_before_stop(asyncio.sleep(0), stop)
    with pytest.raises(LogUnavailableError):
        await completes_before_stop(in_daemon(refuse, name="test"), stop)


def refuse() -> None:
    raise LogUnavailableError("no broker")


async def test_work_is_cancelled_by_the_signal_also_when_it_does_not_end() -> None:
    stop = threading.Event()
    stop.set()
    assert not await completes_before_stop(asyncio.sleep(3600), stop)


def test_the_end_of_the_loop_waits_for_no_thread_that_was_left_behind() -> None:
    may_end, stop = threading.Event(), threading.Event()
    began_s = time.monotonic()

    async def begin() -> bool:
        asyncio.get_running_loop().call_later(0.1, stop.set)
        return await completes_before_stop(in_daemon(lambda: may_end.wait(10), name="test"), stop)

    assert not asyncio.run(begin())
    assert time.monotonic() - began_s < 5
    may_end.set()
