"""Rebuilds ended jobs from the log and compares them with the live tables; swaps on request.

per partition of `results`:  jobs ─► shadow tables ─► replay ─► compare ─► [swap]
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

import sqlalchemy as sa

from jobs.store.days import job_day
from jobs.tables.jobs import jobs
from results.rebuilding.comparison import Comparison, compare, first_row_s
from results.rebuilding.log_replay import LogReplay
from results.rebuilding.rebuild_outcome import RebuildOutcome
from results.rebuilding.shadow_tables import copy_jobs_to_shadow
from results.rebuilding.table_swap import swap
from topics.records.catalogue import RESULTS
from topics.records.partitioner import job_partition


@dataclass(frozen=True, slots=True)
class RebuiltJob:
    """The outcome for one job; `found` is None when its log was not replayed."""

    job_id: UUID
    kind: str
    outcome: RebuildOutcome
    found: Comparison | None = None


@dataclass(frozen=True, slots=True)
class _Job:
    job_id: UUID
    kind: str
    day: int
    created_s: float
    total_count: int
    is_settled: bool


def rebuild(
    live: sa.Engine,
    shadow: sa.Engine,
    replay: LogReplay,
    job_ids: Sequence[UUID] | None,
    *,
    apply: bool,
) -> Iterator[RebuiltJob]:
    """Yield the outcome of each job of `job_ids`, or of all jobs with items for None.

    Each is yielded at once; swapped jobs stay swapped when a later one fails. Unknown
    ids are skipped. Raises as `LogReplay.run` does.
    """
    by_partition: defaultdict[int, list[_Job]] = defaultdict(list)
    for job in _jobs(live, job_ids):
        by_partition[job_partition(job.job_id, RESULTS.partition_count)].append(job)
    for number, group in sorted(by_partition.items()):
        log = replay.partition(number)
        replayable = []
        for job in group:
            if not job.is_settled:
                yield RebuiltJob(job.job_id, job.kind, RebuildOutcome.NOT_ENDED)
            elif not log.covers(job.created_s, _first_row_s(live, job)):
                yield RebuiltJob(job.job_id, job.kind, RebuildOutcome.LOG_BEGINS_LATER)
            else:
                replayable.append(job)
        above_limit: Mapping[UUID, int] = {}
        if replayable:
            copy_jobs_to_shadow(live, [job.job_id for job in replayable])
            above_limit = replay.run(shadow, log, [job.job_id for job in replayable])
        for job in replayable:
            yield _compare_and_swap(live, job, above_limit.get(job.job_id, 0), apply=apply)


def _first_row_s(live: sa.Engine, job: _Job) -> float | None:
    with live.connect() as connection:
        return first_row_s(connection, (job.job_id, job.day), job.total_count)


def _compare_and_swap(live: sa.Engine, job: _Job, above_limit: int, *, apply: bool) -> RebuiltJob:
    id_and_day = (job.job_id, job.day)
    with live.connect() as connection:
        found = compare(connection, id_and_day, job.total_count, above_limit=above_limit)
    outcome = RebuildOutcome.DIFFERS
    if found is None:
        outcome = RebuildOutcome.GONE
    elif found.is_same:
        outcome = RebuildOutcome.SAME
    elif found.has_other_limit:
        outcome = RebuildOutcome.OTHER_LIMIT
    elif found.shadow_ended != job.total_count:
        outcome = RebuildOutcome.LOG_INCOMPLETE
    elif apply:
        outcome = swap(live, id_and_day, found)
    return RebuiltJob(job.job_id, job.kind, outcome, found)


def _jobs(live: sa.Engine, job_ids: Sequence[UUID] | None) -> list[_Job]:
    query = sa.select(
        jobs.c.id, jobs.c.kind, jobs.c.created_at, jobs.c.total_count, jobs.c.settled_at
    ).where(jobs.c.total_count > 0, jobs.c.deleted_at.is_(None))
    if job_ids is not None:
        query = query.where(jobs.c.id.in_(job_ids))
    with live.connect() as connection:
        return [
            _Job(
                row.id,
                row.kind,
                job_day(row.created_at),
                row.created_at.timestamp(),
                row.total_count,
                row.settled_at is not None,
            )
            for row in connection.execute(query.order_by(jobs.c.created_at))
        ]
