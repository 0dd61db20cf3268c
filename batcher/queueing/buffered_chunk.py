"""A chunk that waits in the batcher, and the key of the items that may share a batch."""

from typing import NamedTuple

from batcher.faust_app.ordered_acks import AckTicket
from topics.records.records import Chunk, Item, JobRef

ITEM_OVERHEAD_BYTES = 200
"""Assumed size of an item besides its body and custom id."""

CHUNK_OVERHEAD_BYTES = 250
"""Upper bound of a chunk's size besides its items and the strings of its job."""


class BatchKey(NamedTuple):
    """The fields that all items of a batch have in common."""

    pool: str
    model: str
    model_version: str
    endpoint: str


def batch_key_of(job: JobRef) -> BatchKey:
    """Return the batch key of a job's items."""
    return BatchKey(job.pool, job.model, job.model_version, job.endpoint)


def chunk_bytes(job: JobRef) -> int:
    """Return an upper bound of a chunk's size besides its items. Names and keys are ASCII."""
    caller = 0 if job.call is None else len(job.call.caller_id)
    return (
        CHUNK_OVERHEAD_BYTES
        + len(job.model)
        + len(job.model_version)
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
        "redelivered",
        "ticket",
        "token_count",
    )

    def __init__(
        self, job: JobRef, items: list[Item], ticket: AckTicket, *, redelivered: bool = False
    ) -> None:
        """`items` are in index order and never empty; `redelivered`: see `Chunk`."""
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
        front = BufferedChunk(
            self.job, self.items[:count], self.ticket, redelivered=self.redelivered
        )
        self.items = self.items[count:]
        self.token_count -= front.token_count
        self.output_token_count -= front.output_token_count
        self.byte_count -= front.byte_count - chunk_bytes(self.job)
        return front

    def cost(self, output_weight: float) -> float:
        """Return its prompt tokens, and its output tokens times their weight."""
        return self.token_count + (output_weight - 1) * self.output_token_count

    def to_record(self) -> Chunk:
        """Return the chunk as a record of `requests.*`."""
        return Chunk(self.job, self.items, self.redelivered)

    def to_part(self, waited_s: float) -> Chunk:
        """Return the chunk as a part of a batch, after `waited_s` in the queues."""
        return Chunk(self.job, self.items, self.redelivered, waited_s, self.charged)
