"""Goal: the timeout of a call counts from the arrival of its body, whatever planning waits for."""

import asyncio
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from api.http.errors import ApiError
from api.online.admit.call_planning import plan_call
from api.online.admit.model_cache import ModelCache
from api.online.await_reply.caller_heartbeat import CallerClock
from api.online.calls import ParsedCall, PlannedCall, ReceivedCall, Timings
from api.online.settings import OnlineSettings
from core.bodies.token_estimates import RequestedTokens
from core.ids import new_uuid
from registry.models import ModelVersion
from tenancy.api_keys import Principal
from tests.support.clock import ManualClock
from topics.records.records import ReplyEnd

ENDPOINT = "/v1/completions"
MODEL = ModelVersion("m", "1", "p", "simulated", (ENDPOINT,), datetime(2026, 1, 1, tzinfo=UTC))
LOOKUP_S = 2.0


class Dependencies:
    """Postgres and the data keys of calls; one of them hangs, or Postgres takes LOOKUP_S."""

    def __init__(self, hanging: str = "") -> None:
        self.clock, self._hanging = ManualClock(100.0), hanging

    async def run_across_tenants(self, *_: object) -> ModelVersion:
        await self._wait("lookup")
        self.clock.now_s += LOOKUP_S
        return MODEL

    async def current_key_name(self) -> str:
        await self._wait("key")
        return "keys/calls/k"

    async def _wait(self, what: str) -> None:
        if what == self._hanging:
            await asyncio.Event().wait()


async def plan(
    parts: Dependencies, *, timeout_ms: bytes, zero_retention: bool = False
) -> PlannedCall:
    database: Any = parts
    online: Any = SimpleNamespace(
        clock=parts.clock,
        caller_clock=CallerClock(parts.clock),
        settings=OnlineSettings(),
        models=ModelCache(database, parts.clock),
        call_keys=parts,
        caller_id="api-1",
        reply_partition=0,
    )
    exchange: Any = SimpleNamespace(
        request_id=new_uuid(),
        endpoint=ENDPOINT,
        headers={b"x-request-timeout-ms": timeout_ms},
        text=lambda _: None,
    )
    parsed = ParsedCall(ENDPOINT, b"{}", "m", False, None, None, False, RequestedTokens(1))
    principal = Principal(new_uuid(), new_uuid(), zero_retention=zero_retention)
    return await asyncio.wait_for(plan_call(online, ReceivedCall(exchange, principal, parsed)), 20)


async def test_the_lookup_time_counts_against_the_timeout() -> None:
    parts = Dependencies()
    planned = await plan(parts, timeout_ms=b"30000")
    assert planned.left_s(planned.timeout_s, now_s=parts.clock.now_s) == 30.0 - LOOKUP_S
    assert planned.job.deadline_s == 100.0 + 30.0


@pytest.mark.parametrize(("hanging", "timeout_ms"), [("lookup", b"50"), ("key", b"2050")])
async def test_a_hanging_dependency_ends_at_the_deadline(hanging: str, timeout_ms: bytes) -> None:
    with pytest.raises(ApiError) as late:
        await plan(Dependencies(hanging), timeout_ms=timeout_ms, zero_retention=True)
    assert (late.value.status, late.value.code) == (504, "deadline_exceeded")


async def test_a_zero_retention_call_has_a_data_key() -> None:
    planned = await plan(Dependencies(), timeout_ms=b"30000", zero_retention=True)
    assert planned.job.key_name == "keys/calls/k"


@pytest.mark.parametrize(
    ("replied_s", "durations"),
    [(12.0, b"gateway;dur=500.00, queue;dur=1500.00"), (0.0, b"gateway;dur=500.00")],
)
def test_durations_at_the_head_of_a_stream(replied_s: float, durations: bytes) -> None:
    timings = Timings(10.0, sent_s=10.5, replied_s=replied_s)
    assert timings.at_stream_head() == durations


def test_durations_are_never_negative() -> None:
    end = ReplyEnd(200, b"", waited_s=1.0, execution_s=2.0)  # by clocks that disagree with ours
    told = Timings(10.0, sent_s=10.5, replied_s=12.0).at_end(end, now_s=12.25)
    assert told == (
        b"gateway;dur=500.00, queue;dur=0.00, batch;dur=1000.00, execution;dur=2000.00,"
        b" postprocess;dur=250.00"
    )
