"""What makes an installation whole after Postgres was restored to an earlier moment.

1. Nobody writes results: the group has no member.
2. Unfinished jobs become newer than anything the log holds of them (`jobs.recovery.job_renewal`).
3. The results writer's group goes back to before the first of them began, and to before the last
   bill that the database knows: reports of calls are of no job.

Then the roles start. The writer reads again: results that the restored rows lack come back as they
were, billed once; those that they have change nothing. Repair emits what the log lacks. Any step
may be repeated, so a crash between two of them is answered by the same command.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Final

import sqlalchemy as sa

from core.errors import Disposition, MillraceError
from jobs.recovery.job_renewal import Place, renew
from results.audit.log_extent import CLOCKS_DIFFER_S_MAX
from results.call_tables import billed_calls
from results.writer.writer import GROUP
from tenancy.cached_answers import NO_JOB
from tenancy.tables import usage_ledger
from topics.clients.groups import GroupOffsets
from topics.records.catalogue import RESULTS
from topics.settings import KafkaSettings
from topics.tail_readers.offset_ranges import StretchReader

_CLIENT: Final = "millrace-recover"

_LAG_S_MAX: Final = 3600
"""How far the writer may have been behind when the backup was taken, for no bill to be missed."""

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
"""The newest that came from the log; cache hits, which the api adds, tell nothing of the writer."""


class RolesRunError(MillraceError):
    """A results writer runs, or its session has not ended yet. Stop all roles first."""

    code = "roles_run"
    disposition = Disposition.REJECT


@dataclass(frozen=True, slots=True)
class RecoveryResult:
    """What was done."""

    job_count: int  # unfinished jobs that were renewed
    record_count: int  # records of results that will be read again
    is_log_complete: bool  # False: the log begins later than what is read again should


def recover(engine: sa.Engine, kafka: KafkaSettings) -> RecoveryResult:
    """Prepare the start of the roles on a restored database.

    Raises RolesRunError, LogUnavailableError, and one of DATABASE_AWAY.
    """
    group = GroupOffsets(kafka, GROUP)
    if group.member_count():
        raise RolesRunError
    job_count = 0
    oldest: datetime | None = None
    after: Place | None = None
    while True:
        with engine.begin() as connection:
            rows = renew(connection, after)
        if not rows:
            break
        job_count += len(rows)
        oldest = oldest or rows[0].created_at
        after = Place(rows[-1].created_at, rows[-1].id)
    with engine.connect() as connection:
        last_bill = connection.scalar(_LAST_BILL)
    record_count, first_is_held = _rewind(kafka, group, since_s(oldest, last_bill))
    return RecoveryResult(job_count, record_count, first_is_held)


def since_s(oldest_job: datetime | None, last_bill: datetime | None) -> float:
    """Return from when on the log is read again, given what the restored database knows.

    Without any bill that is from its begin on: nothing tells since when they are missing.
    """
    bills_s = last_bill.timestamp() - _LAG_S_MAX if last_bill else 0
    jobs_s = oldest_job.timestamp() - CLOCKS_DIFFER_S_MAX if oldest_job else bills_s
    return max(0, min(bills_s, jobs_s))


def _rewind(kafka: KafkaSettings, group: GroupOffsets, moment_s: float) -> tuple[int, bool]:
    """Move the writer's group back to a moment, never forward."""
    numbers = range(RESULTS.partition_count)
    reader = StretchReader(kafka, RESULTS, client_id=_CLIENT, group=GROUP)
    try:
        committed = reader.committed(numbers)
        stretches = [reader.since(number, int(moment_s * 1000)) for number in numbers]
        begins = [reader.whole(number).first for number in numbers]
    finally:
        reader.close()
    offsets = {s.partition: min(s.first, committed.get(s.partition, s.first)) for s in stretches}
    group.move(RESULTS, offsets)
    count = sum(committed.get(number, offset) - offset for number, offset in offsets.items())
    is_held = all(not begin or begin < s.first for begin, s in zip(begins, stretches, strict=True))
    return count, is_held
