"""Makes the log and a restored database consistent after Postgres was set back to a backup.

1. Check that no results writer runs: its group has no member.
2. Renew unfinished jobs, so that they are newer than all their records on the log
   (`jobs.recovery.restore_fencing`).
3. Move the writer's group back to before the oldest of them began, and before the last bill in the
   database, since reports of connection-bound calls have no job.
4. Record the operation in the audit log of the installation.
5. Raise the watermark of commits above every one on the log, so that the roles may start
   (`core.commit_watermark`).

When the roles start, the writer reads those records again: missing results are restored and billed
once, others change nothing. Re-emitting sends what the log lacks. Every step may be repeated: after
a crash, run the command again.
"""

from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import sqlalchemy as sa

from core.errors import Disposition, MillraceError
from jobs.recovery.restore_fencing import fence_restored_jobs
from results.audit.job_log import CLOCKS_DIFFER_S_MAX
from results.tables import billed_calls
from results.writer.writer import GROUP
from storage.postgres.watermark_row import DatabaseWatermark
from tenancy.audit_log import Action
from tenancy.installation_log import CLI_OPERATOR, record_operator_event
from tenancy.response_cache import NO_JOB
from tenancy.tables import usage_ledger
from topics.clients.admin import TopicAdmin
from topics.clients.producer import RecordProducer
from topics.records.catalogue import RESULTS
from topics.settings import KafkaSettings
from topics.tail_readers.commit_watermarks import CommitWatermarkReader, send_watermark
from topics.tail_readers.offset_ranges import OffsetRangeReader

_CLIENT: Final = "millrace-recover"

_LAG_S_MAX: Final = 3600
"""Assumed bound on the lag of the writer when the backup was taken, so that no bill is missed."""

_WATERMARK_S_MAX: Final = 60.0

_LAST_OF_ITEMS: Final = (
    sa.select(usage_ledger.c.created_at)
    .where(usage_ledger.c.job_id != NO_JOB, usage_ledger.c.item_count > 0)
    .order_by(usage_ledger.c.id.desc())
    .limit(1)
)
_LAST_BILL: Final = sa.select(
    sa.func.greatest(
        _LAST_OF_ITEMS.scalar_subquery(),
        sa.select(sa.func.max(billed_calls.c.billed_at)).scalar_subquery(),
    )
)
"""The newest ledger entry that came from the log; the API adds those of cache hits."""


class RolesRunError(MillraceError):
    """A results writer runs, or its group session has not ended yet. Stop all roles first."""

    code = "roles_run"
    disposition = Disposition.REJECT


@dataclass(frozen=True, slots=True)
class RecoveryResult:
    """What `recover` did."""

    job_count: int  # renewed jobs
    record_count: int  # records of `results` that will be read again
    is_log_complete: bool  # False: the log begins after the point to read from


def recover(engine: sa.Engine, kafka: KafkaSettings) -> RecoveryResult:
    """Prepare a restored database for the start of the roles.

    Raises RolesRunError, KafkaUnavailableError, DeliveryError, and one of DATABASE_UNAVAILABLE.
    """
    if TopicAdmin(kafka).member_count(GROUP):
        raise RolesRunError
    job_count = 0
    oldest: datetime | None = None
    after: sa.Row[Any] | None = None
    while True:
        with engine.begin() as connection:
            rows = fence_restored_jobs(connection, after)
        if not rows:
            break
        job_count += len(rows)
        oldest = oldest or rows[0].created_at
        after = rows[-1]
    with engine.connect() as connection:
        last_bill = connection.scalar(_LAST_BILL)
    record_count, is_complete = _rewind(kafka, replay_start_s(oldest, last_bill))
    done = RecoveryResult(job_count, record_count, is_complete)
    with engine.begin() as connection:
        _record(connection, done)
    _raise_watermark(engine, kafka)
    return done


def _raise_watermark(engine: sa.Engine, kafka: KafkaSettings) -> None:
    """End the stop of the roles: in the database first, as each watermark is."""
    with closing(CommitWatermarkReader(kafka, client_id=_CLIENT)) as reader:
        reader.start(_WATERMARK_S_MAX)
    with engine.begin() as connection:
        watermark = DatabaseWatermark(connection).raise_above(reader.watermarks.numbers)
    if watermark is None:
        return
    with closing(RecordProducer(kafka, client_id=_CLIENT)) as producer:
        send_watermark(producer, watermark)
        producer.flush(_WATERMARK_S_MAX)


def _record(connection: sa.Connection, done: RecoveryResult) -> None:
    details = {
        "jobs": done.job_count,
        "records": done.record_count,
        "is_log_complete": done.is_log_complete,
    }
    action = Action.INSTALLATION_RECOVERED
    record_operator_event(connection, CLI_OPERATOR, action, "installation", details)


def replay_start_s(oldest_job: datetime | None, last_bill: datetime | None) -> float:
    """Return the time from which the log is read again.

    Without any bill it is the beginning of the log: when the first one was lost is unknown.
    """
    bills_s = last_bill.timestamp() - _LAG_S_MAX if last_bill else 0
    jobs_s = oldest_job.timestamp() - CLOCKS_DIFFER_S_MAX if oldest_job else bills_s
    return max(0, min(bills_s, jobs_s))


def _rewind(kafka: KafkaSettings, moment_s: float) -> tuple[int, bool]:
    """Move the writer's group back to a time, never forward."""
    numbers = range(RESULTS.partition_count)
    with closing(OffsetRangeReader(kafka, RESULTS, client_id=_CLIENT, group=GROUP)) as reader:
        committed = reader.committed_offsets(numbers)
        ranges = [reader.range_since(number, int(moment_s * 1000)) for number in numbers]
        begins = [reader.full_range(number).first for number in numbers]
    offsets = {r.partition: min(r.first, committed.get(r.partition, r.first)) for r in ranges}
    TopicAdmin(kafka).alter_offsets(GROUP, RESULTS, offsets)
    count = sum(committed.get(number, offset) - offset for number, offset in offsets.items())
    is_complete = all(not begin or begin < r.first for begin, r in zip(begins, ranges, strict=True))
    return count, is_complete
