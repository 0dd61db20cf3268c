"""Representation of files, batches and models in responses: every documented key, null if unset."""

import math
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, TypeVar
from uuid import UUID

import sqlalchemy as sa

from core.ids import FILE, JOB, public_id
from jobs.store.controls import OPEN_STATES
from jobs.store.job_schedule import job_opening
from jobs.store.model_pins import pins_of
from registry.models import ModelVersion

T = TypeVar("T")

_TIMESTAMPS: Final = (
    "in_progress_at",
    "expires_at",
    "finalizing_at",
    "completed_at",
    "failed_at",
    "expired_at",
    "cancelling_at",
    "cancelled_at",
)
_OUTCOMES: Final = ("succeeded", "failed", "cancelled", "expired")


def file_object(row: sa.Row[Any]) -> dict[str, object]:
    """Return a file. It is usable at once, so its status is always `processed`."""
    return {
        "id": public_id(FILE, row.id),
        "object": "file",
        "bytes": row.size_bytes,
        "created_at": seconds(row.created_at),
        "expires_at": seconds(row.expires_at),
        "filename": row.filename,
        "purpose": row.purpose,
        "status": "processed",
        "status_details": None,
    }


def batch_object(
    row: sa.Row[Any], estimate: Mapping[str, object] | None = None
) -> dict[str, object]:
    """Return a job with its counters.

    `estimate` has `eta` and `waiting`, which are computed only for a single job that is read.
    """
    shown = estimate or {}
    total = row.total_count or 0
    outcomes = {name: getattr(row, name) for name in _OUTCOMES}
    return {
        "id": public_id(JOB, row.id),
        "object": "batch",
        "endpoint": row.endpoint,
        "model": row.model,
        "errors": {"object": "list", "data": row.errors} if row.errors else None,
        "input_file_id": public_id(FILE, row.input_file_id),
        "completion_window": row.completion_window,
        "status": row.state,
        "output_file_id": _file_id(row.output_file_id),
        "error_file_id": _file_id(row.error_file_id),
        "created_at": seconds(row.created_at),
        **{name: seconds(getattr(row, name)) for name in _TIMESTAMPS},
        "request_counts": {"total": total, "completed": row.succeeded, "failed": row.failed},
        "usage": usage_object(row),
        "metadata": row.metadata,
        "millrace": {
            **outcomes,
            "pending": max(0, total - sum(outcomes.values())),
            "error_count": row.error_count,
            "models": _models(row),
            "deduplicate": row.deduplicate,
            "deduplicated_items": row.copied,
            "eta": shown.get("eta"),
            "waiting": shown.get("waiting"),
            **_controls(row),
        },
    }


def _models(row: sa.Row[Any]) -> list[dict[str, object]] | None:
    """Return the models that its requests name, as the job keeps them; None before validation."""
    if row.model is None:
        return None
    return [
        {"model": name, "version": pin["version"], "base_version": pin["base_version"] or None}
        for name, pin in sorted(pins_of(row).items())
    ]


def _controls(row: sa.Row[Any]) -> dict[str, object]:
    """Return the fields that the owner controls."""
    is_open = row.state in OPEN_STATES and row.close_reason is None
    return {
        "priority": row.priority,
        "paused_at": seconds(row.paused_at) if is_open else None,
        "not_before": seconds(row.not_before),
        "bulk_hours": row.bulk_hours,
        "opens_at": _opens_at(row) if is_open else None,
        "expected_late": row.expected_late,
        "quarantined_until": seconds(row.quarantined_until) if is_open else None,
        "close_reason": row.close_reason,
        "sealed": row.sealed,
        "appended_files": [
            {**file, "file_id": public_id(FILE, UUID(file["file_id"]))}
            for file in row.appended or ()
        ],
        "max_failed_items": row.max_failed_items,
        "max_failed_ratio": row.max_failed_ratio,
        "failed_ratio_sample": row.failed_ratio_sample,
        "max_total_tokens": row.max_total_tokens,
    }


def _opens_at(row: sa.Row[Any]) -> int | None:
    """Return when items of the job may run; None: now, or not within 35 days."""
    not_before_s = row.not_before.timestamp() if row.not_before else 0.0
    hours = (row.bulk_hours, row.tenant_bulk_hours)
    opens_s = job_opening(row.now.timestamp(), not_before_s, hours).opens_s
    return math.ceil(opens_s) if 0 < opens_s < math.inf else None


def model_object(model: ModelVersion) -> dict[str, object]:
    """Return a model under the name that was asked for.

    Clients display `owned_by`, which marks a simulated model. `millrace.model` is the model's own
    name, which an alias does not show; `millrace.base` is of adapters.
    """
    simulated = model.engine == "simulated"
    return {
        "id": model.requested_name,
        "object": "model",
        "created": seconds(model.created_at),
        "owned_by": "millrace-simulated" if simulated else "millrace",
        "millrace": {
            "version": model.version,
            "engine": model.engine,
            "endpoints": list(model.endpoints),
            "model": model.name,
            "verification": model.verification,
            "base": model.base_version,
        },
    }


def page_object(
    rows: Sequence[T], has_more: bool, show: Callable[[T], dict[str, object]]
) -> dict[str, object]:
    """Return a page of a list. Clients request the next page with `last_id`."""
    data = [show(row) for row in rows]
    return {
        "object": "list",
        "data": data,
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
        "has_more": has_more,
    }


def usage_object(row: sa.Row[Any]) -> dict[str, object]:
    """Return the token usage of a job or an item."""
    return {
        "input_tokens": row.input_tokens,
        "input_tokens_details": {"cached_tokens": row.cached_tokens},
        "output_tokens": row.output_tokens,
        "output_tokens_details": {"reasoning_tokens": row.reasoning_tokens},
        "total_tokens": row.input_tokens + row.output_tokens,
    }


def failure_object(attempt: Any) -> dict[str, object]:
    """Return a failed execution of an item."""
    return {
        "attempt": attempt.attempt,
        "status_code": attempt.status_code or None,
        "code": attempt.code,
        "failed_at": seconds(attempt.failed_at),
    }


def _file_id(file_id: UUID | None) -> str | None:
    return None if file_id is None else public_id(FILE, file_id)


def seconds(timestamp: datetime | None) -> int | None:
    """Return a timestamp in the format of OpenAI's API."""
    return None if timestamp is None else int(timestamp.timestamp())
