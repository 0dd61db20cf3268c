"""A pool whose refused clients return exactly when they were told to. No clock, no sleep."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush

from core.overload.admission_control import AdmissionControl, AdmissionRequest
from core.overload.shedding import ShedClass, SheddingLimits

RATIOS = (0.25, 0.5, 0.75)
POOL = "p"


@dataclass
class Client:
    """One client: when it was refused, what it was told, and when it was admitted."""

    number: int
    shed_class: ShedClass = ShedClass.INTERACTIVE
    refused_s: list[float] = field(default_factory=list)
    told_s: list[int] = field(default_factory=list)
    admitted_s: float | None = None


@dataclass
class OverloadSimulation:
    """Calls arrive at random; service times are exponential; calls above the slots wait."""

    seed: int
    slots: int = 20
    service_s: float = 2.0
    wait_s_max: float = 4.0
    clients: list[Client] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        limits = SheddingLimits(self.wait_s_max, RATIOS)
        self.control = AdmissionControl[int](limits, retry_after_s_max=60, grace_s=5.0)
        self._open = 0  # admitted calls that have not ended
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._event_count = 0

    @property
    def per_s(self) -> float:
        return self.slots / self.service_s

    def run(self, offered: Callable[[float], float], until_s: float) -> list[Client]:
        """Run with `offered(now)` as the arrivals in relation to the capacity.

        Returns the clients that were refused, all of which return until they are admitted.
        """

        def arrive(now_s: float) -> None:
            client = Client(len(self.clients))
            self.clients.append(client)
            self._ask(client, now_s)
            if now_s < until_s:
                rate = max(1e-6, offered(now_s) * self.per_s)
                self._at(now_s + self.random.expovariate(rate), arrive)

        self._at(0.0, arrive)
        while self._events:
            at_s, _, event = heappop(self._events)
            event(at_s)
        return [client for client in self.clients if client.refused_s]

    def _ask(self, client: Client, now_s: float) -> None:
        waiting = max(0, self._open - self.slots)
        queue = self.control.queue(POOL, waiting, self.per_s, now_s=now_s)
        call = AdmissionRequest(POOL, client.number, client.shed_class, limit_s=600.0)
        retry_s = self.control.admit(call, queue, now_s=now_s)
        if retry_s is None:
            client.admitted_s = now_s
            self._open += 1
            if self._open <= self.slots:
                self._serve(now_s)
            return
        client.refused_s.append(now_s)
        client.told_s.append(retry_s)
        self._at(now_s + retry_s, lambda at_s: self._ask(client, at_s))

    def _serve(self, now_s: float) -> None:
        self._at(now_s + self.random.expovariate(1 / self.service_s), self._end)

    def _end(self, now_s: float) -> None:
        self._open -= 1
        if self._open >= self.slots:
            self._serve(now_s)  # the next one that waits

    def _at(self, at_s: float, event: Callable[[float], None]) -> None:
        self._event_count += 1
        heappush(self._events, (at_s, self._event_count, event))
