"""Builders of jobs, calls, chunks and capacities, and job controls that a test sets."""

from collections.abc import Iterable
from typing import Any
from uuid import UUID

from msgspec.structs import replace

from batcher.faust_app.ordered_acks import AckTicket
from batcher.queueing.buffered_chunk import BufferedChunk
from core.states import CloseReason
from topics.records.records import CallRef, Capacity, Item, JobControl, JobRef

_JOB = JobRef(
    job_id=UUID(int=1),
    day=1,
    tenant_id=UUID(int=1),
    model="m",
    model_version="1",
    pool="p",
    endpoint="/v1/embeddings",
    input_key="k",
    deadline_s=1e9,
)


def job_ref(number: int = 1, **fields: Any) -> JobRef:
    """Return job `number` of the tenant of the same number."""
    same = {"job_id": UUID(int=number), "tenant_id": UUID(int=number)}
    return replace(_JOB, **(same | fields))


def call_ref(number: int = 1, *, durable: bool = False, **fields: Any) -> JobRef:
    """Return online call `number` of tenant 1."""
    call = CallRef("api-1", 3, durable=durable)
    return job_ref(number, **({"tenant_id": UUID(int=1), "call": call} | fields))


def items_of(indexes: Iterable[int], *, tokens: int = 10, body: bytes = b"{}") -> list[Item]:
    return [Item(index, f"c{index}", body, tokens) for index in indexes]


def buffered(job: JobRef, indexes: Iterable[int], ticket: AckTicket | None = None) -> BufferedChunk:
    """Return a chunk with a ticket, of its own unless given."""
    items = items_of(indexes)
    own = AckTicket(("requests.bulk", 0), None, len(items), 0.0)
    return BufferedChunk(job, items, ticket or own)


def capacity(granted: int, *, epoch: int = 1, **fields: Any) -> Capacity:
    """Return a capacity record that grants batcher `b` so many items."""
    defaults: dict[str, Any] = {
        "replica_id": "r",
        "pool": "p",
        "job_class": "bulk",
        "partitions": [0, 1],
        "items_per_s": 0.0,
        "concurrency": 8,
    }
    return Capacity(epoch=epoch, granted={"b": granted}, **(defaults | fields))


class JobStates:
    """Control states as `JobControlReader` returns them."""

    def __init__(self) -> None:
        self.known: dict[UUID, JobControl] = {}

    def newer_control(self, job: JobRef) -> JobControl | None:
        return self.known.get(job.job_id)

    def close(self, number: int) -> None:
        """Close job `number`."""
        job_id = UUID(int=number)
        self.known[job_id] = JobControl(job_id, 2, closed=CloseReason.CANCELLED)
