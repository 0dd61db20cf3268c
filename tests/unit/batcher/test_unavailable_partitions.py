"""Goal: an unavailable partition of a pool stops neither its replica nor the items sent to it."""

import asyncio

import pytest

from batcher.database_clock import DatabaseClock
from batcher.faust_app.ordered_acks import OrderedAcks
from batcher.outbound.batch_sender import BatcherIdentity, BatchSender
from batcher.policy.credits import CreditLedger
from batcher.queueing.buffered_chunk import BufferedChunk, batch_key_of
from batcher.queueing.drop_policy import DropPolicy, ObsoleteItems
from batcher.queueing.maintenance import QueueMaintenance
from batcher.queueing.queues import Queues
from tests.support.clock import ManualClock
from tests.support.recording_sender import SentRecords
from tests.unit.batcher.builders import JobStates, buffered, call_ref, capacity, job_ref
from topics.records.chunks import chunk_partition
from topics.records.codec import decode
from topics.records.records import Batch, Capacity, JobRef

TOPIC, DEAD = "batches.p.bulk", 0
GRANTED = 8


class Flow:
    """Queues, credit and sender of a batcher; a test sends the batches."""

    def __init__(self, *partitions: int) -> None:
        self.log = SentRecords(acknowledges=True, unavailable={(TOPIC, DEAD)})
        self.clock = ManualClock(100.0)
        self.acknowledged: list[object] = []
        self.acks = OrderedAcks(self.acknowledged.append)
        self.queues = Queues(items_max=1000, bytes_max=10**9)
        self.ledger = CreditLedger(
            "b",
            "bulk",
            silence_s_max=3.0,
            is_reachable=self._is_reachable,
        )
        self.capacity = capacity(GRANTED, partitions=list(partitions))
        self.ledger.record_capacity(self.capacity, now_s=100.0)
        self.sender = BatchSender(
            self.log,
            self.acks,
            identity=BatcherIdentity("b", "bulk"),
            in_flight_bytes_max=1000,
            on_settled=lambda: None,
            on_failure=lambda failure: pytest.fail(str(failure)),
            refund=self.ledger.refund,
        )
        time = DatabaseClock(self.clock, None)
        self.maintenance = QueueMaintenance(
            queues=self.queues,
            ledger=self.ledger,
            acks=self.acks,
            sender=self.sender,
            obsolete_items=ObsoleteItems(self.acks, DropPolicy(JobStates(), time)),
            clock=time,
            job_class="bulk",
            hold_limit_s=30.0,
        )

    def _is_reachable(self, known: Capacity) -> bool:
        return self.sender.is_reachable(known)

    def send(self, job: JobRef, count: int = 2, *, partition: int | None = None) -> BufferedChunk:
        """Send `count` items, to a partition of the replica or to this one."""
        ticket = self.acks.track(
            ("requests.bulk", 0), f"event {job.job_id.int}", item_count=count, now_s=100.0
        )
        chunk = buffered(job, range(count), ticket)
        self.send_chunk(chunk, partition=partition)
        return chunk

    def send_chunk(self, chunk: BufferedChunk, *, partition: int | None = None) -> None:
        self.ledger.spend("r", len(chunk.items), now_s=100.0)
        known = self.ledger.best("p", now_s=100.0)
        if partition is not None:
            granted = capacity(GRANTED, partitions=[partition])
            known = known and type(known)(
                capacity=granted, granted=GRANTED, sent=0, read_s=100.0, free_since_s=100.0
            )
        assert known is not None
        self.sender.send_batch(known, batch_key_of(chunk.job), [chunk], now_s=100.0)

    def free(self) -> int:
        return self.ledger.available("r", now_s=100.0)

    def queued(self) -> list[BufferedChunk]:
        return list(self.queues.snapshot())


async def test_batches_avoid_an_unavailable_partition() -> None:
    flow = Flow(DEAD, 1)
    flow.send(job_ref(1), partition=DEAD)
    for number in range(2, 5):
        flow.send(job_ref(number), 1)
    assert [sent.partition for sent in flow.log.records] == [DEAD, 1, 1, 1]


async def test_a_replica_without_an_available_partition_gets_nothing() -> None:
    flow = Flow(DEAD)
    assert flow.ledger.best("p", now_s=100.0) is not None
    flow.send(job_ref(1), partition=DEAD)
    assert flow.ledger.best("p", now_s=100.0) is None
    flow.log.restore()
    assert flow.ledger.best("p", now_s=100.0) is not None


async def test_items_and_credit_of_an_unavailable_partition_are_taken_back_once() -> None:
    flow = Flow(DEAD, 1)
    flow.send(job_ref(1), 5, partition=DEAD)
    assert flow.free() == GRANTED - 5

    flow.maintenance.queue_unsent()
    flow.maintenance.queue_unsent()

    assert flow.free() == GRANTED
    (again,) = flow.queued()
    assert [item.index for item in again.items] == [0, 1, 2, 3, 4]
    flow.queues.remove(again)
    flow.send_chunk(again)
    await asyncio.sleep(0)
    assert flow.acknowledged == ["event 1"]
    assert flow.free() == GRANTED - 5

    flow.log.restore()
    await asyncio.sleep(0)
    assert flow.acknowledged == ["event 1"]
    assert flow.free() == 0  # the replica has got the items twice
    assert flow.sender.in_flight_bytes == 0
    assert [sent.partition for sent in flow.log.records] == [DEAD, 1]


async def test_credit_of_an_earlier_epoch_is_not_refunded() -> None:
    flow = Flow(DEAD, 1)
    flow.send(job_ref(1), 5, partition=DEAD)
    flow.ledger.record_capacity(capacity(3, epoch=2, partitions=[1]), now_s=100.0)
    flow.maintenance.queue_unsent()
    assert flow.free() == 3


async def test_revoked_items_are_not_queued_again() -> None:
    flow = Flow(DEAD, 1)
    flow.send(job_ref(1), partition=DEAD)
    flow.acks.drop_partitions([("requests.bulk", 0)])
    flow.maintenance.queue_unsent()
    assert flow.queued() == []


async def test_a_call_that_is_taken_back_counts_as_redelivered() -> None:
    flow = Flow(DEAD, 1)
    flow.send(call_ref(1), 1, partition=DEAD)
    flow.maintenance.queue_unsent()
    assert [chunk.redelivered for chunk in flow.queued()] == [True]


async def test_bytes_for_an_unavailable_partition_do_not_stop_others() -> None:
    flow = Flow(DEAD, 1)
    while flow.sender.in_flight_bytes < 1000:
        flow.send(job_ref(1), 1, partition=DEAD)
        flow.ledger.refund(flow.capacity, 1)
    assert not flow.sender.is_full
    record = flow.log.records[0]
    assert decode(Batch, record.value, record.headers).parts


async def test_a_chunk_is_requeued_around_an_unavailable_partition() -> None:
    flow = Flow(1)
    chunk = buffered(job_ref(1), [0])
    own = chunk_partition(chunk.to_record(), "bulk")
    flow.log.unavailable = {("requests.bulk", own)}
    for _ in range(2):
        ticket = flow.acks.track(("requests.bulk", 0), "event", item_count=1, now_s=100.0)
        flow.sender.requeue(buffered(job_ref(1), [0], ticket))
    first, second = (sent.partition for sent in flow.log.records)
    assert first == own
    assert second != own
