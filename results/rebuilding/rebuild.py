"""Jobs that have ended, made again from the log and compared; swapped only when asked to.

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
    """A job and what its log says; nothing is known of one whose log was not judged."""

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
    """Yield what became of each job of `job_ids`, or of all that have items; None means all.

    Each as soon as it is known: what was swapped stays so, whatever comes behind it.

    Ids of no job are passed over. Raises as `LogReplay.run` does.
    """
    by_partition: defaultdict[int, list[_Job]] = defaultdict(list)
    for job in _jobs(live, job_ids):
        by_partition[job_partition(job.job_id, RESULTS.partition_count)].append(job)
    for number, group in sorted(by_partition.items()):
        log = replay.partition(number)
        held = []
        for job in group:
            if not job.is_settled:
                yield RebuiltJob(job.job_id, job.kind, RebuildOutcome.NOT_ENDED)
            elif not log.covers(job.created_s, _first_row_s(live, job)):
                yield RebuiltJob(job.job_id, job.kind, RebuildOutcome.LOG_BEGINS_LATER)
            else:
                held.append(job)
        above_limit: Mapping[UUID, int] = {}
        if held:
            copy_jobs_to_shadow(live, [job.job_id for job in held])
            above_limit = replay.run(shadow, log, [job.job_id for job in held])
        for job in held:
            yield _settle(live, job, above_limit.get(job.job_id, 0), apply=apply)


def _first_row_s(live: sa.Engine, job: _Job) -> float | None:
    with live.connect() as connection:
        return first_row_s(connection, (job.job_id, job.day), job.total_count)


def _settle(live: sa.Engine, job: _Job, above_limit: int, *, apply: bool) -> RebuiltJob:
    place = (job.job_id, job.day)
    with live.connect() as connection:
        found = compare(connection, place, job.total_count, above_limit=above_limit)
    verdict = RebuildOutcome.DIFFERS
    if found is None:
        verdict = RebuildOutcome.GONE
    elif found.is_same:
        verdict = RebuildOutcome.SAME
    elif found.has_other_limit:
        verdict = RebuildOutcome.OTHER_LIMIT
    elif found.shadow_ended != job.total_count:
        verdict = RebuildOutcome.LOG_INCOMPLETE
    elif apply:
        verdict = swap(live, place, found)
    return RebuiltJob(job.job_id, job.kind, verdict, found)


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
