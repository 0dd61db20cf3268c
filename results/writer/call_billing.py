"""What connection-bound calls cost, to the ledger: once for each call, however often it is told.

A replica reports such a call as an outcome without a body, on the topic of outcomes; it is of no
job. The ledger gets one row for each tenant, model version and transaction.
"""

import logging
from collections.abc import Sequence
from typing import Final, NamedTuple
from uuid import UUID

import sqlalchemy as sa

from results import metrics
from storage.postgres.engines import raw_cursor
from storage.postgres.refused_statements import DATA_REFUSED
from tenancy.response_cache import NO_JOB
from topics.records.catalogue import RETENTION_DAYS, SEGMENT_DAYS
from topics.records.records import ItemOutcome, JobRef, Outcomes

LOG = logging.getLogger(__name__)

# As long as the oldest record of a quiet partition can be read again, and a day.
_REMEMBERED_DAYS: Final = RETENTION_DAYS + SEGMENT_DAYS + 1
_FORGOTTEN_MAX: Final = 100  # for each call that is billed, so that forgetting keeps up

_BILL: Final = """
WITH told AS (
    SELECT * FROM unnest(%b::uuid[], %b::uuid[], %b::text[], %b::text[], %b::smallint[], %b::int[],
        %b::int[], %b::int[], %b::int[])
    AS calls (request_id, tenant_id, model, model_version, outcome, input_tokens,
        output_tokens, cached_tokens, reasoning_tokens)
), new AS (
    INSERT INTO billed_calls (request_id, tenant_id, model, model_version, outcome, input_tokens,
        output_tokens, cached_tokens, reasoning_tokens)
    SELECT * FROM told ORDER BY request_id
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
    """One call and what it cost, in the order of the statement's parameters."""

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
    """Return what a record of a connection-bound call reports."""
    return [_bill(record.job, item) for item in record.items]


def write_bills(engine: sa.Engine, bills: Sequence[CallBill]) -> None:
    """Put calls on the ledger in one transaction, those that are there already left out.

    A report that Postgres refuses is dropped alone: it must stop no partition. Raises one of
    DATABASE_AWAY.
    """
    if not bills:
        return
    try:
        _write(engine, bills)
    except DATA_REFUSED as refusal:
        if len(bills) == 1:
            code = getattr(refusal, "sqlstate", None) or type(refusal).__name__
            # No traceback: messages of the driver quote values.
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
