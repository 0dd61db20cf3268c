"""What each tenant of a pool was served in the last minute, from the reports on `service`.

Batchers report tokens by absolute numbers, so a lost report only delays them.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import inf
from threading import Lock
from typing import Final, NamedTuple, TypeAlias
from uuid import UUID

from topics.records.received_record import ReceivedRecord
from topics.records.records import ServiceReport, TenantService
from topics.tail_readers.tail_reader_thread import decode_records

SPAN_S: Final = 60.0
"""The time over which tokens are summed up."""

SILENCE_S_MAX: Final = 10.0
"""Silence after which a batcher has ended. It reports each second at least."""

ENTRIES_MAX: Final = 50_000
"""Tenants of all pools and batchers that are kept. Further ones are not shown."""

CACHE_S: Final = 1.0
"""How long the tenants of a pool are not computed again: batchers report each second."""

CACHED_MAX: Final = 16
"""Pools and classes whose tenants are kept for that time."""

_SLOT_S: Final = 5.0
_SLOTS: Final = int(SPAN_S / _SLOT_S)

PoolClass: TypeAlias = tuple[str, str]
"""Pool and job class."""

_PoolTenant: TypeAlias = tuple[str, UUID]


class ServedTenant(NamedTuple):
    """A tenant of one pool and class."""

    tenant_id: UUID
    waiting: int  # items, at all batchers
    tokens: float  # weighted, in the last minute
    share: float  # of the tokens of the pool and class in that time
    virtual_time: float | None  # at the batcher where most of its items wait; None: none waits
    lead: float  # of the virtual time over the lowest one of its class at that batcher


@dataclass(slots=True)
class _Batcher:
    """A batcher that reported of late."""

    job_class: str
    read_s: float
    newest: dict[_PoolTenant, TenantService] = field(default_factory=dict)
    slots: dict[int, dict[_PoolTenant, float]] = field(default_factory=dict)
    """Tokens, by number of the slot: a whole slot is dropped when it is a minute old."""


class ServedShares:
    """The newest report of each batcher, and the sums of a minute.

    One thread applies reports, any other may read. `tenants` may wait for reports that are being
    applied, and takes long for a pool of many tenants: do not call it on an event loop.
    """

    def __init__(self) -> None:
        """Start without reports."""
        self._batchers: dict[str, _Batcher] = {}  # replaced as a whole
        self._lock = Lock()  # of what batchers hold, and of `_computed`
        self._computed: dict[PoolClass, tuple[float, list[ServedTenant]]] = {}

    def age_s(self, *, now_s: float) -> float | None:
        """Return the time since the last report; None: there was none within `SPAN_S`."""
        ages = [now_s - one.read_s for one in self._batchers.values()]
        return min((age for age in ages if age <= SPAN_S), default=None)

    def apply(self, reports: Iterable[ServiceReport], *, now_s: float) -> None:
        """Apply reports that arrived now, in the order of the log."""
        slot = int(now_s / _SLOT_S)
        batchers = dict(self._batchers)
        for report in reports:
            batcher = batchers.setdefault(report.batcher_id, _Batcher(report.job_class, now_s))
            others = sum(len(one.newest) for one in batchers.values()) - len(batcher.newest)
            with self._lock:
                batcher.read_s = now_s
                _apply_report(batcher, report, slot, entries_max=ENTRIES_MAX - others)
        self._batchers = {
            name: one for name, one in batchers.items() if now_s - one.read_s <= SPAN_S
        }

    def tenants(self, pool: str, job_class: str, *, now_s: float) -> Sequence[ServedTenant]:
        """Return the tenants of a pool and class that wait or were served in the last minute.

        They are in the order of their ids. A list serves all callers for `CACHE_S`.
        """
        key = pool, job_class
        with self._lock:
            computed_s, found = self._computed.get(key, (-inf, []))
            if now_s - computed_s >= CACHE_S:
                found = sorted(self._compute(pool, job_class, now_s), key=_id)
                self._computed = {
                    name: one for name, one in self._computed.items() if now_s - one[0] < CACHE_S
                }
                if len(self._computed) < CACHED_MAX:
                    self._computed[key] = now_s, found
        return found

    def _compute(self, pool: str, job_class: str, now_s: float) -> Iterator[ServedTenant]:
        slot = int(now_s / _SLOT_S)
        live: dict[UUID, list[TenantService]] = {}
        tokens: dict[UUID, float] = {}
        for batcher in self._batchers.values():
            if batcher.job_class != job_class:
                continue
            is_live = now_s - batcher.read_s <= SILENCE_S_MAX
            slots = [one for number, one in batcher.slots.items() if number > slot - _SLOTS]
            for key, newest in batcher.newest.items():
                if key[0] != pool:
                    continue
                tenant_id = key[1]
                of_tenant = sum(one.get(key, 0.0) for one in slots)
                tokens[tenant_id] = tokens.get(tenant_id, 0.0) + of_tenant
                if is_live:
                    live.setdefault(tenant_id, []).append(newest)
        total = sum(tokens.values())
        for tenant_id, served in tokens.items():
            reports = live.get(tenant_id, [])
            waiting = sum(one.waiting for one in reports)
            if not waiting and not served:
                continue
            most = max(reports, key=lambda one: one.waiting, default=None)
            yield ServedTenant(
                tenant_id,
                waiting,
                served,
                served / total if total else 0.0,
                None if most is None else most.counter,
                0.0 if most is None else most.lead,
            )


def newest_reports(records: Iterable[ReceivedRecord]) -> list[ServiceReport]:
    """Return the last report of each batcher. Raises SchemaTooNewError."""
    reports = (one for _, one in decode_records(ServiceReport, records) if one is not None)
    return list({report.batcher_id: report for report in reports}.values())


def _id(served: ServedTenant) -> UUID:
    return served.tenant_id


def _apply_report(batcher: _Batcher, report: ServiceReport, slot: int, *, entries_max: int) -> None:
    """Replace what a batcher reported before, and add the difference to the tokens of the slot.

    The first number of a tenant counts as nothing: it may be of hours.
    """
    batcher.slots = {number: one for number, one in batcher.slots.items() if number > slot - _SLOTS}
    tokens = batcher.slots.setdefault(slot, {})
    before, batcher.newest = batcher.newest, {}
    for pool, tenants in report.pools.items():
        for one in tenants:
            if len(batcher.newest) >= entries_max:
                return
            key = pool, one.tenant_id
            batcher.newest[key] = one
            last = before.get(key)
            if last is None:
                continue
            served = one.served - last.served if one.served >= last.served else one.served
            if served > 0:
                tokens[key] = tokens.get(key, 0.0) + served * max(1, one.weight)
