"""What the others of four replicas lose while one of them joins, and while it leaves.

What: one pool of simulated replicas (50 ms × 8, 5 s to load) under a job that always has more to
do. Three replicas run; a fourth is ordered, and later retired. Their counters of items are read ten
times a second.

How: the lowest rate of the first three together in any second, from the order until 20 s later (the
load included), divided by their mean rate in the 10 s before. The machine starts a process in that
time: on few cores this costs rate, too, which a replica on a host of its own does not.

Goal: never below 0.9 for longer than a second.
"""

import asyncio
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from autoscaler.actuators.actuator import KindCount, PoolOrder
from autoscaler.actuators.embedded import EmbeddedActuator
from autoscaler.policies.pool_policy import PolicyMode
from benchmarks.data.input_files import short_file
from benchmarks.measurements.scaling_live import policy_text
from benchmarks.runs import Report, Row, Run, Setup, VoidRunError
from benchmarks.scaling.live_run import GPU_TYPE, MODEL, POOL
from benchmarks.scaling.step_rates import Counts, mean_rate, worst_second
from benchmarks.stacks.stack import running_stack
from benchmarks.stacks.stack_jobs import JobsClient
from cli.stack.data_folder import read_state

LATENCY_MS, CONCURRENCY, LOAD_S = 50, 8, 5
OTHERS = 3
ITEMS, QUICK_ITEMS = 100_000, 20_000
BUSY_S_MAX = 120.0
SETTLING_S, BASE_S, WATCHED_S = 5.0, 10.0, 20.0
QUICK_WATCHED_S = 8.0
GOAL = "≥ 0.9"

_READ_S = 0.1
_METRIC = b"millrace_items_executed_total"
_EPOCH = 1_000_000


def measure(setup: Setup) -> Report:
    """Run the benchmark. Raises VoidRunError."""
    policies = setup.work / "scaling.toml"
    policies.write_text(policy_text(PolicyMode.PAUSED))
    file = short_file(setup.work, setup.count(ITEMS, QUICK_ITEMS), model=MODEL)
    options = (
        *("--simulated-latency-ms", str(LATENCY_MS)),
        *("--simulated-concurrency", str(CONCURRENCY)),
        *("--engine-option", f"simulated_load_s={LOAD_S}"),
        *("--engine-option", "interactive_headroom=0"),
        *("--autoscale", str(policies)),
    )
    data = setup.work / "stack"
    with running_stack(data, *options) as stack:
        client = JobsClient(stack.server)
        batch = client.start(client.upload(file)[0])
        orders = _Orders(data)
        orders.send(OTHERS)
        with _counters(_ports(data)) as counters:
            _wait_until_busy(counters)
            facts = {}
            for what, count in (("joins", OTHERS + 1), ("leaves", OTHERS)):
                facts[what], facts[f"{what}_rate"] = _step(setup, orders, counters, count)
                setup.note(f"a replica {what}: worst second {facts[what]:.3f}")
        if client.cancel(batch).status != "cancelled":
            raise VoidRunError("the job ended before the measurement did")
    rows = [
        Row(metric=f"worst second of others while one {what}", unit="ratio", ours=value, goal=GOAL)
        for what, value in facts.items()
        if not what.endswith("_rate")
    ]
    rows.append(Row(metric="rate of the others before", unit="items/s", ours=facts["joins_rate"]))
    run = Run(items=file_items(counters), seconds=WATCHED_S, cpu_s={}, facts=facts)
    return Report(name="scaling_step", rows=rows, runs=[run])


def file_items(counters: list[list[tuple[float, float]]]) -> int:
    """Return the items that the replicas have executed, one at least."""
    return max(1, int(sum(one[-1][1] for one in counters if one)))


class _Orders:
    """Orders to the stack on a data folder."""

    def __init__(self, data: Path) -> None:
        self._actuator, self._sequence = EmbeddedActuator(str(data / "scaling.sock")), 0

    def send(self, replicas: int) -> None:
        self._sequence += 1
        kinds = (KindCount(gpu_type=GPU_TYPE, replicas=replicas),)
        order = PoolOrder(pool=POOL, epoch=_EPOCH, sequence=self._sequence, kinds=kinds)
        asyncio.run(self._actuator.apply(order))


def _step(
    setup: Setup, orders: _Orders, counters: list[list[tuple[float, float]]], replicas: int
) -> tuple[float, float]:
    """Order this many, and return the worst second of the others and their rate before."""
    time.sleep(SETTLING_S + BASE_S)
    ordered_s = time.monotonic()
    orders.send(replicas)
    watched_s = QUICK_WATCHED_S if setup.quick else WATCHED_S
    time.sleep(watched_s + 2 * _READ_S)
    others: list[Counts] = [one[:] for one in counters]
    until_s = min(ordered_s + watched_s, *(one[-1][0] for one in others))
    base = mean_rate(others, ordered_s - BASE_S, ordered_s)
    if base <= 0:
        raise VoidRunError("the replicas do nothing")
    return worst_second(others, ordered_s, until_s, base), base


def _ports(data: Path) -> list[int]:
    state = read_state(data)
    if state is None:
        raise VoidRunError("the stack has no state")
    return [state.replica_ports[number] for number in range(1, OTHERS + 1)]


@contextmanager
def _counters(ports: list[int]) -> Iterator[list[list[tuple[float, float]]]]:
    """Read the counter of each replica ten times a second during the block."""
    found: list[list[tuple[float, float]]] = [[] for _ in ports]
    ended = threading.Event()

    def read(port: int, counts: list[tuple[float, float]]) -> None:
        while not ended.wait(_READ_S):
            if (count := executed(port)) is not None:
                counts.append((time.monotonic(), count))

    threads = [threading.Thread(target=read, args=pair) for pair in zip(ports, found, strict=True)]
    for thread in threads:
        thread.start()
    try:
        yield found
    finally:
        ended.set()
        for thread in threads:
            thread.join()


def executed(port: int) -> float | None:
    """Return how many items a replica has executed; None while it does not answer."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=2) as response:
            lines = response.read().splitlines()
    except OSError:
        return None
    return sum(float(line.rpartition(b" ")[2]) for line in lines if line.startswith(_METRIC))


def _wait_until_busy(counters: list[list[tuple[float, float]]]) -> None:
    give_up_at_s = time.monotonic() + BUSY_S_MAX
    while not all(one and one[-1][1] > 0 for one in counters):
        if time.monotonic() > give_up_at_s:
            raise VoidRunError("a replica executes nothing")
        time.sleep(_READ_S)
