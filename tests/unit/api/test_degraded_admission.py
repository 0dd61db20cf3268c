"""Goal: the admitted call of a degraded request says so, and its answer is cached for nobody."""

import asyncio
from contextlib import AsyncExitStack
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from api.http.errors import ApiError
from api.online import metrics
from api.online.admit.admission import RateLimits
from api.online.admit.token_charges import TokenCharges
from api.online.answer.response_cache import ResponseCache
from api.online.await_reply.caller_heartbeat import CallerClock
from api.online.call_request import parse_call
from api.online.calls import AdmittedCall, PlannedCall, PreparedCall, ReceivedCall
from api.online.exchange import CompleteResponse, RawHeaders
from api.online.pipeline import CallPipeline
from api.online.settings import OnlineSettings
from core.outcomes import Outcome
from registry.models import ModelVersion
from results.writer.call_billing import bills_of
from tests.support.admitted_calls import (
    CHAT,
    CONCURRENCY,
    AdmissionSite,
    call_exchange,
    model_version,
    tenant,
)
from topics.records.records import ItemOutcome, Outcomes

BODY = b'{"model":"large","messages":[],"max_tokens":2000,"temperature":0}'
DEGRADED = b"output_tokens=100"
THRESHOLD_S = 5.0
ME = tenant(degraded_output_tokens_max=100)


class Site:
    """The parts of an API process that admission uses."""

    def __init__(self) -> None:
        self.replay: CompleteResponse | None = None
        settings = OnlineSettings(degrade_wait_s=THRESHOLD_S)
        self.load = AdmissionSite(settings)
        self.cache = ResponseCache(self.load.clock, bytes_max=1 << 20)
        self.cache.set_ttls({ME.tenant_id: 60})
        limits = RateLimits(requests_per_minute=100, tokens_per_minute=1_000_000)
        online: Any = SimpleNamespace(
            admission=self.load.admission,
            cache=self.cache,
            caller_clock=CallerClock(self.load.clock),
            caller_id="api-1",
            calls=self.load.calls,
            charges=TokenCharges(limits),
            clock=self.load.clock,
            durable=self,
            models=self,
            pools=self.load.pools,
            reply_partition=0,
            sender=SimpleNamespace(check_log_available=lambda _: None),
            settings=settings,
            sleeping=self.load.sleeping,
        )
        self.pipeline = CallPipeline(online)

    async def prepare(
        self, planned: PlannedCall, _: object, refused: ApiError | None
    ) -> PreparedCall:
        """Prepare a call with a key, as `DurableCalls` does."""
        if self.replay is not None:
            return PreparedCall(None, answer=self.replay)
        if refused is not None:
            raise refused
        return PreparedCall(planned.job)

    async def find(
        self, name: str, _endpoint: str, *, left_s: float, tenant_id: UUID | None
    ) -> ModelVersion:
        assert left_s > 0
        return model_version(name, "p")

    def admit(self, body: bytes = BODY, **given: Any) -> AdmittedCall:
        exchange = call_exchange(ME, **given)
        received = ReceivedCall(exchange, ME, parse_call(CHAT, body))
        headers: RawHeaders = []
        self.headers = headers

        async def admit() -> AdmittedCall:
            async with AsyncExitStack() as cleanup:
                return await self.pipeline._admit(received, headers, cleanup)

        return asyncio.run(admit())


@pytest.fixture
def site() -> Site:
    return Site()


def degraded_header(call: AdmittedCall) -> bytes | None:
    return dict(call.headers).get(b"x-millrace-degraded")


def test_a_call_below_the_threshold_is_cached_as_it_is(site: Site) -> None:
    call = site.admit()
    assert degraded_header(call) is None
    assert call.cache_key is not None
    assert call.planned.parsed.body == BODY


def degraded_count() -> float:
    return float(metrics.DEGRADED.labels("output_tokens")._value.get())


def test_a_degraded_call_is_counted_once_it_is_admitted(site: Site) -> None:
    before = degraded_count()
    site.load.open(tenant(), round(CONCURRENCY + (THRESHOLD_S + 1) * CONCURRENCY))
    call = site.admit()
    assert degraded_count() == before + 1
    assert call.planned.parsed.client_body == b""  # nobody reads it again


def test_a_refused_call_is_not_said_to_be_degraded(site: Site) -> None:
    before = degraded_count()
    site.load.open(tenant(), round(CONCURRENCY + (THRESHOLD_S + 1) * CONCURRENCY))

    def refuse(_: object) -> None:
        raise ApiError(503, "The log is unavailable.")

    sender: Any = site.pipeline._online.sender
    sender.check_log_available = refuse
    with pytest.raises(ApiError):
        site.admit()
    assert (b"x-millrace-model-version", b"large@1") in site.headers
    assert b"x-millrace-degraded" not in dict(site.headers)
    assert degraded_count() == before


def test_a_replay_under_load_has_the_headers_of_its_answer_alone(site: Site) -> None:
    before = degraded_count()
    site.replay = CompleteResponse(200, b"{}", [(b"x-millrace-model-version", b"large@0")])
    site.load.open(tenant(), round(CONCURRENCY + (THRESHOLD_S + 1) * CONCURRENCY))
    call = site.admit(idempotency_key="k")
    assert not {b"x-millrace-model-version", b"x-millrace-degraded"} & {*dict(call.headers)}
    assert degraded_count() == before


def test_a_degraded_call_is_told_and_cached_for_nobody(site: Site) -> None:
    site.load.open(tenant(), round(CONCURRENCY + (THRESHOLD_S + 1) * CONCURRENCY))
    call = site.admit()
    assert degraded_header(call) == DEGRADED
    assert call.prepared.job is not None
    assert call.prepared.job.degraded == DEGRADED.decode()
    assert call.cache_key is None


def test_a_cached_answer_is_given_whole_under_load(site: Site) -> None:
    key = site.admit().cache_key
    assert key is not None
    site.cache.store(key, CompleteResponse(200, b"{}", []))
    site.load.open(tenant(), round(CONCURRENCY + (THRESHOLD_S + 1) * CONCURRENCY))
    call = site.admit()
    assert call.prepared.answer is not None
    assert degraded_header(call) is None


@pytest.mark.parametrize("stream", [b"true", b"false"])
def test_streams_are_degraded_like_whole_answers(site: Site, stream: bytes) -> None:
    site.load.open(tenant(), round(CONCURRENCY + (THRESHOLD_S + 1) * CONCURRENCY))
    call = site.admit(b'{"model":"large","messages":[],"stream":%b}' % stream)
    assert degraded_header(call) == DEGRADED
    assert b'"max_completion_tokens":100' in call.planned.parsed.body


def test_the_bill_of_a_call_names_its_degradation(site: Site) -> None:
    outcome = ItemOutcome(0, None, Outcome.SUCCEEDED, 200, b"")
    (whole,) = bills_of(Outcomes(site.admit().planned.job, [outcome]))
    site.load.open(tenant(), round(CONCURRENCY + (THRESHOLD_S + 1) * CONCURRENCY))
    (capped,) = bills_of(Outcomes(site.admit().planned.job, [outcome]))
    assert (whole.degraded, capped.degraded) == (None, DEGRADED.decode())
