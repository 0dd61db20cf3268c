"""A chunk that waits in a batcher, and the lane of requests that it may share a batch with."""

from typing import NamedTuple

from batcher.faust_app.ordered_acks import AckTicket
from topics.records.records import Chunk, Item, JobRef

ITEM_OVERHEAD_BYTES = 200
"""Assumed size of an item beside its body: ids, numbers and Python's own."""

CHUNK_OVERHEAD_BYTES = 250
"""Bound of the size of a chunk beside its items and the strings of its job: ids and numbers."""


class BatchKey(NamedTuple):
    """What the items of a batch have in common."""

    pool: str
    model: str
    model_version: str
    endpoint: str


def batch_key_of(job: JobRef) -> BatchKey:
    """Return the lane that a job's items wait in."""
    return BatchKey(job.pool, job.model, job.model_version, job.endpoint)


def chunk_bytes(job: JobRef) -> int:
    """Return a bound of the size of a chunk beside its items. Names and keys are ASCII."""
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
    """A chunk that waits; items leave it from the front."""

    __slots__ = ("byte_count", "gone", "items", "job", "redelivered", "ticket", "token_count")

    def __init__(
        self, job: JobRef, items: list[Item], ticket: AckTicket, *, redelivered: bool = False
    ) -> None:
        """Take over `items`, in index order and never empty; see `Chunk.redelivered`."""
        self.job = job
        self.items = items
        self.ticket = ticket
        self.redelivered = redelivered
        self.token_count = sum(item.token_count for item in items)
        # A custom id may hold four bytes a character, and a batch must never outgrow its record.
        self.byte_count = chunk_bytes(job) + sum(
            len(item.body) + 4 * len(item.custom_id) + ITEM_OVERHEAD_BYTES for item in items
        )
        self.gone = False  # left the queues

    def split(self, count: int) -> "BufferedChunk":
        """Return a chunk of the first `count` items; the rest stays here."""
        front = BufferedChunk(
            self.job, self.items[:count], self.ticket, redelivered=self.redelivered
        )
        self.items = self.items[count:]
        self.token_count -= front.token_count
        self.byte_count -= front.byte_count - chunk_bytes(self.job)
        return front

    def chunk(self, waited_s: float = 0.0) -> Chunk:
        """Return what is held as a record; `waited_s` is known of what leaves in a batch."""
        return Chunk(self.job, self.items, self.redelivered, waited_s)
