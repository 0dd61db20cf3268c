"""Bills connection-bound calls: one ledger entry per call, however often its report is delivered.

A replica reports such a call on the `results` topic as an outcome without a body; it has no job.
Each transaction adds one ledger row per tenant, model version and kind of degradation.
"""

import logging
from collections.abc import Sequence
from typing import Final, NamedTuple
from uuid import UUID

import sqlalchemy as sa

from results import metrics
from results.writer.day_partitions import DayPartitions
from storage.postgres.engines import DATA_REJECTED, is_partition_missing, raw_cursor
from tenancy.response_cache import NO_JOB
from topics.records.records import Outcomes

LOG = logging.getLogger(__name__)

_DAY_MAX: Final = 65_535  # in 2149; a record that says more was not written by a clock

BILL_CALLS: Final = """
WITH reported AS (
    SELECT * FROM unnest(%b::int[], %b::uuid[], %b::uuid[], %b::text[], %b::text[],
        %b::smallint[], %b::int[], %b::int[], %b::int[], %b::int[], %b::text[])
    AS calls (request_day, request_id, tenant_id, model, model_version, outcome, input_tokens,
        output_tokens, cached_tokens, reasoning_tokens, degraded)
), new AS (
    INSERT INTO billed_calls (request_day, request_id, tenant_id, model, model_version, outcome,
        input_tokens, output_tokens, cached_tokens, reasoning_tokens, degraded)
    SELECT * FROM reported ORDER BY request_id
    ON CONFLICT DO NOTHING
    RETURNING tenant_id, model, model_version, input_tokens, output_tokens, cached_tokens,
        reasoning_tokens, degraded
), billed AS (
    INSERT INTO usage_ledger (tenant_id, job_id, model, model_version, item_count,
        input_tokens, output_tokens, cached_tokens, reasoning_tokens, degraded)
    SELECT tenant_id, %b::uuid, model, model_version, count(*), sum(input_tokens),
        sum(output_tokens), sum(cached_tokens), sum(reasoning_tokens), degraded
    FROM new GROUP BY tenant_id, model, model_version, degraded
)
SELECT count(*) FROM new
"""


class CallBill(NamedTuple):
    """One call and its cost; the fields are in the order of the statement's parameters."""

    day: int  # days since 1970-01-01 of its arrival, by the clock of the api process
    request_id: UUID
    tenant_id: UUID
    model: str
    model_version: str
    outcome: int
    input_tokens: int
    output_tokens: int
    cached_tokens: int
    reasoning_tokens: int
    degraded: str | None = None  # what the api changed of it because of load


def bills_of(record: Outcomes) -> list[CallBill]:
    """Return the bills in a record of connection-bound calls."""
    job = record.job
    return [
        CallBill(
            job.day if 0 <= job.day <= _DAY_MAX else 0,
            job.job_id,
            job.tenant_id,
            job.model,
            job.model_version,
            item.outcome.value,
            item.input_tokens,
            item.output_tokens,
            item.cached_tokens,
            item.reasoning_tokens,
            job.degraded or None,
        )
        for item in record.items
    ]


def write_bills(engine: sa.Engine, partitions: DayPartitions, bills: Sequence[CallBill]) -> None:
    """Add calls to the ledger in one transaction; calls that it already has are skipped.

    The record of a call names the day of its arrival: a report that is delivered again, on whatever
    day, meets the row of the first in the same partition of `billed_calls`. A bill that Postgres
    refuses is dropped alone, so that it cannot block its partition of the log. Raises one of
    DATABASE_UNAVAILABLE.
    """
    if not bills:
        return
    try:
        _write_once(engine, partitions, bills)
    except DATA_REJECTED as refusal:
        if len(bills) == 1:
            code = getattr(refusal, "sqlstate", None) or type(refusal).__name__
            # No traceback: the driver's messages quote values.
            LOG.error("bill refused", extra={"request": bills[0].request_id, "code": code})  # noqa: TRY400
            return
        middle = len(bills) // 2
        write_bills(engine, partitions, bills[:middle])
        write_bills(engine, partitions, bills[middle:])


def _write_once(engine: sa.Engine, partitions: DayPartitions, bills: Sequence[CallBill]) -> None:
    """Write; if retention dropped a partition meanwhile, create it and write again."""
    days = {bill.day for bill in bills}
    partitions.ensure(days)
    try:
        _write(engine, bills)
    except DATA_REJECTED as refusal:
        if not is_partition_missing(refusal):
            raise
        partitions.forget(days)
        partitions.ensure(days)
        _write(engine, bills)


def _write(engine: sa.Engine, bills: Sequence[CallBill]) -> None:
    with engine.begin() as connection:
        cursor = raw_cursor(connection)
        columns = [list(column) for column in zip(*bills, strict=True)]
        ((new_count,),) = cursor.execute(BILL_CALLS, [*columns, NO_JOB]).fetchall()
    metrics.CALLS_BILLED.inc(new_count)
