"""Representation of items in responses."""

from typing import Any, Final
from uuid import UUID

from api.resources import seconds, usage_object
from core.ids import JOB, public_id
from results.finaliser.output_lines import ERROR_MESSAGES
from results.views.item_status import ItemFailure, ItemStatus, ItemView
from results.views.result_sources import ResultSource

ITEM: Final = f"{JOB}_req"
"""Prefix of item ids. The `id` of a line in a result file has it, too."""

_NOT_TERMINAL: Final = frozenset(
    {ItemStatus.PENDING, ItemStatus.QUEUED, ItemStatus.DISPATCHED, ItemStatus.RETRYING}
)


def item_id(job_id: UUID, index: int) -> str:
    """Return the id of an item."""
    return f"{ITEM}_{job_id.hex}{index:08x}"


def item_object(source: ResultSource, item: ItemView) -> dict[str, Any]:
    """Return an item with every key, null if unknown."""
    row = item.row
    has_ended = item.status not in _NOT_TERMINAL
    return {
        "id": item_id(source.job_id, item.index),
        "object": "batch.item",
        "batch_id": public_id(JOB, source.job_id),
        "index": item.index,
        "custom_id": row.custom_id,
        "status": item.status.value,
        "status_is_derived": not has_ended,
        "attempts": row.attempt if has_ended else _attempts(item),
        "retry_at": seconds(row.due_at) if item.status is ItemStatus.RETRYING else None,
        "worker": item.replica_id if item.status is ItemStatus.DISPATCHED else None,
        "model_version": source.job.model_version,
        "status_code": row.status_code or None,
        "error": _error(item) if has_ended else None,
        "usage": usage_object(row) if has_ended else None,
        "finished_at": seconds(row.finished_at),
        "copied_from": (
            None if row.copied_from is None else item_id(source.job_id, row.copied_from)
        ),
        "failures": [_failure(failure) for failure in item.failures],
    }


def _attempts(item: ItemView) -> int:
    """Return the known executions: those that failed, and one that may be running."""
    failed = max((failure.attempt for failure in item.failures), default=0)
    return failed + (item.status is ItemStatus.DISPATCHED)


def _error(item: ItemView) -> dict[str, str | None] | None:
    row = item.row
    if item.status is ItemStatus.SUCCEEDED or (row.error_code is None and row.status_code):
        return None
    code = row.error_code or "request_failed"
    return {"code": code, "message": row.error_message or ERROR_MESSAGES.get(code)}


def _failure(failure: ItemFailure) -> dict[str, object]:
    return {
        "attempt": failure.attempt,
        "status_code": failure.status_code or None,
        "code": failure.code,
        "failed_at": int(failure.failed_at_s),
    }
