"""Goal: equal claims have one effect and get one answer; concurrent ones are told to retry."""

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any
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


class Keys:
    """Claims of one tenant, each checked in its own transaction."""

    def __init__(self, engine: sa.Engine) -> None:
        self.engine = engine
        with engine.begin() as connection:
            self.tenant_id = create_tenant(connection, new_uuid().hex)

    def claim(self, **given: Any) -> IdempotencyClaim:
        values: dict[str, Any] = {
            "tenant_id": self.tenant_id,
            "scope": KeyScope.CLIENT,
            "key": "k",
            "route": "POST /v1/batches",
            "body_sha256": b"body",
            "keep_s": 86400.0,
        }
        return IdempotencyClaim(**(values | given))

    def once(self, answer: StoredAnswer = CREATED, **given: Any) -> tuple[StoredAnswer, bool]:
        with self.engine.begin() as connection:
            return idempotency.answer_once(connection, self.claim(**given), lambda _: answer)

    def retry(
        self, attempt: int, answer: StoredAnswer = CREATED, **given: Any
    ) -> tuple[StoredAnswer, bool]:
        return self.once(answer, scope=KeyScope.RETRY, attempt=attempt, **given)

    def find(self, **given: Any) -> StoredAnswer | None:
        with self.engine.begin() as connection:
            return idempotency.find_answer(connection, self.claim(**given))

    def hold(self, *, until_s: float, job_id: UUID | None = None) -> IdempotencyClaim:
        """Mark the key as in flight."""
        request = self.claim()
        with self.engine.begin() as connection:
            idempotency.mark_in_flight(connection, request, until_s=until_s, job_id=job_id)
        return request


@pytest.fixture
def keys(engine: sa.Engine) -> Keys:
    return Keys(engine)


OTHER = StoredAnswer(200, b"other")
OTHER_REQUESTS: list[dict[str, Any]] = [{"body_sha256": b"other"}, {"route": "POST /v1/files"}]


def test_an_equal_claim_gets_the_saved_answer_until_its_key_expires(keys: Keys) -> None:
    assert keys.once() == (CREATED, False)
    assert keys.once(OTHER) == (CREATED, True)
    keys.once(key="old", keep_s=-1.0)
    assert keys.once(OTHER, key="old") == (OTHER, False)


@pytest.mark.parametrize("changed", OTHER_REQUESTS)
def test_another_body_or_route_is_rejected(keys: Keys, changed: dict[str, Any]) -> None:
    keys.once()
    with pytest.raises(IdempotencyKeyReusedError):
        keys.once(**changed)


def test_tenants_and_scopes_are_separate(keys: Keys) -> None:
    keys.once()
    assert Keys(keys.engine).once(OTHER) == (OTHER, False)
    assert keys.retry(1, OTHER) == (OTHER, False)


def test_a_concurrent_equal_claim_is_told_to_try_again(keys: Keys) -> None:
    with keys.engine.begin() as connection:
        idempotency.answer_once(connection, keys.claim(), lambda _: CREATED)
        with pytest.raises(IdempotencyKeyInFlightError):
            keys.once()
    assert keys.once() == (CREATED, True)


def test_errors_are_not_saved(keys: Keys) -> None:
    def fail(_: sa.Connection) -> StoredAnswer:
        raise IdempotencyKeyReusedError

    with pytest.raises(IdempotencyKeyReusedError), keys.engine.begin() as connection:
        idempotency.answer_once(connection, keys.claim(), fail)
    keys.once(StoredAnswer(400, b"bad"))
    assert keys.once() == (CREATED, False)


def test_a_key_is_in_flight_until_its_time_ends(keys: Keys) -> None:
    keys.hold(until_s=60)
    with pytest.raises(IdempotencyKeyInFlightError):
        keys.find()
    with pytest.raises(IdempotencyKeyReusedError):
        keys.find(body_sha256=b"other")
    keys.hold(until_s=-1)
    assert keys.find() is None
    assert keys.find(body_sha256=b"other", route="POST /v1/files") is None


def test_only_the_holder_may_complete_or_release_a_key(keys: Keys) -> None:
    request, late = keys.hold(until_s=60), keys.claim()
    with keys.engine.begin() as connection:
        assert not idempotency.complete_in_flight(connection, late, CREATED)
        idempotency.release_key(connection, late)
        assert idempotency.complete_in_flight(connection, request, CREATED)
    assert keys.find() == CREATED
    with keys.engine.begin() as connection:
        idempotency.release_key(connection, request)  # too late: the answer is saved
    assert keys.find() == CREATED


def hold_call(keys: Keys, *, timeout_s: float) -> UUID:
    """Mark a key as in flight for a call; return the id of the call."""
    new = NewRequest(
        job_id=new_uuid(),
        tenant_id=keys.tenant_id,
        endpoint="/v1/embeddings",
        model="m",
        model_version="1",
        pool="p",
        input_key="requests/none",
        input_bytes=1,
        timeout_s=timeout_s,
    )
    with keys.engine.begin() as connection:
        create_request(connection, new)
    keys.hold(until_s=-1, job_id=new.job_id)
    return new.job_id


def test_a_key_in_flight_names_its_call(keys: Keys) -> None:
    job_id = hold_call(keys, timeout_s=60)
    with pytest.raises(IdempotencyKeyInFlightError) as twin:
        keys.find()
    with pytest.raises(IdempotencyKeyReusedError) as other:
        keys.once(body_sha256=b"other", route="POST /v1/files")
    assert (twin.value.job_id, other.value.job_id) == (job_id, job_id)


@pytest.mark.parametrize("changed", [{}, *OTHER_REQUESTS])
@pytest.mark.parametrize("is_removed", [True, False])
def test_a_key_of_a_removed_or_late_call_is_free(
    keys: Keys, changed: dict[str, Any], is_removed: bool
) -> None:
    job_id = hold_call(keys, timeout_s=60 if is_removed else -1)
    if is_removed:
        with keys.engine.begin() as connection:
            for column in (job_counters.c.job_id, job_cursors.c.job_id, jobs.c.id):
                connection.execute(sa.delete(column.table).where(column == job_id))
    assert keys.once(**changed) == (CREATED, False)
    assert keys.once(**changed) == (CREATED, True)
    with pytest.raises(IdempotencyKeyReusedError):
        keys.find(body_sha256=b"third")


def test_only_a_retry_or_an_attempt_that_it_overtook_repeats_an_equal_request(keys: Keys) -> None:
    first, second = StoredAnswer(200, b"1"), StoredAnswer(200, b"2")
    assert keys.retry(0, first) == (first, False)
    assert keys.retry(0, second) == (second, False)
    assert keys.retry(1) == (second, True)
    assert keys.retry(2) == (second, True)
    assert keys.retry(1, key="overtaken") == (CREATED, False)
    assert keys.retry(0, key="overtaken", age_s=lambda: 60.0) == (CREATED, True)
    assert keys.retry(0, OTHER, key="overtaken", age_s=lambda: 0.0) == (OTHER, False)


def test_a_first_try_that_waited_for_its_own_retry_repeats_it(keys: Keys) -> None:
    arrived_s = time.monotonic()
    retry = keys.claim(scope=KeyScope.RETRY, attempt=1)
    with ThreadPoolExecutor(1) as threads:
        with keys.engine.begin() as connection:
            idempotency.answer_once(connection, retry, lambda _: CREATED)
            waiting = threads.submit(
                keys.retry, 0, OTHER, age_s=lambda: time.monotonic() - arrived_s
            )
        assert waiting.result(20) == (CREATED, True)


def test_expired_keys_are_forgotten_but_not_those_taken_again(keys: Keys) -> None:
    keys.once(key="a", keep_s=-1.0)
    keys.once(key="b", keep_s=-1.0)
    keys.once(key="c")
    with keys.engine.begin() as connection:
        found = find_expired_keys(connection, 10)
    assert [key.key for key in found] == ["a", "b"]
    keys.once(key="b")
    with keys.engine.begin() as connection:
        assert delete_expired_keys(connection, found) == 1
        left = connection.scalars(sa.select(idempotency_keys.c.key)).all()
    assert sorted(left) == ["b", "c"]
