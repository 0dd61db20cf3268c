"""What makes an installation whole after Postgres was restored to an earlier moment.

1. Nobody writes results: the group has no member.
2. Unfinished jobs become newer than anything the log holds of them (`jobs.renewing`).
3. The results writer's group goes back to before the first of them began.

Then the roles start. The writer reads again: results that the restored rows lack come back as they
were, billed once; those that they have change nothing. Repair emits what the log lacks. Any step
may be repeated, so a crash between two of them is answered by the same command.
"""

from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa

from core.errors import Disposition, MillraceError
from jobs.renewing import Place, renew
from results.held_log import CLOCKS_DIFFER_S_MAX
from results.writer import GROUP
from topics.catalogue import RESULTS
from topics.groups import GroupOffsets
from topics.settings import KafkaSettings
from topics.stretches import StretchReader

_CLIENT = "millrace-recover"


class RolesRunError(MillraceError):
    """A results writer runs, or its session has not ended yet. Stop all roles first."""

    code = "roles_run"
    disposition = Disposition.REJECT


@dataclass(frozen=True, slots=True)
class Recovered:
    """What was done."""

    job_count: int  # unfinished jobs that were renewed
    record_count: int  # records of results that will be read again
    first_is_held: bool  # False: the log begins later than the first of the jobs


def recover(engine: sa.Engine, kafka: KafkaSettings) -> Recovered:
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
    if oldest is None:
        return Recovered(0, 0, first_is_held=True)
    since_ms = int((oldest.timestamp() - CLOCKS_DIFFER_S_MAX) * 1000)
    record_count, first_is_held = _rewind(kafka, group, max(0, since_ms))
    return Recovered(job_count, record_count, first_is_held)


def _rewind(kafka: KafkaSettings, group: GroupOffsets, since_ms: int) -> tuple[int, bool]:
    """Move the writer's group back to a moment, never forward."""
    numbers = range(RESULTS.partition_count)
    reader = StretchReader(kafka, RESULTS, client_id=_CLIENT, group=GROUP)
    try:
        committed = reader.committed(numbers)
        stretches = [reader.since(number, since_ms) for number in numbers]
        begins = [reader.whole(number).first for number in numbers]
    finally:
        reader.close()
    offsets = {s.partition: min(s.first, committed.get(s.partition, s.first)) for s in stretches}
    group.move(RESULTS, offsets)
    count = sum(committed.get(number, offset) - offset for number, offset in offsets.items())
    is_held = all(not begin or begin < s.first for begin, s in zip(begins, stretches, strict=True))
    return count, is_held
