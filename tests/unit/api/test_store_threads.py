"""Goal: only calls that somebody awaits wait for a hanging store."""

import asyncio
import gc
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import cast

import pytest

from api.runtime.object_threads import delete_object, run_in_store_thread
from storage.objects.errors import ObjectStoreRefusedError, ObjectStoreUnavailableError
from storage.objects.object_store import ObjectStore


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


async def test_a_cancelled_queued_call_frees_its_memory(
    hanging: threading.Event,
) -> None:
    await one_thread()
    first = asyncio.create_task(run_in_store_thread(hanging.wait, 20))
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


async def test_errors_of_a_call_are_raised() -> None:
    def refuse() -> None:
        raise ObjectStoreUnavailableError

    with pytest.raises(ObjectStoreUnavailableError):
        await run_in_store_thread(refuse)


@pytest.mark.parametrize("failure", [ObjectStoreUnavailableError, ObjectStoreRefusedError])
async def test_a_failed_deletion_is_ignored(failure: type[Exception]) -> None:
    class Store:
        def delete(self, _: str) -> None:
            raise failure

    await delete_object(cast("ObjectStore", Store()), "key")


async def test_a_hanging_deletion_is_abandoned(
    hanging: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Store:
        def delete(self, _: str) -> None:
            hanging.wait(20)

    monkeypatch.setattr("api.runtime.object_threads._DELETE_S_MAX", 0.01)
    await asyncio.wait_for(delete_object(cast("ObjectStore", Store()), "key"), 5)
