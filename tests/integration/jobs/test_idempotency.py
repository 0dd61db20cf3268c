"""Goal: equal claims have one effect and get one answer; concurrent ones are told to retry."""

import time
from concurrent.futures import ThreadPoolExecutor
from uuid import UUID

import pytest
import sqlalchemy as sa

from core.ids import new_uuid
from jobs.errors import IdempotencyKeyInFlightError, IdempotencyKeyReusedError
from jobs.store import idempotency
from jobs.store.idempotency import (
    IdempotencyClaim,
    KeyScope,
    StoredAnswer,
    delete_expired_keys,
    find_expired_keys,
)
from jobs.store.single_requests import NewRequest, create_request
from jobs.tables.idempotency import idempotency_keys
from jobs.tables.jobs import job_counters, job_cursors, jobs
from tenancy.tenants import create_tenant

CREATED = StoredAnswer(200, b'{"id":"batch_1"}', (("content-type", "application/json"),))


@pytest.fixture
def tenant(engine: sa.Engine) -> UUID:
    with engine.begin() as connection:
        return create_tenant(connection, new_uuid().hex)


def claim(tenant: UUID, **given: object) -> IdempotencyClaim:
    values: dict[str, object] = {
        "tenant_id": tenant,
        "scope": KeyScope.CLIENT,
        "key": "k",
        "route": "POST /v1/batches",
        "body_sha256": b"body",
        "keep_s": 86400.0,
    }
    return IdempotencyClaim(**(values | given))  # type: ignore[arg-type]


def once(
    engine: sa.Engine, request: IdempotencyClaim, answer: StoredAnswer = CREATED
) -> tuple[StoredAnswer, bool]:
    with engine.begin() as connection:
        return idempotency.answer_once(connection, request, lambda _: answer)


def find(engine: sa.Engine, request: IdempotencyClaim) -> StoredAnswer | None:
    with engine.begin() as connection:
        return idempotency.find_answer(connection, request)


def test_an_equal_claim_gets_the_saved_answer(engine: sa.Engine, tenant: UUID) -> None:
    assert once(engine, claim(tenant)) == (CREATED, False)
    assert once(engine, claim(tenant), StoredAnswer(200, b"other")) == (CREATED, True)


def test_another_body_or_route_is_rejected(engine: sa.Engine, tenant: UUID) -> None:
    once(engine, claim(tenant))
    for changed in ({"body_sha256": b"other"}, {"route": "POST /v1/files"}):
        with pytest.raises(IdempotencyKeyReusedError):
            once(engine, claim(tenant, **changed))


def test_tenants_and_scopes_are_separate(engine: sa.Engine, tenant: UUID) -> None:
    once(engine, claim(tenant))
    with engine.begin() as connection:
        other = create_tenant(connection, new_uuid().hex)
    assert once(engine, claim(other), StoredAnswer(200, b"o")) == (StoredAnswer(200, b"o"), False)
    retry = claim(tenant, scope=KeyScope.RETRY, attempt=1)
    assert once(engine, retry, StoredAnswer(200, b"r")) == (StoredAnswer(200, b"r"), False)


def test_a_concurrent_equal_claim_is_told_to_try_again(engine: sa.Engine, tenant: UUID) -> None:
    with engine.begin() as connection:
        idempotency.answer_once(connection, claim(tenant), lambda _: CREATED)
        with pytest.raises(IdempotencyKeyInFlightError):
            once(engine, claim(tenant))
    assert once(engine, claim(tenant)) == (CREATED, True)


def test_errors_are_not_saved(engine: sa.Engine, tenant: UUID) -> None:
    def fail(_: sa.Connection) -> StoredAnswer:
        raise IdempotencyKeyReusedError

    with pytest.raises(IdempotencyKeyReusedError), engine.begin() as connection:
        idempotency.answer_once(connection, claim(tenant), fail)
    once(engine, claim(tenant), StoredAnswer(400, b"bad"))
    assert once(engine, claim(tenant)) == (CREATED, False)


def test_an_expired_key_is_free(engine: sa.Engine, tenant: UUID) -> None:
    once(engine, claim(tenant, keep_s=-1.0))
    assert once(engine, claim(tenant), StoredAnswer(200, b"n")) == (StoredAnswer(200, b"n"), False)


def test_a_key_is_in_flight_until_its_time_ends(engine: sa.Engine, tenant: UUID) -> None:
    request = claim(tenant)
    with engine.begin() as connection:
        idempotency.mark_in_flight(connection, request, until_s=60)
    with pytest.raises(IdempotencyKeyInFlightError):
        find(engine, claim(tenant))
    with pytest.raises(IdempotencyKeyReusedError):
        find(engine, claim(tenant, body_sha256=b"other"))
    with engine.begin() as connection:
        idempotency.mark_in_flight(connection, request, until_s=-1)
    assert find(engine, claim(tenant)) is None
    assert find(engine, claim(tenant, body_sha256=b"other", route="POST /v1/files")) is None


def test_only_the_holder_may_complete_or_release_a_key(engine: sa.Engine, tenant: UUID) -> None:
    request, late = claim(tenant), claim(tenant)
    with engine.begin() as connection:
        idempotency.mark_in_flight(connection, request, until_s=60)
        assert not idempotency.complete_in_flight(connection, late, CREATED)
        idempotency.release_key(connection, late)
        assert idempotency.complete_in_flight(connection, request, CREATED)
    assert find(engine, late) == CREATED
    with engine.begin() as connection:
        idempotency.release_key(connection, request)  # too late: the answer is saved
    assert find(engine, late) == CREATED


def hold_call(engine: sa.Engine, tenant: UUID, *, timeout_s: float) -> UUID:
    """Mark a key as in flight for a call; return the id of the call."""
    new = NewRequest(
        job_id=new_uuid(),
        tenant_id=tenant,
        endpoint="/v1/embeddings",
        model="m",
        model_version="1",
        pool="p",
        input_key="requests/none",
        input_bytes=1,
        timeout_s=timeout_s,
    )
    with engine.begin() as connection:
        create_request(connection, new)
        idempotency.mark_in_flight(connection, claim(tenant), until_s=-1, job_id=new.job_id)
    return new.job_id


def test_a_key_in_flight_names_its_call(engine: sa.Engine, tenant: UUID) -> None:
    job_id = hold_call(engine, tenant, timeout_s=60)
    with pytest.raises(IdempotencyKeyInFlightError) as twin:
        find(engine, claim(tenant))
    with pytest.raises(IdempotencyKeyReusedError) as other:
        once(engine, claim(tenant, body_sha256=b"other", route="POST /v1/files"))
    assert (twin.value.job_id, other.value.job_id) == (job_id, job_id)


@pytest.mark.parametrize("changed", [{}, {"body_sha256": b"other"}, {"route": "POST /v1/files"}])
def test_a_key_of_a_call_past_its_deadline_is_free(
    engine: sa.Engine, tenant: UUID, changed: dict[str, object]
) -> None:
    hold_call(engine, tenant, timeout_s=-1)
    assert once(engine, claim(tenant, **changed)) == (CREATED, False)
    assert once(engine, claim(tenant, **changed)) == (CREATED, True)
    with pytest.raises(IdempotencyKeyReusedError):
        find(engine, claim(tenant, body_sha256=b"third"))


@pytest.mark.parametrize("changed", [{}, {"body_sha256": b"other"}, {"route": "POST /v1/files"}])
def test_a_key_of_a_removed_call_is_free(
    engine: sa.Engine, tenant: UUID, changed: dict[str, object]
) -> None:
    job_id = hold_call(engine, tenant, timeout_s=60)
    with engine.begin() as connection:
        for column in (job_counters.c.job_id, job_cursors.c.job_id, jobs.c.id):
            connection.execute(sa.delete(column.table).where(column == job_id))
    assert once(engine, claim(tenant, **changed)) == (CREATED, False)
    assert once(engine, claim(tenant, **changed)) == (CREATED, True)


def retry(tenant: UUID, attempt: int, **given: object) -> IdempotencyClaim:
    return claim(tenant, scope=KeyScope.RETRY, attempt=attempt, **given)


def test_only_a_retry_repeats_an_equal_request(engine: sa.Engine, tenant: UUID) -> None:
    first, second = StoredAnswer(200, b"1"), StoredAnswer(200, b"2")
    assert once(engine, retry(tenant, 0), first) == (first, False)
    assert once(engine, retry(tenant, 0), second) == (second, False)
    assert once(engine, retry(tenant, 1)) == (second, True)
    assert once(engine, retry(tenant, 2)) == (second, True)


def test_a_first_attempt_overtaken_by_its_retry_is_a_repeat(
    engine: sa.Engine, tenant: UUID
) -> None:
    assert once(engine, retry(tenant, 1)) == (CREATED, False)
    assert once(engine, retry(tenant, 0, age_s=lambda: 60.0)) == (CREATED, True)
    new = StoredAnswer(200, b"n")
    assert once(engine, retry(tenant, 0, age_s=lambda: 0.0), new) == (new, False)


def test_a_first_try_that_waited_for_its_own_retry_repeats_it(
    engine: sa.Engine, tenant: UUID
) -> None:
    arrived_s = time.monotonic()
    first = retry(tenant, 0, age_s=lambda: time.monotonic() - arrived_s)
    with ThreadPoolExecutor(1) as threads:
        with engine.begin() as connection:
            idempotency.answer_once(connection, retry(tenant, 1), lambda _: CREATED)
            waiting = threads.submit(once, engine, first, StoredAnswer(200, b"n"))
        assert waiting.result(20) == (CREATED, True)


def test_expired_keys_are_forgotten_but_not_those_taken_again(
    engine: sa.Engine, tenant: UUID
) -> None:
    once(engine, claim(tenant, key="a", keep_s=-1.0))
    once(engine, claim(tenant, key="b", keep_s=-1.0))
    once(engine, claim(tenant, key="c"))
    with engine.begin() as connection:
        found = find_expired_keys(connection, 10)
    assert [key.key for key in found] == ["a", "b"]
    once(engine, claim(tenant, key="b"))
    with engine.begin() as connection:
        assert delete_expired_keys(connection, found) == 1
        left = connection.scalars(sa.select(idempotency_keys.c.key)).all()
    assert sorted(left) == ["b", "c"]
