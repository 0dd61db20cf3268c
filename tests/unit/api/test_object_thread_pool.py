"""Goal: hanging threads do not block shutdown, and running calls have time to complete."""

import asyncio
import threading

from api.runtime.object_threads import ObjectThreadPool


def test_a_hanging_thread_does_not_block_shutdown() -> None:
    hangs, done = threading.Event(), threading.Event()

    async def work(threads: ObjectThreadPool) -> None:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(threads)
        for _ in range(2):  # one runs, one waits in the queue
            loop.run_in_executor(None, hangs.wait)

    def close() -> None:
        asyncio.run(work(ObjectThreadPool(1)))
        done.set()

    closing = threading.Thread(target=close)
    closing.start()
    try:
        assert done.wait(5)
    finally:
        hangs.set()
        closing.join(5)


def test_running_calls_have_time_to_complete() -> None:
    begun, ended = threading.Event(), threading.Event()

    def run() -> None:
        assert begun.wait(5)
        ended.set()

    async def work(threads: ObjectThreadPool) -> None:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(threads)
        loop.run_in_executor(None, run)

    threading.Timer(0.1, begun.set).start()
    asyncio.run(work(ObjectThreadPool(1)))
    assert ended.is_set()
