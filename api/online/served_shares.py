"""What each tenant of a pool was served in the last minute, from the reports on `service`.

Batchers report tokens by absolute numbers, so a lost report only delays them.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias
from uuid import UUID

from topics.records.records import ServiceReport, TenantService

SPAN_S: Final = 60.0
"""The time over which tokens are summed up."""

SILENCE_S_MAX: Final = 10.0
"""Silence after which a batcher has ended. It reports each second at least."""

ENTRIES_MAX: Final = 50_000
"""Tenants of all pools and batchers that are kept. Further ones are not shown."""

_SLOT_S: Final = 5.0
_SLOTS: Final = int(SPAN_S / _SLOT_S)

PoolClass: TypeAlias = tuple[str, str]
"""Pool and job class."""


class ServedTenant(NamedTuple):
    """A tenant of one pool and class."""

    tenant_id: UUID
    waiting: int  # items, at all batchers
    tokens: float  # weighted, in the last minute
    share: float  # of the tokens of the pool and class in that time
    virtual_time: float | None  # at the batcher where most of its items wait; None: none waits
    lead: float  # of the virtual time over the lowest one of its class at that batcher


@dataclass(slots=True)
class _Entry:
    """A tenant at one batcher."""

    newest: TenantService
    slots: dict[int, float] = field(default_factory=dict)  # tokens, by number of the slot

    def tokens(self, now_slot: int) -> float:
        return sum(tokens for slot, tokens in self.slots.items() if slot > now_slot - _SLOTS)


@dataclass(slots=True)
class _Batcher:
    """A batcher that reported of late."""

    job_class: str
    read_s: float
    entries: dict[tuple[str, UUID], _Entry] = field(default_factory=dict)


class ServedShares:
    """The newest report of each batcher, and the sums of a minute. Used on one thread."""

    def __init__(self) -> None:
        """Start without reports."""
        self._batchers: dict[str, _Batcher] = {}

    def age_s(self, *, now_s: float) -> float | None:
        """Return the time since the last report; None: there was none within `SPAN_S`."""
        ages = [now_s - one.read_s for one in self._batchers.values()]
        return min((age for age in ages if age <= SPAN_S), default=None)

    def apply(self, reports: Iterable[ServiceReport], *, now_s: float) -> None:
        """Apply reports, in the order of the log."""
        slot = int(now_s / _SLOT_S)
        for report in reports:
            batcher = self._batchers.get(report.batcher_id)
            if batcher is None:
                batcher = _Batcher(report.job_class, now_s)
                self._batchers[report.batcher_id] = batcher
            batcher.read_s = now_s
            batcher.entries = self._entries(batcher, report, slot)
        self._batchers = {
            name: one for name, one in self._batchers.items() if now_s - one.read_s <= SPAN_S
        }

    def tenants(self, pool: str, job_class: str, *, now_s: float) -> list[ServedTenant]:
        """Return the tenants of a pool and class that wait or were served in the last minute."""
        slot = int(now_s / _SLOT_S)
        found: dict[UUID, list[tuple[_Entry, bool]]] = {}
        for name, tenant_id, entry, is_live in self._of_class(job_class, now_s):
            if name == pool:
                found.setdefault(tenant_id, []).append((entry, is_live))
        tokens = {key: sum(e.tokens(slot) for e, _ in of_key) for key, of_key in found.items()}
        total = sum(tokens.values())
        shown = []
        for tenant_id, entries in found.items():
            live = [entry.newest for entry, is_live in entries if is_live]
            waiting = sum(one.waiting for one in live)
            if not waiting and not tokens[tenant_id]:
                continue
            most = max(live, key=lambda one: one.waiting, default=None)
            shown.append(
                ServedTenant(
                    tenant_id,
                    waiting,
                    tokens[tenant_id],
                    tokens[tenant_id] / total if total else 0.0,
                    None if most is None else most.counter,
                    0.0 if most is None else most.lead,
                )
            )
        return shown

    def _of_class(self, job_class: str, now_s: float) -> Iterator[tuple[str, UUID, _Entry, bool]]:
        for batcher in self._batchers.values():
            if batcher.job_class == job_class:
                is_live = now_s - batcher.read_s <= SILENCE_S_MAX
                for (pool, tenant_id), entry in batcher.entries.items():
                    yield pool, tenant_id, entry, is_live

    def _entries(
        self, batcher: _Batcher, report: ServiceReport, slot: int
    ) -> dict[tuple[str, UUID], _Entry]:
        """Return the entries of a batcher with a newer report.

        The first number of a tenant counts as nothing: it may be of hours.
        """
        others = sum(len(one.entries) for one in self._batchers.values()) - len(batcher.entries)
        entries: dict[tuple[str, UUID], _Entry] = {}
        for pool, tenants in report.pools.items():
            for one in tenants:
                if others + len(entries) >= ENTRIES_MAX:
                    return entries
                key = pool, one.tenant_id
                entry = batcher.entries.get(key)
                if entry is None:
                    entries[key] = _Entry(one)
                    continue
                before, entry.newest = entry.newest.served, one
                served = one.served - before if one.served >= before else one.served
                entry.slots = {n: v for n, v in entry.slots.items() if n > slot - _SLOTS}
                if served > 0:
                    tokens = served * max(1, one.weight)
                    entry.slots[slot] = entry.slots.get(slot, 0.0) + tokens
                entries[key] = entry
        return entries
