"""Turns engine answers into item outcomes, and splits outcomes into records."""

from collections.abc import Iterable, Iterator

from core.outcomes import Outcome
from core.stages import NO_STAGE_TIMES, StageTimes
from gpu_consumers import metrics
from gpu_consumers.engines.engine import EngineAnswer
from gpu_consumers.engines.error_answers import error_answer, is_transient
from topics.records.records import Item, ItemOutcome, JobRef, Outcomes

INPUT_MISSING = error_answer(
    500,
    "The input of this request is no longer stored. Send the request again.",
    code="input_missing",
)
ANSWER_MISSING = error_answer(
    500, "The engine returned no answer for this item.", code="answer_missing"
)

CRASHES_ENGINE = error_answer(
    500,
    "The engine process crashed each time it ran this item, the last time alone.",
    code="item_crashes_engine",
)
OUT_OF_MEMORY = error_answer(
    500,
    "This item exceeds the memory of the engine, even when it runs alone.",
    code="item_out_of_memory",
)


def outcome_of(
    item: Item,
    answer: EngineAnswer,
    times: StageTimes = NO_STAGE_TIMES,
    *,
    is_final: bool = False,
) -> ItemOutcome:
    """Return the outcome of one execution; its body may still be too large for a record.

    The results writer may retry an item whose failure is retryable. A final outcome is not: the
    caller has its answer.
    """
    is_failure = answer.is_error
    return ItemOutcome(  # without keywords, which would cost as much as the rest
        item.index,
        item.custom_id,
        Outcome.FAILED if is_failure else Outcome.SUCCEEDED,
        answer.status_code,
        answer.body,
        None,
        None,
        answer.input_tokens,
        answer.output_tokens,
        answer.cached_tokens,
        answer.reasoning_tokens,
        item.attempt,
        None,
        is_failure and not is_final and is_transient(answer),
        item.offset if is_failure else 0,
        *times,
    )


def count_outcomes(outcomes: list[ItemOutcome]) -> None:
    """Add outcomes to the metrics: called once per batch, because once per item is slow."""
    succeeded = sum(outcome.outcome is Outcome.SUCCEEDED for outcome in outcomes)
    if succeeded:
        metrics.ITEMS_EXECUTED.labels(Outcome.SUCCEEDED.label).inc(succeeded)
    if failed := len(outcomes) - succeeded:
        metrics.ITEMS_EXECUTED.labels(Outcome.FAILED.label).inc(failed)


def group_by_job(
    items: list[tuple[JobRef, Item]], positions: Iterable[int]
) -> list[tuple[JobRef, list[int]]]:
    """Group positions by the chunk of the batch that they belong to; the order is kept.

    Two chunks of one job may have different input files, which requeued items must name.
    """
    groups: dict[int, tuple[JobRef, list[int]]] = {}
    for position in positions:
        job = items[position][0]
        groups.setdefault(id(job), (job, []))[1].append(position)
    return list(groups.values())


OUTCOMES_BYTES_MAX = 800_000
"""Answer bytes in one record. With the rest of the record they fit the broker's limit."""

_ITEM_OVERHEAD_BYTES = 64


def outcome_records(
    job: JobRef, outcomes: list[ItemOutcome], engine: str = ""
) -> Iterator[Outcomes]:
    """Split outcomes into records below the size limit; their order is kept.

    `engine` is the hash of the engine that ran the items.
    """
    pending: list[ItemOutcome] = []
    size = 0
    for outcome in outcomes:
        added = len(outcome.body) + _ITEM_OVERHEAD_BYTES + 4 * len(outcome.custom_id or "")
        if pending and size + added > OUTCOMES_BYTES_MAX:
            yield Outcomes(job, pending, engine=engine)
            pending, size = [], 0
        pending.append(outcome)
        size += added
    if pending:
        yield Outcomes(job, pending, engine=engine)
