"""Goal: all data of a deleted tenant is removed, what others have stays; ledger and audit stay."""

from uuid import UUID

import pytest
import sqlalchemy as sa

from core.ids import new_uuid, public_id
from jobs.tables.files import files
from jobs.tables.idempotency import idempotency_keys
from jobs.tables.jobs import jobs
from results.retention.object_removal import FileRemoval, IdempotencyKeyRemoval
from results.retention.sweep import RetentionSweep
from results.retention.tenant_erasure import TenantErasure
from results.settings import RetentionSettings
from results.webhooks.tables import (
    webhook_callback_secrets,
    webhook_endpoints,
    webhook_messages,
)
from storage.objects.local_object_store import LocalObjectStore
from storage.objects.object_store import write_object
from tenancy.api_keys import authenticate, create_key
from tenancy.audit_reading import read_entries, verify_chain
from tenancy.deletions import deletions
from tenancy.installation_log import INSTALLATION
from tenancy.tables import api_keys, tenants
from tenancy.tenant_deletion import delete_tenant
from tenancy.tenants import TenantNotFoundError, create_tenant, find_tenant
from tests.integration.jobs.rows import add_file
from tests.integration.results.outcomes import (
    add_running_job,
    count,
    execute,
    job,
    keys,
    ledger,
    outcome,
    scalars,
    write,
)
from tests.integration.results.test_deletion import ended, item_count
from tests.integration.results.test_single_requests import add_key

AT_ONCE = "UPDATE tenants SET deleted_at = now() - interval '2 hours' WHERE deleted_at IS NOT NULL"
DUE = "UPDATE files SET expires_at = now() - interval '1 hour' WHERE deleted_at IS NOT NULL"
OF_A_TENANT = (files, jobs, idempotency_keys, api_keys, webhook_messages, webhook_callback_secrets)


def add_others(engine: sa.Engine, store: LocalObjectStore, tenant_id: UUID) -> None:
    """Give a tenant a key, an upload, a saved answer, and what webhooks have."""
    key = f"files/upload-{tenant_id.hex}"
    write_object(store, key, b"x")
    saved_key = f"idempotency/{tenant_id.hex}"
    write_object(store, saved_key, b"x")
    endpoint = {"name": "n", "url": "https://a", "event_types": [], "lane": f"e:{tenant_id}"}
    secret = {"sealed_secret": b"s", "secret_hint": "s"}
    message = {"event_type": "batch.completed", "body": b"{}"}
    with engine.begin() as connection:
        add_file(connection, tenant_id, object_key=key, filename="our names")
        add_key(connection, tenant_id, "k", saved_key, 600.0)
        connection.execute(
            webhook_endpoints.insert().values(id=new_uuid(), tenant_id=tenant_id, **endpoint)
        )
        connection.execute(webhook_callback_secrets.insert().values(tenant_id=tenant_id, **secret))
        connection.execute(
            webhook_messages.insert().values(id=new_uuid(), tenant_id=tenant_id, **message)
        )


def sweep(engine: sa.Engine, store: LocalObjectStore, **settings: float) -> None:
    """Run what a finaliser and the role `webhooks` do, as a new process."""
    days = RetentionSettings.model_validate({"tombstone_days": 400.0} | settings)
    RetentionSweep(engine, store, days, new_uuid().hex).run_once()
    execute(engine, sa.text("DELETE FROM sweep_leases"))
    execute(engine, sa.text(DUE))
    FileRemoval(engine, store).run_once()
    IdempotencyKeyRemoval(engine, store).run_once()
    execute(engine, sa.text("DELETE FROM webhook_endpoints WHERE disabled_reason = 'deleted'"))


def rows(engine: sa.Engine, table: sa.Table, tenant_id: UUID) -> int:
    return count(engine, table, table.c.tenant_id == tenant_id)


def test_everything_of_a_deleted_tenant_is_removed(
    engine: sa.Engine, store: LocalObjectStore
) -> None:
    job_id, other_id = ended(engine, store), ended(engine, store)
    tenant_id, other = (UUID(str(job(engine, one)["tenant_id"])) for one in (job_id, other_id))
    add_others(engine, store, other)
    kept = {key for key in keys(store) if job_id.hex not in key}
    add_others(engine, store, tenant_id)
    bill, before = ledger(engine, job_id), {t.name: rows(engine, t, other) for t in OF_A_TENANT}
    with engine.begin() as connection:
        key = create_key(connection, tenant_id, "k")
        delete_tenant(connection, tenant_id)
        assert authenticate(connection, key.secret) is None

    sweep(engine, store)
    sweep(engine, store)
    assert item_count(engine, job_id) == 0
    assert keys(store) == kept
    for table in (idempotency_keys, api_keys, webhook_messages, webhook_callback_secrets):
        assert rows(engine, table, tenant_id) == 0, table.name
    assert scalars(engine, sa.select(files.c.filename).where(files.c.tenant_id == tenant_id)) == [
        ""
    ] * rows(engine, files, tenant_id)
    assert scalars(engine, sa.select(tenants.c.erased_at).where(tenants.c.id == tenant_id)) == [
        None
    ]

    execute(engine, sa.text(AT_ONCE))
    sweep(engine, store)  # marks it as erased
    sweep(engine, store, tombstone_days=1e-9)  # removes tombstones
    sweep(engine, store, tombstone_days=1e-9)  # and then the row
    assert count(engine, tenants, tenants.c.id == tenant_id) == 0
    assert {t.name: rows(engine, t, other) for t in OF_A_TENANT} == before
    assert keys(store) == kept
    assert item_count(engine, other_id) == 4
    assert ledger(engine, job_id) == bill
    assert bill["item_count"] == 4
    what = scalars(engine, sa.select(deletions.c.what).where(deletions.c.tenant_id == tenant_id))
    assert {"tenant", "batch", "batch_bodies", "file"} <= {*what}
    with engine.connect() as connection:
        for chain in (tenant_id, INSTALLATION):
            assert verify_chain(connection, chain, {}).mismatch is None
            newest, _ = read_entries(connection, chain, after=None, limit=1) or ([], False)
            assert (newest[0].action, newest[0].subject) == (
                "tenant.deleted",
                public_id("ten", tenant_id),
            )


def test_running_jobs_of_a_deleted_tenant_are_cancelled(
    engine: sa.Engine, store: LocalObjectStore
) -> None:
    """It is not erased before they have ended; a job of another tenant goes on."""
    job_id, other_id = add_running_job(engine, 2), add_running_job(engine, 2)
    write(engine, job_id, outcome(0))
    with engine.begin() as connection:
        delete_tenant(connection, UUID(str(job(engine, job_id)["tenant_id"])))
    execute(engine, sa.text(AT_ONCE))
    sweep(engine, store)
    assert job(engine, job_id)["close_reason"] == "cancelled"
    assert job(engine, other_id)["close_reason"] is None
    assert scalars(
        engine, sa.select(tenants.c.erased_at).where(tenants.c.deleted_at.is_not(None))
    ) == [None]


def test_a_key_that_came_too_late_is_removed(engine: sa.Engine, store: LocalObjectStore) -> None:
    with engine.begin() as connection:
        tenant_id = create_tenant(connection, "late")
        delete_tenant(connection, tenant_id)
        late = create_key(connection, tenant_id, "of a request that had begun")
        assert authenticate(connection, late.secret) is None
    sweep(engine, store)
    assert rows(engine, api_keys, tenant_id) == 0


def test_a_tenant_is_deleted_once_and_its_name_is_free(engine: sa.Engine) -> None:
    with engine.begin() as connection:
        tenant_id = create_tenant(connection, "acme")
        delete_tenant(connection, tenant_id)
        for unknown in (tenant_id, new_uuid()):
            with pytest.raises(TenantNotFoundError):
                delete_tenant(connection, unknown)
        with pytest.raises(TenantNotFoundError):
            find_tenant(connection, "acme")
        with pytest.raises(TenantNotFoundError):
            find_tenant(connection, f"deleted {public_id('ten', tenant_id)}")
        assert create_tenant(connection, "acme") != tenant_id


def test_without_deleted_tenants_the_sweep_asks_once(engine: sa.Engine) -> None:
    asked: list[str] = []
    sa.event.listen(engine, "before_cursor_execute", lambda *facts: asked.append(facts[2]))
    erasure = TenantErasure(engine, tombstones=None)  # type: ignore[arg-type]  # never used
    erasure.run_once()
    assert len([statement for statement in asked if "tenants" in statement]) == 1
