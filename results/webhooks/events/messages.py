"""Event types and message bodies: OpenAI's event envelope with an `id` and few other data."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Final
from uuid import UUID

import msgspec

from core.ids import EVENT, JOB, SINGLE, public_id
from core.states import JobKind, JobState

PROGRESS: Final = "batch.progress"
ITEM_FAILED: Final = "item.failed"

STATE_EVENTS: Final = {
    JobState.COMPLETED.value: "batch.completed",
    JobState.FAILED.value: "batch.failed",
    JobState.EXPIRED.value: "batch.expired",
    JobState.CANCELLED.value: "batch.cancelled",
}
REQUEST_EVENTS: Final = {
    JobState.COMPLETED.value: "job.completed",
    JobState.EXPIRED.value: "job.expired",
    JobState.CANCELLED.value: "job.cancelled",
}
TERMINAL_EVENTS: Final = tuple(STATE_EVENTS.values())
WATCHED_EVENTS: Final = (PROGRESS, ITEM_FAILED)
EVENT_TYPES: Final = (*TERMINAL_EVENTS, *WATCHED_EVENTS, *REQUEST_EVENTS.values())

PERCENTS: Final = (25, 50, 75)
ITEMS_MAX: Final = 100
_ITEMS_BYTES_MAX: Final = 16 * 1024  # keeps a payload below 20 kB, as Standard Webhooks demands


@dataclass(frozen=True, slots=True)
class WebhookMessage:
    """One event, as sent to every endpoint subscribed to its type."""

    message_id: UUID
    tenant_id: UUID
    job_id: UUID | None
    event_type: str
    at_s: float  # time of the event by the database's clock
    body: bytes


def job_message(
    event: tuple[UUID, str],
    tenant_id: UUID,
    job_id: UUID,
    at_s: float,
    extension: object = None,
    *,
    kind: JobKind = JobKind.BATCH,
) -> WebhookMessage:
    """Return the message of `event` (id, type); `extension` is its `millrace` object."""
    message_id, event_type = event
    prefix = JOB if kind is JobKind.BATCH else SINGLE
    data: dict[str, object] = {"id": public_id(prefix, job_id)}
    if extension is not None:
        data["millrace"] = extension
    body = event_body(message_id, event_type, at_s, data)
    return WebhookMessage(message_id, tenant_id, job_id, event_type, at_s, body)


def event_body(message_id: UUID, event_type: str, at_s: float, data: dict[str, object]) -> bytes:
    """Return an event as JSON."""
    return msgspec.json.encode(
        {
            "id": public_id(EVENT, message_id),
            "object": "event",
            "created_at": int(at_s),
            "type": event_type,
            "data": data,
        }
    )


def crossed_percents(announced: int, ended_count: int, total_count: int) -> list[int]:
    """Return the marks above `announced` that a job has reached, in percent."""
    return [p for p in PERCENTS if p > announced and 100 * ended_count >= p * total_count > 0]


def shown_items(items: Iterable[tuple[int, str | None]]) -> list[dict[str, object]]:
    """Return as many failed items, by index and `custom_id`, as a message may contain."""
    shown: list[dict[str, object]] = []
    size = 0
    for index, custom_id in islice(items, ITEMS_MAX):
        entry: dict[str, object] = {"index": index, "custom_id": custom_id}
        size += len(msgspec.json.encode(entry)) + 1
        if size > _ITEMS_BYTES_MAX:
            break
        shown.append(entry)
    return shown
