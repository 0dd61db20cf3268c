"""Finds the settings of KEDA that suit a trace best, on a fluid model of the pool. Pure.

The model: replicas serve `ITEM_RATE` calls or items a second from `start_s` after their order on,
calls first; bulk items take no more than `BULK_RATE`. The lag of a trigger is what has no answer
yet, as the group of a topic with one message for each call and item would have it.
"""

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product
from typing import Final

from benchmarks.scaling.keda_emulation import KedaSettings, KedaState, next_state
from benchmarks.scaling.trace import Trace

TICK_S: Final = 0.5
SLOTS: Final = 8
LATENCY_S: Final = 0.2
ITEM_RATE: Final = SLOTS / LATENCY_S
"""Calls or items a second of one replica."""

BULK_RATE: Final = 5 / LATENCY_S
"""Items a second of one replica: three of eight slots stay free for calls."""

SHARE_TOLERANCE: Final = 0.01
"""How much less of the calls within the SLO a cheaper setting may have than the best one."""

_TAIL_S: Final = 1_200.0  # after the trace, for the way to zero


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelResult:
    """What one setting gave on the model."""

    settings: KedaSettings
    replica_s: float
    share: float  # of the calls that waited no longer than the SLO
    job_end_s: float
    is_in_time: bool


def best_settings(
    trace: Trace, candidates: Iterable[KedaSettings], *, start_s: float, slo_s: float
) -> ModelResult:
    """Return the cheapest candidate that keeps the job's deadline and, of these, nearly the best
    share within the SLO. If none keeps the deadline, the one that ends the job first.
    """
    results = [simulate(trace, one, start_s=start_s, slo_s=slo_s) for one in candidates]
    kept = [one for one in results if one.is_in_time]
    if not kept:
        return min(results, key=lambda one: one.job_end_s)
    share_min = max(one.share for one in kept) - SHARE_TOLERANCE
    return min((one for one in kept if one.share >= share_min), key=lambda one: one.replica_s)


def candidates(triggers: int, replicas_max: int, partitions: int) -> list[KedaSettings]:
    """Return the grid: thresholds, polling, the window of scaling down, and the cooldown.

    With one trigger all messages of the pool count, with two those of calls and of items apart.
    """
    calls = (2.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0)
    items = (500.0, 1_000.0, 2_000.0, 4_000.0, 8_000.0)
    thresholds = [(one,) for one in calls] if triggers == 1 else list(product(calls[1:8], items))
    grid = product(thresholds, (5.0, 15.0), (300.0, 120.0, 60.0, 30.0), (300.0, 60.0, 30.0))
    return [
        KedaSettings(
            thresholds=threshold,
            replicas_max=replicas_max,
            partitions=partitions,
            polling_s=polling_s,
            down_window_s=window_s,
            cooldown_s=cooldown_s,
        )
        for threshold, polling_s, window_s, cooldown_s in grid
    ]


def simulate(trace: Trace, settings: KedaSettings, *, start_s: float, slo_s: float) -> ModelResult:
    """Run the model until the pool is at zero, or for 20 minutes after the trace."""
    state, ready_at_s = KedaState(), list[float]()
    queue, items, is_queued = _Queue(slo_s), 0.0, False
    replica_s, job_end_s, now_s = 0.0, math.inf, 0.0
    while now_s < trace.length_s + _TAIL_S:
        if not is_queued and now_s >= trace.job_at_s:
            items, is_queued = float(trace.job_items), True
        queue.add(now_s, trace.rate_at(now_s) * TICK_S)
        warm = sum(at_s <= now_s for at_s in ready_at_s)
        served = queue.serve(now_s, warm * ITEM_RATE * TICK_S)
        if items > 0:
            left = warm * ITEM_RATE * TICK_S - served
            items = max(0.0, items - min(left, warm * BULK_RATE * TICK_S))
            job_end_s = job_end_s if items else now_s
        lag = queue.length + served / TICK_S * LATENCY_S, items
        lags = lag if len(settings.thresholds) > 1 else (sum(lag),)
        state = next_state(settings, state, lags, now_s)
        ready_at_s += [now_s + start_s] * (state.replicas - len(ready_at_s))
        del ready_at_s[state.replicas :]
        replica_s += state.replicas * TICK_S
        now_s += TICK_S
        if now_s >= trace.length_s and not state.replicas and not items and queue.length < 1:
            break
    return ModelResult(
        settings=settings,
        replica_s=replica_s,
        share=queue.share,
        job_end_s=job_end_s,
        is_in_time=job_end_s <= trace.job_deadline_s,
    )


class _Queue:
    """Calls in the order of their arrival, as amounts with their times."""

    def __init__(self, slo_s: float) -> None:
        self._slo_s = slo_s
        self._waiting: deque[tuple[float, float]] = deque()
        self.length = self._served = self._in_time = 0.0

    def add(self, now_s: float, amount: float) -> None:
        if amount > 0:
            self._waiting.append((now_s, amount))
            self.length += amount

    def serve(self, now_s: float, most: float) -> float:
        """Serve at most so many, the oldest first; return how many."""
        left = most
        while left > 0 and self._waiting:
            at_s, amount = self._waiting.popleft()
            taken = min(left, amount)
            left -= taken
            if taken < amount:
                self._waiting.appendleft((at_s, amount - taken))
            self._in_time += taken if now_s - at_s + LATENCY_S <= self._slo_s else 0.0
        served = most - left
        self.length -= served
        self._served += served
        return served

    @property
    def share(self) -> float:
        """The part of the calls that waited no longer than the SLO."""
        return self._in_time / self._served if self._served else 0.0
