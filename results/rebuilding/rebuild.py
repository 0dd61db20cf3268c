"""Rebuilds ended jobs from the log and compares them with the live tables; swaps on request.

per partition of `results`:  jobs ─► shadow tables ─► replay ─► compare ─► [swap]

A swap replaces what differs with the rebuilt rows, one transaction per job. Equal rows are not
touched. The ledger is append-only and gets the difference. Lost counters are restored.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final
from uuid import UUID

import sqlalchemy as sa

from core.ids import JOB, SINGLE, public_id
from core.states import JobKind
from jobs.store.days import job_day
from jobs.tables.jobs import jobs
from results.rebuilding.comparison import (
    COUNTERS,
    ROW_COLUMNS,
    USAGE,
    Comparison,
    compare,
    first_row_s,
    rows_equal,
)
from results.rebuilding.log_replay import LogReplay
from results.rebuilding.shadow_tables import LONG_TIMEOUT, SCHEMA, copy_jobs_to_shadow, statement
from results.writer.day_partitions import DayPartitions
from tenancy.audit_log import Action
from tenancy.installation_log import CLI_OPERATOR, record_tenant_event
from topics.records.catalogue import RESULTS
from topics.records.partitioner import job_partition

_LOCK: Final = """
SELECT j.settled_at IS NOT NULL FROM job_counters c JOIN jobs j ON j.id = c.job_id
WHERE c.job_id = :job AND j.deleted_at IS NULL FOR UPDATE OF c
"""
"""The writer's lock: no other process writes rows of this job until the commit."""

_LOCK_JOB: Final = """
SELECT settled_at IS NOT NULL FROM jobs WHERE id = :job AND deleted_at IS NULL FOR UPDATE
"""
"""For lost counters: the writer ignores such a job, and this lock keeps a deletion out."""

_THIS: Final = "job_day = :day AND job_id = :job"
_ALL: Final = ", ".join(("job_id", "job_day", "item_index", "finished_at", *ROW_COLUMNS))
_DELETE: Final = f"""
DELETE FROM items live WHERE {_THIS} AND NOT EXISTS (
    SELECT FROM {SCHEMA}.items shadow
    WHERE shadow.job_day = :day AND shadow.job_id = :job
        AND shadow.item_index = live.item_index AND {rows_equal("live", "shadow")}
)
"""  # noqa: S608  no outside input
_INSERT: Final = f"""
INSERT INTO items ({_ALL}) SELECT {_ALL} FROM {SCHEMA}.items shadow WHERE {_THIS} AND NOT EXISTS (
    SELECT FROM items live WHERE live.job_day = :day AND live.job_id = :job
        AND live.item_index = shadow.item_index
)
"""  # noqa: S608
_COUNT: Final = f"""
INSERT INTO job_counters (job_id, closed_reason, {", ".join(COUNTERS)})
SELECT job_id, closed_reason, {", ".join(COUNTERS)} FROM {SCHEMA}.job_counters WHERE job_id = :job
ON CONFLICT (job_id) DO UPDATE SET {", ".join(f"{n} = excluded.{n}" for n in COUNTERS)},
    closed_reason = excluded.closed_reason, updated_at = now()
"""  # noqa: S608
_CORRECT: Final = f"""
INSERT INTO usage_ledger (tenant_id, job_id, model, model_version, {", ".join(USAGE)})
SELECT jobs.tenant_id, jobs.id, coalesce(live.model, shadow.model),
    coalesce(live.model_version, shadow.model_version),
    {", ".join(f"coalesce(shadow.{name}, 0) - coalesce(live.{name}, 0)" for name in USAGE)}
FROM (SELECT model, model_version, {", ".join(f"sum({n}) AS {n}" for n in USAGE)}
        FROM usage_ledger WHERE job_id = :job GROUP BY model, model_version) AS live
FULL JOIN (SELECT model, model_version, {", ".join(f"sum({n}) AS {n}" for n in USAGE)}
        FROM {SCHEMA}.usage_ledger WHERE job_id = :job GROUP BY model, model_version) AS shadow
    USING (model, model_version)
JOIN jobs ON jobs.id = :job
WHERE ROW({", ".join(f"live.{name}" for name in USAGE)})
    IS DISTINCT FROM ROW({", ".join(f"shadow.{name}" for name in USAGE)})
"""  # noqa: S608
_NUMBER_ROWS: Final = f"""
UPDATE items live SET provenance = shadow.provenance FROM {SCHEMA}.items shadow
WHERE live.job_day = :day AND live.job_id = :job
    AND shadow.job_day = :day AND shadow.job_id = :job
    AND shadow.item_index = live.item_index
    AND shadow.provenance IS DISTINCT FROM live.provenance
"""  # noqa: S608
_DROP_PROVENANCE: Final = "DELETE FROM job_provenance WHERE job_id = :job"
_COPY_PROVENANCE: Final = f"""
INSERT INTO job_provenance SELECT * FROM {SCHEMA}.job_provenance WHERE job_id = :job
"""  # noqa: S608
_DROP_ORDER: Final = "DELETE FROM job_slices WHERE job_id = :job"
_COPY_ORDER: Final = f"""
INSERT INTO job_slices SELECT * FROM {SCHEMA}.job_slices WHERE job_id = :job
"""  # noqa: S608

_JOIN_ROW: Final = """
JOIN items ended ON ended.job_day = :day AND ended.job_id = made.job_id
    AND ended.item_index = made.item_index
WHERE made.job_id = :job ON CONFLICT DO NOTHING
"""
_ADD_LETTERS: Final = f"""
INSERT INTO dead_items (job_id, item_index, tenant_id, job_day, attempt, line_offset, failed_at)
SELECT made.job_id, made.item_index, made.tenant_id, made.job_day, made.attempt, made.line_offset,
    ended.finished_at
FROM {SCHEMA}.dead_items made {_JOIN_ROW}
"""  # noqa: S608
_ADD_ATTEMPTS: Final = f"""
INSERT INTO item_attempts (job_id, item_index, attempt, status_code, code, failed_at)
SELECT made.job_id, made.item_index, made.attempt, made.status_code, made.code,
    least(made.failed_at, ended.finished_at)
FROM {SCHEMA}.item_attempts made {_JOIN_ROW}
"""  # noqa: S608
"""The log lacks the time of failure; it was not later than the end of the item."""


class RebuildOutcome(StrEnum):
    """The outcome for one job, as the CLI shows it."""

    SAME = "same"
    DIFFERS = "differs"
    SWAPPED = "swapped"
    NOT_ENDED = "not_ended"  # the writer still writes its rows
    LOG_BEGINS_LATER = "log_begins_later"  # its first record was deleted
    LOG_INCOMPLETE = "log_incomplete"  # some item has no final outcome on the log
    OTHER_LIMIT = "other_limit"  # the job ran under another limit of attempts
    GONE = "gone"  # deleted during the rebuild


@dataclass(frozen=True, slots=True)
class RebuiltJob:
    """The outcome for one job; `found` is None when its log was not replayed."""

    job_id: UUID
    kind: str
    outcome: RebuildOutcome
    found: Comparison | None = None


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
    by_partition: defaultdict[int, list[sa.Row[Any]]] = defaultdict(list)
    for job in _jobs(live, job_ids):
        by_partition[job_partition(job.id, RESULTS.partition_count)].append(job)
    for number, group in sorted(by_partition.items()):
        log = replay.partition(number)
        replayable = []
        for job in group:
            if job.settled_at is None:
                yield RebuiltJob(job.id, job.kind, RebuildOutcome.NOT_ENDED)
            elif not log.covers(job.created_at.timestamp(), _first_row_s(live, job)):
                yield RebuiltJob(job.id, job.kind, RebuildOutcome.LOG_BEGINS_LATER)
            else:
                replayable.append(job)
        above_limit: Mapping[UUID, int] = {}
        if replayable:
            copy_jobs_to_shadow(live, [job.id for job in replayable])
            above_limit = replay.run(shadow, log, [job.id for job in replayable])
        for job in replayable:
            yield _compare_and_swap(live, job, above_limit.get(job.id, 0), apply=apply)


def _first_row_s(live: sa.Engine, job: sa.Row[Any]) -> float | None:
    with live.connect() as connection:
        return first_row_s(connection, _id_and_day(job), job.total_count)


def _compare_and_swap(
    live: sa.Engine, job: sa.Row[Any], above_limit: int, *, apply: bool
) -> RebuiltJob:
    id_and_day = _id_and_day(job)
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
    return RebuiltJob(job.id, job.kind, outcome, found)


def _jobs(live: sa.Engine, job_ids: Sequence[UUID] | None) -> list[sa.Row[Any]]:
    query = sa.select(
        jobs.c.id, jobs.c.kind, jobs.c.created_at, jobs.c.total_count, jobs.c.settled_at
    ).where(jobs.c.total_count > 0, jobs.c.deleted_at.is_(None))
    if job_ids is not None:
        query = query.where(jobs.c.id.in_(job_ids))
    with live.connect() as connection:
        return [*connection.execute(query.order_by(jobs.c.created_at))]


def _id_and_day(job: sa.Row[Any]) -> tuple[UUID, int]:
    return job.id, job_day(job.created_at)


def swap(live: sa.Engine, job: tuple[UUID, int], found: Comparison) -> RebuildOutcome:
    """Make the live rows, counters, ledger and order of a settled job equal to the rebuilt ones.

    Returns GONE when the job was deleted since it was compared, DIFFERS when it is no longer
    settled. A complete order is kept as it is. Raises one of DATABASE_UNAVAILABLE.
    """
    job_id, day = job
    bound: dict[str, object] = {"job": job_id, "day": day}
    DayPartitions(live).ensure([day])
    with live.begin() as connection:
        connection.execute(LONG_TIMEOUT)
        is_settled = _lock(connection, bound)
        if not is_settled:
            return RebuildOutcome.GONE if is_settled is None else RebuildOutcome.DIFFERS
        rows = (_DELETE, _INSERT, _NUMBER_ROWS, _DROP_PROVENANCE, _COPY_PROVENANCE)
        for text in (*rows, _COUNT, _ADD_LETTERS, _ADD_ATTEMPTS):
            connection.execute(statement(text), bound)
        if not found.usage_agrees:
            connection.execute(statement(_CORRECT), bound)
        if not found.is_order_complete:
            connection.execute(statement(_DROP_ORDER), bound)
            connection.execute(statement(_COPY_ORDER), bound)
        _record(connection, job_id, found)
    return RebuildOutcome.SWAPPED


def _lock(connection: sa.Connection, bound: dict[str, object]) -> bool | None:
    """Lock out writer and deletion; return whether the job is settled, None when deleted."""
    is_settled: bool | None = connection.scalar(statement(_LOCK), bound)
    if is_settled is None:  # the counters are lost or deleted
        is_settled = connection.scalar(statement(_LOCK_JOB), bound)
    return is_settled


def _record(connection: sa.Connection, job_id: UUID, found: Comparison) -> None:
    row = connection.execute(sa.select(jobs).where(jobs.c.id == job_id)).one()
    subject = public_id(JOB if row.kind == JobKind.BATCH else SINGLE, job_id)
    details = {
        "missing": found.missing,
        "extra": found.extra,
        "different": found.different,
        "dead_letters": found.letters_missing,
    }
    action = Action.JOB_REBUILT
    record_tenant_event(connection, CLI_OPERATOR, row.tenant_id, action, subject, details)
