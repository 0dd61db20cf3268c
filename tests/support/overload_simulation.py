"""A pool whose refused clients return exactly when they were told to. No clock, no sleep."""

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush

from core.overload.admission_control import AdmissionControl, AdmissionRequest
from core.overload.retry_promises import Client
from core.overload.shedding import ShedClass, SheddingLimits, is_over_share

RATIOS = (0.25, 0.5, 0.75)
POOL = "p"
FLOODING_TENANT = -1


@dataclass
class SimulatedCall:
    """One call: when it was refused, what it was told, and when it was admitted."""

    client: Client[int]
    refused_s: list[float] = field(default_factory=list)
    told_s: list[int] = field(default_factory=list)
    promised: list[ShedClass | None] = field(default_factory=list)  # the class; None: no place
    admitted_s: float | None = None


@dataclass
class OverloadSimulation:
    """Calls arrive at random; service times are exponential; calls above the slots wait.

    Each tenant is new, and sends one call. Every `parallel_every`th sends `parallel` at once. A
    tenant above its share of the open calls is in the class for that, as in
    `api.online.admit.call_admission`.
    """

    seed: int
    slots: int = 20
    service_s: float = 2.0
    wait_s_max: float = 4.0
    parallel: int = 1
    parallel_every: int = 1
    flood_per_s: float = 0.0  # calls of one more tenant, which never waits until it may return
    calls: list[SimulatedCall] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        limits = SheddingLimits(self.wait_s_max, RATIOS)
        self.control = AdmissionControl[int](limits, retry_after_s_max=59, grace_s=5.0)
        self._open: Counter[int] = Counter()  # admitted calls that have not ended, by tenant
        self._open_count = self._tenant_count = 0
        self._queue: list[int] = []  # tenants of calls that wait, in order
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._event_count = 0

    @property
    def calls_per_tenant(self) -> float:
        """Return the mean number of calls of a tenant."""
        return 1 + (self.parallel - 1) / self.parallel_every

    @property
    def per_s(self) -> float:
        return self.slots / self.service_s

    def run(self, offered: Callable[[float], float], until_s: float) -> list[SimulatedCall]:
        """Run with `offered(now)` as the arrivals in relation to the capacity.

        Returns the calls that were refused, all of which return until they are admitted; without
        those of the tenant that floods the pool.
        """

        def arrive(now_s: float) -> None:
            self._tenant_count += 1
            has_several = self._tenant_count % self.parallel_every == 0
            for request in range(self.parallel if has_several else 1):
                call = SimulatedCall(Client(self._tenant_count, request))
                self.calls.append(call)
                self._ask(call, now_s)
            if now_s < until_s:
                rate = max(1e-6, offered(now_s) * self.per_s / self.calls_per_tenant)
                self._at(now_s + self.random.expovariate(rate), arrive)

        def flood(now_s: float) -> None:
            for request in (0, self._event_count):  # one that repeats, and one of its own
                self._admit(Client(FLOODING_TENANT, request), now_s)
            if now_s < until_s:
                self._at(now_s + 2 / self.flood_per_s, flood)

        self._at(0.0, arrive)
        if self.flood_per_s:
            self._at(0.0, flood)
        while self._events:
            at_s, _, event = heappop(self._events)
            event(at_s)
        return [call for call in self.calls if call.refused_s]

    def _ask(self, call: SimulatedCall, now_s: float) -> None:
        retry_s = self._admit(call.client, now_s)
        if retry_s is None:
            call.admitted_s = now_s
            return
        call.refused_s.append(now_s)
        call.told_s.append(retry_s)
        promise = self.control.promises.find(POOL, call.client, now_s=now_s)
        call.promised.append(promise and promise.shed_class)
        self._at(now_s + retry_s, lambda at_s: self._ask(call, at_s))

    def _admit(self, client: Client[int], now_s: float) -> int | None:
        """Admit a call, or return its `Retry-After`."""
        waiting = max(0, self._open_count - self.slots)
        queue = self.control.queue(POOL, waiting, self.per_s, now_s=now_s)
        weights = len(self._open) + (client.tenant not in self._open)
        is_over = is_over_share(
            self._open.get(client.tenant, 0),
            self._open_count,
            weight=1,
            weights=weights,
            capacity=self.slots,
        )
        shed_class = ShedClass.OVER_QUOTA_INTERACTIVE if is_over else ShedClass.INTERACTIVE
        share = 1 / (weights + 1)
        call = AdmissionRequest(POOL, client, shed_class, limit_s=600.0, share=share)
        retry_s = self.control.admit(call, queue, now_s=now_s)
        if retry_s is None:
            self._open[client.tenant] += 1
            self._open_count += 1
            if self._open_count <= self.slots:
                self._serve(client.tenant, now_s)
            else:
                self._queue.append(client.tenant)
        return retry_s

    def _serve(self, tenant: int, now_s: float) -> None:
        end_s = now_s + self.random.expovariate(1 / self.service_s)
        self._at(end_s, lambda at_s: self._end(tenant, at_s))

    def _end(self, tenant: int, now_s: float) -> None:
        self._open_count -= 1
        self._open[tenant] -= 1
        if not self._open[tenant]:
            del self._open[tenant]
        if self._queue:
            self._serve(self._queue.pop(0), now_s)

    def _at(self, at_s: float, event: Callable[[float], None]) -> None:
        self._event_count += 1
        heappush(self._events, (at_s, self._event_count, event))
