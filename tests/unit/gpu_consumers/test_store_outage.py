"""Goal: an object store that throttles holds back only the items that need it."""

import threading

import msgspec
import pytest

from gpu_consumers import metrics
from storage.objects.object_store import ObjectBlocks
from tests.support.memory_objects import MemoryStore
from tests.support.until import until_true
from tests.unit.gpu_consumers.replicas import BulkReplica, batch_of
from topics.records.records import Batch, Chunk

LINE = b'{"body":{"stored":1}}'
SMALL = b'{"small":1}'


class SlowStore(MemoryStore):
    """A store whose reads wait for `gate`, as those of a client that retries."""

    def __init__(self) -> None:
        super().__init__()
        self.objects["files/in"] = LINE
        self.gate, self.is_read = threading.Event(), threading.Event()

    def read(self, key: str, *, offset: int = 0, length: int | None = None) -> ObjectBlocks:
        self.is_read.set()
        assert self.gate.wait(20)
        return super().read(key, offset=offset, length=length)


@pytest.fixture
def store() -> SlowStore:
    return SlowStore()


def batch_with_stored(*bodies: bytes, stored: int = 0) -> Batch:
    """Return a batch whose item at a position is a line of the input file."""
    batch = batch_of(*bodies)
    (part,) = batch.parts
    items = [*part.items]
    items[stored] = msgspec.structs.replace(items[stored], body=b"", length=len(LINE))
    return msgspec.structs.replace(batch, parts=[Chunk(part.job, items)])


def executed(replica: BulkReplica) -> list[bytes]:
    return [body for bodies in replica.engine.executed for body in bodies]


async def test_items_of_the_same_batch_run_while_a_body_is_read(store: SlowStore) -> None:
    replica = BulkReplica(objects=store)
    replica.start_batch(batch_with_stored(b"", SMALL))
    await until_true(store.is_read.is_set)
    await until_true(lambda: executed(replica) == [SMALL])
    store.gate.set()
    assert await replica.wait_ended() is None
    assert executed(replica) == [SMALL, b'{"stored":1}']
    assert sorted(outcome.index for outcome in replica.log.outcomes) == [0, 1]


async def test_items_without_a_body_wait_without_credit_and_the_pool_stays_available(
    store: SlowStore,
) -> None:
    store.gate.set()
    store.is_away = True
    replica = BulkReplica(objects=store)
    replica.start_batch(batch_with_stored(b"", SMALL))
    await until_true(lambda: executed(replica) == [SMALL] and replica.capacity.in_flight == 0)
    assert replica.log.requeued_indexes == []  # a requeue at once would come back at once

    replica.start_batch(batch_of(SMALL, job_number=2), offset=1)
    await until_true(lambda: replica.consumer.offsets == [1])
    assert metrics.POOL_AVAILABLE._value.get() == 1

    for run in replica.execution.runs:
        if run.abortable is not None:
            run.abortable.cancel()  # the wait is over
    assert await replica.wait_ended() is None
    assert replica.log.requeued_indexes == [0]
    assert metrics.POOL_AVAILABLE._value.get() == 1


async def test_a_store_that_failed_is_not_read_again_for_a_while(
    store: SlowStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpu_consumers.bulk.batch_execution.STORE_WAIT_S", 0.0)
    store.gate.set()
    store.is_away = True
    replica = BulkReplica(objects=store)
    replica.start_batch(batch_with_stored(b""))
    await until_true(lambda: replica.log.requeued_indexes == [0])
    store.is_read.clear()
    replica.start_batch(batch_with_stored(b""), offset=1)
    await until_true(lambda: replica.log.requeued_indexes == [0, 0])
    assert not store.is_read.is_set()
