"""Goal: outcomes say how long their items were on the log, in the batcher and in the engine."""

import asyncio

import msgspec

from core.outcomes import Outcome
from tests.support.clock import ManualClock
from tests.unit.gpu_consumers.replicas import BulkReplica, batch_of
from topics.records.codec import decode_value, encode
from topics.records.records import Batch, ItemOutcome, Outcomes


def timed_batch(*bodies: bytes) -> Batch:
    batch = batch_of(*bodies)
    parts = [msgspec.structs.replace(p, waited_s=0.25, queued_s=1.5) for p in batch.parts]
    return msgspec.structs.replace(batch, parts=parts)


async def outcomes_of(clock: ManualClock, *bodies: bytes) -> list[ItemOutcome]:
    replica = BulkReplica(clock=clock)
    replica.execution.clock = clock
    replica.start_batch(timed_batch(*bodies))
    await asyncio.sleep(0)
    await replica.wait_ended()
    return list(replica.log.outcomes)


async def test_an_outcome_has_the_times_of_its_part_and_its_execution() -> None:
    found = await outcomes_of(ManualClock(1000.0), b"a", b"b")
    assert len(found) == 2
    for outcome in found:
        assert (outcome.queue_ms, outcome.batch_wait_ms) == (1500, 250)
        assert outcome.execution_ms == 0  # the clock stands still
        assert outcome.ended_ms == 1_000_000


def test_an_outcome_of_an_older_release_has_no_times() -> None:
    record = Outcomes(batch_of(b"").parts[0].job, [ItemOutcome(0, None, Outcome.FAILED, 0, b"")])
    fields = msgspec.msgpack.decode(encode(record))
    fields[1][0] = fields[1][0][: ItemOutcome.__struct_fields__.index("queue_ms")]
    (item,) = decode_value(Outcomes, msgspec.msgpack.encode(fields)).items
    assert (item.queue_ms, item.ended_ms) == (0, 0)
