"""Goal: a repeat that gets a saved answer under load is neither promised a place nor counted."""

import asyncio
from contextlib import AsyncExitStack
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import REGISTRY

from api.http.errors import ApiError
from api.online.calls import PlannedCall, PreparedCall
from api.online.exchange import CompleteResponse
from api.online.pipeline import CallPipeline
from tests.support.admitted_calls import (
    CONCURRENCY,
    AdmissionSite,
    planned_call,
    retry_after,
    tenant,
)

REPLAY = PreparedCall(None, answer=CompleteResponse(200, b"{}", []))
ME = tenant()


class Site:
    """The parts of an API process that `_prepare` uses."""

    def __init__(self, saved: PreparedCall | None) -> None:
        self.load, self.saved = AdmissionSite(), saved
        online: Any = SimpleNamespace(
            admission=self.load.admission,
            calls=self.load.calls,
            clock=self.load.clock,
            durable=self,
            pools=self.load.pools,
            sender=SimpleNamespace(check_log_available=lambda _: None),
        )
        self.pipeline = CallPipeline(online)

    async def prepare(
        self, call: PlannedCall, _exchange: Any, refused: ApiError | None
    ) -> PreparedCall:
        if self.saved is not None:
            return self.saved
        if refused is not None:
            raise refused
        return PreparedCall(call.job)

    def serve(self, *, has_key: bool) -> PreparedCall:
        exchange: Any = SimpleNamespace(headers={b"idempotency-key": b"k"} if has_key else {})
        return asyncio.run(self.pipeline._prepare(planned_call(ME), exchange, AsyncExitStack()))

    def fill(self) -> None:
        """Let more calls wait than the pool completes in 120 s."""
        self.load.open(tenant(), CONCURRENCY * 121 + 1)


def refused_total() -> float:
    name = "millrace_overload_refused_total"
    return REGISTRY.get_sample_value(name, {"class": "interactive"}) or 0.0


def test_a_replay_under_load_changes_nothing() -> None:
    site, before = Site(REPLAY), refused_total()
    site.fill()
    assert site.serve(has_key=True) is REPLAY
    assert site.load.admission.promises.count == 0
    assert refused_total() == before


@pytest.mark.parametrize("has_key", [True, False])
def test_a_refused_call_is_promised_a_place_and_counted_once(has_key: bool) -> None:
    site, before = Site(None), refused_total()
    site.fill()
    with pytest.raises(ApiError) as refused:
        site.serve(has_key=has_key)
    assert (refused.value.status, refused.value.code) == (503, "queue_full")
    assert (
        retry_after(refused.value) == 2
    )  # s: one call above the limit, at 4 a second, and 3 deviations
    assert site.load.admission.promises.count == 1
    assert refused_total() == before + 1
    assert site.load.calls.count == len(site.load.calls)  # none is reserved


@pytest.mark.parametrize("has_key", [True, False])
def test_a_call_below_the_limit_is_admitted(has_key: bool) -> None:
    assert Site(None).serve(has_key=has_key).job is not None
