"""Goal: an exclusive holder has no neighbour, no waiter starves, new batches wait for suspects."""

import asyncio

import pytest

from core.outcomes import Outcome
from gpu_consumers.quarantine.locks import ItemSemaphore, SharedExclusiveLock
from gpu_consumers.quarantine.narrowing import SPLIT_COUNT
from tests.support.until import until_true
from tests.unit.gpu_consumers.fakes import MemoryAttemptLog, run_loop
from tests.unit.gpu_consumers.replicas import PARTITION, BulkReplica, batch_of
from topics.records.attempts import AttemptUnit
from topics.records.records import Batch


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


async def test_a_new_batch_runs_alongside_a_first_quarantine(bulk: BulkReplica) -> None:
    bulk.engine.gate.clear()
    bulk.start_batch(batch_of(b"hold", *[b"{}"] * 99), is_redelivered=True)
    await bulk.engine.holds.wait()
    bulk.start_batch(batch_of(b"{}"), offset=1)
    await until_true(lambda: bulk.consumer.offsets == [1])
    assert [len(run) for run in bulk.engine.executed] == [10, 1]
    bulk.engine.gate.set()

    assert await bulk.wait_ended() is None
    assert [len(run) for run in bulk.engine.executed] == [10, 1] + [10] * 9


async def test_a_new_batch_waits_for_a_unit_with_two_crashes() -> None:
    attempts, poison = MemoryAttemptLog(), batch_of(b"hold", b"{}")
    units = [AttemptUnit(0, 1, 2), AttemptUnit(1, 1, 2)]
    attempts.add(poison, *units, life=2, is_running=False)
    replica = BulkReplica(attempts=attempts)
    replica.engine.gate.clear()
    replica.start_batch(poison, is_redelivered=True)
    await replica.engine.holds.wait()
    replica.start_batch(batch_of(b"new"), offset=1)
    await run_loop(200)
    assert replica.engine.executed == [[b"hold"]]
    replica.engine.gate.set()

    assert await replica.wait_ended() is None
    assert replica.engine.executed == [[b"hold"], [b"new"], [b"{}"]]
    assert replica.engine.running_max == 1


async def test_ten_items_of_redelivered_batches_run_at_once(bulk: BulkReplica) -> None:
    bulk.engine.gate.clear()
    for offset, size in enumerate((4, 4, 4)):
        bulk.start_batch(batch_of(*[b"hold"] * size), is_redelivered=True, offset=offset)
    await run_loop(200)
    assert [len(run) for run in bulk.engine.executed] == [4, 4]
    assert sorted(attempt.is_running for attempt in bulk.attempts.latest.values()) == [True] * 2
    bulk.engine.gate.set()

    assert await bulk.wait_ended() is None
    assert [len(run) for run in bulk.engine.executed] == [4, 4, 4]
    assert bulk.engine.running_max == 2


@pytest.mark.parametrize("bodies", [[b"oom"], [b"oom", b"{}"], [b"{}", b"oom"]])
async def test_an_item_that_exceeds_the_memory_alongside_others_runs_alone_before_it_fails(
    bulk: BulkReplica, bodies: list[bytes]
) -> None:
    bulk.start_batch(batch_of(*bodies), is_redelivered=True)

    assert await bulk.wait_ended() is None
    assert bulk.engine.executed[0] == bodies
    assert bulk.engine.executed[1] == bodies[bodies.index(b"oom") :]
    runs = [attempt.is_running for attempt in bulk.attempts.recorded]
    assert runs[:3] == [True, False, True], "recorded as stopped between the two runs"
    failed = [o.index for o in bulk.log.outcomes if o.outcome is Outcome.FAILED]
    assert (failed, len(bulk.log.outcomes)) == ([bodies.index(b"oom")], len(bodies))


async def held(*, is_redelivered: bool) -> tuple[BulkReplica, Batch]:
    """Return a replica that holds a batch; its first item, or its first unit, is answered."""
    replica = BulkReplica()
    replica.engine.gate.clear()
    answered_count = SPLIT_COUNT if is_redelivered else 1
    batch = batch_of(*[b"{}"] * answered_count, *[b"hold"] * 3)
    replica.start_batch(batch, is_redelivered=is_redelivered)
    await replica.engine.holds.wait()
    return replica, batch


@pytest.mark.parametrize(
    ("lost", "requeued", "finished"), [(True, [], []), (False, [1, 2, 3], [0])]
)
async def test_a_revoked_partition_publishes_answers_and_requeues_open_items_unless_lost(
    lost: bool, requeued: list[int], finished: list[int]
) -> None:
    replica, _ = await held(is_redelivered=False)
    await replica.worker.on_revoke({(PARTITION[0], 1)}, lost=lost)
    assert replica.engine.running == 1
    await replica.worker.on_revoke({PARTITION}, lost=lost)
    assert (replica.log.requeued_indexes, replica.consumer.offsets) == (requeued, finished)
    assert await replica.wait_ended() is None

    assert (replica.engine.running, replica.capacity.in_flight) == (0, 0)
    assert [o.index for o in replica.log.outcomes] == [0]
    assert (replica.log.requeued_indexes, replica.consumer.offsets) == (requeued, finished)


async def test_a_revoked_redelivered_batch_is_not_charged_with_a_crash() -> None:
    replica, batch = await held(is_redelivered=True)
    await replica.worker.on_revoke({PARTITION}, lost=False)
    assert (replica.log.requeued_indexes, replica.consumer.offsets) == ([], [])
    said = replica.attempts.latest[batch.batch_id]
    assert not said.is_running
    assert [(unit.first, unit.count, unit.crashes) for unit in said.units] == [(SPLIT_COUNT, 3, 1)]

    after = BulkReplica(replica.log, replica.attempts)
    after.start_batch(batch, is_redelivered=True)
    assert await after.wait_ended() is None
    assert sorted(o.index for o in replica.log.outcomes) == [*range(SPLIT_COUNT + 3)]
    assert {attempt.life for attempt in replica.attempts.recorded} == {1, 2}


async def test_a_drain_requeues_units_and_deletes_attempts() -> None:
    replica, _ = await held(is_redelivered=True)
    replica.worker.requeue_all()
    assert await replica.wait_ended() is None

    assert replica.log.requeued_indexes == [*range(SPLIT_COUNT, SPLIT_COUNT + 3)]
    assert replica.consumer.offsets == [0]
    await replica.quarantine.delete_attempts(replica.consumer.is_committed)
    assert replica.attempts.latest == {}
