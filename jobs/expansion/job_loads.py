"""Reads the load of every open job, and the full state of the jobs to expand."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, NamedTuple
from uuid import UUID

import msgspec
import sqlalchemy as sa

from core.object_names import job_key_name
from core.states import JobKind, JobState
from jobs.expansion.cursors import ExpansionCursor
from jobs.expansion.item_models import ItemModels
from jobs.expansion.known_claims import CLAIM_COLUMNS, claim_in
from jobs.expansion.load_sums import JobLoad
from jobs.expansion.pool_versions import ADAPTER_MARK, SEPARATOR
from jobs.input.input_files import InputFile, InputFiles, appended_files
from jobs.leasing.leases import NO_HOLDER
from jobs.store.days import job_day
from jobs.store.model_pins import Pin, pins_of
from jobs.tables.jobs import job_counters, job_cursors, job_leases, jobs
from tenancy.tables import tenants
from topics.clients.producer import PartitionSender
from topics.records.chunks import job_has_space
from topics.records.records import JobRef

JOB_CLASS: Final = "bulk"
ROLE: Final = "intake"
"""The lease role of intake, to validate, expand and re-emit jobs."""

RUNNING = sa.and_(
    jobs.c.state == JobState.IN_PROGRESS.value,
    jobs.c.settled_at.is_(None),
    jobs.c.close_reason.is_(None),
)
"""Jobs in progress whose results count, whether or not they wait."""

OPEN = sa.and_(RUNNING, jobs.c.paused_at.is_(None), jobs.c.quarantined_until.is_(None))
"""Jobs whose items may run now."""

EXPANSION_DUE = sa.and_(
    OPEN,
    sa.exists().where(
        job_cursors.c.job_id == jobs.c.id, job_cursors.c.item_index < jobs.c.total_count
    ),
)
"""Open jobs with items that are not on the log yet."""

HAS_VOID_ITEMS: Final = job_cursors.c.void_below < jobs.c.void_below
"""Of a job and its cursor: it was paused or extended, and its void items are not re-emitted yet."""


@dataclass(frozen=True, slots=True)
class OpenJob:
    """What emission needs of an open job."""

    ref: JobRef  # of its first file
    total: int
    cursor: ExpansionCursor
    files: InputFiles
    deduplicates: bool = False  # its copies are not emitted
    accepted_s: float = 0.0  # since the epoch, by the database's time
    ready_s: float = 0.0  # the same: its input was valid
    pins: Mapping[str, Pin] = field(default_factory=dict)
    """Version and base version by name, if its requests name several models."""

    def ref_at(self, item_index: int) -> JobRef:
        """Return the job reference for the record of an item, with the file that holds it."""
        file = self.files.file_at(item_index)
        if file.key == self.ref.input_key:
            return self.ref
        return msgspec.structs.replace(self.ref, input_key=file.key)

    def has_space(self, sender: PartitionSender) -> bool:
        """Whether all partitions that its chunks go to have space: those of its pool."""
        return job_has_space(sender, self.ref, JOB_CLASS)

    def item_models(self) -> ItemModels | None:
        """Return what notes the models of its items; None if they have that of `ref`."""
        return ItemModels(self.pins) if self.pins else None


def _epoch(time: sa.ColumnElement[Any]) -> sa.ColumnElement[float]:
    return sa.cast(sa.extract("epoch", time), sa.Double)


_LEFT_S: Final = _epoch(jobs.c.expires_at - sa.func.now()).label("left_s")


_COUNTED: Final = job_counters.c
# A copy is never outstanding: it is not emitted, passes the cursor and gets its row.
_TERMINAL: Final = (
    _COUNTED.succeeded + _COUNTED.failed + _COUNTED.cancelled + _COUNTED.expired
    - _COUNTED.copied + job_cursors.c.copy_count
)  # fmt: skip
_ITEM_BYTES: Final = sa.cast(
    sa.func.coalesce(jobs.c.input_bytes // sa.func.nullif(jobs.c.total_count, 0), 0), sa.BigInteger
).label("item_bytes")


_PIN: Final = sa.func.jsonb_each(jobs.c.models).table_valued("value").alias("pin")
_PINNED: Final = sa.func.coalesce(
    sa.func.nullif(_PIN.c.value.op("->>")("base_version"), "") + ADAPTER_MARK,
    _PIN.c.value.op("->>")("version"),
)
# Of a file with several models, or one of an adapter, `models` has the versions; see
# `required_versions`.
_REQUIRED_VERSIONS: Final = sa.case(
    (jobs.c.models.is_(None), jobs.c.model_version),
    else_=sa.select(sa.func.string_agg(sa.distinct(_PINNED), SEPARATOR))
    .select_from(_PIN)
    .scalar_subquery(),
).label("required_versions")


_HELD: Final = sa.and_(job_leases.c.role == ROLE, job_leases.c.expires_at > sa.func.now())


class LeaseState(NamedTuple):
    """What is known of a lease that has not expired."""

    is_suspended: bool
    epoch: int


def find_leases(connection: sa.Connection) -> dict[UUID, LeaseState]:
    """Return the leased jobs of all processes, with the state of the lease of each."""
    return {
        row.job_id: LeaseState(row.is_suspended, row.epoch)
        for row in connection.execute(leases_query())
    }


def leases_query() -> sa.Select[Any]:
    """Return the query of `find_leases`."""
    is_suspended = (job_leases.c.holder == NO_HOLDER).label("is_suspended")
    return sa.select(job_leases.c.job_id, is_suspended, job_leases.c.epoch).where(_HELD)


def loads_query(kind: JobKind, *columns: sa.ColumnElement[Any]) -> sa.Select[Any]:
    """Return the query of the loads of all jobs of a kind, open or not.

    Its columns are `columns`, and then the fields of `JobLoad` without `opens_s`.
    """
    return (
        sa.select(
            *columns,
            jobs.c.id,
            jobs.c.tenant_id,
            jobs.c.pool,
            jobs.c.total_count,
            job_cursors.c.item_index,
            _TERMINAL.label("terminal"),
            jobs.c.priority,
            _LEFT_S,
            jobs.c.control_version,
            _ITEM_BYTES,
            HAS_VOID_ITEMS.label("has_void_items"),
            _epoch(jobs.c.created_at).label("created_s"),
            (job_cursors.c.copy_count > 0).label("has_copies"),
            _epoch(jobs.c.expires_at).label("deadline_s"),
            sa.func.coalesce(_epoch(jobs.c.not_before), 0.0).label("not_before_s"),
            sa.func.coalesce(jobs.c.bulk_hours, "").label("bulk_hours"),
            _REQUIRED_VERSIONS,
            jobs.c.endpoint,
            jobs.c.estimated_prompt_tokens,
            jobs.c.estimated_output_tokens,
        )
        .join(job_cursors, job_cursors.c.job_id == jobs.c.id)
        .join(job_counters, _COUNTED.job_id == jobs.c.id)
        .where(jobs.c.kind == kind.value)
    )


_REQUEST: Final = jobs.alias("request")
_IS_OPEN_REQUEST: Final = sa.and_(
    # Literals, so that Postgres recognises the partial index.
    sa.literal_column("request.kind = 'request' AND request.state = 'in_progress'"),
    _REQUEST.c.settled_at.is_(None),
    _REQUEST.c.close_reason.is_(None),
    _REQUEST.c.paused_at.is_(None),
    _REQUEST.c.quarantined_until.is_(None),
)


def requests_query(pools: Collection[str], count_max: int) -> sa.Select[Any]:
    """Return the query of `request_loads`: it reads `count_max` requests of each pool."""
    names = sa.func.unnest(sa.literal(list(pools), sa.ARRAY(sa.Text)))
    of_pool = sa.select(names.label("pool")).subquery("of_pool")
    oldest = (
        sa.select(_REQUEST.c.id)
        .where(_IS_OPEN_REQUEST, _REQUEST.c.pool == of_pool.c.pool)
        .order_by(_REQUEST.c.created_at, _REQUEST.c.id)
        .limit(count_max)
        .lateral("oldest")
    )
    ids = sa.select(oldest.c.id).select_from(of_pool.join(oldest, sa.true()))
    loads = loads_query(JobKind.REQUEST).where(jobs.c.id.in_(ids))
    return loads.order_by(jobs.c.created_at, jobs.c.id)


def request_loads(
    connection: sa.Connection, pools: Collection[str], count_max: int
) -> list[JobLoad]:
    """Return the loads of the oldest open single requests: at most `count_max` of each pool.

    A tenant may have any number of them open.
    """
    return [JobLoad(*row) for row in connection.execute(requests_query(pools, count_max))]


def request_counts(connection: sa.Connection, pools: Collection[str]) -> Counter[str]:
    """Return the number of open single requests by pool."""
    if not pools:
        return Counter()
    query = (
        sa.select(_REQUEST.c.pool, sa.func.count().label("open"))
        .where(_IS_OPEN_REQUEST, _REQUEST.c.pool.in_(pools))
        .group_by(_REQUEST.c.pool)
    )
    return Counter({row.pool: row.open for row in connection.execute(query)})


def open_jobs(connection: sa.Connection, job_ids: Collection[UUID]) -> dict[UUID, OpenJob]:
    """Return the open jobs among `job_ids`."""
    query = (
        sa.select(jobs, job_cursors.c.byte_offset, job_cursors.c.line_number)
        .add_columns(job_cursors.c.item_index, job_cursors.c.copy_count, *CLAIM_COLUMNS)
        .join(job_cursors, job_cursors.c.job_id == jobs.c.id)
        .join(tenants, tenants.c.id == jobs.c.tenant_id)
        .where(jobs.c.id.in_(job_ids), OPEN)
    )
    found = connection.execute(query).all()
    appended = appended_files(connection, job_ids) if found else {}
    return {row.id: _open_job(row, appended.get(row.id, ())) for row in found}


def _open_job(row: sa.Row[Any], appended: Sequence[InputFile]) -> OpenJob:
    expires_at: datetime = row.expires_at
    pins = pins_of(row)
    ref = JobRef(
        job_id=row.id,
        day=job_day(row.created_at),
        tenant_id=row.tenant_id,
        model=row.model,
        model_version=row.model_version,
        pool=row.pool,
        endpoint=row.endpoint,
        input_key=row.input_key,
        deadline_s=expires_at.timestamp(),
        traceparent=row.traceparent,
        version=row.control_version,
        priority=row.priority,
        key_name=job_key_name(row.id) if row.zero_retention else "",
        base_version=pins[row.model]["base_version"],
        **claim_in(row, row.pool)._asdict(),
    )
    cursor = ExpansionCursor(row.byte_offset, row.line_number, row.item_index, row.copy_count)
    files = InputFiles(row.input_key, appended, first_order_key=row.order_key or "")
    ready_at: datetime = row.in_progress_at or row.created_at
    return OpenJob(
        ref,
        row.total_count,
        cursor,
        files,
        row.deduplicate,
        row.created_at.timestamp(),
        ready_at.timestamp(),
        pins if len(pins) > 1 else {},
    )
