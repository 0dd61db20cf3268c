"""Goal: a forged record has no object of another job opened as the input of an item or call."""

from uuid import UUID

import msgspec
import pytest

from core.outcomes import Outcome
from tests.support.memory_objects import MemoryStore
from tests.unit.gpu_consumers.replicas import BulkReplica, OnlineReplica, batch_of, call_chunk
from topics.records.records import Chunk

LINE = b'{"custom_id":"c","body":{"prompt":"of another tenant"}}'
FOREIGN = [
    f"requests/{UUID(int=77).hex}.jsonl",
    f"answers/{UUID(int=77).hex}/1",
    f"results/{UUID(int=77).hex}/1",
    f"keys/{UUID(int=77).hex}",
]


def by_reference(chunk: Chunk, key: str) -> Chunk:
    job = msgspec.structs.replace(chunk.job, input_key=key)
    first, *others = chunk.items
    return Chunk(job, [msgspec.structs.replace(first, body=b"", length=len(LINE)), *others])


@pytest.mark.parametrize("key", FOREIGN)
async def test_an_item_of_a_foreign_object_fails_alone(key: str) -> None:
    store = MemoryStore()
    store.objects[key] = LINE
    batch = batch_of(b"{}", b"{}")
    parts = [by_reference(batch.parts[0], key)]
    replica = BulkReplica(objects=store)
    replica.start_batch(msgspec.structs.replace(batch, parts=parts))
    assert await replica.wait_ended() is None
    assert replica.engine.executed == [[b"{}"]]
    assert store.read_count == 0
    ends = {one.index: (one.outcome, one.retryable) for one in replica.log.outcomes}
    assert ends == {0: (Outcome.FAILED, False), 1: (Outcome.SUCCEEDED, False)}
    (failed,) = (one for one in replica.log.outcomes if one.index == 0)
    assert b"foreign_object" in failed.body
    assert b"another tenant" not in failed.body


@pytest.mark.parametrize("key", [*FOREIGN, "files/1"])
async def test_a_call_of_a_foreign_object_fails_before_the_engine(key: str) -> None:
    store = MemoryStore()
    store.objects[key] = LINE
    replica = OnlineReplica(objects=store)
    await replica.complete(by_reference(call_chunk(), key))
    (end,) = replica.log.ends
    assert (end.status_code, replica.engine.served, store.read_count) == (500, 0, 0)
    assert b"foreign_object" in end.body


async def test_a_line_of_an_uploaded_file_is_executed() -> None:
    store = MemoryStore()
    store.objects["files/1"] = LINE
    batch = batch_of(b"{}")
    replica = BulkReplica(objects=store)
    parts = [by_reference(batch.parts[0], "files/1")]
    replica.start_batch(msgspec.structs.replace(batch, parts=parts))
    assert await replica.wait_ended() is None
    assert replica.engine.executed == [[b'{"prompt":"of another tenant"}']]
