"""Time to the first token of a pool at zero, by a warm pool and by a cold start, and lost calls.

What: from the first byte of a streaming chat request for a pool without replicas to its first
event: warm, with a loaded replica in standby; cold, with a simulated engine that takes 20 s to
start (`MILLRACE_BENCH_LOAD_S`; 3 s with `--quick`). Also calls of many clients for a sleeping pool,
a third of them at once and the others while it wakes: each must be answered completely. The peer
of a warm wake is a call of the same pool while it is awake.

How: `millrace up --autoscale` with a simulated engine. After each wake the pool is set to zero and
given back to its policy; the next call is sent when the topics say that it sleeps and, warm, that
its warm pool is loaded again. The parts of a wake are by the broker's times of the first records.

Goal: p95 of at most 1.5 s warm, and of the load plus 3 s cold; none of 1,000 calls lost.
"""

import asyncio
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Final

from benchmarks.runs import Report, Row, Run, Setup, VoidRunError
from benchmarks.stacks.load_runs import chat_task, run_load
from benchmarks.stacks.scaled_stack import ScaledPool, WakeTimes, policy_text, watched_pool
from benchmarks.stacks.stack import RunningStack, running_stack
from benchmarks.statistics.intervals import interval
from cli.load.load_client import LoadTarget, TimedCall, percentile
from core.runtime.open_files import request_open_file_limit

MODEL: Final = "simulated"
POOL: Final = "simulated-simulated"
TOKENS: Final = 8
WARM_WAKES, QUICK_WARM_WAKES = 30, 3
WARM_OF_COLD: Final = 3  # warm wakes for each cold one, which takes longer
LOAD_S, QUICK_LOAD_S = 20.0, 3.0
LOAD_VARIABLE: Final = "MILLRACE_BENCH_LOAD_S"
CALLS, QUICK_CALLS = 1_000, 60
CALL_S_MAX: Final = 180.0
SPREAD_S: Final = 1.0
"""Time over which the calls that are not sent at once follow."""

_PARTS: Final = (
    "call to wake request",
    "to the order",
    "to the first credit",
    "to the first token",
)
_LATENCY: Final = ("--simulated-latency-ms", "20", "--simulated-token-ms", "2")
_OTHER_FILES: Final = 256


def measure(setup: Setup) -> Report:
    """Run the benchmark. Raises VoidRunError."""
    load_s = float(os.environ.get(LOAD_VARIABLE) or (QUICK_LOAD_S if setup.quick else LOAD_S))
    warm, awake_s, calls = _measure_warm(setup)
    cold = _measure_cold(setup, load_s)
    warm_s, cold_s = _first_waits(warm), _first_waits(cold)
    rows = [
        _row("warm wake p50", percentile(warm_s, 0.5), warm_s),
        Row(
            metric="warm wake p95; peer: p95 of calls while awake",
            unit="s",
            ours=percentile(warm_s, 0.95),
            peer=percentile(awake_s, 0.95),
            goal="≤ 1.5",
        ),
        *_part_rows(warm, "warm wake"),
        _row(f"cold wake p50, load of {load_s:g} s", percentile(cold_s, 0.5), cold_s),
        _row("cold wake p95", percentile(cold_s, 0.95), cold_s, goal=f"≤ {load_s + 3:g}"),
        *_part_rows(cold, "cold wake"),
        Row(
            metric=f"lost of {len(calls):,} calls for a pool that sleeps and wakes",
            unit="calls",
            ours=sum(not _is_whole(call) for call in calls),
            goal="0",
        ),
        _row("p95 of those calls", percentile(_waits(calls), 0.95), _waits(calls)),
    ]
    return Report(name="scaling_wake", rows=rows, runs=warm + cold)


def _measure_warm(setup: Setup) -> tuple[list[Run], list[float], list[TimedCall]]:
    """Return warm wakes, waits of calls while the pool is awake, and the calls of the burst."""
    with _stack(setup, "warm", 1, 0.0) as (stack, pool):
        pool.put_to_sleep()
        asyncio.run(_call(stack))  # the first wake is dropped
        wakes = []
        for number in range(setup.count(WARM_WAKES, QUICK_WARM_WAKES)):
            wakes.append(_wake(stack, pool))
            setup.note(f"warm wake {number + 1}: {wakes[-1].seconds:.2f} s {wakes[-1].facts}")
        task = chat_task(stack.server, MODEL, clients=1, calls=200, tokens=TOKENS, pieces_min=1)
        awake = run_load(task, setup.work, "awake")
        pool.put_to_sleep()
        calls = asyncio.run(_burst(stack, CALLS if not setup.quick else QUICK_CALLS))
    return wakes, awake.first_waits_s, calls


def _measure_cold(setup: Setup, load_s: float) -> list[Run]:
    with _stack(setup, "cold", 0, load_s) as (stack, pool):
        wakes = []
        count = max(1, setup.count(WARM_WAKES, QUICK_WARM_WAKES) // WARM_OF_COLD)
        for number in range(count):
            wakes.append(_wake(stack, pool))
            setup.note(f"cold wake {number + 1}: {wakes[-1].seconds:.2f} s {wakes[-1].facts}")
    return wakes


@contextmanager
def _stack(
    setup: Setup, name: str, standby: int, load_s: float
) -> Iterator[tuple[RunningStack, ScaledPool]]:
    """Start a stack whose pool sleeps, with so many replicas in standby."""
    policies = setup.work / f"{name}.toml"
    policies.write_text(policy_text(POOL, warm_replicas=standby))
    data = setup.work / name
    env = {
        "MILLRACE_ENGINE_SIMULATED_LOAD_S": str(load_s),
        # All calls are of one tenant, who may have half of the places.
        "MILLRACE_ONLINE_WAKING_CALLS_MAX": str(4 * CALLS),
    }
    options = ("--autoscale", str(policies), *_LATENCY)
    with (
        running_stack(data, *options, env=env) as stack,
        watched_pool(data, POOL, standby=standby) as pool,
    ):
        yield stack, pool


def _wake(stack: RunningStack, pool: ScaledPool) -> Run:
    """Put the pool to sleep, call it once and return the wake with its parts in seconds.

    Raises VoidRunError for a call without a complete answer.
    """
    pool.put_to_sleep()
    times = pool.watch.begin()
    call = asyncio.run(_call(stack))
    if not _is_whole(call):
        raise VoidRunError(f"the call that wakes the pool failed: {call.error or 'too short'}")
    return Run(items=1, seconds=call.first_wait_s, cpu_s={}, facts=_parts(times, call.first_wait_s))


def _parts(times: WakeTimes, first_wait_s: float) -> dict[str, float]:
    steps = [times.began_s, times.request_s, times.order_s, times.credit_s]
    if not all(steps):
        return {}  # a record was not read in time
    steps.append(times.began_s + first_wait_s)
    return {
        name: max(0.0, end_s - begin_s)
        for name, (begin_s, end_s) in zip(_PARTS, pairwise(steps), strict=True)
    }


async def _call(stack: RunningStack, delay_s: float = 0.0) -> TimedCall:
    """Send one call on a connection of its own."""
    await asyncio.sleep(delay_s)
    task = chat_task(stack.server, MODEL, clients=1, calls=1, tokens=TOKENS, pieces_min=1)
    target = LoadTarget(task.url, task.key, task.body.encode())
    try:
        async with asyncio.timeout(CALL_S_MAX):
            connection = await target.connect()
            call = await connection.send()
    except (OSError, TimeoutError) as failure:
        return TimedCall(time.perf_counter(), error=type(failure).__name__)
    connection.close()
    return call


async def _burst(stack: RunningStack, count: int) -> list[TimedCall]:
    """Send a third of the calls at once and the others over `SPREAD_S`."""
    request_open_file_limit(count + _OTHER_FILES)
    at_once = count // 3
    delays_s = [max(0, number - at_once) * SPREAD_S / count for number in range(count)]
    return await asyncio.gather(*(_call(stack, delay_s) for delay_s in delays_s))


def _is_whole(call: TimedCall) -> bool:
    return not call.error and call.is_done and call.event_count >= 1


def _waits(calls: Sequence[TimedCall]) -> list[float]:
    return [call.first_wait_s for call in calls if _is_whole(call)] or [float("nan")]


def _first_waits(wakes: Sequence[Run]) -> list[float]:
    return [wake.seconds for wake in wakes]


def _row(metric: str, seconds: float, samples_s: Sequence[float], *, goal: str = "") -> Row:
    return Row(metric=metric, unit="s", ours=seconds, spread=interval(samples_s), goal=goal)


def _part_rows(wakes: Sequence[Run], side: str) -> list[Row]:
    """Return the median of each part, over the wakes whose records were all read."""
    found = [wake.facts for wake in wakes if wake.facts]
    return [
        _row(f"{side}: {name}", percentile(samples_s, 0.5), samples_s)
        for name in _PARTS
        if (samples_s := [facts[name] for facts in found])
    ]
