"""Records the verdict on an appended file: its items count, or it is refused.

Locks the counters, then the job, then its lease; all transactions use this order.
"""

from typing import Any, Final

import sqlalchemy as sa

from jobs.leasing import leases
from jobs.leasing.leases import Lease
from jobs.store.appending import has_unvalidated
from jobs.store.job_closing import lock_counters, settle_if_complete
from jobs.store.outbox import NOTIFY_JOBS, NOTIFY_OUTBOX, copies_insert
from jobs.tables.appended_files import job_inputs
from jobs.tables.jobs import jobs
from jobs.validation.file_validation import ValidationResult

APPEND_DUE: Final = sa.and_(
    jobs.c.state == "in_progress",
    jobs.c.close_reason.is_(None),
    sa.exists().where(job_inputs.c.job_id == jobs.c.id, job_inputs.c.state == "validating"),
)
"""Jobs with an appended file without a verdict; their first file was accepted."""


def record_append_verdict(
    connection: sa.Connection, lease: Lease, number: int, result: ValidationResult
) -> str | None:
    """Record the verdict on file `number`; return the new state of the file.

    Returns None if the file has a verdict or its job was closed. Raises LeaseLostError.
    """
    job_id = lease.job_id
    lock_counters(connection, job_id)
    job = connection.execute(
        sa.select(jobs).where(jobs.c.id == job_id, APPEND_DUE).with_for_update()
    ).one_or_none()
    leases.lock_lease(connection, lease)
    if job is None:
        return None
    values: dict[str, Any] = {
        "state": "refused",
        "errors": [error.as_json() for error in result.errors],
        "error_count": result.error_count,
    }
    if not result.error_count:
        values = {
            "state": "accepted",
            "first_index": job.total_count,
            "item_count": result.item_count,
        }
    updated = connection.execute(
        sa.update(job_inputs)
        .where(
            job_inputs.c.job_id == job_id,
            job_inputs.c.number == number,
            job_inputs.c.state == "validating",
        )
        .values(values)
    )
    if updated.rowcount == 0:
        return None
    added = 0 if result.error_count else result.item_count
    connection.execute(
        sa.update(jobs)
        .where(jobs.c.id == job_id)
        .values(
            total_count=jobs.c.total_count + added,
            total_final=job.sealed and not has_unvalidated(connection, job_id),
            control_version=jobs.c.control_version + 1,  # makes intake reload the job
        )
    )
    if job.deduplicate and added:
        # Originals may have ended already: the results writer copies their results.
        connection.execute(copies_insert(job_id, job.total_count, job.total_count + added))
    settle_if_complete(connection, job_id)
    connection.execute(NOTIFY_OUTBOX)
    connection.execute(NOTIFY_JOBS)
    state: str = values["state"]
    return state
