"""Goal: audit events form one chain per tenant, and every change of it is detected."""

from concurrent.futures import ThreadPoolExecutor
from uuid import UUID

import pytest
import sqlalchemy as sa

from tenancy.api_keys import create_key, revoke_key
from tenancy.audit_log import CLI, Action, record_audit_event
from tenancy.audit_reading import ChainCheck, find_chains, read_entries, verify_chain
from tenancy.tables import audit_heads, audit_log
from tenancy.tenants import create_tenant

pytestmark = pytest.mark.timeout(300)

TENANT = UUID(int=5)


def record(connection: sa.Connection, number: int = 0, tenant_id: UUID = TENANT) -> None:
    record_audit_event(
        connection,
        tenant_id=tenant_id,
        actor=CLI,
        action=Action.JOB_CREATED,
        subject=f"batch_{number}",
        details={"n": number, "is": True, "text": "é\U0001f600", "none": None, "list": ["a"]},
    )


def add(engine: sa.Engine, number: int = 0) -> None:
    with engine.begin() as connection:
        record(connection, number)


def check(engine: sa.Engine) -> ChainCheck:
    with engine.connect() as connection:
        return verify_chain(connection, TENANT, {})


def test_concurrent_events_form_one_chain_without_gaps(engine: sa.Engine) -> None:
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda number: add(engine, number), range(80)))

    found = check(engine)
    assert (found.mismatch, found.head.sequence) == (None, 80)
    with engine.connect() as connection:
        rows, more = read_entries(connection, TENANT, after=None, limit=80) or ([], True)
    assert not more
    assert [row.sequence for row in rows] == list(range(80, 0, -1))
    times = [row.created_at for row in rows]
    assert times == sorted(times, reverse=True)
    assert {row.subject for row in rows} == {f"batch_{number}" for number in range(80)}


def test_a_rolled_back_event_leaves_no_gap(engine: sa.Engine) -> None:
    add(engine)
    with engine.connect() as connection:
        record(connection, 1)
        connection.rollback()
    add(engine, 2)

    assert check(engine).head.sequence == 2


def test_tenants_do_not_wait_for_each_other(engine: sa.Engine) -> None:
    with engine.begin() as first, engine.begin() as second:
        record(first)
        record(second, 1, tenant_id=UUID(int=6))
    with engine.connect() as connection:
        assert {TENANT, UUID(int=6)} <= set(find_chains(connection))


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE audit_log SET actor = 'x'",
        "UPDATE audit_log SET actor = actor WHERE false",
        "DELETE FROM audit_log",
        "TRUNCATE audit_log",
        "DELETE FROM audit_heads",
        "TRUNCATE audit_heads",
        "UPDATE audit_heads SET sequence = 0",
        "UPDATE audit_heads SET hash = ''",
        "UPDATE audit_heads SET sequence = sequence + 2",
    ],
)
def test_postgres_rejects_every_change(engine: sa.Engine, statement: str) -> None:
    add(engine)
    with (
        pytest.raises(sa.exc.IntegrityError, match=r"append-only|moves on by one"),
        engine.begin() as connection,
    ):
        connection.execute(sa.text(statement))
    assert check(engine).mismatch is None


@pytest.mark.parametrize(
    ("table", "sequence", "reason"), [(audit_log, 1, "missing"), (audit_heads, 6, "head")]
)
def test_lost_rows_are_detected(
    engine: sa.Engine, table: sa.Table, sequence: int, reason: str
) -> None:
    for number in range(6):
        add(engine, number)
    with engine.begin() as connection:
        connection.execute(sa.text(f"ALTER TABLE {table.name} DISABLE TRIGGER USER"))
        connection.execute(sa.delete(table))

    mismatch = check(engine).mismatch
    assert mismatch is not None
    assert mismatch.sequence == sequence
    assert reason in mismatch.reason


def test_tenants_and_keys_are_recorded(engine: sa.Engine) -> None:
    with engine.begin() as connection:
        tenant_id = create_tenant(connection, "t")
        key = create_key(connection, tenant_id, "my secret name")
        assert revoke_key(connection, key.key_id)
        rows, _ = read_entries(connection, tenant_id, after=None, limit=9) or ([], False)

    assert [(row.action, row.actor, row.subject) for row in rows] == [
        ("key.revoked", "cli", f"key_{key.key_id.hex}"),
        ("key.created", "cli", f"key_{key.key_id.hex}"),
        ("tenant.created", "cli", f"ten_{tenant_id.hex}"),
    ]
    assert key.secret not in str(rows)
    assert "secret name" not in str(rows)
