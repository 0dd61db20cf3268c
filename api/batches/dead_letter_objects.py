"""Representation of dead letters in responses, and their ids."""

import re
from typing import Any, Final
from uuid import UUID

import msgspec
import sqlalchemy as sa

from api.resources import seconds
from core.ids import JOB, public_id
from results.views.dead_letter_queries import DeadLetterPosition, DeadLetterView, code_of_row

_PREFIX: Final = "dead"
_ID: Final = re.compile(r"dead_([0-9a-f]{32})_(0|[1-9][0-9]{0,8})")


def parse_dead_letter_id(text: str) -> DeadLetterPosition | None:
    """Return the item of an id, or None when it is not an id of a dead letter."""
    match = _ID.fullmatch(text)
    return None if match is None else DeadLetterPosition(UUID(hex=match[1]), int(match[2]))


def dead_letter_object(row: sa.Row[Any]) -> dict[str, object]:
    """Return a dead letter as lists show it."""
    redriven_by: UUID | None = row.redriven_job_id
    return {
        "id": f"{_PREFIX}_{row.job_id.hex}_{row.item_index}",
        "object": "dead_letter",
        "batch_id": public_id(JOB, row.job_id),
        "index": row.item_index,
        "custom_id": row.custom_id,
        "code": code_of_row(row),
        "message": row.error_message,
        "status_code": row.status_code or None,
        "attempts": row.attempt,
        "failed_at": seconds(row.failed_at),
        "redriven_by": None if redriven_by is None else public_id(JOB, redriven_by),
    }


def dead_letter_detail_object(view: DeadLetterView, body: bytes | None) -> dict[str, object]:
    """Return a dead letter with all attempts, and its last response if that is known."""
    row = view.row
    return {
        **dead_letter_object(row),
        "endpoint": row.endpoint,
        "history": [
            {
                "attempt": attempt.attempt,
                "status_code": attempt.status_code or None,
                "code": attempt.code,
                "failed_at": seconds(attempt.failed_at),
            }
            for attempt in view.attempts
        ],
        "response": None if body is None else _json_or_text(body),
    }


def _json_or_text(body: bytes) -> object:
    try:
        msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return body.decode(errors="replace")
    return msgspec.Raw(body)
