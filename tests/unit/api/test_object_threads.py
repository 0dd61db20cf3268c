"""Goal: a hanging store keeps no memory and no shutdown waiting, and no upload is left behind."""

import asyncio
import gc
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import cast

import pytest

from api.files.uploads import ObjectSink
from api.runtime.object_threads import ObjectThreadPool, delete_object, run_in_store_thread
from storage.objects.errors import (
    ObjectStoreFullError,
    ObjectStoreRefusedError,
    ObjectStoreUnavailableError,
)
from storage.objects.object_store import BLOCK_BYTES, ObjectStore
from tests.support.until import until_true


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
        assert done.wait(20)
    finally:
        hangs.set()
        closing.join(20)


def test_running_calls_have_time_to_complete() -> None:
    begun, ended = threading.Event(), threading.Event()

    def run() -> None:
        assert begun.wait(20)
        ended.set()

    async def work(threads: ObjectThreadPool) -> None:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(threads)
        loop.run_in_executor(None, run)

    threading.Timer(0.1, begun.set).start()
    asyncio.run(work(ObjectThreadPool(1)))
    assert ended.is_set()


class Body:
    """Megabytes, as good as."""


@pytest.fixture
def hanging() -> Iterator[threading.Event]:
    """Let the only thread hang until the end of the test."""
    is_over = threading.Event()
    yield is_over
    is_over.set()


async def one_thread() -> None:
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))


async def test_a_cancelled_queued_call_frees_its_memory(hanging: threading.Event) -> None:
    await one_thread()
    first = asyncio.create_task(run_in_store_thread(hanging.wait, 60))
    bodies = [Body() for _ in range(20)]
    alive = [weakref.ref(body) for body in bodies]
    waiting = [asyncio.create_task(run_in_store_thread(id, body)) for body in bodies]
    await asyncio.sleep(0)
    while waiting:
        waiting.pop().cancel()
    bodies.clear()
    for _ in range(3):  # the tasks end
        await asyncio.sleep(0)
    gc.collect()

    assert [body() for body in alive] == [None] * 20
    hanging.set()
    assert await first
    assert await run_in_store_thread(lambda: 1) == 1  # the thread lives


@pytest.mark.parametrize("failure", [ObjectStoreUnavailableError, ObjectStoreRefusedError])
async def test_a_failed_deletion_is_ignored(failure: type[Exception]) -> None:
    class Store:
        def delete(self, _: str) -> None:
            raise failure

    assert not await delete_object(cast("ObjectStore", Store()), "key")


async def test_a_hanging_deletion_is_abandoned(
    hanging: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Store:
        def delete(self, _: str) -> None:
            hanging.wait(60)

    monkeypatch.setattr("api.runtime.object_threads._DELETE_S_MAX", 0.01)
    await asyncio.wait_for(delete_object(cast("ObjectStore", Store()), "key"), 20)
    hanging.set()  # the event loop waits for its threads before the fixture ends


class SlowStore:
    """A store of one upload, and that upload; the step named `slow` waits for `may_go_on`."""

    def __init__(self, slow: str, *, is_full: bool = False) -> None:
        self.slow, self.is_full = slow, is_full
        self.steps: list[str] = []
        self.reached, self.may_go_on = threading.Event(), threading.Event()
        self.aborted = threading.Event()

    def begin_upload(self, _key: str) -> "SlowStore":
        self._step("begin")
        return self

    def write(self, _data: bytes) -> None:
        self._step("write")
        if self.is_full:
            raise ObjectStoreFullError

    def complete(self, *, if_absent: bool) -> None:
        assert if_absent
        self._step("complete")

    def abort(self) -> None:
        self.steps.append("abort")
        self.aborted.set()

    def _step(self, name: str) -> None:
        if name == self.slow:
            self.reached.set()
            assert self.may_go_on.wait(20)
        self.steps.append(name)


async def upload(store: SlowStore) -> None:
    async with ObjectSink(cast(ObjectStore, store), "files/a") as sink:
        sink.buffer(bytes(BLOCK_BYTES))
        await sink.flush_full_blocks()
        await sink.complete()


@pytest.mark.parametrize("cancels", [1, 2])
@pytest.mark.parametrize(
    ("slow", "steps"),
    [
        ("begin", ["begin", "abort"]),
        ("write", ["begin", "write", "abort"]),
        ("complete", ["begin", "write", "write", "complete", "abort"]),
    ],
)
async def test_an_abort_waits_for_the_running_write(
    slow: str, steps: list[str], cancels: int
) -> None:
    store = SlowStore(slow)
    task = asyncio.create_task(upload(store))
    assert await asyncio.to_thread(store.reached.wait, 20)
    for _ in range(cancels):
        task.cancel()
        await asyncio.sleep(0.02)
    assert "abort" not in store.steps
    store.may_go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await asyncio.to_thread(store.aborted.wait, 20)
    assert store.steps == steps


async def test_a_failed_write_is_raised_and_aborted() -> None:
    store = SlowStore("nothing", is_full=True)
    with pytest.raises(ObjectStoreFullError):
        await upload(store)
    assert store.steps == ["begin", "write", "abort"]


async def test_a_write_that_fails_after_a_cancel_is_not_raised_twice(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = SlowStore("write", is_full=True)
    task = asyncio.create_task(upload(store))
    assert await asyncio.to_thread(store.reached.wait, 20)
    task.cancel()
    store.may_go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    del task
    await asyncio.sleep(0)
    # What is told twice is told by the loop: of a future whose failure nobody took.
    assert [record for record in caplog.records if record.name == "asyncio"] == []


async def test_requests_are_refused_while_more_calls_wait_than_there_are_threads(
    hanging: threading.Event,
) -> None:
    threads = ObjectThreadPool(2)
    asyncio.get_running_loop().set_default_executor(threads)
    calls = [asyncio.create_task(run_in_store_thread(hanging.wait, 20)) for _ in range(4)]
    await asyncio.sleep(0)
    threads.require_capacity()  # two run, and two wait
    late = asyncio.create_task(run_in_store_thread(hanging.wait, 20))
    await asyncio.sleep(0)
    with pytest.raises(ObjectStoreUnavailableError):
        threads.require_capacity()
    late.cancel()
    await until_true(lambda: not is_refused(threads))
    hanging.set()
    assert await asyncio.gather(*calls) == [True] * 4


def is_refused(threads: ObjectThreadPool) -> bool:
    try:
        threads.require_capacity()
    except ObjectStoreUnavailableError:
        return True
    return False
