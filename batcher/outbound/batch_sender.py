"""Sends batches and requeued chunks, and settles their items when the broker acknowledges them."""

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter

from batcher.faust_app.ordered_acks import AckTicket, OrderedAcks
from batcher.policy.credits import ReplicaCredit
from batcher.policy.sticky_partitioner import StickyPartitioner
from batcher.queueing.buffered_chunk import BatchKey, BufferedChunk
from core.ids import new_uuid
from core.stages import Stage
from topics.clients.offset_tracker import Partition
from topics.clients.partition_backlogs import TOTAL_BYTES_MAX
from topics.clients.producer import OnDelivery, PartitionSender
from topics.metrics import STAGE_SECONDS
from topics.records.catalogue import batches_topic
from topics.records.chunks import requeue_chunk
from topics.records.codec import Headers, encode, kind_headers
from topics.records.records import Batch, Capacity, Chunk


@dataclass(frozen=True, slots=True)
class BatcherIdentity:
    """The sender of batches. The id is new at each start: grants count from its first item."""

    batcher_id: str
    job_class: str


@dataclass(slots=True, eq=False)
class SentBatch:
    """A batch that is not acknowledged."""

    place: Partition  # of the topic of batches
    sent_to: Capacity  # the replica whose credit it spent
    chunks: Sequence[BufferedChunk]
    byte_count: int
    is_taken_back: bool = False  # its items were queued again

    @property
    def item_count(self) -> int:
        """The items whose credit was spent."""
        return sum(len(chunk.items) for chunk in self.chunks)


class BatchSender:
    """Sends from the event loop and settles there when the broker has acknowledged.

    `is_full` keeps unacknowledged bytes below the capacity of the producer's own queue, so sending
    never blocks the loop. A batch avoids partitions that are unavailable. One that was sent to such
    a partition before is taken back: its items may go elsewhere, and its record stays in the
    producer, so they may be executed twice when the partition returns.
    """

    def __init__(  # noqa: PLR0913  a callback for each event
        self,
        producer: PartitionSender,
        acks: OrderedAcks,
        *,
        identity: BatcherIdentity,
        in_flight_bytes_max: int,
        on_settled: Callable[[], None],
        on_failure: Callable[[BaseException], None],
        refund: Callable[[Capacity, int], None] = lambda _capacity, _count: None,
    ) -> None:
        """`on_failure` ends the role: an unacknowledged record is read again after a restart.

        `refund` returns the credit of items, or spends it when their number is negative.
        """
        self._producer, self._acks = producer, acks
        self._identity = identity
        self._queue_seconds = STAGE_SECONDS.labels(Stage.QUEUE, identity.job_class)
        self._wait_seconds = STAGE_SECONDS.labels(Stage.BATCH_WAIT, identity.job_class)
        self._partitioner = StickyPartitioner(random.Random().randrange)
        self._in_flight_bytes_max = in_flight_bytes_max
        self._on_settled, self._on_failure, self._refund = on_settled, on_failure, refund
        self._loop = asyncio.get_running_loop()
        self.in_flight_bytes = 0
        self._sent: dict[Partition, set[SentBatch]] = {}  # not acknowledged

    @property
    def is_full(self) -> bool:
        """Whether acknowledgements must arrive before more is sent.

        Batches for partitions without space do not count, below a limit for all.
        """
        if self.in_flight_bytes < self._in_flight_bytes_max:
            return False
        if self.in_flight_bytes >= TOTAL_BYTES_MAX:
            return True
        waiting = sum(
            batch.byte_count
            for place, batches in self._sent.items()
            if not self._producer.has_space(*place)
            for batch in batches
        )
        return self.in_flight_bytes - waiting >= self._in_flight_bytes_max

    def is_reachable(self, capacity: Capacity) -> bool:
        """Return whether a partition of the replica is available."""
        topic = batches_topic(capacity.pool, self._identity.job_class).name
        return any(self._producer.has_space(topic, number) for number in capacity.partitions)

    def take_back(self) -> list[BufferedChunk]:
        """Return the chunks of batches whose partition is unavailable, and refund their credit.

        They are dispatched again. A call is marked as redelivered: it may reach two replicas.
        """
        chunks: list[BufferedChunk] = []
        for place, batches in self._sent.items():
            if not batches or not self._producer.is_unavailable(*place):
                continue
            for batch in batches:
                if not batch.is_taken_back:
                    batch.is_taken_back = True
                    self._refund(batch.sent_to, batch.item_count)
                    chunks += [_buffered_again(c) for c in batch.chunks if not c.ticket.is_dropped]
        return chunks

    def send_batch(
        self,
        replica: ReplicaCredit,
        key: BatchKey,
        chunks: Sequence[BufferedChunk],
        *,
        now_s: float,
    ) -> None:
        """Send chunks of one batch key as one batch to a partition of `replica`."""
        capacity = replica.capacity
        batch = Batch(
            batch_id=new_uuid(),
            batcher_id=self._identity.batcher_id,
            parts=merge_chunks(chunks, now_s=now_s),
            replica_id=capacity.replica_id,
            epoch=capacity.epoch,
        )
        for part in batch.parts:
            self._queue_seconds.observe(part.queued_s)
            self._wait_seconds.observe(part.waited_s)
        value = encode(batch)
        topic = batches_topic(key.pool, self._identity.job_class).name
        usable = [n for n in capacity.partitions if self._producer.has_space(topic, n)]
        partition = self._partitioner.partition(usable or capacity.partitions, now_s=now_s)
        sent = SentBatch((topic, partition), capacity, chunks, len(value))
        self.in_flight_bytes += sent.byte_count
        self._sent.setdefault(sent.place, set()).add(sent)

        def on_delivery(failure: BaseException | None) -> None:  # in the producer's thread
            self._loop.call_soon_threadsafe(self._on_batch_delivery, sent, failure)

        self._producer.send(
            topic,
            value,
            partition=partition,
            key=capacity.replica_id.encode(),
            headers=batch_headers(key, chunks),
            on_delivery=on_delivery,
        )

    def requeue(self, chunk: BufferedChunk) -> None:
        """Append the rest of a chunk to the end of its topic; attempts are unchanged."""
        requeue_chunk(
            self._producer,
            chunk.to_record(),
            self._identity.job_class,
            self._delivery([(chunk.ticket, len(chunk.items))], chunk.byte_count),
        )

    def settle_on_delivery(self, ticket: AckTicket, item_count: int) -> OnDelivery:
        """Return a delivery callback that settles `item_count` of `ticket`."""
        return self._delivery([(ticket, item_count)], 0)

    def _delivery(self, settles: list[tuple[AckTicket, int]], byte_count: int) -> OnDelivery:
        self.in_flight_bytes += byte_count

        def on_delivery(failure: BaseException | None) -> None:  # in the producer's thread
            self._loop.call_soon_threadsafe(self._on_delivery, settles, byte_count, failure)

        return on_delivery

    def _on_batch_delivery(self, sent: SentBatch, failure: BaseException | None) -> None:
        self._sent[sent.place].discard(sent)
        settles: list[tuple[AckTicket, int]] = []
        if sent.is_taken_back:  # its items were queued again, so the ticket stays open
            self._refund(sent.sent_to, -sent.item_count)
        else:
            settles = [(chunk.ticket, len(chunk.items)) for chunk in sent.chunks]
        self._on_delivery(settles, sent.byte_count, failure)

    def _on_delivery(
        self, settles: list[tuple[AckTicket, int]], byte_count: int, failure: BaseException | None
    ) -> None:
        self.in_flight_bytes -= byte_count
        if failure is not None:
            self._on_failure(failure)
            return
        for ticket, item_count in settles:
            self._acks.settle(ticket, item_count)
        self._on_settled()


def _buffered_again(chunk: BufferedChunk) -> BufferedChunk:
    """Return a chunk that left the queues as one that can be queued."""
    redelivered = chunk.redelivered or chunk.job.call is not None
    return BufferedChunk(
        chunk.job, chunk.items, chunk.ticket, redelivered=redelivered, position=chunk.position
    )


def merge_chunks(chunks: Sequence[BufferedChunk], *, now_s: float) -> list[Chunk]:
    """Return buffered chunks as one record chunk per job, model name, file and control version.

    Answers and bills have the name that the request has. Items are in the order of their job. A
    batch is usually one chunk of one job, whose item list is reused.
    """
    if len(chunks) == 1:
        return [_merge_job_chunks(chunks, now_s)]
    by_job: dict[object, list[BufferedChunk]] = {}
    for chunk in chunks:
        job = chunk.job
        by_job.setdefault((job.job_id, job.model, job.input_key, job.version), []).append(chunk)
    return [_merge_job_chunks(of_job, now_s) for of_job in by_job.values()]


def _merge_job_chunks(chunks: Sequence[BufferedChunk], now_s: float) -> Chunk:
    """Return chunks of one job as one, which has waited as long as the oldest of them."""
    if len(chunks) == 1:
        return chunks[0].to_part(now_s - chunks[0].ticket.arrived_s)
    chunks = sorted(chunks, key=attrgetter("position"))
    items = [item for chunk in chunks for item in chunk.items]
    if all(chunk.is_in_index_order for chunk in chunks):
        items.sort(key=attrgetter("index"))
    return Chunk(
        chunks[0].job,
        items,
        redelivered=any(chunk.redelivered for chunk in chunks),
        waited_s=max(now_s - chunk.ticket.arrived_s for chunk in chunks),
        charged=sum(chunk.charged for chunk in chunks),
        position=chunks[0].own_position,
        queued_s=max(chunk.ticket.queued_s for chunk in chunks),
    )


def batch_headers(key: BatchKey, chunks: Sequence[BufferedChunk]) -> Headers:
    """Return the headers of a batch record."""
    return [
        *kind_headers(Batch),
        ("pool", key.pool.encode()),
        ("model", f"{chunks[0].job.model}@{key.model_version}".encode()),
        ("endpoint", key.endpoint.encode()),
        ("items", b"%d" % sum(len(chunk.items) for chunk in chunks)),
        ("tokens", b"%d" % sum(chunk.token_count for chunk in chunks)),
    ]
