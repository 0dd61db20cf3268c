"""Which leads a batcher that starts takes from reports, also of batchers that ended. Pure.

Counters of fairness live in memory. A tenant that was ahead when its batcher was killed would start
level with the others, so each report names the leads, and a new batcher begins with them.
"""

import math
from collections.abc import Iterable, Mapping
from statistics import median
from typing import Final, NamedTuple
from uuid import UUID

import msgspec

from topics.records.records import ServiceReport, TenantService

AGE_S_MAX: Final = 60.0
"""Age of a report from which it says nothing any more: its tenants may have been idle since."""

EXPECTED_S: Final = 10.0
"""Time in which a tenant that waited comes at its own counter, after partitions were assigned.
After it a tenant starts at the lowest counter at least, as any other that comes."""

TENANTS_MAX: Final = 10_000
"""Tenants of all pools whose leads are restored."""


class AgedReport(NamedTuple):
    """A report, and how long ago it was appended, by the time of the broker."""

    age_s: float
    report: ServiceReport


Leads = Mapping[str, Mapping[UUID, TenantService]]
"""By pool and tenant: the lead, the charges, and the items that waited."""


def restored_leads(reports: Iterable[AgedReport], job_class: str) -> Leads:
    """Return the lead of each tenant by the newest report that names it.

    `reports` are in the order of the topic; of each batcher the last one with tenants counts. Leads
    are relative to the lowest counter of a class that a batcher knows, so those of an older report
    are moved by the median difference of the tenants that newer ones name, too.
    """
    newest: dict[str, AgedReport] = {}
    for one in reports:
        if one.age_s <= AGE_S_MAX and one.report.job_class == job_class and one.report.pools:
            newest[one.report.batcher_id] = one
    merged: dict[tuple[str, int], dict[UUID, TenantService]] = {}  # by pool and priority class
    left = TENANTS_MAX
    for aged in sorted(newest.values(), key=lambda one: one.age_s):
        for pool, tenants in aged.report.pools.items():
            for tenant_class, of_class in _by_class(tenants).items():
                known = merged.setdefault((pool, tenant_class), {})
                new = _new_tenants(known, of_class)[:left]
                known |= {one.tenant_id: one for one in new}
                left -= len(new)
    leads: dict[str, dict[UUID, TenantService]] = {}
    for (pool, _), known in merged.items():
        if known:  # of a tenant that changed its class, the newest report counts
            leads[pool] = _from_zero(known) | leads.get(pool, {})
    return leads


def _by_class(tenants: Iterable[TenantService]) -> dict[int, list[TenantService]]:
    found: dict[int, list[TenantService]] = {}
    for one in tenants:
        found.setdefault(one.tenant_class, []).append(one)
    return found


def _new_tenants(
    known: Mapping[UUID, TenantService], tenants: Iterable[TenantService]
) -> list[TenantService]:
    """Return the tenants that are not known, with leads in relation to those that are."""
    usable = [one for one in tenants if _is_usable(one)]
    gaps = [known[one.tenant_id].lead - one.lead for one in usable if one.tenant_id in known]
    offset = median(gaps) if gaps else 0.0
    return [
        msgspec.structs.replace(one, served=0.0, lead=one.lead + offset)
        for one in usable
        if one.tenant_id not in known
    ]


def _from_zero(known: Mapping[UUID, TenantService]) -> dict[UUID, TenantService]:
    """Move all leads so that the lowest one is 0."""
    lowest = min(one.lead for one in known.values())
    return {
        tenant_id: msgspec.structs.replace(one, lead=one.lead - lowest)
        for tenant_id, one in known.items()
    }


def _is_usable(one: TenantService) -> bool:
    return 0 <= one.lead < math.inf and 0 <= one.charged < math.inf
