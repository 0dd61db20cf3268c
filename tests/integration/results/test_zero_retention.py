"""Goal: encrypted rows become readable files, and expired batches are removed with their keys."""

import os
import time
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import sqlalchemy as sa

from core.clock import SystemClock
from core.ids import new_uuid
from core.object_names import answer_prefix, job_key_name
from jobs.store.removable_objects import mark_removed
from jobs.tables.files import files
from jobs.tables.jobs import jobs
from results.finaliser.finalisation import finalise
from results.retention.batch_removal import BatchDataRemoval
from results.retention.object_removal import KeyDestruction
from results.retention.orphan_sweep import OrphanSweep
from results.retention.sweep import RetentionSweep
from results.settings import RetentionSettings
from storage.crypto.body_ciphers import BodyDirection, CipherContext
from storage.crypto.data_keys import DataKeys
from storage.objects.errors import ObjectStoreRefusedError
from storage.objects.local_object_store import LocalObjectStore
from storage.postgres.items import items
from tenancy.tables import tenants
from tenancy.tenants import set_zero_retention
from tests.integration.jobs.rows import add_tenant
from tests.integration.results.outcomes import add_running_job, failed, job, ledger, outcome
from tests.integration.results.test_finalisation import acquire_lease, always, lines, put, settle
from tests.integration.results.test_retention import ended_job, long_ago
from topics.records.records import ItemOutcome

HOURS = 2.0
NAMES = ("a", "b", "c", "d")


@pytest.fixture
def store(tmp_path: Path) -> LocalObjectStore:
    return LocalObjectStore(tmp_path / "objects", clock=SystemClock())


@pytest.fixture
def input_key(store: LocalObjectStore) -> str:
    key = f"files/{new_uuid().hex}"
    put(store, key, b"".join(b'{"custom_id":"%b"}\n' % name.encode() for name in NAMES))
    return key


def encrypted_row(
    store: LocalObjectStore, job_id: UUID, given: ItemOutcome, **fields: Any
) -> dict[str, Any]:
    """The encrypted body of an item, as a replica writes it."""
    cipher = DataKeys(store, SystemClock()).load_or_create(job_key_name(job_id))
    body = cipher.encrypt(given.body, CipherContext(job_id, BodyDirection.OUT, given.index))
    return {"body": body, "custom_id": None} | fields


def settled(engine: sa.Engine, store: LocalObjectStore, input_key: str) -> UUID:
    """Two encrypted answers (one in an object), a copy of the first, and an error."""
    given = [outcome(0), outcome(1), outcome(2, body=b'{"answer":0}'), failed(3)]
    job_id = settle(engine, given, zero_retention=True, input_key=input_key, input_bytes=1000)
    large = f"{answer_prefix(job_id)}1"
    put(store, large, encrypted_row(store, job_id, given[1])["body"])
    values = {
        0: encrypted_row(store, job_id, given[0]),
        1: {"body": None, "body_key": large, "custom_id": None},
        2: encrypted_row(store, job_id, given[0], copied_from=0),
        3: encrypted_row(store, job_id, given[3]),
    }
    for index, fields in values.items():
        change(engine, job_id, index, **fields)
    return job_id


def change(engine: sa.Engine, job_id: UUID, index: int, **fields: Any) -> None:
    with engine.begin() as connection:
        where = (items.c.job_id == job_id, items.c.item_index == index)
        connection.execute(sa.update(items).where(*where).values(**fields))


def file_lines(engine: sa.Engine, store: LocalObjectStore, job_id: UUID) -> dict[str, Any]:
    """The lines of a job's files by custom id."""
    row = job(engine, job_id)
    found = [
        line
        for name in ("output_file_id", "error_file_id")
        if row[name] is not None
        for line in lines(engine, store, row[name])
    ]
    return {
        line["custom_id"]: line["error"]["code"] if line["error"] else line["response"]["body"]
        for line in found
    }


def test_output_files_are_decrypted(
    engine: sa.Engine, store: LocalObjectStore, input_key: str
) -> None:
    job_id = settled(engine, store, input_key)
    finalise(engine, store, acquire_lease(engine), check=always)
    first = {"answer": 0}
    error = {"error": {"message": "no"}}
    assert file_lines(engine, store, job_id) == {
        "a": first,
        "b": {"answer": 1},
        "c": first,
        "d": error,
    }
    assert list(store.list("answers/")) == []


def test_undecryptable_answer_fails_only_its_line(
    engine: sa.Engine, store: LocalObjectStore, input_key: str
) -> None:
    job_id = settled(engine, store, input_key)
    change(engine, job_id, 0, body=b'{"answer":"in clear"}')
    change(engine, job_id, 2, copied_from=None)  # an answer in the place of another
    finalise(engine, store, acquire_lease(engine), check=always)
    unreadable = "answer_unreadable"
    found = file_lines(engine, store, job_id)
    assert (found["a"], found["b"], found["c"]) == (unreadable, {"answer": 1}, unreadable)


def test_lost_key_fails_the_lines_and_not_the_process(
    engine: sa.Engine, store: LocalObjectStore, input_key: str
) -> None:
    job_id = settled(engine, store, input_key)
    store.delete(job_key_name(job_id))
    finalise(engine, store, acquire_lease(engine), check=always)
    assert job(engine, job_id)["state"] == "completed"
    assert file_lines(engine, store, job_id) == dict.fromkeys(NAMES, "key_gone")


def sweep(engine: sa.Engine, store: LocalObjectStore) -> None:
    settings = RetentionSettings(zero_retention_hours=HOURS)
    RetentionSweep(engine, store, settings, "me").run_once()


def make_zero_retention(engine: sa.Engine, store: LocalObjectStore, job_id: UUID) -> UUID:
    """Make a job and its tenant zero-retention."""
    DataKeys(store, SystemClock()).load_or_create(job_key_name(job_id))
    with engine.begin() as connection:
        its = sa.update(jobs).where(jobs.c.id == job_id).values(zero_retention=True)
        tenant_id: UUID = connection.scalar(its.returning(jobs.c.tenant_id))
        tenant = sa.update(tenants).where(tenants.c.id == tenant_id)
        connection.execute(tenant.values(zero_retention=True))
    return tenant_id


def test_zero_retention_batches_are_deleted_early(
    engine: sa.Engine, store: LocalObjectStore
) -> None:
    past, recent, others = (ended_job(engine, days_ago=d) for d in (0.2, 0.05, 0.2))
    for job_id in (past, recent):
        make_zero_retention(engine, store, job_id)
    bill = ledger(engine, past)

    sweep(engine, store)

    assert job(engine, past)["deleted_at"] is not None
    assert {found.key for found in store.list("keys/")} == {job_key_name(recent)}
    assert [job(engine, one)["deleted_at"] for one in (recent, others)] == [None, None]
    assert ledger(engine, past) == bill


def test_keys_are_destroyed_before_rows_are_removed(
    engine: sa.Engine, store: LocalObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        BatchDataRemoval, "run_once", lambda *_: 0
    )  # as if others had all of its turn
    past = [ended_job(engine, days_ago=0.2) for _ in range(3)]
    for job_id in past:
        make_zero_retention(engine, store, job_id)

    sweep(engine, store)

    assert [job(engine, one)["removal_due_at"] is None for one in past] == [False] * 3
    assert list(store.list("keys/")) == []


def test_refused_key_blocks_no_other(
    engine: sa.Engine, store: LocalObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    past = [ended_job(engine, days_ago=0.2) for _ in range(3)]
    for job_id in past:
        make_zero_retention(engine, store, job_id)
        with engine.begin() as connection:
            due = sa.update(jobs).where(jobs.c.id == job_id).values(removal_due_at=sa.func.now())
            connection.execute(due.values(deleted_at=sa.func.now()))
    refused = job_key_name(past[0])
    asked: list[str] = []
    delete = store.delete

    def deleting(key: str) -> None:
        asked.append(key)
        if key == refused:
            raise ObjectStoreRefusedError
        delete(key)

    monkeypatch.setattr(store, "delete", deleting)
    keys = KeyDestruction(engine, store)
    keys.run_once()
    assert {found.key for found in store.list("keys/")} == {refused}
    keys.run_once()
    assert sorted(asked) == sorted([*map(job_key_name, past), refused])


def test_key_of_a_batch_is_destroyed_once(
    engine: sa.Engine, store: LocalObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = ended_job(engine, days_ago=0.2)
    make_zero_retention(engine, store, job_id)
    with engine.begin() as connection:
        due = sa.update(jobs).where(jobs.c.id == job_id).values(removal_due_at=sa.func.now())
        connection.execute(due.values(deleted_at=sa.func.now()))
    asked: list[str] = []
    delete = store.delete

    def deleting(key: str) -> None:
        asked.append(key)
        delete(key)

    monkeypatch.setattr(store, "delete", deleting)
    removal = BatchDataRemoval(engine, store)
    for _ in range(3):
        removal.run_once(1)
    assert job(engine, job_id)["removal_due_at"] is None
    assert asked.count(job_key_name(job_id)) == 1


def unused_file(engine: sa.Engine, tenant_id: UUID, *, days_ago: float) -> UUID:
    """An uploaded file that no batch names."""
    file_id = new_uuid()
    with engine.begin() as connection:
        connection.execute(
            files.insert().values(
                id=file_id,
                tenant_id=tenant_id,
                purpose="batch",
                filename="telling",
                object_key=f"files/{file_id.hex}",
                size_bytes=1,
                sha256="",
                created_at=long_ago(days_ago),
            )
        )
    return file_id


def test_files_older_than_zero_retention_are_kept(
    engine: sa.Engine, store: LocalObjectStore
) -> None:
    with engine.begin() as connection:
        tenant_id = add_tenant(connection)
        set_zero_retention(connection, tenant_id, on=True)
        its = sa.update(tenants).where(tenants.c.id == tenant_id)
        connection.execute(its.values(zero_retention_since=long_ago(1)))
    before, after = (unused_file(engine, tenant_id, days_ago=n) for n in (1.1, 0.9))

    sweep(engine, store)

    with engine.connect() as connection:
        ended = sa.select(files.c.id).where(files.c.deleted_at.is_not(None))
        assert connection.scalars(ended).all() == [after]
        assert connection.scalar(sa.select(files.c.id).where(files.c.id == before)) == before


def test_unused_zero_retention_files_are_deleted_early(
    engine: sa.Engine, store: LocalObjectStore
) -> None:
    job_id = add_running_job(engine, 1, created_at=long_ago(1))
    tenant_id = make_zero_retention(engine, store, job_id)
    unused = unused_file(engine, tenant_id, days_ago=1)
    with engine.begin() as connection:
        connection.execute(sa.update(files).values(created_at=long_ago(1)))
        named = connection.scalar(sa.select(jobs.c.input_file_id).where(jobs.c.id == job_id))

    sweep(engine, store)

    with engine.begin() as connection:
        mark_removed(connection, [unused])
        query = sa.select(files.c.id, files.c.deleted_at.is_(None), files.c.filename)
        rows = {row[0]: (row[1], row[2]) for row in connection.execute(query)}
    assert rows == {named: (True, "in.jsonl"), unused: (False, "")}


def test_keys_without_a_job_are_orphans(
    engine: sa.Engine, store: LocalObjectStore, tmp_path: Path
) -> None:
    kept = ended_job(engine, days_ago=0)
    make_zero_retention(engine, store, kept)
    late = ended_job(engine, days_ago=0)
    make_zero_retention(engine, store, late)
    with engine.begin() as connection:
        gone = {"deleted_at": sa.func.now()}
        connection.execute(sa.update(jobs).where(jobs.c.id == late).values(**gone))
    put(store, "keys/calls/api-1-7", bytes(32))
    old_s = time.time() - 7200
    for path in (tmp_path / "objects/keys").rglob("*"):
        os.utime(path, (old_s, old_s))
    put(store, "keys/calls/api-1-8", bytes(32))

    OrphanSweep(engine, store, 3600).run_once()

    left = {found.key for found in store.list("keys/")}
    assert left == {job_key_name(kept), "keys/calls/api-1-8"}
