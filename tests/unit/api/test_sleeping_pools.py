"""Goal: a call waits for a pool that starts in time, with bounds; others get a true time."""

import asyncio
from contextlib import AsyncExitStack
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from api.http.errors import ApiError
from api.online.admit.sleeping_pools import Place
from api.online.calls import PreparedCall
from api.online.pipeline import CallPipeline
from api.online.settings import OnlineSettings
from tenancy.api_keys import Principal
from tests.support.admitted_calls import (
    AdmissionSite,
    model_version,
    planned_call,
    retry_after,
    tenant,
)
from tests.support.capacity_records import capacity_record
from tests.support.pool_scaling import pool_scaling, scaling_record
from topics.records.codec import decode, encode
from topics.records.records import Capacity

ME, OTHER = tenant(), tenant()
ROUTE = model_version("cold", "cold")
NOW_S = 100.0


class Site:
    """A pool `cold` without replicas beside one with a replica."""

    def __init__(self, *, waiting_max: int = 1000, **scaling: Any) -> None:
        self.load = AdmissionSite(OnlineSettings(waking_calls_max=waiting_max))
        self.load.clock.advance(NOW_S)
        if scaling.pop("is_known", True):
            record = pool_scaling("cold", at_s=NOW_S, **scaling)
            self.load.wakes.apply_records([scaling_record(record)])
        self.sleeping, self.noted = self.load.sleeping, self.load.noted

    def refusal(self, principal: Principal = ME, **call: Any) -> ApiError | None:
        """Return why a call is refused; its place is given back."""
        try:
            self.sleeping.reserve(planned(principal, **call), now_s=0.0).release()
        except ApiError as error:
            return error
        return None

    def hold(self, principal: Principal, count: int, **call: Any) -> list[Place]:
        """Admit calls that arrive now."""
        now_s = self.load.clock.monotonic_s()
        one = replace(planned(principal, **call), planned_s=now_s)
        places = [self.sleeping.reserve(one, now_s=now_s) for _ in range(count)]
        for place in places:
            self.sleeping.admit(one, place, now_s=now_s)
        return places

    def serve(self) -> None:
        """Give the pool a replica."""
        records = [capacity_record(pool="cold", job_class="interactive")]
        self.load.pools.apply_records(records, now_s=NOW_S)

    def forget(self) -> None:
        self.sleeping.forget_woken(now_s=self.load.clock.monotonic_s())


def planned(principal: Principal, *, durable: bool = False, **call: Any) -> Any:
    found = planned_call(principal, route=ROUTE, **call)
    if durable:
        assert found.job.call is not None
        call_ref = msgspec.structs.replace(found.job.call, durable=True)
        return replace(found, job=msgspec.structs.replace(found.job, call=call_ref))
    return found


@pytest.mark.parametrize(("timeout_s", "waits"), [(26.8, False), (26.9, True), (600.0, True)])
def test_a_call_waits_if_it_may_for_longer_than_the_start(timeout_s: float, waits: bool) -> None:
    """The start takes 21.5 s, times 1.25."""
    refused = Site().refusal(timeout_s=timeout_s)
    assert (refused is None) is waits
    if refused is not None:
        assert (refused.status, refused.code) == (503, "no_capacity")
        assert retry_after(refused) == 22
        assert refused.message == "The model is being loaded; try again in about 22 seconds."


def test_a_longer_start_is_told_in_the_message() -> None:
    refused = Site(start_s=88.5).refusal(timeout_s=30.0)
    assert retry_after(refused) == 59
    assert refused is not None
    assert "in about 90 seconds" in refused.message


@pytest.mark.parametrize("scaling", [{"is_known": False}, {"mode": "paused"}])
def test_without_an_autoscaler_a_call_is_refused_as_before(scaling: dict[str, Any]) -> None:
    refused = Site(**scaling).refusal()
    assert refused is not None
    assert (refused.code, retry_after(refused)) == ("no_capacity", 5)
    assert refused.message == "No replica serves the model at the moment."


def test_a_pool_with_replicas_of_other_versions_does_not_sleep() -> None:
    site = Site()
    site.serve()
    refused = site.refusal()
    assert refused is not None
    assert retry_after(refused) == 5
    site.sleeping.note(planned(ME), now_s=NOW_S)
    assert site.noted == []


def test_a_tenant_leaves_places_to_others() -> None:
    site = Site(waiting_max=10)
    site.hold(ME, 5)
    refused = site.refusal(ME)
    assert refused is not None
    assert (refused.status, refused.code, retry_after(refused)) == (429, "queue_full", 22)
    assert site.refusal(OTHER) is None
    for _ in range(5):
        site.hold(tenant(), 1)
    refused = site.refusal(tenant())
    assert refused is not None
    assert (refused.status, refused.code, retry_after(refused)) == (503, "queue_full", 22)


def test_a_place_counts_before_its_call_is_committed() -> None:
    """Calls that commit at the same time once passed the bound together."""
    site = Site(waiting_max=2)
    place = site.sleeping.reserve(planned(ME, durable=True), now_s=0.0)
    assert site.refusal(ME) is not None
    place.release()
    place.release()
    place.keep_until(1e9)
    assert site.refusal(ME) is None


def test_a_place_is_free_when_its_call_ends() -> None:
    site = Site(waiting_max=2)
    (place,) = site.hold(ME, 1)
    assert site.refusal(ME) is not None
    place.release()
    assert site.refusal(ME) is None


def test_a_durable_call_counts_until_the_pool_serves() -> None:
    site = Site(waiting_max=2)
    (place,) = site.hold(ME, 1, durable=True)
    place.release()  # its connection has ended
    site.forget()
    assert site.refusal(ME) is not None
    site.serve()
    site.forget()
    site.load.pools.apply_records([], now_s=NOW_S + 60)  # the replica is gone again
    assert site.refusal(ME) is None


@pytest.mark.parametrize("is_checked", [True, False])
def test_a_durable_call_counts_until_its_deadline(is_checked: bool) -> None:
    site = Site(waiting_max=2)
    site.hold(ME, 1, durable=True, timeout_s=600.0)
    site.load.clock.advance(599.0)
    record = pool_scaling("cold", at_s=site.load.clock.wall_s())
    site.load.wakes.apply_records([scaling_record(record)])
    with pytest.raises(ApiError):
        site.hold(ME, 1)
    site.load.clock.advance(1.0)
    if is_checked:
        site.forget()
        assert site.sleeping._waiting == {}
    site.hold(ME, 1)


def test_a_release_after_the_pool_woke_changes_nothing_later() -> None:
    site = Site(waiting_max=4)
    (place,) = site.hold(ME, 1)
    site.serve()
    site.forget()
    site.load.pools.apply_records([], now_s=NOW_S + 60)
    site.load.clock.advance(60)
    site.load.wakes.apply_records([scaling_record(pool_scaling("cold", at_s=NOW_S + 60))])
    site.hold(ME, 2)
    place.release()
    refused = site.refusal(ME)
    assert refused is not None
    assert refused.status == 429


@pytest.mark.parametrize("timeout_s", [10.0, 600.0])
def test_a_call_wakes_its_pool_whether_it_waits_or_is_refused(timeout_s: float) -> None:
    site = Site()
    online: Any = SimpleNamespace(
        admission=site.load.admission,
        calls=site.load.calls,
        clock=site.load.clock,
        pools=site.load.pools,
        sender=SimpleNamespace(check_log_available=lambda _: None),
        sleeping=site.sleeping,
    )
    pipeline, exchange = CallPipeline(online), SimpleNamespace(headers={})
    call = planned_call(ME, route=ROUTE, timeout_s=NOW_S + timeout_s)

    async def serve() -> PreparedCall:
        async with AsyncExitStack() as cleanup:
            return await pipeline._prepare(call, exchange, cleanup)  # type: ignore[arg-type]

    if timeout_s == 10.0:
        with pytest.raises(ApiError, match="being loaded"):
            asyncio.run(serve())
    else:
        asyncio.run(serve())
    assert site.noted == ["cold"]


@pytest.mark.parametrize("outcome", ["replay", "refused", "committed"])
def test_a_durable_call_has_its_place_while_it_commits(outcome: str) -> None:
    site = Site(waiting_max=2)

    async def prepare(call: Any, *_: Any) -> PreparedCall:
        assert site.refusal(ME) is not None
        if outcome == "refused":
            raise ApiError(503, "unavailable")
        return PreparedCall(None if outcome == "replay" else call.job)

    online: Any = SimpleNamespace(
        admission=site.load.admission,
        calls=site.load.calls,
        clock=site.load.clock,
        durable=SimpleNamespace(prepare=prepare),
        pools=site.load.pools,
        sender=SimpleNamespace(check_log_available=lambda _: None),
        sleeping=site.sleeping,
    )
    pipeline, exchange = CallPipeline(online), SimpleNamespace(headers={})

    async def serve() -> None:
        async with AsyncExitStack() as cleanup:
            await pipeline._prepare(planned(ME, durable=True), exchange, cleanup)  # type: ignore[arg-type]
            assert (site.refusal(ME) is None) is (outcome == "replay")

    if outcome == "refused":
        with pytest.raises(ApiError, match="unavailable"):
            asyncio.run(serve())
    else:
        asyncio.run(serve())
    assert (site.refusal(ME) is None) is (outcome != "committed")
    assert site.noted == (["cold"] if outcome == "committed" else [])


def test_a_standby_replica_does_not_serve() -> None:
    site = Site()
    record = capacity_record(pool="cold", job_class="interactive")
    asleep = msgspec.structs.replace(
        decode(Capacity, record.value, record.headers), lifecycle="asleep"
    )
    site.load.pools.apply_records(
        [msgspec.structs.replace(record, value=encode(asleep))], now_s=NOW_S
    )
    assert site.sleeping.is_asleep("cold", now_s=NOW_S)
    assert site.load.pools.last_seen_s("cold") == 0.0
