"""A simulated pool: servers take one item after another, of jobs that arrive at random.

It knows nothing of `core.estimates`. Jobs emit items by the rules of intake, once a second;
a free server takes an item of the tenant that was served least for its weight, of its lowest rank,
and there of the job that was served least. The speed of the servers varies in time.
"""

import heapq
import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from uuid import UUID

from core.tenant_claims import TenantClaim
from core.urgency import PRIORITY_DEFAULT
from jobs.expansion.allowances import allowances
from jobs.expansion.load_sums import JobLoad, LoadSums, TenantPool
from jobs.expansion.windows import (
    PoolCapacity,
    WindowLimits,
    pool_budgets,
    select_jobs,
    tenant_windows,
)

_POOL = "pool"
_ROUND_S = 1.0  # between two rounds of intake
_LEASES_MAX = 64
_LIMITS = WindowLimits(
    window_s=3.0, window_items_max=1_000_000, read_ahead_items=20_000, read_ahead_bytes=2**26
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What is simulated."""

    weights: tuple[int, ...] = (1, 1, 1, 1, 2, 2, 4, 8)
    servers: int = 32
    service_s: float = 1.0  # mean of an item
    service_spread: float = 0.5
    speed_spread: float = 0.06
    speed_memory_s: float = 90.0
    jobs: int = 250
    job_items: float = 800.0  # median
    job_spread: float = 1.0  # of the logarithm
    load: float = 0.7  # of the pool
    high_priority_share: float = 0.2


@dataclass(slots=True)
class SimulatedJob:
    """A job and how far it is."""

    job_id: UUID
    tenant: int
    priority: int
    total: int
    arrives_s: float
    emitted: int = 0
    started: int = 0
    ended: int = 0
    ends_s: float = math.inf
    served: float = 0.0  # in relation to other jobs of the tenant

    @property
    def remaining(self) -> int:
        """Items that have not ended."""
        return self.total - self.ended

    @property
    def load(self) -> JobLoad:
        """The load that intake would read."""
        return JobLoad(
            self.job_id, UUID(int=self.tenant), _POOL, self.total, self.emitted, self.ended,
            priority=self.priority, left_s=86_400.0, created_s=self.arrives_s,
        )  # fmt: skip


@dataclass(slots=True)
class SimulatedPool:
    """The state of the simulation."""

    workload: Workload
    random: Random
    on_second: Callable[["SimulatedPool"], None]
    now_s: float = 0.0
    speed: float = 1.0
    jobs: list[SimulatedJob] = field(default_factory=list)  # all that have arrived
    open_jobs: dict[UUID, SimulatedJob] = field(default_factory=dict)
    answered: int = 0  # items that ended in the last second
    is_busy: bool = False  # whether every server worked at its end
    _queued: dict[int, list[SimulatedJob]] = field(default_factory=dict)  # with emitted items
    _running: list[tuple[float, int, SimulatedJob]] = field(default_factory=list)
    _served: defaultdict[int, float] = field(
        default_factory=lambda: defaultdict(float)
    )  # by tenant, divided by its weight
    _leased: Collection[UUID] = ()
    _count: int = 0

    def run(self) -> None:
        """Run until the last job has ended."""
        arrivals = list(self._arrivals())[::-1]
        round_s = 0.0
        while arrivals or self.open_jobs:
            next_end = self._running[0][0] if self._running else math.inf
            next_arrival = arrivals[-1].arrives_s if arrivals else math.inf
            self.now_s = min(next_end, next_arrival, round_s)
            if self.now_s == round_s:
                self._tick()
                self._emit()
                round_s += _ROUND_S
            elif next_arrival <= next_end:
                self._add(arrivals.pop())
            else:
                self._end(heapq.heappop(self._running)[2])
            while len(self._running) < self.workload.servers and self._queued:
                self._start()

    def _arrivals(self) -> Iterator[SimulatedJob]:
        load, random = self.workload, self.random
        mean_items = load.job_items * math.exp(load.job_spread**2 / 2)
        jobs_per_s = load.load * load.servers / load.service_s / mean_items
        at_s = 0.0
        for _ in range(load.jobs):
            at_s += random.expovariate(jobs_per_s)
            items = max(1, round(load.job_items * math.exp(random.gauss(0, load.job_spread))))
            priority = PRIORITY_DEFAULT + (random.random() < load.high_priority_share)
            tenant = random.randrange(len(load.weights))
            yield SimulatedJob(UUID(int=random.getrandbits(128)), tenant, priority, items, at_s)

    def _add(self, job: SimulatedJob) -> None:
        self.jobs.append(job)
        self.open_jobs[job.job_id] = job

    def _tick(self) -> None:
        load = self.workload
        keep = math.exp(-1 / load.speed_memory_s)
        noise = load.speed_spread * math.sqrt(1 - keep**2) * self.random.gauss(0, 1)
        self.speed = math.exp(keep * math.log(self.speed) + noise)
        self.is_busy = len(self._running) == load.servers
        self.on_second(self)
        self.answered = 0

    def _emit(self) -> None:
        """Emit items as one round of intake does."""
        if not self.open_jobs:
            return
        load = self.workload
        loads = [job.load for job in self.open_jobs.values()]
        sums = LoadSums.of(loads)
        capacity = {_POOL: PoolCapacity(load.servers / load.service_s, load.servers)}
        budgets = pool_budgets(sums.by_pool, capacity, _LIMITS, 1)
        leased = [one for one in loads if one.job_id in self._leased]
        windows = self._windows(sums, leased, budgets)
        self._leased = select_jobs(
            sums.by_tenant_pool, windows, available=[_POOL], unclaimable=(), count_max=_LEASES_MAX
        )
        for job_id, count in allowances(leased, sums.by_tenant_pool, windows).items():
            self._queue(self.open_jobs[job_id], count)

    def _windows(
        self, sums: LoadSums, leased: Sequence[JobLoad], budgets: Mapping[str, int]
    ) -> dict[TenantPool, int]:
        return tenant_windows(
            sums.by_tenant_pool,
            {key: load.remaining for key, load in sums.by_tenant_pool.items()},
            budgets,
            items_max=1_000_000,
            turn=int(self.now_s),
            claim=lambda tenant_id, _: TenantClaim(self.workload.weights[tenant_id.int]),
        )

    def _queue(self, job: SimulatedJob, count: int) -> None:
        """Queue items; whoever was away starts with what the others have been served."""
        if job.emitted == job.started:
            if job.tenant not in self._queued:
                least = min((self._served[one] for one in self._queued), default=0.0)
                self._served[job.tenant] = max(self._served[job.tenant], least)
            queue = self._queued.setdefault(job.tenant, [])
            job.served = max(job.served, min((one.served for one in queue), default=0.0))
            queue.append(job)
        job.emitted += count

    def _start(self) -> None:
        tenant = min(self._queued, key=lambda one: self._served[one])
        queue = self._queued[tenant]
        job = min(queue, key=lambda one: (-one.priority, one.served))
        job.started += 1
        job.served += 1
        if job.started == job.emitted:
            queue.remove(job)
            if not queue:
                del self._queued[tenant]
        load = self.workload
        self._served[tenant] += 1 / load.weights[tenant]
        sigma = math.sqrt(math.log(1 + load.service_spread**2))
        service_s = load.service_s * math.exp(self.random.gauss(-(sigma**2) / 2, sigma))
        self._count += 1
        heapq.heappush(self._running, (self.now_s + service_s / self.speed, self._count, job))

    def _end(self, job: SimulatedJob) -> None:
        job.ended += 1
        self.answered += 1
        if not job.remaining:
            job.ends_s = self.now_s
            del self.open_jobs[job.job_id]
