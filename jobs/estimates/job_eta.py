"""The estimate of one batch as users see it: its end, its queue position and what waits. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final
from uuid import UUID

from core.estimates.job_end import JobEnd, PoolEstimate
from core.states import JobState
from jobs.estimates.pool_rates import PoolState
from jobs.estimates.pool_work import (
    JobPosition,
    PoolSums,
    RecentJobs,
    TenantJobs,
    TenantSums,
    tenant_works,
)
from jobs.estimates.waiting_reasons import (
    ItemCounts,
    JobBlock,
    PoolView,
    WaitingReason,
    waiting_histogram,
)
from jobs.expansion.pool_versions import has_versions, required_versions
from jobs.store.job_schedule import job_opening

_WINDOWS_MAX: Final = 64  # of bulk hours that follow each other without a gap
_OUTCOMES = ("succeeded", "failed", "cancelled", "expired")


class UnknownEnd(StrEnum):
    """Why the end of a batch cannot be told, besides what blocks the whole batch."""

    VALIDATING = "validating"  # a file of it; the number of its items is not known
    NOT_SEALED = "not_sealed"  # more files may come
    RATE_UNKNOWN = "rate_unknown"  # the pool has not answered an item yet, or the log is away
    TOO_NEW = "too_new"  # its items count from the next second


@dataclass(frozen=True, slots=True)
class PoolSnapshot:
    """The pool of a batch as of about a second ago."""

    state: PoolState
    estimate: PoolEstimate[UUID] | None  # None: the rate is not known
    sums: Mapping[UUID, TenantSums]
    outstanding: float = 0.0  # items of all tenants
    start_s: float | None = None  # without a replica: predicted time until one serves, if known
    ends: dict[UUID, JobEnd] = field(default_factory=dict)
    """Those computed so far, by job: many requests for one job cost one computation."""


def pool_snapshot(pool: str, state: PoolState, sums: PoolSums, recent: RecentJobs) -> PoolSnapshot:
    """Return the pool as of what was read; without a rate, it has no estimate."""
    of_pool = sums.get(pool, {})
    outstanding = sum(one.outstanding for one in of_pool.values())
    if state.rate is None:
        return PoolSnapshot(state, None, of_pool, outstanding)
    estimate = PoolEstimate(tenant_works(pool, sums, recent), state.rate)
    return PoolSnapshot(state, estimate, of_pool, outstanding)


def is_running(row: Any) -> bool:
    """Whether a row of `jobs` is a batch whose items run or wait."""
    return row.state == JobState.IN_PROGRESS and not (row.settled_at or row.close_reason)


def job_block(row: Any, now_s: float) -> WaitingReason | None:
    """Return what blocks a whole batch, by its row of `jobs` and the hours of its tenant."""
    not_before_s = row.not_before.timestamp() if row.not_before else 0.0
    opening = job_opening(now_s, not_before_s, (row.bulk_hours, row.tenant_bulk_hours))
    return JobBlock(
        is_paused=row.paused_at is not None,
        is_quarantined=row.quarantined_until is not None,
        is_off_peak=opening.opens_s > now_s,
    ).reason


def pool_view(row: Any, pool: PoolSnapshot) -> PoolView:
    """Return what the reasons need of the pool."""
    of_tenant = pool.sums.get(row.tenant_id)
    return PoolView(
        has_replica=pool.state.has_replica,
        has_version=has_versions(pool.state.versions, row.pool, required_versions(row)),
        of_tenant=None if of_tenant is None else of_tenant.outstanding,
        of_all=pool.outstanding,
    )


def waiting_of(
    row: Any, position: JobPosition, pool: PoolSnapshot, now_s: float
) -> dict[str, int] | None:
    """Return the histogram of reasons; None if the batch has ended or is validated."""
    if row.total_count is None or row.pool is None:
        return None
    counts = ItemCounts(
        total=row.total_count,
        ended=sum(getattr(row, name) for name in _OUTCOMES),
        emitted=position.emitted,
        copies=position.copies - row.copied,
        retries=position.retries,
    )
    return waiting_histogram(counts, job_block(row, now_s), pool_view(row, pool))


def eta_of(
    row: Any, position: JobPosition, jobs: TenantJobs, pool: PoolSnapshot, now_s: float
) -> dict[str, object]:
    """Return the `eta` of a running batch: every key, null where it cannot be told.

    `p50` and `p90` are seconds since the epoch, `queue_s` seconds from now. `reason` says why they
    are null. While a pool without replicas is started, `queue_s` is the predicted start. A batch
    without an item left to run ends now; its copies get their rows at once.
    """
    has_items = _has_items(row, position)
    reason = _unknown_end(row, position, pool, now_s, has_items=has_items)
    if reason is None and has_items and not (row.id in jobs.ahead and row.tenant_id in pool.sums):
        reason = UnknownEnd.TOO_NEW
    if reason is WaitingReason.NO_REPLICA and pool.start_s is not None:
        return _eta(queue_s=round(pool.start_s, 1), reason=reason)
    if reason is not None:
        return _eta(reason=reason)
    if not has_items:
        if not row.sealed:
            return _eta(queue_s=0.0, reason=UnknownEnd.NOT_SEALED)
        return _eta(p50=round(now_s), p90=round(now_s), miss_probability=0.0, queue_s=0.0)
    end = pool.ends.get(row.id)
    if end is None:
        assert pool.estimate is not None  # else the rate is not known
        work, ahead = jobs.works[row.id], jobs.ahead[row.id]
        end = pool.ends[row.id] = pool.estimate.job_end(row.tenant_id, ahead, work.remaining)
    queue_s = round(end.queue_s, 1)
    if not row.sealed:
        return _eta(queue_s=queue_s, reason=UnknownEnd.NOT_SEALED)
    if position.emitted < row.total_count and _closes_before(row, now_s, now_s + end.p50_s):
        return _eta(queue_s=queue_s, reason=WaitingReason.OFF_PEAK)
    return _eta(
        p50=round(now_s + end.p50_s),
        p90=round(now_s + end.p90_s),
        miss_probability=round(end.miss_probability(row.expires_at.timestamp() - now_s), 3),
        queue_s=queue_s,
    )


def _has_items(row: Any, position: JobPosition) -> bool:
    """Whether items of a batch are left that run; true also while their number is not known."""
    if row.total_count is None:
        return True
    ended = sum(getattr(row, name) for name in _OUTCOMES)
    return bool(row.total_count - ended > max(0, position.copies - row.copied))


def _closes_before(row: Any, now_s: float, end_s: float) -> bool:
    """Whether the hours of a batch, open now, close before a time."""
    at_s, hours = now_s, (row.bulk_hours, row.tenant_bulk_hours)
    for _ in range(_WINDOWS_MAX):
        opening = job_opening(at_s, 0.0, hours)
        if opening.opens_s:
            return True
        if opening.recheck_s >= end_s:
            return False
        at_s = opening.recheck_s
    return False


def _unknown_end(
    row: Any, position: JobPosition, pool: PoolSnapshot, now_s: float, *, has_items: bool
) -> StrEnum | None:
    if row.total_count is None or row.pool is None or (row.sealed and not row.total_final):
        return UnknownEnd.VALIDATING
    if not has_items:
        return None
    block = job_block(row, now_s)
    if block is not None and (block.holds_emitted or position.emitted < row.total_count):
        return block
    if (without_replica := pool_view(row, pool).without_replica) is not None:
        return without_replica
    return UnknownEnd.RATE_UNKNOWN if pool.estimate is None else None


def _eta(
    *,
    p50: int | None = None,
    p90: int | None = None,
    miss_probability: float | None = None,
    queue_s: float | None = None,
    reason: StrEnum | None = None,
) -> dict[str, object]:
    return {
        "p50": p50,
        "p90": p90,
        "miss_probability": miss_probability,
        "queue_s": queue_s,
        "reason": reason and reason.value,
    }
