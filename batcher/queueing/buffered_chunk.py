"""A chunk that waits in the batcher, and the key of the items that may share a batch."""

from collections.abc import Container
from typing import NamedTuple

from batcher.faust_app.ordered_acks import AckTicket
from core.shown_versions import is_digest
from topics.records.eligibility import RequiredModel
from topics.records.records import Chunk, Item, JobRef

ITEM_OVERHEAD_BYTES = 200
"""Assumed size of an item besides its body and custom id."""

CHUNK_OVERHEAD_BYTES = 250
"""Upper bound of a chunk's size besides its items and the strings of its job."""


GROUP_ITEMS_MIN = 8
"""Items of a prefix group from which a chunk of several groups is split for them."""


class BatchKey(NamedTuple):
    """The fields that all items of a batch have in common."""

    pool: str
    model: str  # empty if the version tells the model: names of one version share batches
    model_version: str
    endpoint: str
    base_version: str = ""  # of an adapter: the version of the model that it adapts

    @property
    def required_model(self) -> RequiredModel:
        """What a replica must have to run the items."""
        return RequiredModel(self.base_version or self.model_version, bool(self.base_version))


def batch_key_of(job: JobRef) -> BatchKey:
    """Return the batch key of a job's items."""
    model = "" if is_digest(job.model_version) else job.model
    return BatchKey(job.pool, model, job.model_version, job.endpoint, job.base_version)


def chunk_bytes(job: JobRef) -> int:
    """Return an upper bound of a chunk's size besides its items. Names and keys are ASCII."""
    caller = 0 if job.call is None else len(job.call.caller_id)
    return (
        CHUNK_OVERHEAD_BYTES
        + len(job.model)
        + len(job.model_version)
        + len(job.base_version)
        + len(job.pool)
        + len(job.endpoint)
        + len(job.input_key)
        + len(job.traceparent)
        + len(job.key_name)
        + caller
    )


class BufferedChunk:
    """A chunk that waits for dispatch; items leave it from the front."""

    __slots__ = (
        "byte_count",
        "charged",
        "is_removed",
        "items",
        "job",
        "output_token_count",
        "position",
        "prefix_group",
        "redelivered",
        "ticket",
        "token_count",
    )

    def __init__(
        self,
        job: JobRef,
        items: list[Item],
        ticket: AckTicket,
        *,
        redelivered: bool = False,
        position: int | None = None,
    ) -> None:
        """`items` are in the job's order, never empty; `redelivered`, `position`: see `Chunk`."""
        first = items[0]
        self.position = first.index if position is None else position
        self.prefix_group = first.prefix_group  # also once the first items have left
        self.job = job
        self.items = items
        self.ticket = ticket
        self.redelivered = redelivered
        self.token_count = sum(item.token_count for item in items)
        self.output_token_count = sum(item.output_token_count for item in items)  # part of it
        self.charged = 0.0  # weighted tokens, once it is taken for a batch
        # A custom id may take four bytes a character, and a batch must never outgrow its record.
        self.byte_count = chunk_bytes(job) + sum(
            len(item.body) + 4 * len(item.custom_id) + ITEM_OVERHEAD_BYTES for item in items
        )
        self.is_removed = False  # left the queues

    @property
    def item_count(self) -> int:
        """The items that have not left the chunk."""
        return len(self.items)

    def split(self, count: int) -> "BufferedChunk":
        """Return a chunk of the first `count` items; this one keeps the rest."""
        front = self._copy(self.items[:count], self.position)
        self.items = self.items[count:]
        self.position += count
        self.token_count -= front.token_count
        self.output_token_count -= front.output_token_count
        self.byte_count -= front.byte_count - chunk_bytes(self.job)
        return front

    def split_by_group(self) -> "list[BufferedChunk]":
        """Return the chunk as chunks of one prefix group each, in order.

        A run of less than `GROUP_ITEMS_MIN` items stays with the one before it. The first run may
        be short: it is the end of a group that began in an earlier chunk.
        """
        items = self.items
        if items[0].prefix_group == items[-1].prefix_group:
            return [self]
        starts = [0]
        for number in range(1, len(items)):
            if items[number].prefix_group == items[number - 1].prefix_group:
                continue
            if len(starts) == 1 or number - starts[-1] >= GROUP_ITEMS_MIN:
                starts.append(number)
            else:
                starts[-1] = number
        if len(starts) > 1 and len(items) - starts[-1] < GROUP_ITEMS_MIN:
            starts.pop()
        ends = [*starts[1:], len(items)]
        return [
            self._copy(items[start:end], self.position + start)
            for start, end in zip(starts, ends, strict=True)
        ]

    def without(self, indexes: Container[int]) -> "BufferedChunk | None":
        """Return the chunk without the items of these indexes; None if none is left."""
        left = [item for item in self.items if item.index not in indexes]
        if not left:
            return None
        return self._copy(left, self.position + self.items.index(left[0]))

    def cost(self, output_weight: float) -> float:
        """Return its prompt tokens, and its output tokens times their weight."""
        return self.token_count + (output_weight - 1) * self.output_token_count

    def to_record(self) -> Chunk:
        """Return the chunk as a record of `requests.*`."""
        return Chunk(self.job, self.items, self.redelivered, position=self.own_position)

    def to_part(self, waited_s: float) -> Chunk:
        """Return the chunk as a part of a batch, after `waited_s` in the queues."""
        return Chunk(
            self.job,
            self.items,
            self.redelivered,
            waited_s,
            self.charged,
            self.own_position,
            self.ticket.queued_s,
        )

    @property
    def is_in_index_order(self) -> bool:
        """Whether the position is the index, as in a job that keeps the order of its file."""
        return self.position == self.items[0].index

    @property
    def own_position(self) -> int | None:
        """The position for a record; None if it is the index."""
        return None if self.is_in_index_order else self.position

    def _copy(self, items: list[Item], position: int) -> "BufferedChunk":
        return BufferedChunk(
            self.job, items, self.ticket, redelivered=self.redelivered, position=position
        )
