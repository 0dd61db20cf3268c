"""Turns engine answers into item outcomes. Pure but for the metrics."""

from collections.abc import Iterable

from core.outcomes import Outcome
from gpu_consumers import metrics
from gpu_consumers.engines.engine import EngineAnswer
from gpu_consumers.engines.error_answers import error_answer, is_transient
from topics.records.records import Item, ItemOutcome, JobRef

_FIRST_ERROR_STATUS = 400

INPUT_MISSING = error_answer(
    500,
    "The input of this request is no longer stored. Send the request again.",
    type_="server_error",
    code="input_missing",
)
ANSWER_MISSING = error_answer(
    500, "The engine returned no answer for this item.", type_="server_error", code="answer_missing"
)

CRASHES_ENGINE = error_answer(
    500,
    "The engine process crashed each time it ran this item, the last time alone.",
    type_="server_error",
    code="item_crashes_engine",
)
OUT_OF_MEMORY = error_answer(
    500,
    "This item exceeds the memory of the engine, even when it runs alone.",
    type_="server_error",
    code="item_out_of_memory",
)


def outcome_of(item: Item, answer: EngineAnswer, *, is_final: bool = False) -> ItemOutcome:
    """Return the outcome of one execution; its body may still be too large for a record.

    The results writer may retry an item whose failure is retryable. A final outcome is not: the
    caller has its answer.
    """
    is_failure = answer.status_code >= _FIRST_ERROR_STATUS
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
    )


def final_outcome_of(item: Item, answer: EngineAnswer) -> ItemOutcome:
    """Return the outcome of an item that is not retried, because its caller has the answer."""
    return outcome_of(item, answer, is_final=True)


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
