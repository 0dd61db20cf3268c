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
from results.retention.batch_removal import BatchDataRemoval
from results.retention.object_removal import KeyDestruction
from results.retention.orphan_sweep import OrphanSweep, orphan_lease
from results.retention.sweep import RetentionSweep
from results.settings import RetentionSettings
from storage.crypto.body_ciphers import BodyDirection, CipherContext
from storage.crypto.data_keys import DataKeys
from storage.objects.local_object_store import LocalObjectStore
from storage.objects.object_store import write_object
from storage.postgres.items import items
from tenancy.tables import tenants
from tenancy.tenants import set_zero_retention
from tests.integration.jobs.rows import add_file, add_tenant
from tests.integration.results.outcomes import (
    add_running_job,
    count,
    days_ago,
    execute,
    failed,
    fetch,
    job,
    keys,
    ledger,
    outcome,
    record_deletions,
    scalars,
    settle,
)
from tests.integration.results.test_finalisation import finalise_next, lines
from tests.integration.results.test_retention import ended_job
from topics.records.records import ItemOutcome

HOURS = 2.0
NAMES = ("a", "b", "c", "d")


@pytest.fixture
def input_key(store: LocalObjectStore) -> str:
    key = f"files/{new_uuid().hex}"
    write_object(store, key, b"".join(b'{"custom_id":"%b"}\n' % name.encode() for name in NAMES))
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
    job_id = settle(engine, *given, zero_retention=True, input_key=input_key, input_bytes=1000)
    large = f"{answer_prefix(job_id)}1"
    write_object(store, large, encrypted_row(store, job_id, given[1])["body"])
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
    where = (items.c.job_id == job_id, items.c.item_index == index)
    execute(engine, sa.update(items).where(*where).values(**fields))


def file_lines(engine: sa.Engine, store: LocalObjectStore, job_id: UUID) -> dict[str, Any]:
    """The lines of a job's files by custom id."""
    row = job(engine, job_id)
    files_of = [row[name] for name in ("output_file_id", "error_file_id") if row[name]]
    found = [line for file_id in files_of for line in lines(engine, store, file_id)]
    return {
        line["custom_id"]: line["error"]["code"] if line["error"] else line["response"]["body"]
        for line in found
    }


def test_output_files_are_decrypted(
    engine: sa.Engine, store: LocalObjectStore, input_key: str
) -> None:
    job_id = settled(engine, store, input_key)
    finalise_next(engine, store)
    first, error = {"answer": 0}, {"error": {"message": "no"}}
    found = file_lines(engine, store, job_id)
    assert found == {"a": first, "b": {"answer": 1}, "c": first, "d": error}
    assert keys(store, "answers/") == set()


def test_undecryptable_answer_fails_only_its_line(
    engine: sa.Engine, store: LocalObjectStore, input_key: str
) -> None:
    job_id = settled(engine, store, input_key)
    change(engine, job_id, 0, body=b'{"answer":"in clear"}')
    change(engine, job_id, 2, copied_from=None)  # an answer in the place of another
    finalise_next(engine, store)
    unreadable = "answer_unreadable"
    found = file_lines(engine, store, job_id)
    assert (found["a"], found["b"], found["c"]) == (unreadable, {"answer": 1}, unreadable)


def test_lost_key_fails_the_lines_and_not_the_process(
    engine: sa.Engine, store: LocalObjectStore, input_key: str
) -> None:
    job_id = settled(engine, store, input_key)
    store.delete(job_key_name(job_id))
    finalise_next(engine, store)
    assert job(engine, job_id)["state"] == "completed"
    assert file_lines(engine, store, job_id) == dict.fromkeys(NAMES, "key_gone")


def sweep(engine: sa.Engine, store: LocalObjectStore) -> None:
    settings = RetentionSettings(zero_retention_hours=HOURS)
    RetentionSweep(engine, store, settings, "me").run_once()


def make_zero_retention(engine: sa.Engine, store: LocalObjectStore, job_id: UUID) -> UUID:
    """Make a job and its tenant zero-retention."""
    DataKeys(store, SystemClock()).load_or_create(job_key_name(job_id))
    tenant_id: UUID = job(engine, job_id)["tenant_id"]
    execute(
        engine,
        sa.update(jobs).where(jobs.c.id == job_id).values(zero_retention=True),
        sa.update(tenants).where(tenants.c.id == tenant_id).values(zero_retention=True),
    )
    return tenant_id


def zero_retention_job(engine: sa.Engine, store: LocalObjectStore, **columns: Any) -> UUID:
    """A zero-retention batch that ended some hours ago."""
    job_id = ended_job(engine, 0.2)
    make_zero_retention(engine, store, job_id)
    if columns:
        execute(engine, sa.update(jobs).where(jobs.c.id == job_id).values(columns))
    return job_id


def test_zero_retention_batches_are_deleted_early(
    engine: sa.Engine, store: LocalObjectStore
) -> None:
    past, recent, others = (ended_job(engine, days) for days in (0.2, 0.05, 0.2))
    for job_id in (past, recent):
        make_zero_retention(engine, store, job_id)
    bill = ledger(engine, past)

    sweep(engine, store)

    assert job(engine, past)["deleted_at"] is not None
    assert keys(store, "keys/") == {job_key_name(recent)}
    assert [job(engine, one)["deleted_at"] for one in (recent, others)] == [None, None]
    assert ledger(engine, past) == bill


def test_keys_are_destroyed_before_rows_are_removed(
    engine: sa.Engine, store: LocalObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As if others had all of its turn.
    monkeypatch.setattr(BatchDataRemoval, "run_once", lambda *_: 0)
    past = [zero_retention_job(engine, store) for _ in range(3)]

    sweep(engine, store)

    assert [job(engine, one)["removal_due_at"] is None for one in past] == [False] * 3
    assert keys(store, "keys/") == set()


DELETED = {"deleted_at": sa.func.now(), "removal_due_at": sa.func.now()}


def test_refused_key_blocks_no_other(
    engine: sa.Engine, store: LocalObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [job_key_name(zero_retention_job(engine, store, **DELETED)) for _ in range(3)]
    asked = record_deletions(monkeypatch, store, names[:1])
    destruction = KeyDestruction(engine, store)
    destruction.run_once()
    assert keys(store, "keys/") == {names[0]}
    destruction.run_once()
    assert sorted(asked) == sorted([*names, names[0]])


def test_key_of_a_batch_is_destroyed_once(
    engine: sa.Engine, store: LocalObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = zero_retention_job(engine, store, **DELETED)
    asked = record_deletions(monkeypatch, store)
    removal = BatchDataRemoval(engine, store)
    for _ in range(3):
        removal.run_once(1)
    assert job(engine, job_id)["removal_due_at"] is None
    assert asked.count(job_key_name(job_id)) == 1


def unused_file(engine: sa.Engine, tenant_id: UUID, *, days: float) -> UUID:
    """An uploaded file that no batch names."""
    with engine.begin() as connection:
        file_id: UUID = add_file(connection, tenant_id, filename="telling").id
    execute(engine, sa.update(files).where(files.c.id == file_id).values(created_at=days_ago(days)))
    return file_id


def test_files_older_than_zero_retention_are_kept(
    engine: sa.Engine, store: LocalObjectStore
) -> None:
    with engine.begin() as connection:
        tenant_id = add_tenant(connection)
        set_zero_retention(connection, tenant_id, on=True)
    execute(engine, sa.update(tenants).values(zero_retention_since=days_ago(1)))
    before, after = (unused_file(engine, tenant_id, days=n) for n in (1.1, 0.9))

    sweep(engine, store)

    ended = sa.select(files.c.id).where(files.c.deleted_at.is_not(None))
    assert scalars(engine, ended) == [after]
    assert count(engine, files, files.c.id == before) == 1


def test_unused_zero_retention_files_are_deleted_early(
    engine: sa.Engine, store: LocalObjectStore
) -> None:
    job_id = add_running_job(engine, 1, created_at=days_ago(1))
    unused = unused_file(engine, make_zero_retention(engine, store, job_id), days=1)
    execute(engine, sa.update(files).values(created_at=days_ago(1)))
    named = job(engine, job_id)["input_file_id"]

    sweep(engine, store)

    with engine.begin() as connection:
        mark_removed(connection, [unused])
    query = sa.select(files.c.id, files.c.deleted_at.is_(None), files.c.filename)
    rows = {row.id: tuple(row)[1:] for row in fetch(engine, query)}
    assert rows == {named: (True, "in.jsonl"), unused: (False, "")}


def test_keys_without_a_job_are_orphans(
    engine: sa.Engine, store: LocalObjectStore, tmp_path: Path
) -> None:
    kept = zero_retention_job(engine, store)
    zero_retention_job(engine, store, deleted_at=sa.func.now())
    write_object(store, "keys/calls/api-1-7", bytes(32))
    old_s = time.time() - 7200
    for path in (tmp_path / "objects/keys").rglob("*"):
        os.utime(path, (old_s, old_s))
    write_object(store, "keys/calls/api-1-8", bytes(32))

    OrphanSweep(engine, store, 3600, orphan_lease(engine, "test", interval_s=1)).run_once()

    assert keys(store, "keys/") == {job_key_name(kept), "keys/calls/api-1-8"}
