"""What item rows add to the counters of their job and to the bill."""

from collections.abc import Sequence
from typing import Final, NamedTuple
from uuid import UUID

import sqlalchemy as sa

from core.outcomes import Outcome
from storage.postgres.items import items
from topics.records.records import ItemOutcome

IS_BILLED: Final[sa.ColumnElement[bool]] = sa.and_(
    items.c.copied_from.is_(None),
    sa.or_(
        items.c.outcome == Outcome.SUCCEEDED.value,
        sa.and_(
            items.c.outcome == Outcome.FAILED.value,
            sa.or_(items.c.status_code > 0, items.c.input_tokens > 0, items.c.output_tokens > 0),
        ),
    ),
)
"""The rule of `sum_items` on rows of `items`, for those who recompute a bill. Copies are free."""


class JobSum(NamedTuple):
    """What the rows of one job in one transaction add up to.

    Tokens are those of executed items, so the counters of a job and its ledger always agree.
    """

    job_id: UUID
    succeeded: int = 0
    failed: int = 0
    cancelled: int = 0
    expired: int = 0
    executed: int = 0  # items on the bill: succeeded, or failed with an answer or with tokens
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    item_indexes: str = "{}"  # of these rows in the order they count, as a literal of Postgres


def sum_items(job_id: UUID, ended: Sequence[ItemOutcome]) -> JobSum:
    """Add up rows that were really inserted. Cancelled and expired items cost nothing."""
    outcomes = [item.outcome for item in ended]
    billed = [item for item in ended if item.outcome is Outcome.SUCCEEDED or _failed_at_work(item)]
    return JobSum(
        job_id,
        succeeded=outcomes.count(Outcome.SUCCEEDED),
        failed=outcomes.count(Outcome.FAILED),
        cancelled=outcomes.count(Outcome.CANCELLED),
        expired=outcomes.count(Outcome.EXPIRED),
        executed=len(billed),
        input_tokens=sum([item.input_tokens for item in billed]),
        output_tokens=sum([item.output_tokens for item in billed]),
        cached_tokens=sum([item.cached_tokens for item in billed]),
        reasoning_tokens=sum([item.reasoning_tokens for item in billed]),
        # A literal, for the driver would take ten times as long to encode each number.
        item_indexes=f"{{{str([item.index for item in ended])[1:-1]}}}",
    )


def _failed_at_work(item: ItemOutcome) -> bool:
    """An engine answered or spent tokens; a failure before that is ours to bear."""
    spent = item.status_code or item.input_tokens or item.output_tokens
    return item.outcome is Outcome.FAILED and bool(spent)
