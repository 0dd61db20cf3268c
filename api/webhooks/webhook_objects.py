"""Representation of webhook endpoints and deliveries in responses."""

from typing import Any

import sqlalchemy as sa

from api.resources import seconds
from core.ids import EVENT, JOB, public_id
from results.webhooks.delivery.delivery_history import DeliveryHistory
from results.webhooks.endpoints.endpoints import ENDPOINT


def endpoint_object(row: sa.Row[Any]) -> dict[str, object]:
    """Return an endpoint without its secret."""
    return {
        "id": public_id(ENDPOINT, row.id),
        "object": "webhook_endpoint",
        "created_at": seconds(row.created_at),
        "updated_at": seconds(row.updated_at),
        "name": row.name,
        "url": row.url,
        "event_types": row.event_types,
        "signing_secret_hint": row.secret_hint or None,
        "millrace": {
            "enabled": row.disabled_at is None,
            "disabled_at": seconds(row.disabled_at),
            "disabled_reason": row.disabled_reason,
            "batch_id": None if row.job_id is None else public_id(JOB, row.job_id),
        },
    }


def delivery_object(history: DeliveryHistory) -> dict[str, object]:
    """Return a delivery with its attempts."""
    row = history.delivery
    return {
        "id": public_id(EVENT, row.message_id),
        "object": "webhook_endpoint.delivery",
        "event_type": row.event_type,
        "batch_id": None if row.job_id is None else public_id(JOB, row.job_id),
        "status": row.state,
        "is_test": row.is_test,
        "created_at": seconds(row.created_at),
        "next_try_at": seconds(row.next_try_at) if row.state == "pending" else None,
        "ended_at": seconds(row.ended_at),
        "attempts": [
            {
                "number": attempt.number,
                "started_at": seconds(attempt.started_at),
                "duration_ms": attempt.duration_ms,
                "status_code": attempt.status_code,
                "error_code": attempt.error_code,
            }
            for attempt in history.attempts
        ],
    }
