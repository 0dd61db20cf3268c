"""From answers to outcomes. Pure but for the metrics."""

from collections.abc import Iterable

from core.outcomes import Outcome
from gpu_consumers import metrics
from gpu_consumers.engines.engine import EngineAnswer
from gpu_consumers.engines.error_answers import error_answer, is_transient
from topics.records.records import Item, ItemOutcome, JobRef

_FIRST_ERROR_STATUS = 400

INPUT_MISSING = error_answer(
    500,
    "The input file of this request is no longer stored.",
    type_="server_error",
    code="input_missing",
)
ANSWER_MISSING = error_answer(
    500, "The engine gave no answer.", type_="server_error", code="answer_missing"
)

CRASHES_ENGINE = error_answer(
    500,
    "The engine ended each time it ran this item, at last alone.",
    type_="server_error",
    code="item_crashes_engine",
)
OUT_OF_MEMORY = error_answer(
    500,
    "The engine's memory is not enough for this item, also when it runs alone.",
    type_="server_error",
    code="item_out_of_memory",
)


def outcome_of(item: Item, answer: EngineAnswer) -> ItemOutcome:
    """Return how an execution of the item ended; its body may still be too large for a record.

    The judge may let a failure that may pass try again.
    """
    if answer.status_code >= _FIRST_ERROR_STATUS:
        return _failure_of(item, answer, retryable=is_transient(answer))
    return ItemOutcome(
        item.index,
        item.custom_id,
        Outcome.SUCCEEDED,
        answer.status_code,
        answer.body,
        None,
        None,
        answer.input_tokens,
        answer.output_tokens,
        answer.cached_tokens,
        answer.reasoning_tokens,
        item.attempt,
    )


def last_outcome_of(item: Item, answer: EngineAnswer) -> ItemOutcome:
    """Return how the item ended for good: its caller was told, so that it is not tried again."""
    if answer.status_code >= _FIRST_ERROR_STATUS:
        return _failure_of(item, answer, retryable=False)
    return outcome_of(item, answer)


def _failure_of(item: Item, answer: EngineAnswer, *, retryable: bool) -> ItemOutcome:
    return ItemOutcome(
        item.index,
        item.custom_id,
        Outcome.FAILED,
        answer.status_code,
        answer.body,
        input_tokens=answer.input_tokens,
        output_tokens=answer.output_tokens,
        cached_tokens=answer.cached_tokens,
        reasoning_tokens=answer.reasoning_tokens,
        attempt=item.attempt,
        retryable=retryable,
        offset=item.offset,
    )


def count_outcomes(outcomes: list[ItemOutcome]) -> None:
    """Tell Prometheus, once a batch and not once an item."""
    succeeded = sum(outcome.outcome is Outcome.SUCCEEDED for outcome in outcomes)
    if succeeded:
        metrics.ITEMS_EXECUTED.labels(Outcome.SUCCEEDED.label).inc(succeeded)
    if failed := len(outcomes) - succeeded:
        metrics.ITEMS_EXECUTED.labels(Outcome.FAILED.label).inc(failed)


def by_part(
    items: list[tuple[JobRef, Item]], positions: Iterable[int]
) -> list[tuple[JobRef, list[int]]]:
    """Return which of `positions` are of each part of a batch, in order.

    Parts of one job may be of different files, which what goes back must name.
    """
    grouped: dict[int, tuple[JobRef, list[int]]] = {}
    for position in positions:
        job = items[position][0]
        grouped.setdefault(id(job), (job, []))[1].append(position)
    return list(grouped.values())
