"""From taken items to records: batches, hand-backs, and what their acknowledgement settles."""

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from batcher.faust_app.ordered_acks import AckTicket, OrderedAcks
from batcher.policy.credits import ReplicaCredit
from batcher.policy.sticky_partitioner import StickyPartitioner
from batcher.queueing.buffered_chunk import BatchKey, BufferedChunk
from core.ids import new_uuid
from topics.clients.producer import LogProducer, OnDelivery
from topics.records.catalogue import batches_topic
from topics.records.chunks import send_chunk
from topics.records.codec import Headers, encode, kind_headers
from topics.records.records import Batch, Chunk


@dataclass(frozen=True, slots=True)
class BatcherIdentity:
    """Who sends. The id is new at each start: a grant counts from a batcher's first item."""

    batcher_id: str
    job_class: str


class BatchSender:
    """Sends from the event loop and settles there when the broker has acknowledged.

    `is_full` keeps what is sent and not acknowledged below the producer's own queue, so that
    sending never blocks the loop.
    """

    def __init__(
        self,
        producer: LogProducer,
        acks: OrderedAcks,
        *,
        identity: BatcherIdentity,
        in_flight_bytes_max: int,
        on_settled: Callable[[], None],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        """`on_failure` ends the role: an unacknowledged record is read again after a restart."""
        self._producer, self._acks = producer, acks
        self._identity, self._spread = identity, StickyPartitioner(random.Random().randrange)
        self._in_flight_bytes_max = in_flight_bytes_max
        self._on_settled, self._on_failure = on_settled, on_failure
        self._loop = asyncio.get_running_loop()
        self.in_flight_bytes = 0

    @property
    def is_full(self) -> bool:
        """Whether acknowledgements must arrive before more is sent."""
        return self.in_flight_bytes >= self._in_flight_bytes_max

    def send_batch(
        self,
        replica: ReplicaCredit,
        lane: BatchKey,
        taken: Sequence[BufferedChunk],
        *,
        now_s: float,
    ) -> None:
        """Send what was taken from `lane` as one batch to a partition of `replica`."""
        capacity = replica.capacity
        batch = Batch(
            batch_id=new_uuid(),
            batcher_id=self._identity.batcher_id,
            parts=merge_chunks(taken, now_s=now_s),
            replica_id=capacity.replica_id,
            epoch=capacity.epoch,
        )
        value = encode(batch)
        self._producer.send(
            batches_topic(lane.pool, self._identity.job_class).name,
            value,
            partition=self._spread.partition(capacity.partitions, now_s=now_s),
            key=capacity.replica_id.encode(),
            headers=batch_headers(lane, taken),
            on_delivery=self._delivery(
                [(held.ticket, len(held.items)) for held in taken], len(value)
            ),
        )

    def hand_back(self, held: BufferedChunk) -> None:
        """Put what is left of a chunk at the tail of its topic; attempts are unchanged."""
        send_chunk(
            self._producer,
            held.chunk(),
            self._identity.job_class,
            self._delivery([(held.ticket, len(held.items))], held.byte_count),
        )

    def settle(self, ticket: AckTicket, item_count: int) -> OnDelivery:
        """Return a delivery callback that settles `item_count` of `ticket`."""
        return self._delivery([(ticket, item_count)], 0)

    def _delivery(self, carried: list[tuple[AckTicket, int]], byte_count: int) -> OnDelivery:
        self.in_flight_bytes += byte_count

        def delivered(failure: BaseException | None) -> None:  # in the producer's thread
            self._loop.call_soon_threadsafe(self._delivered, carried, byte_count, failure)

        return delivered

    def _delivered(
        self, carried: list[tuple[AckTicket, int]], byte_count: int, failure: BaseException | None
    ) -> None:
        self.in_flight_bytes -= byte_count
        if failure is not None:
            self._on_failure(failure)
            return
        for ticket, item_count in carried:
            self._acks.settle(ticket, item_count)
        self._on_settled()


def merge_chunks(taken: Sequence[BufferedChunk], *, now_s: float) -> list[Chunk]:
    """Return the taken items as one chunk per job, file and control version.

    Items are in index order.

    A batch is usually one chunk of one job, whose item list is passed on as it is.
    """
    if len(taken) == 1:
        return [_whole(taken[0], now_s)]
    by_job: dict[object, list[BufferedChunk]] = {}
    for held in taken:
        job = held.job
        by_job.setdefault((job.job_id, job.input_key, job.version), []).append(held)
    return [_part(chunks, now_s) for chunks in by_job.values()]


def _part(chunks: list[BufferedChunk], now_s: float) -> Chunk:
    """Return chunks of one job as one, which waited as long as the first of them."""
    if len(chunks) == 1:
        return _whole(chunks[0], now_s)
    items = [item for held in chunks for item in held.items]
    items.sort(key=lambda item: item.index)
    return Chunk(
        chunks[0].job,
        items,
        redelivered=any(held.redelivered for held in chunks),
        waited_s=max(now_s - held.ticket.arrived_s for held in chunks),
    )


def _whole(held: BufferedChunk, now_s: float) -> Chunk:
    return held.chunk(now_s - held.ticket.arrived_s)


def batch_headers(lane: BatchKey, taken: Sequence[BufferedChunk]) -> Headers:
    """Return the headers of a batch record."""
    return [
        *kind_headers(Batch),
        ("pool", lane.pool.encode()),
        ("model", f"{lane.model}@{lane.model_version}".encode()),
        ("endpoint", lane.endpoint.encode()),
        ("items", b"%d" % sum(len(held.items) for held in taken)),
        ("tokens", b"%d" % sum(held.token_count for held in taken)),
    ]
