"""Goal: old objects that crashes left are removed from both stores, needed objects never."""

import time
from collections.abc import Callable, Iterator
from uuid import UUID

import pytest
import sqlalchemy as sa

from core.clock import SystemClock
from core.ids import new_uuid
from core.object_names import answer_prefix
from jobs.store.files import delete_file
from jobs.store.idempotency import IdempotencyClaim, KeyScope, StoredAnswer, save_answer
from jobs.store.removable_objects import mark_removed
from results.retention import orphan_sweep
from results.retention.orphan_sweep import OrphanSweep, orphan_lease
from storage.objects.errors import ObjectStoreUnavailableError
from storage.objects.object_store import ObjectInfo, ObjectStore, write_object
from tests.integration.jobs import rows
from tests.integration.jobs.rows import add_job, add_tenant

DAY_S = 86_400.0


@pytest.fixture
def tenant_id(engine: sa.Engine) -> UUID:
    with engine.begin() as connection:
        return add_tenant(connection)


def put(store: ObjectStore, key: str) -> str:
    write_object(store, key, b"{}")
    return key


def keys(store: ObjectStore) -> set[str]:
    return {found.key for found in store.list("")}


def sweep(
    engine: sa.Engine, store: ObjectStore, *, days_later: float = 2.0, holder: str = "one"
) -> None:
    lease = orphan_lease(engine, holder, interval_s=3600)
    OrphanSweep(engine, store, (1 - days_later) * DAY_S, lease).run_once()


def execute(engine: sa.Engine, statement: str) -> None:
    with engine.begin() as connection:
        connection.execute(sa.text(statement))


def add_file(engine: sa.Engine, tenant_id: UUID, key: str) -> UUID:
    with engine.begin() as connection:
        file_id: UUID = rows.add_file(connection, tenant_id, object_key=key).id
    return file_id


def test_an_old_object_without_a_current_row_is_removed(
    engine: sa.Engine, tenant_id: UUID, store: ObjectStore
) -> None:
    kept = {put(store, f"files/{n}") for n in range(3)} | {put(store, "results/a/2/output.jsonl")}
    for key in kept:
        add_file(engine, tenant_id, key)
    orphans = {put(store, "files/lost"), put(store, "results/a/1/output.jsonl")}
    # A power cut or a restore brought it back, and its row says that it went.
    orphans.add(put(store, "files/back"))
    removed = add_file(engine, tenant_id, "files/back")
    with engine.begin() as connection:
        delete_file(connection, tenant_id, removed)
        mark_removed(connection, [removed])
    sweep(engine, store, days_later=0.5)
    assert keys(store) == kept | orphans
    for _ in range(2):
        sweep(engine, store)
        assert keys(store) == kept


def test_a_host_whose_clock_is_ahead_removes_nothing_that_is_new(
    engine: sa.Engine, store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(store, "files/new")
    monkeypatch.setattr(SystemClock, "wall_s", lambda _: time.time() + 30 * DAY_S)
    sweep(engine, store, days_later=0)
    assert keys(store) == {"files/new"}


def new_row(kind: str, tenant_id: UUID) -> tuple[str, Callable[[sa.Connection], None]]:
    """The key of an object of a kind, and what writes the row that needs it."""
    job_id = new_uuid()

    def write(connection: sa.Connection) -> None:
        if kind in {"files", "results"}:
            rows.add_file(connection, tenant_id, object_key=f"{kind}/{job_id.hex}")
        elif kind == "idempotency":
            claim = IdempotencyClaim(
                tenant_id=tenant_id,
                scope=KeyScope.CLIENT,
                key=job_id.hex,
                route="POST /v1/chat/completions",
                body_sha256=b"",
                keep_s=7 * DAY_S,
            )
            save_answer(connection, claim, StoredAnswer(200, b"", body_key=f"{kind}/{job_id.hex}"))
        else:
            request = {"kind": "request", "input_file_id": None}
            add_job(connection, tenant_id, id=job_id, state="in_progress", **request)

    key = {"answers": f"{answer_prefix(job_id)}0", "requests": f"requests/{job_id.hex}.jsonl"}
    return key.get(kind, f"{kind}/{job_id.hex}"), write


@pytest.mark.parametrize("kind", ["files", "results", "answers", "requests", "idempotency"])
def test_an_object_whose_row_is_being_written_stays(
    engine: sa.Engine, tenant_id: UUID, store: ObjectStore, kind: str
) -> None:
    key, write = new_row(kind, tenant_id)
    lost, _ = new_row(kind, tenant_id)
    put(store, key)
    put(store, lost)
    with engine.begin() as connection:
        write(connection)
        sweep(engine, store, days_later=0)  # sees the object and no row
        assert keys(store) == {key, lost}
    sweep(engine, store)
    assert keys(store) == {key}


def test_a_deleted_file_that_a_job_reads_is_not_touched(
    engine: sa.Engine, tenant_id: UUID, store: ObjectStore
) -> None:
    key = put(store, "files/read")
    file_id = add_file(engine, tenant_id, key)
    with engine.begin() as connection:
        add_job(connection, tenant_id, input_file_id=file_id, input_key=key)
        delete_file(connection, tenant_id, file_id)
    sweep(engine, store)
    assert keys(store) == {key}


def test_large_answers_are_removed_only_after_their_batch_has_ended(
    engine: sa.Engine, tenant_id: UUID, store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    with engine.begin() as connection:
        running = add_job(connection, tenant_id, state="in_progress")
        ended = add_job(connection, tenant_id, state="completed")
        request = add_job(
            connection, tenant_id, state="completed", kind="request", input_file_id=None
        )
    kept = {put(store, f"{answer_prefix(job_id)}1") for job_id in (running, request)}
    kept.add(put(store, "answers/not-of-ours"))
    put(store, f"{answer_prefix(new_uuid())}1")  # of a call whose caller died
    for number in range(3):
        put(store, f"{answer_prefix(ended)}{number}")
    listed: list[str] = []
    list_objects = store.list

    def listing(prefix: str) -> Iterator[ObjectInfo]:
        listed.append(prefix)
        return list_objects(prefix)

    with monkeypatch.context() as watched:
        watched.setattr(store, "list", listing)
        sweep(engine, store)
    assert listed.count("answers/") == 1
    assert keys(store) == kept


def test_more_objects_than_one_query_are_all_checked(
    engine: sa.Engine, tenant_id: UUID, store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("results.retention.orphan_sweep._LOOKED_UP_AT_ONCE", 4)
    for number in range(0, 20, 2):
        add_file(engine, tenant_id, put(store, f"files/{number}"))
        put(store, f"files/{number + 1}")
    sweep(engine, store)
    assert keys(store) == {f"files/{number}" for number in range(0, 20, 2)}


def test_an_unavailable_store_is_retried_later(
    engine: sa.Engine, store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unavailable(_: str) -> None:
        raise ObjectStoreUnavailableError

    put(store, "files/lost")
    with monkeypatch.context() as broken:
        broken.setattr(store, "delete", unavailable)
        sweep(engine, store)
    assert keys(store) == {"files/lost"}
    sweep(engine, store)
    assert keys(store) == set()


def test_an_upload_in_progress_is_kept(engine: sa.Engine, store: ObjectStore) -> None:
    with store.begin_upload("files/slow") as upload:
        upload.write(b"x" * 11 * 1024 * 1024)  # more than two parts
        sweep(engine, store, days_later=0.0)
        upload.complete()
    assert keys(store) == {"files/slow"}


def test_one_process_at_a_time_lists_the_store(
    engine: sa.Engine, store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second one lists nothing, and the first stops once it has lost its lease."""
    monkeypatch.setattr(orphan_sweep, "_LISTED_PER_LEASE", 2)
    list_objects = store.list

    def lose_lease(prefix: str) -> Iterator[ObjectInfo]:
        with monkeypatch.context() as other:
            other.setattr(store, "list", lambda _: pytest.fail("listed twice at once"))
            sweep(engine, store, holder="two")
        execute(engine, "UPDATE sweep_leases SET holder = 'two'")
        return list_objects(prefix)

    left = {put(store, f"files/{n}") for n in range(3)}
    with monkeypatch.context() as listing:
        listing.setattr(store, "list", lose_lease)
        sweep(engine, store, holder="one")
    assert keys(store) == left
    execute(engine, "UPDATE sweep_leases SET expires_at = now()")
    sweep(engine, store, holder="one")
    assert keys(store) == set()
