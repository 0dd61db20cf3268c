"""P14: a pool that is offered ten times what it serves keeps serving at its own rate.

Calls arrive as a Poisson process at multiples of the pool's rate, each with a limit on its time in
the queue. Calls that the pool cannot serve in that time should be refused at once, with a
`Retry-After`; calls that are served should take little longer than on an idle pool.
"""

import asyncio
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from random import Random
from typing import Final

import psutil

from chaos.clients.client import Client
from chaos.clients.open_loop import offer_calls
from chaos.drills.context import MODEL, DrillContext
from chaos.drills.pool_isolation import CALL_S, CALL_TEXT, CONCURRENCY
from chaos.errors import DrillError
from chaos.measures import Measure, violations
from cli.load.load_client import LoadTarget, TimedCall, percentile

CALLS_PER_S: Final = CONCURRENCY / CALL_S
"""The calls that the pool serves in a second."""

IDLE_FACTOR: Final = 0.25
FACTORS: Final = (1, 2, 5, 10)
"""Offered loads, in multiples of the pool's rate."""

QUEUE_TIMEOUT_MS: Final = 150
"""Added to the time of an idle pool's call, this is within `LATENCY_GROWTH_GOAL`."""

_TIMEOUT_S: Final = 20.0
_REFUSALS: Final = (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE)
_RETRY_AFTER_S_MAX: Final = 60

GOODPUT_SHARE_MIN: Final = 0.9
REFUSED_P99_GOAL_S: Final = 0.05
LATENCY_GROWTH_GOAL: Final = 1.2
LATE_SHARE_GOAL: Final = 0.1
MEMORY_GROWTH_MB_MAX: Final = 100
_MB: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Stage:
    """The calls at one offered load."""

    factor: float
    calls: Sequence[TimedCall]
    seconds: float

    @property
    def served(self) -> list[TimedCall]:
        """The calls with an answer."""
        return [call for call in self.calls if call.status == HTTPStatus.OK and not call.error]

    @property
    def refused(self) -> list[TimedCall]:
        """The calls that were refused because of the load."""
        return [call for call in self.calls if call.status in _REFUSALS]

    @property
    def served_per_s(self) -> float:
        """The calls with an answer in each second of the offered load."""
        return len(self.served) / self.seconds

    def statuses(self) -> dict[str, int]:
        """Return how many calls ended with each error, or with none."""
        return dict(Counter(call.error or str(call.status) for call in self.calls))


def run(context: DrillContext) -> Iterator[Measure]:
    """Offer the pool a quarter of its rate, and then once to ten times as much."""
    seconds = float(context.size(60, 8))
    client = context.create_tenant_client("caller")
    memory_bytes = _api_memory(context)
    idle = _offer(context, client, IDLE_FACTOR, seconds)
    stages = [_offer(context, client, factor, seconds) for factor in FACTORS]
    yield _goodput(stages)
    yield from _answers(stages)
    yield from _waits(idle, stages[-1])
    growth = (_api_memory(context) - memory_bytes) / _MB
    yield Measure(
        "P14",
        "memory that api processes gained",
        round(growth, 1),
        limit=MEMORY_GROWTH_MB_MAX,
        unit="MB",
    )


def _offer(context: DrillContext, client: Client, factor: float, seconds: float) -> Stage:
    body = {"model": MODEL, "messages": [{"role": "user", "content": CALL_TEXT}], "max_tokens": 1}
    target = LoadTarget(
        f"{client.urls[0]}/v1/chat/completions",
        client.key,
        json.dumps(body).encode(),
        {"x-request-queue-timeout-ms": str(QUEUE_TIMEOUT_MS)},
    )
    calls = asyncio.run(
        offer_calls(
            target,
            calls_per_s=factor * CALLS_PER_S,
            seconds=seconds,
            timeout_s=_TIMEOUT_S,
            random=Random(f"{context.seed} {factor}"),
        )
    )
    stage = Stage(factor, calls, seconds)
    context.note(f"{factor} times the pool's rate: {stage.statuses()}")
    if not stage.served:
        raise DrillError(f"no call was served: {stage.statuses()}")
    return stage


def _goodput(stages: Sequence[Stage]) -> Measure:
    first, last = stages[0], stages[-1]
    rates = ", ".join(f"{stage.factor:g} x: {stage.served_per_s:.1f}/s" for stage in stages)
    return Measure(
        "P14",
        f"calls served at {last.factor:g} times the load, as a share of those at once the load",
        round(last.served_per_s / first.served_per_s, 3),
        limit=GOODPUT_SHARE_MIN,
        relation=">=",
        size=len(last.served),
        evidence=rates,
    )


def _answers(stages: Sequence[Stage]) -> Iterator[Measure]:
    """Yield whether each call was answered, and refused ones with a time to come back."""
    answered = (HTTPStatus.OK, HTTPStatus.GATEWAY_TIMEOUT, *_REFUSALS)
    calls = [call for stage in stages for call in stage.calls]
    wrong = [call.error or str(call.status) for call in calls if call.status not in answered]
    yield violations(
        "P14", "calls without an answer, or with another error", wrong, size=len(calls)
    )
    refused = [call for stage in stages for call in stage.refused]
    untold = [
        call.error
        for call in refused
        if not call.retry_after.isdigit() or not 1 <= int(call.retry_after) <= _RETRY_AFTER_S_MAX
    ]
    what = "refusals without a Retry-After of 1 to 60 seconds"
    yield violations("P14", what, untold, size=len(refused))


def _waits(idle: Stage, last: Stage) -> Iterator[Measure]:
    """Yield how fast refusals are, how slow served calls are, and how many waited in vain."""
    what = f"at {last.factor:g} times the load"
    refused_s = percentile([call.latency_s for call in last.refused] or [float("inf")], 0.99)
    yield Measure(
        "P14",
        f"p99 of a refusal {what}",
        round(refused_s, 3),
        limit=REFUSED_P99_GOAL_S,
        relation="goal",
        unit="s",
        size=len(last.refused),
    )
    alone_s, served_s = (
        percentile([call.latency_s for call in stage.served], 0.99) for stage in (idle, last)
    )
    yield Measure(
        "P14",
        f"growth of the p99 of served calls {what}",
        round(served_s / alone_s, 2),
        limit=LATENCY_GROWTH_GOAL,
        relation="goal",
        size=len(last.served),
        evidence=f"{alone_s:.2f} s at {idle.factor:g} times the load, {served_s:.2f} s then",
    )
    late = sum(call.status == HTTPStatus.GATEWAY_TIMEOUT for call in last.calls)
    yield Measure(
        "P14",
        f"share of calls that waited in vain {what}",
        round(late / len(last.calls), 3),
        limit=LATE_SHARE_GOAL,
        relation="goal",
        size=len(last.calls),
    )


def _api_memory(context: DrillContext) -> int:
    """Return the resident bytes of all api processes."""
    hosts = context.installation.hosts.values()
    return sum(psutil.Process(host.pid("api")).memory_info().rss for host in hosts)
