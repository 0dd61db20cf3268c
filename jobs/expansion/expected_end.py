"""When a job that comes now would end, by what its tenant and others have on its pool. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from uuid import UUID

from core.fair_shares import fair_shares
from jobs.expansion.load_sums import DUE_SPAN_S


@dataclass(frozen=True, slots=True, kw_only=True)
class NewWork:
    """The work of a job whose items were not emitted. Times are seconds since the epoch."""

    items: int
    priority: int
    deadline_s: float
    starts_s: float  # no item is emitted before


def expected_end_s(
    work: NewWork,
    due: Mapping[int, Mapping[int, int]],
    rate: float,
    now_s: float,
) -> float:
    """Return when the work would end, with `rate` items per second for its tenant.

    `due` are the tenant's unfinished items on the pool by priority, and by the span of `DUE_SPAN_S`
    in which their deadline lies. Before the work come all items of higher priorities, and those of
    its own that are due before; items that cannot end by their own deadline expire then, and hold
    up nothing later. Hours in which the tenant or the job may not run are not counted, so the real
    end is rather later.
    """
    ahead = 0.0
    for priority in sorted(due, reverse=True):
        if priority > work.priority:
            ahead = _served(due[priority].items(), ahead, rate, now_s)
    earlier = due.get(work.priority, {})
    own_span = work.deadline_s // DUE_SPAN_S
    mine = [(span, items) for span, items in earlier.items() if span <= own_span]
    ahead = _served(mine, ahead, rate, now_s)
    return max(now_s + ahead / rate, work.starts_s) + work.items / rate


def _served(due: Iterable[tuple[int, int]], ahead: float, rate: float, now_s: float) -> float:
    """Return the items that are served before and in `due`, behind `ahead` others."""
    for span, items in sorted(due):
        until_deadline = rate * ((span + 1) * DUE_SPAN_S - now_s)
        ahead = max(ahead, min(ahead + items, until_deadline))
    return ahead


def tenant_rate(
    tenant_id: UUID,
    unfinished: Mapping[UUID, int],
    weights: Mapping[UUID, int],
    rate: float,
    time_s: float,
) -> float:
    """Return the items per second that a tenant with enough work gets of a pool.

    `unfinished` are the items of the other tenants; within `time_s` they use their share of the
    pool's `rate` by weight at most, and what they have.
    """
    total = max(1, int(rate * time_s))
    demands = {**unfinished, tenant_id: total}
    return max(1, fair_shares(demands, total, weights)[tenant_id]) / time_s
