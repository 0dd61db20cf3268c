"""Goal: an exclusive holder has no neighbour, limits hold, and no waiter starves."""

import asyncio

import pytest

from gpu_consumers.quarantine.locks import ItemSemaphore, SharedExclusiveLock
from tests.unit.gpu_consumers.fakes import run_loop


class LockUsers:
    """Tasks that hold a SharedExclusiveLock until a test releases them."""

    def __init__(self) -> None:
        self.lock = SharedExclusiveLock()
        self.admitted: list[str] = []
        self._shared_count = 0
        self._is_exclusive = False
        self._releases: dict[str, asyncio.Event] = {}

    def acquire(self, name: str, *, exclusive: bool = False) -> asyncio.Task[None]:
        self._releases[name] = asyncio.Event()
        return asyncio.create_task(self._hold_exclusive(name) if exclusive else self._hold(name))

    async def release(self, *names: str) -> None:
        for name in names:
            self._releases[name].set()
        await run_loop()

    async def _hold_exclusive(self, name: str) -> None:
        await self.lock.acquire_exclusive()
        try:
            assert not self._shared_count
            assert not self._is_exclusive
            self._is_exclusive = True
            self.admitted.append(name)
            await self._releases[name].wait()
        finally:
            self._is_exclusive = False
            self.lock.release_exclusive()

    async def _hold(self, name: str) -> None:
        await self.lock.acquire_shared()
        try:
            assert not self._is_exclusive
            self._shared_count += 1
            self.admitted.append(name)
            await self._releases[name].wait()
        finally:
            self._shared_count -= 1
            self.lock.release_shared()


async def test_an_exclusive_holder_waits_for_all_shared_ones() -> None:
    users = LockUsers()
    tasks = [users.acquire("a"), users.acquire("b"), users.acquire("x", exclusive=True)]
    await run_loop()
    await users.release("a")
    assert users.admitted == ["a", "b"]
    await users.release("b")
    assert users.admitted == ["a", "b", "x"]
    await users.release("x")
    await asyncio.gather(*tasks)


async def test_shared_waiters_are_admitted_between_two_exclusive_holders() -> None:
    users = LockUsers()
    tasks = [users.acquire(name, exclusive=True) for name in ("x", "y")]
    await run_loop()
    tasks += [users.acquire(name) for name in ("a", "b")]
    await run_loop()
    assert users.admitted == ["x"]
    await users.release("x")
    assert sorted(users.admitted[1:]) == ["a", "b"]
    tasks.append(users.acquire("late"))  # waits for the next exclusive holder
    await users.release("a", "b")
    assert users.admitted[3:] == ["y"]
    await users.release("y", "late")
    await asyncio.gather(*tasks)
    assert users.admitted[4:] == ["late"]


async def test_cancelled_waiters_block_nobody() -> None:
    users = LockUsers()
    x = users.acquire("x", exclusive=True)
    await run_loop()
    cancelled, waiting = users.acquire("cancelled"), users.acquire("waiting")
    y = users.acquire("y", exclusive=True)
    await run_loop()
    cancelled.cancel()
    y.cancel()
    await run_loop()
    await users.release("x", "waiting")
    await asyncio.gather(x, waiting)
    assert users.admitted == ["x", "waiting"]


async def test_a_waiter_cancelled_at_its_admission_releases_the_lock() -> None:
    users = LockUsers()
    x = users.acquire("x", exclusive=True)
    await run_loop()
    late = users.acquire("late")
    await run_loop()
    users.lock._admit_shared()
    late.cancel()
    await run_loop()
    assert late.cancelled()
    await users.release("x")
    await x
    y = users.acquire("y", exclusive=True)
    await users.release("y")
    await y
    assert users.admitted == ["x", "y"]


async def test_the_last_exclusive_waiter_admits_shared_ones_when_it_is_cancelled() -> None:
    users = LockUsers()
    a = users.acquire("a")
    await run_loop()
    x = users.acquire("x", exclusive=True)
    await run_loop()
    b = users.acquire("b")
    await run_loop()
    assert users.admitted == ["a"]
    x.cancel()
    await run_loop()
    assert users.admitted == ["a", "b"]
    await users.release("a", "b")
    await asyncio.gather(a, b)


class SemaphoreUser:
    """A task that acquires `size` slots, until a test releases them."""

    def __init__(self, semaphore: ItemSemaphore, size: int) -> None:
        self.is_admitted, self._semaphore, self._size = False, semaphore, size
        self.task = asyncio.create_task(self._acquire())

    async def _acquire(self) -> None:
        await self._semaphore.acquire(self._size)
        self.is_admitted = True

    def release(self) -> None:
        self.is_admitted = False
        self._semaphore.release(self._size)


@pytest.mark.parametrize(
    ("sizes", "steps"),
    [
        ([6, 4, 5, 1], [(None, None, [0, 1]), (1, None, [0]), (0, None, [2, 3])]),
        ([1, 25, 1], [(None, None, [0]), (0, None, [1]), (1, None, [2])]),
        ([10, 10, 3], [(None, None, [0]), (None, 1, [0]), (0, None, [2])]),
        ([5, 10, 5], [(None, None, [0]), (None, 1, [0, 2])]),
        ([10, 10, 10], [(None, None, [0]), (0, 1, [2])]),
    ],
    ids=["order", "above the limit", "cancelled", "ahead of others", "at its admission"],
)
async def test_the_semaphore_of_ten_slots_admits_in_order_without_cancelled_waiters(
    sizes: list[int], steps: list[tuple[int | None, int | None, list[int]]]
) -> None:
    """A step names who releases its slots, whose wait is cancelled, and who is admitted then."""
    semaphore = ItemSemaphore(10)
    users = [SemaphoreUser(semaphore, size) for size in sizes]
    for released, cancelled, admitted in steps:
        if released is not None:
            users[released].release()
        if cancelled is not None:
            users[cancelled].task.cancel()
        await run_loop()
        assert [number for number, user in enumerate(users) if user.is_admitted] == admitted
