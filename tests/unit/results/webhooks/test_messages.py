"""Goal: messages are small and announce each progress mark once."""

import json
from uuid import uuid4

from openai.types.webhooks import BatchCompletedWebhookEvent

from results.webhooks.events.messages import (
    EVENT_TYPES,
    ITEMS_MAX,
    STATE_EVENTS,
    crossed_percents,
    job_message,
    shown_items,
)


def test_official_client_parses_every_event() -> None:
    message = job_message((uuid4(), "batch.completed"), uuid4(), uuid4(), 1_700_000_000.9)
    event = BatchCompletedWebhookEvent.model_validate_json(message.body)

    assert event.id == f"evt_{message.message_id.hex}"
    assert event.created_at == 1_700_000_000
    assert message.job_id is not None
    assert event.data.id == f"batch_{message.job_id.hex}"
    assert json.loads(message.body)["data"].keys() == {"id"}


def test_every_terminal_state_has_its_event() -> None:
    assert {
        state: f"batch.{state}" for state in ("completed", "failed", "expired", "cancelled")
    } == STATE_EVENTS
    assert len(set(EVENT_TYPES)) == len(EVENT_TYPES)


def test_each_mark_is_crossed_once() -> None:
    marks = {(0, 24, 100): [], (0, 25, 100): [25], (25, 49, 100): [], (25, 99, 100): [50, 75]}
    marks |= {(75, 100, 100): [], (0, 1, 3): [25], (0, 0, 0): []}
    assert {given: crossed_percents(*given) for given in marks} == marks


def test_failed_items_fit_a_payload() -> None:
    long = [(index, "é" * 512) for index in range(ITEMS_MAX)]
    short = [(index, f"id-{index}") for index in range(2 * ITEMS_MAX)]

    assert len(shown_items(short)) == ITEMS_MAX
    assert 0 < len(shown_items(long)) < ITEMS_MAX
    assert len(json.dumps(shown_items(long), ensure_ascii=False).encode()) < 18_000
