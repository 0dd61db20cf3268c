"""The transactional outbox: records that are committed with their cause and sent by the relay."""

from typing import Any
from uuid import UUID

import sqlalchemy as sa

from core.ids import new_uuid
from core.states import CloseReason, JobState
from jobs.store.days import job_day
from storage.postgres.outbox import record_insert
from topics.records.catalogue import CONTROL, EVENTS, RESULTS, Topic
from topics.records.codec import encode, kind_headers
from topics.records.partitioner import job_partition
from topics.records.records import CopiesDue, JobClose, JobControl, JobEvent, Record

CONTROL_CLOSED_VERSION = 2**31 - 1
"""Version of the control record that closes a job: the last one."""

NOTIFY_JOBS = sa.text("SELECT pg_notify('millrace_jobs', '')")
"""Notifies intake and the finaliser when the transaction commits."""

NOTIFY_REQUESTS = sa.text("SELECT pg_notify('millrace_requests', '')")
"""Notifies the finaliser of single requests on commit; there may be many per second."""


def outbox_insert(topic: Topic, record: Record, *, job_id: UUID) -> sa.Insert:
    """Return the statement that inserts `record`, keyed by its job, into the outbox."""
    return record_insert(
        topic.name,
        partition=job_partition(job_id, topic.partition_count),
        key=job_id.bytes,
        headers=kind_headers(type(record)),
        value=encode(record),
    )


def event_insert(job_id: UUID, tenant_id: UUID, state: JobState, at_s: float) -> sa.Insert:
    """Return the statement that publishes a job state; `at_s` is the database's time."""
    event = JobEvent(
        event_id=new_uuid(), job_id=job_id, tenant_id=tenant_id, state=state.value, at_s=at_s
    )
    return outbox_insert(EVENTS, event, job_id=job_id)


def copies_insert(job_id: UUID, first_index: int, end_index: int) -> sa.Insert:
    """Return the statement that lets copies among these items take over existing results.

    A verdict writes it under the lock on the job, so it precedes any close; after a close it has no
    effect.
    """
    return outbox_insert(RESULTS, CopiesDue(job_id, first_index, end_index), job_id=job_id)


def publish_close(connection: sa.Connection, job: sa.Row[Any], reason: CloseReason) -> None:
    """Publish the close of a row of `jobs`: the deciding record, and the early control record.

    Call it in the transaction that sets `jobs.close_reason`, once `total_count` is known.
    """
    close = JobClose(
        job_id=job.id,
        day=job_day(job.created_at),
        reason=_known_reason(reason),
        crash_budget=reason is CloseReason.CRASH_BUDGET,
    )
    connection.execute(outbox_insert(RESULTS, close, job_id=job.id))
    connection.execute(outbox_insert(CONTROL, closed_control(job.id, reason), job_id=job.id))


def closed_control(job_id: UUID, reason: CloseReason) -> JobControl:
    """Return the control record of a closed job."""
    return JobControl(job_id, CONTROL_CLOSED_VERSION, closed=_known_reason(reason))


def _known_reason(reason: CloseReason) -> CloseReason:
    """Return the reason as records carry it: older releases cannot decode CRASH_BUDGET."""
    return CloseReason.FAILURE_BUDGET if reason is CloseReason.CRASH_BUDGET else reason
