"""Single requests: jobs of one item without a file, in progress from the start.

They have the row and the states of a batch of one item. The input is one line in an object, and the
answer stays in the row of the item. The api sends the record to the log after the commit.
"""

from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Final
from uuid import UUID

import msgspec
import sqlalchemy as sa

from core.object_names import REQUESTS
from core.outcomes import Outcome
from core.states import TERMINAL_STATES, JobKind, JobState
from jobs.errors import RequestEndedError, RequestNotFoundError
from jobs.store.batches import with_counters
from jobs.store.days import job_day
from jobs.store.job_closing import cancel_owned_job
from jobs.store.model_pins import pin_of
from jobs.tables.jobs import jobs
from storage.postgres.items import items

_IS_REQUEST: Final = jobs.c.kind == JobKind.REQUEST.value

# One round trip. The cursor is behind the only item: intake has nothing to emit, and a re-emission
# finds the item below it.
_CREATE: Final = sa.text(
    """
    WITH job AS (
        INSERT INTO jobs (id, tenant_id, kind, job_class, state, endpoint, input_key, input_bytes,
            completion_window, traceparent, model, model_version, pool, models, degraded,
            total_count, in_progress_at, expires_at)
        VALUES (:job_id, :tenant_id, 'request', 'interactive', 'in_progress', :endpoint, :input_key,
            :input_bytes, :completion_window, :traceparent, :model, :model_version, :pool,
            CAST(:models AS jsonb), :degraded, 1,
            now(), now() + make_interval(secs => :timeout_s))
        RETURNING id, created_at
    ), counters AS (
        INSERT INTO job_counters (job_id) SELECT id FROM job
    ), cursor AS (
        INSERT INTO job_cursors (job_id, byte_offset, line_number, item_index)
        SELECT id, :input_bytes, 1, 1 FROM job
    )
    SELECT created_at FROM job
    """
).bindparams(
    sa.bindparam("job_id", type_=sa.Uuid),
    sa.bindparam("tenant_id", type_=sa.Uuid),
    sa.bindparam("input_bytes", type_=sa.BigInteger),
    sa.bindparam("timeout_s", type_=sa.Double),
)

JOB_DAY: Final = sa.cast(sa.func.timezone("UTC", jobs.c.created_at), sa.Date) - sa.cast(
    "1970-01-01", sa.Date
)
"""`job_day` as an SQL expression. A query of `items` needs its value: to join with the expression,
Postgres plans and opens every partition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRequest:
    """A checked request whose input line is stored."""

    job_id: UUID
    tenant_id: UUID
    endpoint: str
    model: str
    model_version: str
    pool: str
    input_key: str
    input_bytes: int
    timeout_s: float
    traceparent: str = ""
    base_version: str = ""  # of an adapter
    degraded: str | None = None  # what was changed of it because of load; None: nothing


def request_input_key(job_id: UUID) -> str:
    """Return the object key of the input line of a request."""
    return f"{REQUESTS}{job_id.hex}.jsonl"


def input_line(custom_id: str, endpoint: str, body: bytes) -> bytes:
    """Return the input line for `body`, which is valid JSON, without a newline."""
    head = msgspec.json.encode({"custom_id": custom_id, "method": "POST", "url": endpoint})
    # Outside strings a line break is white space; JSON strings cannot contain one (RFC 8259).
    flat = body.replace(b"\n", b" ").replace(b"\r", b" ")
    return b'%b,"body":%b}' % (head[:-1], flat)


def create_request(connection: sa.Connection, new: NewRequest) -> datetime:
    """Insert the job and return its `created_at`; the day of that time goes into its record."""
    parameters = asdict(new) | {"completion_window": f"{max(1, round(new.timeout_s))}s"}
    base_version, parameters["models"] = parameters.pop("base_version"), None
    if base_version:  # the other columns do not have it
        pin = pin_of(new.model_version, base_version)
        parameters["models"] = msgspec.json.encode({new.model: pin}).decode()
    created_at: datetime = connection.execute(_CREATE, parameters).scalar_one()
    return created_at


def find_request(connection: sa.Connection, tenant_id: UUID, job_id: UUID | None) -> sa.Row[Any]:
    """Return a request with its counters and its answer, if it has one.

    Raises RequestNotFoundError, also for foreign ids and batches.
    """
    found = sa.select(jobs.c.created_at).where(*_is_visible(tenant_id, job_id))
    created_at = connection.scalar(found)
    if created_at is None:
        raise RequestNotFoundError
    query = request_query(tenant_id, job_id, job_day(created_at))
    row = connection.execute(query).one_or_none()
    if row is None:
        raise RequestNotFoundError
    return row


def request_query(tenant_id: UUID, job_id: UUID | None, day: int) -> sa.Select[Any]:
    """Return the query of a request of a day; columns of its answer are NULL until it has one."""
    columns = items.c
    is_its_item = sa.and_(
        columns.job_day == day, columns.job_id == jobs.c.id, columns.item_index == 0
    )
    answer = [
        columns.outcome,
        columns.status_code,
        columns.error_code,
        columns.error_message,
        columns.body,
        columns.body_key,
        columns.finished_at,
        (jobs.c.expires_at <= sa.func.clock_timestamp()).label("is_past"),
    ]
    return (
        with_counters()
        .outerjoin(items, is_its_item)
        .add_columns(*answer)
        .where(*_is_visible(tenant_id, job_id))
    )


def _is_visible(tenant_id: UUID, job_id: UUID | None) -> tuple[sa.ColumnElement[bool], ...]:
    return (
        jobs.c.id == job_id,
        jobs.c.tenant_id == tenant_id,
        jobs.c.deleted_at.is_(None),
        _IS_REQUEST,
    )


def cancel_request(connection: sa.Connection, tenant_id: UUID, job_id: UUID | None) -> sa.Row[Any]:
    """Cancel a request for its owner; a cancelled request does not change.

    Raises RequestNotFoundError, RequestEndedError.
    """
    state = cancel_owned_job(connection, tenant_id, job_id, JobKind.REQUEST)
    if state is None:
        raise RequestNotFoundError
    row = find_request(connection, tenant_id, job_id)
    if state in TERMINAL_STATES and row.close_reason != "cancelled":
        raise RequestEndedError(f"Cannot cancel a job with status '{state}'.")
    return row


def expire_request(connection: sa.Connection, tenant_id: UUID, job_id: UUID) -> None:
    """Set the deadline of a request to now, unless it has passed or the request has ended."""
    connection.execute(
        sa.update(jobs)
        .where(
            jobs.c.id == job_id,
            jobs.c.tenant_id == tenant_id,
            _IS_REQUEST,
            jobs.c.state == JobState.IN_PROGRESS.value,
            jobs.c.expires_at > sa.func.now(),
        )
        .values(expires_at=sa.func.now())
    )


def is_answered_well(row: sa.Row[Any]) -> bool:
    """Whether a row of `find_request` has an answer that may be replayed."""
    return bool(row.outcome == Outcome.SUCCEEDED)
