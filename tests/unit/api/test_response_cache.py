"""Goal: only deterministic responses are reused, within a memory limit."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, cast
from uuid import UUID

import msgspec
import pytest

from api.online.answer.response_cache import ENTRY_BYTES_MAX, HIT, ResponseCache, request_digest
from api.online.calls import ParsedCall, PlannedCall
from api.online.exchange import CompleteResponse
from api.runtime.database import Database, DatabaseUnavailableError
from core.bodies.token_estimates import RequestedTokens
from registry.models import ModelVersion
from tenancy.api_keys import Principal
from tenancy.response_cache import BilledCacheHits
from tests.support.clock import ManualClock
from tests.support.online_calls import call_job

CHAT = "/v1/chat/completions"
TENANT, OTHER = UUID(int=1), UUID(int=2)
ANSWER = CompleteResponse(200, b'{"id":"chatcmpl-1"}', [(b"server-timing", b"gateway;dur=1")], 3, 2)


def call(
    body: dict[str, Any],
    *,
    tenant: UUID = TENANT,
    version: str = "1",
    endpoint: str = CHAT,
    durable: bool = False,
) -> PlannedCall:
    stream = bool(body.get("stream"))
    parsed = ParsedCall(
        endpoint, msgspec.json.encode(body), "m", stream, None, None, False, RequestedTokens(1)
    )
    job = call_job(
        tenant_id=tenant, endpoint=endpoint, version=version, stream=parsed.stream, durable=durable
    )
    route = ModelVersion("m", version, "p", "simulated", (endpoint,), datetime.now(UTC))
    principal = Principal(tenant, UUID(int=8))
    return PlannedCall(job.job_id, principal, parsed, route, job, 1.0, None, 0.0)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def cache(clock: ManualClock) -> ResponseCache:
    cache = ResponseCache(clock, bytes_max=10_000)
    cache.set_ttls({TENANT: 10, OTHER: 10})
    return cache


CERTAIN = {"model": "m", "temperature": 0}


def kept(cache: ResponseCache, asked: PlannedCall) -> bytes:
    key = cache.key_of(asked)
    assert key is not None
    cache.store(key, ANSWER)
    return key


def test_equal_requests_share_a_key(cache: ResponseCache) -> None:
    kept(cache, call(CERTAIN))
    key = cache.key_of(call({"temperature": 0, "model": "m"}))
    assert key is not None
    assert cache.find(key) == CompleteResponse(200, ANSWER.body, [HIT])


@pytest.mark.parametrize(
    "other",
    [
        call(CERTAIN, tenant=OTHER),
        call(CERTAIN, version="2"),
        call(CERTAIN | {"n": 2}),
        call(CERTAIN, endpoint="/v1/completions"),
    ],
)
def test_any_difference_makes_another_key(cache: ResponseCache, other: PlannedCall) -> None:
    kept(cache, call(CERTAIN))
    key = cache.key_of(other)
    assert key is not None
    assert cache.find(key) is None


@pytest.mark.parametrize(
    "body", [{}, {"temperature": 0.7}, {"temperature": None}, {"temperature": False}]
)
def test_sampled_responses_are_not_cached(cache: ResponseCache, body: dict[str, Any]) -> None:
    assert cache.key_of(call({"model": "m"} | body)) is None
    assert cache.key_of(call({"model": "m"} | body, endpoint="/v1/embeddings")) is not None


def test_streams_durable_calls_and_other_tenants_are_not_cached(cache: ResponseCache) -> None:
    assert cache.key_of(call(CERTAIN | {"stream": True})) is None
    assert cache.key_of(call(CERTAIN, durable=True)) is None
    assert cache.key_of(call(CERTAIN, tenant=UUID(int=3))) is None


def test_an_entry_expires_after_its_tenants_ttl(cache: ResponseCache, clock: ManualClock) -> None:
    key = kept(cache, call(CERTAIN))
    clock.now_s = 9.9
    assert cache.find(key)
    clock.now_s = 10.0
    assert cache.find(key) is None


def test_a_changed_ttl_takes_effect(cache: ResponseCache) -> None:
    key = kept(cache, call(CERTAIN))
    cache.set_ttls({TENANT: 20})
    assert cache.key_of(call(CERTAIN)) not in {key, None}
    cache.set_ttls({})
    assert cache.key_of(call(CERTAIN)) is None


def test_the_least_recently_used_entry_is_evicted(cache: ResponseCache) -> None:
    first, second = (kept(cache, call(CERTAIN | {"seed": n})) for n in range(2))
    for n in range(2, 30):
        assert cache.find(first)
        kept(cache, call(CERTAIN | {"seed": n}))
    assert cache.find(second) is None
    assert cache.find(first)


def test_failures_and_long_responses_are_not_cached(cache: ResponseCache) -> None:
    key = cache.key_of(call(CERTAIN))
    assert key is not None
    for answer in (
        CompleteResponse(400, b"{}", []),
        CompleteResponse(200, b"x" * (ENTRY_BYTES_MAX + 1), []),
    ):
        cache.store(key, answer)
        assert cache.find(key) is None


class Ledger:
    """Plays Postgres, which may commit and not be heard of."""

    def __init__(self) -> None:
        self.rows: dict[int, int] = {}
        self.is_unheard = False

    async def run_across_tenants(self, _: object, bill: Sequence[BilledCacheHits]) -> None:
        for billed in bill:
            self.rows.setdefault(billed.row_id, billed.count)
        if self.is_unheard:
            raise DatabaseUnavailableError
        await asyncio.sleep(0)


def test_every_hit_is_billed_once_despite_an_unconfirmed_commit(cache: ResponseCache) -> None:
    ledger, key = Ledger(), kept(cache, call(CERTAIN))
    database = cast("Database", ledger)

    async def bill() -> None:
        await cache.bill(database)

    for _ in range(3):
        cache.find(key)
    ledger.is_unheard = True
    with pytest.raises(DatabaseUnavailableError):
        asyncio.run(bill())
    cache.find(key)
    ledger.is_unheard = False
    asyncio.run(bill())
    asyncio.run(bill())
    assert sorted(ledger.rows.values()) == [1, 3]


async def test_a_cancelled_billing_is_completed_by_the_next(cache: ResponseCache) -> None:
    ledger, key = Ledger(), kept(cache, call(CERTAIN))
    database = cast("Database", ledger)
    cache.find(key)
    cut_off = asyncio.create_task(cache.bill(database))
    await asyncio.sleep(0)
    cut_off.cancel()
    await asyncio.gather(cut_off, return_exceptions=True)
    await cache.bill(database)
    assert list(ledger.rows.values()) == [1]


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'"\xff"', b"[" * 100_000, b" " * 300_000])
def test_an_invalid_body_has_no_key(body: bytes) -> None:
    assert request_digest(CHAT, body) is None
