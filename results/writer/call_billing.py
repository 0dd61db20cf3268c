"""Bills connection-bound calls: one ledger entry per call, however often its report is delivered.

A replica reports such a call on the `results` topic as an outcome without a body; it has no job.
Each transaction adds one ledger row per tenant and model version.
"""

import logging
from collections.abc import Sequence
from typing import Final, NamedTuple
from uuid import UUID

import sqlalchemy as sa

from results import metrics
from storage.postgres.engines import DATA_REJECTED, raw_cursor
from tenancy.response_cache import NO_JOB
from topics.records.catalogue import RETENTION_DAYS, SEGMENT_DAYS
from topics.records.records import ItemOutcome, JobRef, Outcomes

LOG = logging.getLogger(__name__)

# The longest time that a quiet partition keeps a record, plus one day.
_REMEMBERED_DAYS: Final = RETENTION_DAYS + SEGMENT_DAYS + 1
_FORGOTTEN_MAX: Final = 100  # old rows deleted per billed call, so that deletion keeps up

_BILL: Final = """
WITH reported AS (
    SELECT * FROM unnest(%b::uuid[], %b::uuid[], %b::text[], %b::text[], %b::smallint[], %b::int[],
        %b::int[], %b::int[], %b::int[])
    AS calls (request_id, tenant_id, model, model_version, outcome, input_tokens,
        output_tokens, cached_tokens, reasoning_tokens)
), new AS (
    INSERT INTO billed_calls (request_id, tenant_id, model, model_version, outcome, input_tokens,
        output_tokens, cached_tokens, reasoning_tokens)
    SELECT * FROM reported ORDER BY request_id
    ON CONFLICT DO NOTHING
    RETURNING tenant_id, model, model_version, input_tokens, output_tokens, cached_tokens,
        reasoning_tokens
), billed AS (
    INSERT INTO usage_ledger (tenant_id, job_id, model, model_version, item_count,
        input_tokens, output_tokens, cached_tokens, reasoning_tokens)
    SELECT tenant_id, %b::uuid, model, model_version, count(*), sum(input_tokens),
        sum(output_tokens), sum(cached_tokens), sum(reasoning_tokens)
    FROM new GROUP BY tenant_id, model, model_version
)
SELECT count(*) FROM new
"""

_FORGET: Final = """
DELETE FROM billed_calls WHERE request_id IN (
    SELECT request_id FROM billed_calls
    WHERE billed_at < now() - make_interval(days => %b::int)
    ORDER BY billed_at LIMIT %b::int FOR UPDATE SKIP LOCKED
)
"""


class CallBill(NamedTuple):
    """One call and its cost; the fields are in the order of the statement's parameters."""

    request_id: UUID
    tenant_id: UUID
    model: str
    model_version: str
    outcome: int
    input_tokens: int
    output_tokens: int
    cached_tokens: int
    reasoning_tokens: int


def bills_of(record: Outcomes) -> list[CallBill]:
    """Return the bills in a record of connection-bound calls."""
    return [_bill(record.job, item) for item in record.items]


def write_bills(engine: sa.Engine, bills: Sequence[CallBill]) -> None:
    """Add calls to the ledger in one transaction; calls that it already has are skipped.

    A bill that Postgres refuses is dropped alone, so that it cannot block its partition. Raises one
    of DATABASE_UNAVAILABLE.
    """
    if not bills:
        return
    try:
        _write(engine, bills)
    except DATA_REJECTED as refusal:
        if len(bills) == 1:
            code = getattr(refusal, "sqlstate", None) or type(refusal).__name__
            # No traceback: the driver's messages quote values.
            LOG.error("bill refused", extra={"request": bills[0].request_id, "code": code})  # noqa: TRY400
            return
        middle = len(bills) // 2
        write_bills(engine, bills[:middle])
        write_bills(engine, bills[middle:])


def _write(engine: sa.Engine, bills: Sequence[CallBill]) -> None:
    with engine.begin() as connection:
        cursor = raw_cursor(connection)
        columns = [list(column) for column in zip(*bills, strict=True)]
        ((new_count,),) = cursor.execute(_BILL, [*columns, NO_JOB]).fetchall()
        cursor.execute(_FORGET, [_REMEMBERED_DAYS, _FORGOTTEN_MAX * len(bills)])
    metrics.CALLS_BILLED.inc(new_count)


def _bill(job: JobRef, item: ItemOutcome) -> CallBill:
    return CallBill(
        job.job_id,
        job.tenant_id,
        job.model,
        job.model_version,
        item.outcome.value,
        item.input_tokens,
        item.output_tokens,
        item.cached_tokens,
        item.reasoning_tokens,
    )
