"""The transaction that ends the validation of an appended file: its items count, or it is refused.

The job before its lease and its counters before the job, as everyone locks them.
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
"""Jobs with an appended file that awaits its verdict; their first file has its own."""


def record_append_verdict(
    connection: sa.Connection, lease: Lease, number: int, verdict: ValidationResult
) -> str | None:
    """Write `verdict` on the file of that number; return its state now.

    None when the file has its verdict already, or its job was closed. Raises LeaseLostError.
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
        "errors": [error.as_json() for error in verdict.errors],
        "error_count": verdict.error_count,
    }
    if not verdict.error_count:
        values = {
            "state": "accepted",
            "first_index": job.total_count,
            "item_count": verdict.item_count,
        }
    judged = connection.execute(
        sa.update(job_inputs)
        .where(
            job_inputs.c.job_id == job_id,
            job_inputs.c.number == number,
            job_inputs.c.state == "validating",
        )
        .values(values)
    )
    if judged.rowcount == 0:
        return None
    added = 0 if verdict.error_count else verdict.item_count
    connection.execute(
        sa.update(jobs)
        .where(jobs.c.id == job_id)
        .values(
            total_count=jobs.c.total_count + added,
            total_final=job.sealed and not has_unvalidated(connection, job_id),
            control_version=jobs.c.control_version + 1,  # intake reads the job anew
        )
    )
    if job.deduplicate and added:
        # Its copies may be of items that have ended: the writer gives them their results.
        connection.execute(copies_insert(job_id, job.total_count, job.total_count + added))
    settle_if_complete(connection, job_id)
    connection.execute(NOTIFY_OUTBOX)
    connection.execute(NOTIFY_JOBS)
    state: str = values["state"]
    return state
