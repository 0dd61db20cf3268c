"""First steps of the writer's transactions: lock counters, drop outcomes that do not count."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from jobs.store.job_options import JobBudget
from results.writer.record_groups import JobItems
from results.writer.statements import FIND_EXISTING, LOCK_JOBS, READ_JOB_COUNTERS
from storage.postgres.engines import Cursor


@dataclass(frozen=True, slots=True)
class LockedJob:
    """A job whose counters are locked until the transaction ends."""

    job_id: UUID
    closed_reason: str | None  # set: results do not count any more
    total_count: int  # 0 during validation, when no result can be valid yet
    day: int  # selects the partition of its rows, days since 1970-01-01
    ended_count: int  # items that have their row
    budget: JobBudget | None = None
    succeeded: int = 0
    failed: int = 0
    total_tokens: int = 0
    deduplicates: bool = False
    is_mixed: bool = False  # its requests name several models


@dataclass(slots=True)
class AdmittedItems:
    """Outcomes that count, and the number of those that were dropped."""

    jobs: JobItems
    ignored_count: int = 0  # read after the close of their job
    unknown_count: int = 0  # the job is unknown, or the index is outside its items


def lock_jobs(cursor: Cursor, job_ids: Iterable[UUID]) -> dict[UUID, LockedJob]:
    """Lock the counters of those of the jobs that exist, until the transaction ends."""
    # Not prepared, here and elsewhere: a plan made while the tables were empty would be kept.
    cursor.execute(LOCK_JOBS, [list(job_ids)], prepare=False)
    return {row[0]: _locked_job(row) for row in cursor}


def read_job_counters(cursor: Cursor, job_id: UUID) -> LockedJob | None:
    """Return the job's counters without a lock: lock and check again before any write."""
    cursor.execute(READ_JOB_COUNTERS, [[job_id]], prepare=False)
    row = cursor.fetchone()
    return None if row is None else _locked_job(row)


def _locked_job(row: tuple[Any, ...]) -> LockedJob:
    job_id, closed_reason, total, day, ended, items, ratio, sample, tokens, *counts = row
    budget = None
    if (items, ratio, tokens) != (None, None, None):
        budget = JobBudget(
            max_failed_items=items,
            max_failed_ratio=ratio,
            failed_ratio_sample=sample,
            max_total_tokens=tokens,
        )
    return LockedJob(job_id, closed_reason, total or 0, day, ended, budget, *counts)


def admit_items(jobs: JobItems, locked: Mapping[UUID, LockedJob]) -> AdmittedItems:
    """Drop outcomes after a close, of unknown jobs, and with indexes outside their job."""
    admitted = AdmittedItems({})
    for job_id, items in jobs.items():
        job = locked.get(job_id)
        if job is None:
            admitted.unknown_count += len(items)
        elif job.closed_reason is not None:
            admitted.ignored_count += len(items)
        else:
            indexes = [item.index for item in items]
            kept = items
            if min(indexes) < 0 or max(indexes) >= job.total_count:
                kept = [item for item in items if 0 <= item.index < job.total_count]
                admitted.unknown_count += len(items) - len(kept)
            if kept:
                admitted.jobs[job_id] = kept
    return admitted


def missing_items(cursor: Cursor, jobs: JobItems, locked: Mapping[UUID, LockedJob]) -> JobItems:
    """Return the first outcome of each item that has no row yet."""
    missing: JobItems = {}
    for job_id, items in jobs.items():
        seen = existing_indexes(cursor, [item.index for item in items], locked[job_id])
        kept = []
        for item in items:
            if item.index not in seen:
                seen.add(item.index)
                kept.append(item)
        if kept:
            missing[job_id] = kept
    return missing


def existing_indexes(cursor: Cursor, indexes: list[int], job: LockedJob) -> set[int]:
    """Return which of `indexes` have their row."""
    cursor.execute(FIND_EXISTING, [indexes, job.day, job.job_id], prepare=False)
    return {index for (index,) in cursor}
