"""Goal: single requests reach their terminal state and leave no objects behind."""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import pytest
import sqlalchemy as sa

from core.ids import REQUEST, new_uuid, public_id
from core.object_names import answer_prefix
from core.outcomes import Outcome
from core.states import CloseReason
from jobs.errors import InvalidFieldError, JobNotFoundError, RequestEndedError, RequestNotFoundError
from jobs.expansion.emission import parse_item
from jobs.expansion.job_loads import open_jobs
from jobs.input.line_reader import input_lines
from jobs.recovery.expiry import close_expired
from jobs.recovery.re_emit import missing_indexes
from jobs.store.batches import find_job, list_jobs
from jobs.store.idempotency import IdempotencyClaim, KeyScope, StoredAnswer, save_answer
from jobs.store.keyset_pages import PageCursor
from jobs.store.single_requests import (
    NewRequest,
    cancel_request,
    create_request,
    find_request,
    input_line,
    is_answered_well,
    request_input_key,
)
from jobs.tables.idempotency import idempotency_keys
from jobs.tables.jobs import job_counters, job_cursors
from jobs.tables.retries import item_attempts
from results.finaliser import request_finaliser
from results.finaliser.finalisation import READY
from results.finaliser.request_finaliser import RequestFinaliser, finalise_requests
from results.retention import object_removal
from results.retention.batch_removal import BatchDataRemoval
from results.retention.deletion import delete_ended_request
from results.retention.object_removal import IdempotencyKeyRemoval
from results.retention.orphan_sweep import OrphanSweep, orphan_lease
from storage.objects.errors import (
    ObjectNotFoundError,
    ObjectStoreUnavailableError,
)
from storage.objects.local_object_store import LocalObjectStore
from storage.objects.object_store import write_object
from storage.postgres.items import items
from tenancy.deletions import deletions
from tests.integration.jobs.rows import add_tenant
from tests.integration.results.outcomes import (
    close,
    count,
    failed,
    job,
    keys,
    ledger,
    outcome,
    record_deletions,
    scalars,
    write,
)
from topics.records.records import ItemOutcome

ENDPOINT = "/v1/chat/completions"
KEY_ID = new_uuid()


def add_request(engine: sa.Engine, store: LocalObjectStore, **fields: Any) -> tuple[UUID, UUID]:
    """Add a request; return its tenant and its job."""
    job_id = new_uuid()
    line = input_line(public_id(REQUEST, job_id), ENDPOINT, b'{\n"model":"small"}')
    write_object(store, request_input_key(job_id), line)
    with engine.begin() as connection:
        given: dict[str, Any] = {
            "job_id": job_id,
            "tenant_id": add_tenant(connection),
            "endpoint": ENDPOINT,
            "model": "small",
            "model_version": "1",
            "pool": "pool-small",
            "input_key": request_input_key(job_id),
            "input_bytes": len(line),
            "timeout_s": 60.0,
        }
        new = NewRequest(**(given | fields))
        create_request(connection, new)
    return new.tenant_id, job_id


def end(engine: sa.Engine, store: LocalObjectStore, job_id: UUID, item: ItemOutcome) -> None:
    write(engine, job_id, item)
    RequestFinaliser(engine, store).run_once()


def find(engine: sa.Engine, tenant_id: UUID, job_id: UUID) -> sa.Row[Any]:
    with engine.connect() as connection:
        return find_request(connection, tenant_id, job_id)


def add_key(
    connection: sa.Connection, tenant_id: UUID, key: str, body_key: str | None, keep_s: float
) -> None:
    """Record an answer under an idempotency key."""
    claim = IdempotencyClaim(
        tenant_id=tenant_id,
        scope=KeyScope.CLIENT,
        key=key,
        route="POST /v1/completions",
        body_sha256=b"",
        keep_s=keep_s,
    )
    save_answer(connection, claim, StoredAnswer(200, b"", body_key=body_key))


def test_request_completes_with_its_answer_and_no_files(
    engine: sa.Engine, store: LocalObjectStore
) -> None:
    tenant_id, job_id = add_request(engine, store)
    row = find(engine, tenant_id, job_id)
    assert (row.state, row.outcome, row.total_count) == ("in_progress", None, 1)
    end(engine, store, job_id, outcome(0))
    row = find(engine, tenant_id, job_id)
    assert (row.state, row.outcome, row.status_code) == ("completed", Outcome.SUCCEEDED, 200)
    assert row.body == b'{"answer":0}'
    assert is_answered_well(row)
    assert row.completed_at is not None
    assert (row.expired_at, row.cancelled_at) == (None, None)
    assert (row.output_file_id, row.error_file_id) == (None, None)
    assert ledger(engine, job_id)["output_tokens"] == 5
    assert keys(store) == set()
    assert scalars(engine, sa.text("SELECT count(*) FROM outbox")) == [2]  # finalizing, completed


def test_processes_choose_different_requests(
    engine: sa.Engine, store: LocalObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_finaliser, "ROUND_MAX", 2)
    job_ids = [add_request(engine, store)[1] for _ in range(7)]
    for job_id in job_ids:
        write(engine, job_id, outcome(0))
    offered: list[list[UUID]] = []

    def newest(rows: Sequence[sa.Row[Any]], count: int) -> list[sa.Row[Any]]:
        offered.append([row.id for row in rows])
        if len(offered) == 2:  # a rival has just ended what others would choose, too
            with engine.begin() as connection:
                finalise_requests(connection, offered[-1][:2])
        return list(rows[-count:])

    RequestFinaliser(engine, store, newest).run_once()
    assert offered == [job_ids, job_ids[:5]]
    assert {job(engine, job_id)["state"] for job_id in job_ids} == {"completed"}
    assert keys(store) <= {request_input_key(job_id) for job_id in job_ids[:2]}


def test_refused_request_completes_with_the_refusal(
    engine: sa.Engine, store: LocalObjectStore
) -> None:
    tenant_id, job_id = add_request(engine, store)
    end(engine, store, job_id, failed(0))
    row = find(engine, tenant_id, job_id)
    assert (row.state, row.status_code) == ("completed", 400)
    assert not is_answered_well(row)


def test_requests_are_no_batches(engine: sa.Engine, store: LocalObjectStore) -> None:
    tenant_id, job_id = add_request(engine, store)
    with engine.connect() as connection:
        with pytest.raises(JobNotFoundError):
            find_job(connection, tenant_id, job_id)
        assert list_jobs(connection, tenant_id, PageCursor(limit=10)).rows == []
        with pytest.raises(InvalidFieldError):
            list_jobs(connection, tenant_id, PageCursor(limit=10, after=job_id))
        with pytest.raises(RequestNotFoundError):
            find_request(connection, new_uuid(), job_id)
        assert connection.scalars(sa.select(sa.column("id")).where(READY)).all() == []


def test_cancelled_request_ends_cancelled(engine: sa.Engine, store: LocalObjectStore) -> None:
    tenant_id, job_id = add_request(engine, store)
    with engine.begin() as connection:
        assert cancel_request(connection, tenant_id, job_id).state == "cancelling"
    close(engine, job_id, CloseReason.CANCELLED)
    RequestFinaliser(engine, store).run_once()
    row = find(engine, tenant_id, job_id)
    assert (row.state, row.outcome) == ("cancelled", Outcome.CANCELLED)
    with engine.begin() as connection:
        assert cancel_request(connection, tenant_id, job_id).state == "cancelled"

    tenant_id, job_id = add_request(engine, store)
    end(engine, store, job_id, outcome(0))
    with engine.begin() as connection, pytest.raises(RequestEndedError):
        cancel_request(connection, tenant_id, job_id)


def test_an_answered_request_is_deleted_with_its_bodies(
    engine: sa.Engine, store: LocalObjectStore
) -> None:
    """Its owner sees it nowhere, its key is free, no row or object has its answer; the bill stays.

    Another request of the same day stays whole.
    """
    tenant_id, job_id = add_request(engine, store)
    _, other_id = add_request(engine, store, tenant_id=tenant_id)
    body_key = f"{answer_prefix(job_id)}0-1"
    write_object(store, body_key, b"an answer")
    write_object(store, "idempotency/stream", b"an answer")
    write(engine, job_id, failed(0, status_code=500, retryable=True))
    end(engine, store, job_id, outcome(0, body=None, body_key=body_key))
    end(engine, store, other_id, outcome(0))
    with engine.begin() as connection:
        add_key(connection, tenant_id, "k", "idempotency/stream", 60.0)
        connection.execute(sa.update(idempotency_keys).values(job_id=job_id))
    billed = ledger(engine, job_id)
    with engine.begin() as connection:
        assert delete_ended_request(connection, new_uuid(), job_id, key_id=KEY_ID) is None
        counts = delete_ended_request(connection, tenant_id, job_id, key_id=KEY_ID)
        assert delete_ended_request(connection, tenant_id, job_id, key_id=KEY_ID) is None
    assert counts == {"items": 1, "files": 0}
    with pytest.raises(RequestNotFoundError):
        find(engine, tenant_id, job_id)
    with engine.begin() as connection, pytest.raises(RequestNotFoundError):
        cancel_request(connection, tenant_id, job_id)

    BatchDataRemoval(engine, store).run_once(1000)
    IdempotencyKeyRemoval(engine, store).run_once()

    for table in (items, item_attempts, job_counters, job_cursors):
        assert count(engine, table, table.c.job_id == job_id) == 0, table.name
    assert keys(store) == set()
    assert ledger(engine, job_id) == billed
    assert billed["item_count"] == 1
    assert is_answered_well(find(engine, tenant_id, other_id))
    with engine.connect() as connection:
        assert connection.scalar(sa.select(sa.func.count()).select_from(idempotency_keys)) == 0
        told = connection.execute(sa.select(deletions.c.what, deletions.c.key_id)).all()
    assert [tuple(row) for row in told] == [("request", KEY_ID), ("requests", None)]


def test_a_request_without_an_answer_is_not_deleted(
    engine: sa.Engine, store: LocalObjectStore
) -> None:
    tenant_id, job_id = add_request(engine, store)
    with engine.begin() as connection:
        assert delete_ended_request(connection, tenant_id, job_id, key_id=KEY_ID) is None
        cancel_request(connection, tenant_id, job_id)
    close(engine, job_id, CloseReason.CANCELLED)
    RequestFinaliser(engine, store).run_once()
    with engine.begin() as connection:
        assert delete_ended_request(connection, tenant_id, job_id, key_id=KEY_ID) is None
    assert find(engine, tenant_id, job_id).state == "cancelled"


def test_a_throttling_store_is_tried_for_a_few_requests_of_a_round(
    engine: sa.Engine, store: LocalObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = [add_request(engine, store) for _ in range(20)]
    for _, job_id in requests:
        write(engine, job_id, outcome(0))
    tried: list[str] = []

    def throttled(key: str) -> None:
        tried.append(key)
        raise ObjectStoreUnavailableError

    with monkeypatch.context() as throttling:
        throttling.setattr(store, "delete", throttled)
        RequestFinaliser(engine, store).run_once()
    assert 8 <= len(tried) < 16  # eight failures, and what other threads had begun
    RequestFinaliser(engine, store).run_once()
    states = {find(engine, tenant_id, job_id).state for tenant_id, job_id in requests}
    assert states == {"completed"}


def test_request_past_its_deadline_expires(engine: sa.Engine, store: LocalObjectStore) -> None:
    tenant_id, job_id = add_request(engine, store, timeout_s=-1.0)
    with engine.begin() as connection:
        assert close_expired(connection) == 1
    close(engine, job_id, CloseReason.EXPIRED)
    RequestFinaliser(engine, store).run_once()
    row = find(engine, tenant_id, job_id)
    assert (row.state, row.outcome) == ("expired", Outcome.EXPIRED)


def test_lost_request_is_re_emitted(engine: sa.Engine, store: LocalObjectStore) -> None:
    _, job_id = add_request(engine, store)
    with engine.connect() as connection:
        opened = open_jobs(connection, [job_id])[job_id]
        assert missing_indexes(connection, opened, range(opened.cursor.item_index)) == [0]
    with store.read(opened.ref.input_key) as blocks:
        ((_, offset, line),) = input_lines(blocks, line_bytes_max=1000)
    item = parse_item(0, offset, line, ENDPOINT)
    assert item.body == b'{ "model":"small"}'
    assert item.custom_id == public_id(REQUEST, job_id)


def test_answers_of_expired_idempotency_keys_are_removed(
    engine: sa.Engine, store: LocalObjectStore
) -> None:
    write_object(store, "idempotency/1", b"data: x")
    with engine.begin() as connection:
        add_key(connection, add_tenant(connection), "k", "idempotency/1", -1.0)
    IdempotencyKeyRemoval(engine, store).run_once()
    with pytest.raises(ObjectNotFoundError):
        store.size("idempotency/1")
    assert count(engine, idempotency_keys) == 0


def test_refused_answers_block_no_other_keys(
    engine: sa.Engine, store: LocalObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_removal, "ROUND_KEYS_MAX", 2)
    body_keys = ["idempotency/0", None, "idempotency/2", "idempotency/3", None]
    with engine.begin() as connection:
        tenant_id = add_tenant(connection)
        for n, body_key in enumerate(body_keys):
            add_key(connection, tenant_id, str(n), body_key, -10.0 + n)
    stays = {"idempotency/0", "idempotency/2"}
    record_deletions(monkeypatch, store, stays)
    role = IdempotencyKeyRemoval(engine, store)
    for _ in range(3):
        role.run_once()
    assert set(scalars(engine, sa.select(idempotency_keys.c.key))) == {"0", "2"}
    stays.clear()
    for _ in range(3):
        role.run_once()
    assert count(engine, idempotency_keys) == 0


def test_orphans_of_requests_are_found(engine: sa.Engine, store: LocalObjectStore) -> None:
    _, open_id = add_request(engine, store)
    _, ended_id = add_request(engine, store)
    answer, spare = (answer_prefix(ended_id) + name for name in ("kept", "spare"))
    write_object(store, answer, b"{}")
    write_object(store, spare, b"{}")
    end(engine, store, ended_id, outcome(0, body=b"", body_key=answer))
    assert {answer, spare} <= keys(store)  # a caller may be reading it
    nobody = new_uuid()
    for key in (
        request_input_key(ended_id),
        request_input_key(nobody),
        f"requests/{nobody.hex}",
        answer_prefix(nobody) + "a",
        "idempotency/1",
    ):
        write_object(store, key, b"{}")
    OrphanSweep(engine, store, -60.0, orphan_lease(engine, "test", interval_s=1)).run_once()
    assert keys(store) == {request_input_key(open_id), answer}
