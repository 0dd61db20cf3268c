"""Chunk headers: a reader can route a chunk, or fail its items, without decoding the value."""

from collections.abc import Iterable
from dataclasses import dataclass
from uuid import UUID

from core.errors import RecordUnreadableError
from core.limits import NUMBER_MAX
from topics.records.codec import Headers, kind_headers
from topics.records.records import Chunk, JobRef


@dataclass(frozen=True, slots=True)
class ItemRange:
    """The items that a chunk's headers name: enough to fail them when the value is unreadable."""

    job_id: UUID
    day: int
    tenant_id: UUID
    first_index: int
    last_index: int


def chunk_headers(chunk: Chunk, job_class: str) -> Headers:
    """Return the headers of a chunk record of `requests.<job_class>`."""
    job, items = chunk.job, chunk.items
    tokens = sum(item.token_count for item in items)
    return [
        *kind_headers(Chunk),
        *job_headers(job),
        ("items", b"%d-%d" % (items[0].index, items[-1].index)),
        ("class", job_class.encode()),
        ("deadline", b"%.3f" % job.deadline_s),
        ("tokens", b"%d" % tokens),
        ("attempt", b"%d" % max(item.attempt for item in items)),
    ]


def job_headers(job: JobRef) -> Headers:
    """Return the headers that name a job and its tenant and model."""
    headers: Headers = [
        ("job", job.job_id.hex.encode()),
        ("day", b"%d" % job.day),
        ("tenant", job.tenant_id.hex.encode()),
        ("model", f"{job.model}@{job.model_version}".encode()),
    ]
    if job.traceparent:
        headers.append(("traceparent", job.traceparent.encode()))
    return headers


def item_range(headers: Iterable[tuple[str, bytes]] | None) -> ItemRange:
    """Return the items that a chunk's headers name. Raises RecordUnreadableError."""
    found = dict(headers or ())
    try:
        first, last = found["items"].split(b"-")
        named = ItemRange(
            job_id=UUID(found["job"].decode()),
            day=int(found["day"]),
            tenant_id=UUID(found["tenant"].decode()),
            first_index=int(first),
            last_index=int(last),
        )
    except (KeyError, ValueError, AttributeError, TypeError):  # a header may be null
        raise RecordUnreadableError("the record's headers do not name its items") from None
    if not all(0 <= n <= NUMBER_MAX for n in (named.day, named.first_index, named.last_index)):
        raise RecordUnreadableError("the record's headers name an impossible day or item")
    return named
