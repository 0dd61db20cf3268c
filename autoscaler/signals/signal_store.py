"""All that topics say of pools, and the inputs of one decision made of it. For one thread."""

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from msgspec import Struct

from autoscaler.policy.signals import BulkBucket, InputName, ReplicaSignal
from autoscaler.signals.amounts import AMOUNT_MAX
from autoscaler.signals.backlog_table import BacklogTable
from autoscaler.signals.demand_table import DemandTable
from autoscaler.signals.replica_table import ReplicaTable
from topics.records.records import Capacity, Demand, Record
from topics.records.scaling import Backlog, RoleLoad, WakeRequest

SILENCE_S_MAX: Final = 60.0
"""Time after which silent replicas are known to be gone, if their topic can be read."""

CALLS_MAX: Final = 1_000_000_000
"""Calls since the last inputs; more count as so many."""

_NEVER_S: Final = 4.0  # age of an input that should exist and was never read


class PoolInputs(Struct, frozen=True, kw_only=True):
    """What topics say of a pool; arrivals are those since the last inputs were taken."""

    arrived_tokens: float
    waiting_tokens: float
    bulk: tuple[BulkBucket, ...]
    uploads: int
    calls: int  # of wake requests: they tell of work, whose tokens the batchers count
    next_deadline_s: float | None
    replicas: list[ReplicaSignal]
    leaving: set[str]  # replicas whose spot GPU is taken away
    output_weight: float
    correction: Mapping[str, float]  # of endpoints where both numbers are known
    age_s: dict[InputName, float]


class SignalStore:
    """Applies records and returns the inputs of a pool."""

    def __init__(self, is_readable: Callable[[str], bool] = lambda _: True) -> None:
        """`is_readable` says whether a topic, by name, can be read now."""
        self.replicas, self.demand, self.backlog = ReplicaTable(), DemandTable(), BacklogTable()
        self._is_readable = is_readable

    def record(self, records: Iterable[Record], now_s: float) -> None:
        """Apply records that arrived at `now_s`."""
        for one in records:
            if isinstance(one, Capacity):
                self.replicas.record(one, now_s)
            elif isinstance(one, Demand):
                self.demand.record(one, now_s)
            elif isinstance(one, Backlog):
                self.backlog.record_backlog(one, now_s)
            elif isinstance(one, WakeRequest):
                self.backlog.record_wake(one, now_s)
            elif isinstance(one, RoleLoad):
                self.backlog.record_load(one, now_s)

    @property
    def pools(self) -> set[str]:
        """The pools that topics name."""
        return {*self.replicas.pools, *self.demand.pools, *self.backlog.pools}

    @property
    def busy_pools(self) -> set[str]:
        """The pools that have, or had, replicas, demand, bulk work, uploads or calls."""
        return {*self.replicas.pools, *self.demand.pools, *self.backlog.busy_pools}

    def forget_arrivals(self) -> None:
        """Discard arrivals and calls that no decision took: they are not those of one second."""
        self.demand.forget_arrived()
        self.backlog.forget_calls()

    def take_inputs(
        self,
        pool: str,
        now_s: float,
        *,
        ordered: int,
        has_arrivals: bool,
        had_bulk: bool = False,
    ) -> PoolInputs:
        """Return the inputs of a pool, and count its arrivals from here on.

        An input that was never read is stale only if something should publish it: replicas if some
        are `ordered`, batchers if the pool `has_arrivals`, an intake if it `had_bulk` work.
        """
        weight = self.replicas.output_weight(pool)
        replicas = self.replicas.replicas(pool, now_s)
        arrived = self.demand.take_arrived(pool, weight)
        waiting, deadline_s = self.demand.waiting(pool, weight)
        bulk, next_deadline_s = self.backlog.buckets(pool, now_s)
        deadlines = [one for one in (deadline_s, next_deadline_s) if one is not None]
        estimates, measured = self.backlog.estimates(pool), self.replicas.output_means(pool)
        online_age_s = self.demand.age_s(now_s)
        if online_age_s is None:
            online_age_s = _NEVER_S if has_arrivals else 0.0
        return PoolInputs(
            arrived_tokens=min(arrived, AMOUNT_MAX),
            waiting_tokens=min(waiting, AMOUNT_MAX),
            bulk=bulk,
            uploads=self.backlog.uploads(pool, now_s),
            calls=min(self.backlog.take_calls(pool), CALLS_MAX),
            next_deadline_s=min(deadlines, default=None),
            replicas=replicas,
            leaving=self.replicas.leaving(pool),
            output_weight=weight,
            correction={
                name: min(AMOUNT_MAX, measured[name] / tokens)
                for name, tokens in estimates.items()
                if name in measured
            },
            age_s={
                "online": online_age_s,
                "bulk": self.backlog.age_s(pool, now_s, had_work=had_bulk),
                "replicas": self._replica_age_s(pool, now_s, ordered),
            },
        )

    def _replica_age_s(self, pool: str, now_s: float, ordered: int) -> float:
        age_s = self.replicas.age_s(pool, now_s)
        if age_s is None:
            return _NEVER_S if ordered else 0.0
        is_gone = age_s > SILENCE_S_MAX and self._is_readable("capacity")
        return 0.0 if is_gone or (not ordered and age_s > _NEVER_S) else age_s
