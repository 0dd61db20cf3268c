"""Goal: an interrupted upload is aborted once no thread writes it, and never left behind."""

import asyncio
import threading
from typing import cast

import pytest

from api.files.uploads import ObjectSink
from storage.objects.errors import ObjectStoreFullError
from storage.objects.object_store import BLOCK_BYTES, ObjectStore


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
            assert self.may_go_on.wait(10)
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
    assert await asyncio.to_thread(store.reached.wait, 10)
    for _ in range(cancels):
        task.cancel()
        await asyncio.sleep(0.02)
    assert "abort" not in store.steps
    store.may_go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await asyncio.to_thread(store.aborted.wait, 10)
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
    assert await asyncio.to_thread(store.reached.wait, 10)
    task.cancel()
    store.may_go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    del task
    await asyncio.sleep(0)
    # What is told twice is told by the loop: of a future whose failure nobody took.
    assert [record for record in caplog.records if record.name == "asyncio"] == []
