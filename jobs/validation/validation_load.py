"""Publishes each second how much input this process validates and how much waits (`RoleLoad`).

Work are the bytes that validation reads, again where it reads a file again. Waiting are the bytes
of the whole installation whose validation no process has begun: files that are read now are left
out, since further processes do not end them sooner.
"""

from typing import Final

import sqlalchemy as sa

from core.clock import Clock
from core.runtime.process_load import LoadMeter
from jobs.expansion import job_loads
from jobs.leasing.leases import is_unheld
from jobs.tables.files import job_inputs
from jobs.tables.jobs import job_leases, jobs
from jobs.validation import append_validator
from jobs.validation.byte_count import ByteCount
from jobs.validation.validating_files import FILES_MAX
from jobs.validation.verdicts import VALIDATION_DUE
from storage.postgres.engines import autocommit
from topics.clients.producer import PartitionSender
from topics.records.catalogue import BACKLOG
from topics.records.codec import encode, kind_headers
from topics.records.scaling import RoleLoad

INTERVAL_S: Final = 1.0
ROLE: Final = "intake"


class ValidationLoadPublisher:
    """Publishes the load of one process. Used by one thread."""

    def __init__(
        self,
        engine: sa.Engine,
        sender: PartitionSender,
        clock: Clock,
        intake_id: str,
        validated: ByteCount,
    ) -> None:
        """`intake_id` names this process in its records; `validated` counts what it reads."""
        self._engine, self._sender, self._clock = engine, sender, clock
        self._intake_id, self._validated = intake_id, validated
        self._meter = LoadMeter(clock.monotonic_s)

    def run_once(self) -> None:
        """Publish the load since the last time. Raises DeliveryError, DATABASE_UNAVAILABLE."""
        with autocommit(self._engine) as connection:
            waiting = waiting_bytes(connection)
        load, validated = self._meter.read(), self._validated.take_count()
        if load.seconds <= 0 or not self._sender.has_space(BACKLOG.name, 0):
            return  # a newer one follows
        record = RoleLoad(
            role=ROLE,
            process_id=self._intake_id,
            at_s=self._clock.wall_s(),
            work_per_s=validated / load.seconds,
            waiting=float(waiting),
            busy=load.busy,
        )
        key = f"{ROLE}:{self._intake_id}".encode()
        headers = kind_headers(RoleLoad)
        self._sender.send(BACKLOG.name, encode(record), partition=0, key=key, headers=headers)


def waiting_bytes(connection: sa.Connection) -> int:
    """Return the bytes of files whose validation no process has begun.

    First files and appended ones, at most `FILES_MAX` of each. An appended file waits with its job:
    one process validates those of a job in turn.
    """
    return sum(connection.scalars(WAITING).all())


def _unheld(role: str, sizes: sa.Select[tuple[int]]) -> sa.Select[tuple[int]]:
    of_role = sa.and_(job_leases.c.job_id == jobs.c.id, job_leases.c.role == role)
    return sizes.outerjoin(job_leases, of_role).where(is_unheld()).limit(FILES_MAX)


_FIRST: Final = _unheld(
    job_loads.ROLE,
    sa.select(jobs.c.input_bytes.label("size_bytes")).select_from(jobs).where(VALIDATION_DUE),
)
_APPENDED: Final = _unheld(
    append_validator.ROLE,
    sa.select(job_inputs.c.size_bytes)
    .join(jobs, job_inputs.c.job_id == jobs.c.id)
    # Literal, so that Postgres recognises the partial index.
    .where(job_inputs.c.state == sa.literal_column("'validating'"))
    .where(jobs.c.state == "in_progress", jobs.c.close_reason.is_(None)),
)
WAITING: Final = sa.union_all(
    *(
        sa.select(sa.cast(sa.func.coalesce(sa.func.sum(one.c.size_bytes), 0), sa.BigInteger))
        for one in (_FIRST.subquery("first_files"), _APPENDED.subquery("appended_files"))
    )
)
"""The query of `waiting_bytes`: a row for first files, and one for appended ones."""
