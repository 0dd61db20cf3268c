"""End of each transaction of the writer: job counters, usage ledger, settling and budgets."""

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple
from uuid import UUID

import sqlalchemy as sa

from core.outcomes import Outcome
from core.states import CloseReason, JobKind, JobState
from jobs.store.job_closing import start_cancelling
from jobs.store.job_options import budget_close_reason
from jobs.store.outbox import NOTIFY_JOBS, NOTIFY_REQUESTS, event_insert
from jobs.tables.jobs import jobs
from results import metrics
from results.writer.counter_locks import LockedJob
from results.writer.provenance import ItemGroup
from results.writer.statements import COUNT_AND_SETTLE
from storage.postgres.engines import raw_cursor
from storage.postgres.items import items
from storage.postgres.outbox import NOTIFY_OUTBOX
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
"""The billing rule of `sum_items` as a condition on item rows. Copies are free."""


class JobSum(NamedTuple):
    """The sums over the rows of one job in one transaction.

    Only billed items add tokens, so the counters of a job and its ledger always agree.
    """

    job_id: UUID
    succeeded: int = 0
    failed: int = 0
    cancelled: int = 0
    expired: int = 0
    executed: int = 0  # billed items: succeeded, or failed with an answer or with tokens
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    item_indexes: str = "{}"  # in the order of their sequence, as a Postgres array literal


def sum_items(job_id: UUID, ended: Sequence[ItemOutcome]) -> JobSum:
    """Sum up inserted rows. Cancelled and expired items cost nothing."""
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
        # A literal: the driver takes ten times as long to encode each number.
        item_indexes=f"{{{str([item.index for item in ended])[1:-1]}}}",
    )


class ModelSum(NamedTuple):
    """What the billed items of one model of a job add to the ledger in one transaction."""

    job_id: UUID
    model: str | None  # None: that of the job, as its version
    model_version: str | None
    executed: int
    input_tokens: int
    output_tokens: int
    cached_tokens: int
    reasoning_tokens: int


def sum_by_model(groups: Iterable[ItemGroup], mixed: Collection[UUID]) -> list[ModelSum]:
    """Sum up the items of the `mixed` jobs, those whose requests name several models, by model."""
    by_model: dict[tuple[UUID, str | None, str | None], list[ItemOutcome]] = {}
    for group in groups:
        if group.job_id in mixed:
            found = group.provenance
            key = (found.model, found.model_version) if found else (None, None)
            by_model.setdefault((group.job_id, *key), []).extend(group.items)
    sums = []
    for (job_id, model, version), ended in by_model.items():
        total = sum_items(job_id, ended)
        tokens = (total.input_tokens, total.output_tokens)
        details = (total.cached_tokens, total.reasoning_tokens)
        sums.append(ModelSum(job_id, model, version, total.executed, *tokens, *details))
    return sums


_NO_MODELS: Final[list[list[object]]] = [[] for _ in ModelSum._fields]


def count_and_settle(
    connection: sa.Connection, sums: Sequence[JobSum], by_model: Sequence[ModelSum] = ()
) -> None:
    """Add `sums` to counters and ledger, and settle each job whose counters reach its total.

    Call it once per job in the transaction that inserted the rows. The ledger gets the sums
    `by_model` of jobs with several models. A settled job that was in progress is announced; one
    that is being cancelled keeps its state for the finaliser.
    """
    if not sums:
        return
    cursor = raw_cursor(connection)
    columns = [list(column) for column in zip(*sums, strict=True)]
    models = [list(column) for column in zip(*by_model, strict=True)] if by_model else _NO_MODELS
    cursor.execute(COUNT_AND_SETTLE, [*columns, *models])
    settled = cursor.fetchall()
    if not settled:
        return
    for job_id, tenant_id, state, now_s, _ in settled:
        if state == JobState.FINALIZING:
            connection.execute(event_insert(job_id, tenant_id, JobState.FINALIZING, now_s))
            connection.execute(NOTIFY_OUTBOX)
    kinds = {kind for *_, kind in settled}
    if JobKind.BATCH in kinds:
        connection.execute(NOTIFY_JOBS)
    if JobKind.REQUEST in kinds:
        connection.execute(NOTIFY_REQUESTS)


def measure_transaction(sums: Sequence[JobSum], row_count: int, started: float) -> None:
    """Count the rows of a committed transaction that began at `started` of `perf_counter`."""
    for outcome in Outcome:
        if rows := sum(getattr(job_sum, outcome.label) for job_sum in sums):
            metrics.ITEMS_COMPLETED.labels(outcome.label).inc(rows)
    metrics.ROWS_PER_TRANSACTION.observe(row_count)
    metrics.TRANSACTION_SECONDS.observe(time.perf_counter() - started)


def stop_over_budget(
    connection: sa.Connection, sums: Sequence[JobSum], locked: Mapping[UUID, LockedJob]
) -> list[UUID]:
    """Close the jobs whose counters, with `sums` added, exceed their budget; return which.

    Call it after `count_and_settle`. Closed and settled jobs are left alone. Items in flight still
    count until the close is read from the log, as with every close (ADR 1).
    """
    stopped = []
    for added in sums:
        job = locked[added.job_id]
        if job.budget is None:
            continue
        reason = budget_close_reason(
            job.budget,
            succeeded=job.succeeded + added.succeeded,
            failed=job.failed + added.failed,
            total_tokens=job.total_tokens + added.input_tokens + added.output_tokens,
        )
        if reason is None:
            continue
        if stop_running_job(connection, job.job_id, reason) is not None:
            stopped.append(job.job_id)
    return stopped


def stop_running_job(
    connection: sa.Connection, job_id: UUID, reason: CloseReason
) -> sa.Row[Any] | None:
    """Close a job and return its row before; None if it is closed or settled already.

    The caller has locked its counters.
    """
    row = connection.execute(
        sa.select(jobs)
        .where(
            jobs.c.id == job_id,
            jobs.c.state == JobState.IN_PROGRESS.value,
            jobs.c.close_reason.is_(None),
            jobs.c.settled_at.is_(None),
        )
        .with_for_update(key_share=True)
    ).one_or_none()
    if row is not None:
        start_cancelling(connection, row, reason)
    return row


def _failed_at_work(item: ItemOutcome) -> bool:
    """Whether an engine answered or spent tokens; earlier failures are not billed."""
    spent = item.status_code or item.input_tokens or item.output_tokens
    return item.outcome is Outcome.FAILED and bool(spent)
