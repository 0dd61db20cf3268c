"""Reads what is recorded about a job in four places: item rows, counters, ledger and order.

Counters, ledger and order change in one transaction, so one statement sees consistent values. Rows
are summed in windows, to keep transactions short; for a running job, their sums lie between the
counters read before and after.
"""

from dataclasses import dataclass
from typing import Any, Final, NamedTuple
from uuid import UUID

import sqlalchemy as sa

from core.outcomes import Outcome
from jobs.errors import JobNotFoundError
from results.writer.counters import IS_BILLED
from storage.postgres.items import items

WINDOW_ITEMS: Final = 20_000
"""Rows per statement: a fraction of a second, whatever the size of their bodies."""

TOKENS: Final = ("input_tokens", "output_tokens", "cached_tokens", "reasoning_tokens")
OUTCOMES: Final = tuple(outcome.label for outcome in Outcome)


class ItemTotals(NamedTuple):
    """Items by outcome, and the tokens of billed items."""

    succeeded: int = 0
    failed: int = 0
    cancelled: int = 0
    expired: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    billed: int = 0
    copied: int = 0  # items with the result of another item; the bill has only their number

    @property
    def ended(self) -> int:
        """The number of items that have ended."""
        return self.succeeded + self.failed + self.cancelled + self.expired

    def plus(self, other: "ItemTotals") -> "ItemTotals":
        """Return the element-wise sum."""
        return ItemTotals(*map(sum, zip(self, other, strict=True)))


@dataclass(frozen=True, slots=True)
class RecordedTotals:
    """Counters, ledger and order of a job at one moment, as recorded."""

    state: str
    total_count: int
    is_settled: bool
    closed_reason: str | None
    counters: ItemTotals  # without `billed`
    ledger: ItemTotals  # without outcomes
    sequenced: int | None  # items in the order of results; None: the job has no order


_RECORDED: Final = sa.text("""
SELECT j.state, coalesce(j.total_count, 0), j.settled_at IS NOT NULL, c.closed_reason,
    c.succeeded, c.failed, c.cancelled, c.expired,
    c.input_tokens, c.output_tokens, c.cached_tokens, c.reasoning_tokens,
    l.input_tokens, l.output_tokens, l.cached_tokens, l.reasoning_tokens, l.item_count,
    c.copied, l.copied_count,
    CASE j.kind WHEN 'batch' THEN (
        SELECT coalesce(sum(cardinality(item_indexes)), 0) FROM job_slices WHERE job_id = j.id
    ) END
FROM jobs j JOIN job_counters c ON c.job_id = j.id
CROSS JOIN LATERAL (
    SELECT coalesce(sum(input_tokens), 0) AS input_tokens,
        coalesce(sum(output_tokens), 0) AS output_tokens,
        coalesce(sum(cached_tokens), 0) AS cached_tokens,
        coalesce(sum(reasoning_tokens), 0) AS reasoning_tokens,
        coalesce(sum(item_count), 0) AS item_count,
        coalesce(sum(copied_count), 0) AS copied_count
    FROM usage_ledger WHERE job_id = j.id
) AS l
WHERE j.id = :job
""").bindparams(sa.bindparam("job", type_=sa.Uuid))


def read_recorded_totals(connection: sa.Connection, job_id: UUID) -> RecordedTotals:
    """Return the recorded totals of a job. Raises JobNotFoundError when it was deleted."""
    row = connection.execute(_RECORDED, {"job": job_id}).one_or_none()
    if row is None:
        raise JobNotFoundError
    numbers = [None if number is None else int(number) for number in row[4:]]
    return RecordedTotals(
        state=row[0],
        total_count=row[1],
        is_settled=row[2],
        closed_reason=row[3],
        # Only the last number can be None.
        counters=ItemTotals(*numbers[:8])._replace(copied=numbers[13]),  # type: ignore[arg-type]
        ledger=ItemTotals(0, 0, 0, 0, *numbers[8:13])._replace(copied=numbers[14]),  # type: ignore[arg-type]
        sequenced=numbers[15],
    )


def sum_item_rows(connection: sa.Connection, job: tuple[UUID, int], first: int) -> ItemTotals:
    """Sum up the rows of WINDOW_ITEMS indexes from `first` on; `job` is its id and day."""
    return ItemTotals(*map(int, connection.execute(item_sums_query(job, first)).one()))


def item_sums_query(job: tuple[UUID, int], first: int) -> sa.Select[Any]:
    """Return the query of `sum_item_rows`."""
    job_id, day = job
    counts = [sa.func.count().filter(items.c.outcome == outcome.value) for outcome in Outcome]
    sums = [sa.func.coalesce(sa.func.sum(items.c[name]).filter(IS_BILLED), 0) for name in TOKENS]
    billed = sa.func.count().filter(IS_BILLED)
    copied = sa.func.count().filter(items.c.copied_from.is_not(None))
    columns: list[sa.ColumnElement[Any]] = [*counts, *sums, billed, copied]
    return sa.select(*columns).where(
        items.c.job_day == day,
        items.c.job_id == job_id,
        items.c.item_index >= first,
        items.c.item_index < first + WINDOW_ITEMS,
    )
