"""The first step of every transaction of the writer: lock the counters, learn what still counts."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from jobs.store.job_budgets import Budget
from results.writer.record_groups import JobItems
from results.writer.statements import LOCK_JOBS, READ_JOB_COUNTERS
from storage.postgres.engines import Cursor


@dataclass(frozen=True, slots=True)
class LockedJob:
    """A job whose counters nobody else can change before the commit."""

    job_id: UUID
    closed_reason: str | None  # why its results do not count any more
    total_count: int  # 0 while intake validates: no result can be right yet
    day: int  # names the partition of its rows
    ended_count: int  # items that have their row
    budget: Budget | None = None  # None: nothing bounds it
    succeeded: int = 0
    failed: int = 0
    total_tokens: int = 0
    deduplicates: bool = False


@dataclass(slots=True)
class AdmittedItems:
    """Outcomes that count, and the number of those that do not."""

    jobs: JobItems
    ignored_count: int = 0  # read behind the close of their job
    unknown_count: int = 0  # of no job, or of no item of their job


def lock_jobs(cursor: Cursor, job_ids: Iterable[UUID]) -> dict[UUID, LockedJob]:
    """Lock the counters of the jobs that exist, until the transaction ends."""
    # Not prepared, here and elsewhere: a plan made while the tables were empty would be kept.
    cursor.execute(LOCK_JOBS, [list(job_ids)], prepare=False)
    return {row[0]: _locked_job(row) for row in cursor}


def read_job_counters(cursor: Cursor, job_id: UUID) -> LockedJob | None:
    """Return a job as it is now; whoever writes behind this look locks it and looks again."""
    cursor.execute(READ_JOB_COUNTERS, [[job_id]], prepare=False)
    row = cursor.fetchone()
    return None if row is None else _locked_job(row)


def _locked_job(row: tuple[Any, ...]) -> LockedJob:
    job_id, closed_reason, total, day, ended, items, ratio, sample, tokens, *counts = row
    budget = None
    if (items, ratio, tokens) != (None, None, None):
        budget = Budget(
            max_failed_items=items,
            max_failed_ratio=ratio,
            failed_ratio_sample=sample,
            max_total_tokens=tokens,
        )
    return LockedJob(job_id, closed_reason, total or 0, day, ended, budget, *counts)


def admit_items(jobs: JobItems, locked: Mapping[UUID, LockedJob]) -> AdmittedItems:
    """Drop outcomes behind a close, and those that no input file asked for."""
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
