"""CPU of planning deadlines in intake, while 100,000 jobs of one or of 1,000 tenants are open.

What: microseconds for each open job of one plan of all tenants of a pool, in the process. Intake
plans once a second, and never more than 5 % of its time.

How: jobs of 1 to 200 items with deadlines in 10 minutes to 24 hours. `comfortable`: the pool is so
fast that none is at risk. `urgent`: it can just meet all of them. `overload`: it can do 70 %.
The shortest of five plans counts.

Goal: at most 10 µs a job under pressure, and 0.5 µs without.
"""

import random
import time
from typing import Final
from uuid import UUID

from benchmarks.runs import Report, Row, Setup
from core.clock import SystemClock
from core.tenant_claims import PLAIN_CLAIM
from jobs.expansion.deadline_planner import DeadlinePlanner, supplies
from jobs.expansion.load_sums import JobLoad, LoadSums

JOBS, QUICK_JOBS = 100_000, 2_000
TENANTS, QUICK_TENANTS = (1, 1_000), (1, 20)
REPEATS: Final = 5
NOW_S: Final = 1.8e9
DAY_S: Final = 86_400.0
ITEMS_MEAN: Final = 100
RATES: Final = {"comfortable": 150.0, "urgent": 1.05, "overload": 0.7}
"""The rate of the pool, in parts of all items in a day."""


def measure(setup: Setup) -> Report:
    """Run the benchmark; `--items` replaces the number of jobs."""
    count = setup.count(JOBS, QUICK_JOBS)
    rows = []
    for tenants in QUICK_TENANTS if setup.quick else TENANTS:
        loads = open_loads(count, tenants)
        sums = LoadSums.of(loads).by_tenant_pool
        windows = dict.fromkeys(sums, 100)
        for name, part in RATES.items():
            rate = part * count * ITEMS_MEAN / DAY_S
            supply = supplies(
                windows, {"p": rate}, lambda _tenant, _pool: PLAIN_CLAIM, now_s=NOW_S, lag_s=6.0
            )
            planner = DeadlinePlanner(SystemClock(), turn_s=3.0)
            taken_s = []
            for _ in range(REPEATS):
                started_s = time.perf_counter()
                planner.refresh(sums, loads, supply)
                taken_s.append(time.perf_counter() - started_s)
            goal = "<= 0.5" if name == "comfortable" else "<= 10"
            metric = f"{name}, {tenants:,} tenants, a job"
            rows.append(Row(metric=metric, unit="µs", ours=min(taken_s) / count * 1e6, goal=goal))
            setup.note(f"{metric}: {rows[-1].ours:.2f} µs")
    return Report(name="deadline_plans", rows=rows)


def open_loads(count: int, tenants: int) -> list[JobLoad]:
    """Return open jobs, each with another deadline."""
    draw = random.Random(1)
    return [
        JobLoad(
            UUID(int=draw.getrandbits(128)), UUID(int=number % tenants), "p",
            draw.randint(1, 2 * ITEMS_MEAN - 1), 0, 0, left_s=DAY_S, created_s=float(number),
            deadline_s=NOW_S + draw.uniform(600, DAY_S),
        )
        for number in range(count)
    ]  # fmt: skip
