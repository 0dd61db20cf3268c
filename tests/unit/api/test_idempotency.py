"""Goal: an equal POST is recognised, and waits a limited time for the answer to the first."""

import asyncio
from typing import cast
from uuid import UUID

import pytest

from api import idempotent_requests
from api.http.errors import ApiError
from api.idempotent_requests import (
    IdempotencyContext,
    Refusal,
    ReplayWaiter,
    idempotency_from_headers,
)
from api.runtime.database import Database
from api.settings import ApiSettings
from api.views.progress_poller import ProgressSnapshot
from core.clock import SystemClock
from core.ids import new_uuid
from jobs.errors import IdempotencyKeyInFlightError, IdempotencyKeyReusedError
from jobs.store.idempotency import KeyScope
from tenancy.api_keys import Principal

ME, COLLEAGUE = Principal(UUID(int=1), UUID(int=2)), Principal(UUID(int=1), UUID(int=3))


def said(
    headers: dict[bytes, bytes], *, principal: Principal = ME, route: str = "POST /v1/batches"
) -> IdempotencyContext:
    return idempotency_from_headers(
        headers, principal, route, settings=ApiSettings(), arrived_s=10.0
    )


def derived_key(repeats: IdempotencyContext, body_sha256: bytes = b"b") -> str:
    claim = repeats.claim(body_sha256, lambda: 11.0)
    assert claim is not None
    assert claim.scope is KeyScope.RETRY
    return claim.key


@pytest.mark.parametrize("key", [b"", b"  ", b"x" * 256, b"a\tb", b"a\r\nb", b"a\x00", b"\x7f"])
def test_invalid_keys(key: bytes) -> None:
    with pytest.raises(ApiError) as refusal:
        said({b"idempotency-key": key})
    assert (refusal.value.status, refusal.value.code) == (400, "idempotency_key_invalid")


@pytest.mark.parametrize("key", [b"x", b"x" * 255, b'"quoted"', "schlüssel".encode("latin-1")])
def test_a_client_key(key: bytes) -> None:
    claim = said({b"idempotency-key": key}).claim(b"b", lambda: 12.5)
    assert claim is not None
    assert (claim.scope, claim.key) == (KeyScope.CLIENT, key.decode("latin-1"))
    assert (claim.keep_s, claim.age_s()) == (86_400.0, 2.5)


def test_a_client_key_takes_precedence_over_a_retry_count() -> None:
    """Repeatable actions ignore the count also without a key."""
    tries = {b"x-stainless-retry-count": b"1"}
    both = said({b"idempotency-key": b"k", **tries})
    for context in (both, both.for_client_key_only()):
        claim = context.claim(b"b", lambda: 10.0)
        assert claim is not None
        assert (claim.scope, claim.key) == (KeyScope.CLIENT, "k")
    assert said(tries).for_client_key_only().claim(b"b", lambda: 10.0) is None


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {b"x-stainless-retry-count": b"one"},
        {b"x-stainless-retry-count": b"-1"},
        {b"x-stainless-retry-count": b"1", b"x-millrace-no-retry-protection": b"True"},
    ],
)
def test_a_post_without_headers_is_always_new(headers: dict[bytes, bytes]) -> None:
    assert said(headers).claim(b"b", lambda: 10.0) is None


def test_a_retry_has_the_key_of_its_first_attempt_only() -> None:
    first, retry = ({b"x-stainless-retry-count": count} for count in (b"0", b"1"))
    key = derived_key(said(first))
    assert derived_key(said(retry)) == key
    others = {
        derived_key(said(retry), b"other body"),
        derived_key(said(retry, principal=COLLEAGUE)),
        derived_key(said(retry, route="POST /v1/files")),
    }
    assert key not in others
    assert len(others) == 3


JOB = new_uuid()


class Rows:
    """A database in which a job ends when a test says so."""

    def __init__(self) -> None:
        self.ended = False
        self.looks = 0
        self.looked_twice = asyncio.Event()

    async def run_across_tenants(
        self, _work: object, job_ids: list[object]
    ) -> dict[object, ProgressSnapshot]:
        self.looks += 1
        if self.looks >= 2:
            self.looked_twice.set()
        return dict.fromkeys(job_ids, ProgressSnapshot(int(self.ended), self.ended))


class Look:
    """Finds the key in use `times` times, then free."""

    def __init__(self, rows: Rows, failure: Refusal, times: int) -> None:
        self.rows, self.failure, self.is_disconnected = rows, failure, times

    async def __call__(self) -> str:
        if self.is_disconnected:
            self.is_disconnected -= 1
            raise self.failure
        return "free"


def waits(rows: Rows, wait_s_max: float = 30.0) -> ReplayWaiter:
    return ReplayWaiter(cast(Database, rows), SystemClock(), wait_s_max=wait_s_max)


@pytest.mark.parametrize("times", [0, 2])
async def test_a_free_or_locked_key_waits_for_no_row(times: int) -> None:
    rows = Rows()
    look = Look(rows, IdempotencyKeyInFlightError(), times)
    assert await waits(rows).retry_until_free(look) == "free"
    assert rows.looks == 0


@pytest.mark.parametrize(
    "refusal", [IdempotencyKeyInFlightError(JOB), IdempotencyKeyReusedError(JOB)]
)
@pytest.mark.parametrize("method", ["retry_until_free", "retry_until_settled"])
async def test_a_retry_continues_when_its_row_exists(refusal: Refusal, method: str) -> None:
    rows = Rows()
    look = Look(rows, refusal, 1)
    repeat = asyncio.create_task(getattr(waits(rows), method)(look))
    await asyncio.wait_for(rows.looked_twice.wait(), 20)
    assert not repeat.done()
    rows.ended = True
    assert await asyncio.wait_for(repeat, 20) == "free"


@pytest.mark.parametrize(
    ("method", "refusal", "wait_s_max"),
    [
        ("retry_until_free", IdempotencyKeyInFlightError(JOB), 0.1),  # its call runs on
        ("retry_until_free", IdempotencyKeyInFlightError(JOB), 0),
        ("retry_until_free", IdempotencyKeyReusedError(), 30.0),
        ("retry_until_settled", IdempotencyKeyInFlightError(), 30.0),
    ],
)
async def test_other_refusals_are_raised(method: str, refusal: Refusal, wait_s_max: float) -> None:
    rows = Rows()
    with pytest.raises(type(refusal)):
        await getattr(waits(rows, wait_s_max), method)(Look(rows, refusal, 1000))


async def test_waiting_retries_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idempotent_requests, "WAITING_MAX", 1)
    rows = Rows()
    all_of_them = waits(rows)
    first = asyncio.create_task(
        all_of_them.retry_until_free(Look(rows, IdempotencyKeyInFlightError(JOB), 1))
    )
    await asyncio.wait_for(rows.looked_twice.wait(), 20)
    with pytest.raises(IdempotencyKeyInFlightError):
        await all_of_them.retry_until_free(Look(rows, IdempotencyKeyInFlightError(JOB), 1))
    rows.ended = True
    assert await asyncio.wait_for(first, 20) == "free"
