"""The route of audits: recomputes the totals of a batch, and lists the differences."""

import time
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

from fastapi import APIRouter, Response

from api.auth.authentication import TenantRequestDep
from api.http.errors import unavailable
from api.http.responses import json_response
from api.runtime.api_services import Services
from api.views.item_routes import item_id
from api.views.view_services import ViewServices, ViewServicesDep
from core.errors import SchemaTooNewError
from core.ids import JOB, parse_public_id, public_id
from jobs.errors import InvalidFieldError
from results.audit.audit_report import (
    Difference,
    ItemDifferences,
    compare_items,
    compare_log,
    compare_recorded_totals,
)
from results.audit.item_fingerprints import RowFingerprints
from results.audit.job_log import LogRead, committed_offset, tally_log
from results.audit.recorded_totals import (
    OUTCOMES,
    TOKENS,
    WINDOW_ITEMS,
    ItemTotals,
    read_recorded_totals,
    sum_item_rows,
)
from results.views.result_sources import ResultSource, result_source
from topics.errors import KafkaUnavailableError
from topics.settings import KafkaSettings

router = APIRouter()

_USAGE: Final = (*TOKENS, "copied")
_HASH_ITEMS: Final = 5000  # rows of one query when every row is compared


@router.get("/v1/batches/{batch_id}/audit")
async def show(
    batch_id: str, request: TenantRequestDep, views: ViewServicesDep, log: bool = False
) -> Response:
    """Recompute the totals of a batch from its rows and the ledger, and with `log` from the log."""
    source = await request.run(result_source, parse_public_id(JOB, batch_id))
    tenant_id, database = source.tenant_id, request.services.database
    with views.audits.acquire(tenant_id):
        before = await database.run_for_tenant(tenant_id, read_recorded_totals, source.job_id)
        rows = await _tally(request.services, source)
        after = await database.run_for_tenant(tenant_id, read_recorded_totals, source.job_id)
        differences = compare_recorded_totals(before, rows, after)
        log_comparison = await _compare_with_log(views, source, rows) if log else None
    if log_comparison is not None:
        differences += log_comparison.differences
    audit: dict[str, Any] = {
        "object": "batch.audit",
        "batch_id": public_id(JOB, source.job_id),
        "audited_at": int(datetime.now(UTC).timestamp()),
        "status": after.state,
        "is_settled": before.is_settled,
        "ok": not differences and (log_comparison is None or not log_comparison.items.is_any),
        "conservation": {
            "input": after.total_count,
            "rows": {**_select(rows, OUTCOMES), "ended": rows.ended},
            "counters": {**_select(after.counters, OUTCOMES), "ended": after.counters.ended},
            "sequenced": after.sequenced,
            "open": after.total_count - rows.ended,
        },
        "usage": {
            "rows": {**_select(rows, _USAGE), "items": rows.billed},
            "counters": _select(after.counters, _USAGE),
            "ledger": {**_select(after.ledger, _USAGE), "items": after.ledger.billed},
        },
        "log": None if log_comparison is None else log_comparison.as_object(source),
        "differences": [{"what": d.what, **dict((d.left, d.right))} for d in differences],
    }
    return json_response(audit)


class _LogComparison:
    """The records of the log, compared with the rows."""

    def __init__(
        self, read: LogRead, rows: RowFingerprints, tally: ItemTotals, *, is_settled: bool
    ) -> None:
        self.read = read
        self.items = compare_items(rows, read.tally) if read.is_complete else ItemDifferences()
        self.differences: list[Difference] = []
        if read.is_complete and is_settled:
            self.differences = compare_log(tally, read.tally.totals)

    def as_object(self, source: ResultSource) -> dict[str, Any]:
        """Return the comparison as responses show it."""
        read, items = self.read, self.items
        tally = read.tally.totals
        differences = {
            kind: {"count": count, "items": [item_id(source.job_id, index) for index in indexes]}
            for kind, count, indexes in (
                ("row_missing", items.row_missing_count, items.row_missing),
                ("result_missing", items.result_missing_count, items.result_missing),
                ("row_differs", items.row_differs_count, items.row_differs),
            )
        }
        return {
            "is_whole": read.is_complete,
            "holds_first_record": read.has_first_record,
            "was_in_time": read.was_in_time,
            "partition": read.offset_range.partition,
            "first_offset": read.offset_range.first,
            "end_offset": read.offset_range.end,
            "seconds": round(read.seconds, 3),
            "closed_reason": read.tally.closed_reason,
            "read": asdict(read.tally.counts),
            "results": {**_select(tally, OUTCOMES), "ended": tally.ended},
            "usage": {**_select(tally, _USAGE), "items": tally.billed},
            "not_written_yet": items.not_written_yet,
            "differences": differences,
        }


async def _tally(services: Services, source: ResultSource) -> ItemTotals:
    total = ItemTotals()
    for first in range(0, source.total_count, WINDOW_ITEMS):
        job = (source.job_id, source.day)
        total = total.plus(
            await services.database.run_for_tenant(source.tenant_id, sum_item_rows, job, first)
        )
    return total


async def _compare_with_log(
    views: ViewServices, source: ResultSource, tally: ItemTotals
) -> _LogComparison:
    """Read the rows, then the log. Raises ApiError."""
    if views.kafka is None:
        raise InvalidFieldError("This API has no connection to the log.", param="log")

    def read_log(kafka: KafkaSettings) -> LogRead:
        stop_at_s = time.monotonic() + views.services.settings.audit_log_timeout_s
        job = (source.job_id, source.job.created_at)
        return tally_log(kafka, job, rows, written_to=written_to, stop_at_s=stop_at_s)

    try:
        written_to = await views.run_log_call(partial(committed_offset, views.kafka, source.job_id))
        rows = await _row_facts(views.services, source)
        read = await views.run_log_call(partial(read_log, views.kafka))
    except (KafkaUnavailableError, SchemaTooNewError) as error:
        message = "The log does not answer."
        if isinstance(error, SchemaTooNewError):  # another API process may run that release
            message = "The log holds records of a newer release."
        raise unavailable(message, retry_after_s=5, code="service_unavailable") from None
    is_settled = source.job.settled_at is not None
    compare = partial(_LogComparison, read, rows, tally, is_settled=is_settled)
    return await views.run_log_call(compare)


async def _row_facts(services: Services, source: ResultSource) -> RowFingerprints:
    facts = RowFingerprints(source.total_count)
    for first in range(0, source.total_count, _HASH_ITEMS):
        span = range(first, min(first + _HASH_ITEMS, source.total_count))
        await services.database.run_for_tenant(
            source.tenant_id, facts.read, (source.job_id, source.day), span
        )
    return facts


def _select(tally: ItemTotals, names: tuple[str, ...]) -> dict[str, int]:
    return {name: getattr(tally, name) for name in names}
