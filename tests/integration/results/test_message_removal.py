"""Goal: messages about items are removed with their batch, however many there are."""

from pathlib import Path
from uuid import UUID

import pytest
import sqlalchemy as sa

from core.clock import SystemClock
from core.ids import new_uuid
from results.retention import batch_removal
from results.retention.batch_removal import BatchDataRemoval, messages_query
from results.retention.deletion import delete_batch
from results.webhooks.events.messages import ITEM_FAILED
from results.webhooks.tables import (
    webhook_attempts,
    webhook_deliveries,
    webhook_endpoints,
    webhook_messages,
)
from storage.objects.local_object_store import LocalObjectStore
from tests.integration.results.test_deletion import ended


def add_messages(
    engine: sa.Engine, job_id: UUID, tenant_id: UUID, event_type: str, number: int
) -> None:
    """Add messages about a job, each with a delivery and an attempt."""
    endpoint_id = new_uuid()
    ids = [new_uuid() for _ in range(number)]
    its = {"tenant_id": tenant_id, "endpoint_id": endpoint_id, "lane": "e"}
    told = {"tenant_id": tenant_id, "job_id": job_id, "event_type": event_type, "body": b"{}"}
    tried = {"endpoint_id": endpoint_id, "number": 1, "started_at": sa.func.now()}
    with engine.begin() as connection:
        connection.execute(
            webhook_endpoints.insert().values(
                id=endpoint_id, tenant_id=tenant_id, name="", url="", event_types=[], lane="e"
            )
        )
        connection.execute(webhook_messages.insert().values([told | {"id": x} for x in ids]))
        connection.execute(
            webhook_deliveries.insert().values([its | {"message_id": x} for x in ids])
        )
        connection.execute(
            webhook_attempts.insert().values(
                [tried | {"message_id": x, "duration_ms": 1} for x in ids]
            )
        )


def test_messages_of_a_deleted_batch_are_removed_in_slices(
    engine: sa.Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_removal, "SLICE_MESSAGES", 2)
    store = LocalObjectStore(tmp_path / "objects", clock=SystemClock())
    job_id, tenant_id = ended(engine, store)
    kept, its_tenant = ended(engine, store)
    add_messages(engine, job_id, tenant_id, ITEM_FAILED, 5)
    add_messages(engine, job_id, tenant_id, "batch.completed", 1)
    add_messages(engine, kept, its_tenant, ITEM_FAILED, 1)
    with engine.connect() as delivering:
        its = sa.select(webhook_messages.c.id).where(webhook_messages.c.job_id == job_id)
        delivering.execute(its.with_for_update())
        with engine.begin() as connection:
            connection.execute(sa.text("SET LOCAL lock_timeout = '300ms'"))
            delete_batch(connection, tenant_id, job_id, key_id=new_uuid())
    with engine.begin() as connection:
        assert connection.execute(messages_query(job_id)).rowcount == 2

    BatchDataRemoval(engine, store).run_once(100_000)

    with engine.connect() as connection:
        query = sa.select(webhook_messages.c.job_id, webhook_messages.c.event_type)
        assert {tuple(row) for row in connection.execute(query)} == {
            (job_id, "batch.completed"),
            (kept, ITEM_FAILED),
        }
        for table in (webhook_deliveries, webhook_attempts):
            assert connection.scalar(sa.select(sa.func.count()).select_from(table)) == 2
