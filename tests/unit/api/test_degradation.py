"""Goal: calls are degraded before they are refused, where their tenant allows it, and say so."""

import asyncio
import json
from typing import Any
from uuid import UUID

import pytest

from api.http.errors import ApiError
from api.online.admit.admission import RateLimits
from api.online.admit.degradation import DegradationDeps, degrade_call
from api.online.admit.token_charges import Charge, TokenCharges
from api.online.calls import PlannedCall
from api.online.durable.durable_calls import _body_sha256
from api.online.exchange import Exchange
from api.online.settings import OnlineSettings
from registry.models import ModelVersion
from tenancy.api_keys import Principal
from tests.support.admitted_calls import (
    CONCURRENCY,
    AdmissionSite,
    call_exchange,
    model_version,
    planned_call,
    tenant,
)

BODY = b'{"model":"large","messages":[],"max_tokens":2000}'
LIMIT_S, THRESHOLD_S = 20.0, 5.0
PER_S = CONCURRENCY  # calls that a pool completes in a second


class Models:
    """The registered models."""

    def __init__(self, *models: ModelVersion) -> None:
        self._models = {model.name: model for model in models}

    async def find(
        self, name: str, endpoint: str, *, left_s: float, tenant_id: UUID | None
    ) -> ModelVersion:
        model = self._models.get(name)
        if model is None or endpoint not in model.endpoints or left_s <= 0:
            raise ApiError(404, "The model does not exist.")
        return model


class Site:
    """Two pools, `p` of the model `large` and `q` of `small`."""

    def __init__(self) -> None:
        settings = OnlineSettings(predicted_wait_s_max=LIMIT_S, degrade_wait_s=THRESHOLD_S)
        self.load = AdmissionSite(settings, ("p", "q"))
        self.charges = TokenCharges(
            RateLimits(requests_per_minute=100, tokens_per_minute=1_000_000)
        )
        models: Any = Models(
            model_version("small", "q"),
            model_version("vectors", "q", "/v1/embeddings"),
            model_version("unserved", "away"),
        )
        self.deps = DegradationDeps(self.load.admission, models, self.charges, THRESHOLD_S)

    def wait(self, seconds: float, pool: str = "p") -> None:
        """Let calls wait in a pool for so long."""
        self.load.open(tenant(), round(CONCURRENCY + seconds * PER_S), pool)

    def degrade(
        self, call: PlannedCall, exchange: Exchange | None = None
    ) -> tuple[PlannedCall, Charge]:
        source = (call.principal.tenant_id, call.parsed.model, call.parsed.endpoint)
        charge = self.charges.reserve(source, call.parsed.requested, now_s=0.0)
        exchange = exchange or call_exchange(call.principal)
        return asyncio.run(degrade_call(self.deps, call, charge, exchange, now_s=0.0)), charge


@pytest.fixture
def site() -> Site:
    return Site()


def capped(**fields: Any) -> Principal:
    return tenant(degraded_output_tokens_max=100, **fields)


def large_call(principal: Principal, **fields: Any) -> PlannedCall:
    return planned_call(principal, body=BODY, **fields)


def test_the_output_is_capped_above_the_threshold(site: Site) -> None:
    site.wait(THRESHOLD_S + 1)
    call, charge = site.degrade(large_call(capped()))
    assert call.job.degraded == "output_tokens=100"
    assert json.loads(call.parsed.body)["max_tokens"] == 100
    assert call.parsed.client_body == BODY
    assert call.route.name == "large"
    assert charge.estimate.output_bound == 100
    assert charge.charged == charge.requested.prompt + 100


def test_nothing_changes_below_the_threshold(site: Site) -> None:
    site.wait(THRESHOLD_S - 1)
    call, charge = site.degrade(large_call(capped(degraded_model="small")))
    assert (call.job.degraded, call.parsed.body, call.parsed.client_body) == ("", BODY, b"")
    assert charge.estimate.output_bound == 2000


def test_a_tenant_that_allows_nothing_is_refused_as_it_is(site: Site) -> None:
    site.wait(LIMIT_S + 1)
    planned = large_call(tenant())
    call, _ = site.degrade(planned)
    assert call is planned
    assert site.load.refusal(call) is not None


def test_a_call_that_would_be_refused_goes_to_the_smaller_model(site: Site) -> None:
    site.wait(LIMIT_S + 1)
    call, charge = site.degrade(large_call(tenant(degraded_model="small")))
    assert call.job.degraded == "model=small;requested=large"
    assert (call.job.model, call.job.pool, call.route.name) == ("small", "q", "small")
    assert json.loads(call.parsed.body)["model"] == "small"
    assert charge.source[1] == "q@1"
    assert site.load.refusal(call) is None


def test_both_are_applied_while_the_smaller_model_has_a_queue_too(site: Site) -> None:
    site.wait(LIMIT_S + 1)
    site.wait(THRESHOLD_S + 1, "q")
    call, _ = site.degrade(large_call(capped(degraded_model="small")))
    assert call.job.degraded == "model=small;requested=large, output_tokens=100"


def test_a_call_is_refused_when_the_smaller_model_is_full_too(site: Site) -> None:
    site.wait(LIMIT_S + 1)
    site.wait(LIMIT_S + 1, "q")
    planned = large_call(capped(degraded_model="small"))
    call, _ = site.degrade(planned)
    assert call is planned
    assert call.parsed.body == BODY
    assert site.load.refusal(call) is not None


@pytest.mark.parametrize("name", ["unknown", "vectors", "unserved", "large"])
def test_a_model_that_cannot_serve_the_call_is_not_used(site: Site, name: str) -> None:
    site.wait(LIMIT_S + 1)
    planned = large_call(tenant(degraded_model=name))
    assert site.degrade(planned)[0] is planned


def test_vectors_and_calls_in_the_background_are_never_degraded(site: Site) -> None:
    site.wait(LIMIT_S + 1)
    allowed = capped(degraded_model="small")
    for planned in (
        large_call(allowed, endpoint="/v1/embeddings"),
        large_call(allowed, background=True),
    ):
        assert site.degrade(planned)[0] is planned


def test_calls_that_may_be_answered_by_a_job_are_not_degraded(site: Site) -> None:
    site.wait(LIMIT_S + 1)
    planned = large_call(capped(degraded_model="small"))
    exchange = call_exchange(planned.principal, prefer="wait=10")
    assert site.degrade(planned, exchange)[0] is planned
    exchange = call_exchange(planned.principal, idempotency_key="k")
    assert site.degrade(planned, exchange)[0].degraded_by == ("model",)


def test_the_second_body_of_a_degraded_call_is_counted(site: Site) -> None:
    site.wait(THRESHOLD_S + 1)
    planned = large_call(capped())
    little = call_exchange(planned.principal, body_bytes_max=2 * len(BODY) - 2)
    little.body_reservation.grow_to(len(BODY))
    call, charge = site.degrade(planned, little)
    assert call is planned
    assert (call.parsed.body, charge.estimate.output_bound) == (BODY, 2000)
    enough = call_exchange(planned.principal, body_bytes_max=2 * len(BODY))
    enough.body_reservation.grow_to(len(BODY))
    assert site.degrade(planned, enough)[0].degraded_by == ("output_tokens",)


def test_a_call_of_a_smaller_model_has_the_reserved_share_of_its_pool(site: Site) -> None:
    site.wait(LIMIT_S + 1)
    shares = {"p": 0.5, "q": 0.25}
    call, _ = site.degrade(large_call(tenant(degraded_model="small", reserved_shares=shares)))
    assert (call.job.pool, call.job.reserved) == ("q", 0.25)


def test_an_idempotency_key_stands_for_the_request_of_the_client(site: Site) -> None:
    before = _body_sha256(large_call(capped()).parsed)
    site.wait(THRESHOLD_S + 1)
    call, _ = site.degrade(large_call(capped()))
    assert call.parsed.body != BODY
    assert _body_sha256(call.parsed) == before


def test_names_of_models_are_quoted_where_structured_fields_need_it(site: Site) -> None:
    site.wait(LIMIT_S + 1)
    route = model_version('7"b', "p")
    planned = planned_call(tenant(degraded_model="small"), body=BODY, route=route)
    call, _ = site.degrade(planned)
    assert call.job.degraded == 'model=small;requested="7\\"b"'
