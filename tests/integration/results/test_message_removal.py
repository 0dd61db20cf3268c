"""Goal: messages about items are removed with their batch, however many there are."""

from uuid import UUID

import pytest
import sqlalchemy as sa

from core.ids import new_uuid
from results.retention import batch_removal
from results.retention.batch_removal import messages_query
from results.retention.deletion import delete_batch
from results.webhooks.events.messages import ITEM_FAILED
from results.webhooks.tables import (
    webhook_attempts,
    webhook_deliveries,
    webhook_endpoints,
    webhook_messages,
)
from storage.objects.local_object_store import LocalObjectStore
from tests.integration.results.outcomes import count, execute, fetch, job
from tests.integration.results.test_deletion import ended, remove


def add_messages(engine: sa.Engine, job_id: UUID, event_type: str, number: int) -> None:
    """Add messages about a job, each with a delivery and an attempt."""
    endpoint_id, tenant_id = new_uuid(), job(engine, job_id)["tenant_id"]
    ids = [new_uuid() for _ in range(number)]
    endpoint = {"id": endpoint_id, "name": "", "url": "", "event_types": []}
    its = {"tenant_id": tenant_id, "lane": "e"}
    told = {"tenant_id": tenant_id, "job_id": job_id, "event_type": event_type, "body": b"{}"}
    tried = {"number": 1, "started_at": sa.func.now(), "duration_ms": 1}
    of = [{"endpoint_id": endpoint_id, "message_id": x} for x in ids]
    execute(
        engine,
        webhook_endpoints.insert().values(endpoint | its),
        webhook_messages.insert().values([told | {"id": x} for x in ids]),
        webhook_deliveries.insert().values([one | its for one in of]),
        webhook_attempts.insert().values([one | tried for one in of]),
    )


def test_messages_of_a_deleted_batch_are_removed_in_slices(
    engine: sa.Engine, store: LocalObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_removal, "SLICE_MESSAGES", 2)
    job_id, kept = ended(engine, store), ended(engine, store)
    add_messages(engine, job_id, ITEM_FAILED, 5)
    add_messages(engine, job_id, "batch.completed", 1)
    add_messages(engine, kept, ITEM_FAILED, 1)
    with engine.connect() as delivering:
        its = sa.select(webhook_messages.c.id).where(webhook_messages.c.job_id == job_id)
        delivering.execute(its.with_for_update())
        with engine.begin() as connection:
            connection.execute(sa.text("SET LOCAL lock_timeout = '300ms'"))
            tenant_id = job(engine, job_id)["tenant_id"]
            delete_batch(connection, tenant_id, job_id, key_id=new_uuid())
    with engine.begin() as connection:
        assert connection.execute(messages_query(job_id)).rowcount == 2

    remove(engine, store)

    query = sa.select(webhook_messages.c.job_id, webhook_messages.c.event_type)
    assert {tuple(row) for row in fetch(engine, query)} == {
        (job_id, "batch.completed"),
        (kept, ITEM_FAILED),
    }
    assert [count(engine, table) for table in (webhook_deliveries, webhook_attempts)] == [2, 2]
