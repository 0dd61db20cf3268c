"""Turns engine answers into item outcomes, and publishes them or requeues their items."""

import asyncio
from collections.abc import Iterable, Iterator

from core.outcomes import Outcome
from gpu_consumers import metrics
from gpu_consumers.engines.engine import EngineAnswer
from gpu_consumers.engines.error_answers import error_answer, is_transient
from topics.clients.producer import RecordProducer
from topics.records.catalogue import RESULTS
from topics.records.chunks import send_chunk, split_into_chunks
from topics.records.codec import Headers, encode, job_headers, kind_headers
from topics.records.partitioner import job_partition
from topics.records.records import Chunk, Item, ItemOutcome, JobRef, Outcomes

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


def outcome_of(item: Item, answer: EngineAnswer, *, is_final: bool = False) -> ItemOutcome:
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


class PendingSends:
    """Sends records and waits for the acknowledgement of all. Used on the event loop."""

    def __init__(self, producer: RecordProducer) -> None:
        self._producer = producer
        self._loop = asyncio.get_running_loop()
        self._unacknowledged = 0
        self._failure: BaseException | None = None
        self._changed = asyncio.Event()

    def send_outcomes(self, job: JobRef, outcomes: list[ItemOutcome]) -> None:
        """Send outcomes of one job to the partition of that job."""
        headers: Headers = [*kind_headers(Outcomes), *job_headers(job)]
        partition = job_partition(job.job_id, RESULTS.partition_count)
        for record in outcome_records(job, outcomes):
            self._unacknowledged += 1
            self._producer.send(
                RESULTS.name,
                encode(record),
                partition=partition,
                key=job.job_id.bytes,
                headers=headers,
                on_delivery=self._on_delivery,
            )

    def requeue_items(self, job: JobRef, items: Iterable[Item], job_class: str) -> None:
        """Send items back to the topic of requests; the attempt is not charged."""
        for chunk in split_into_chunks(items):
            self.requeue_chunk(Chunk(job, chunk), job_class)

    def requeue_chunk(self, chunk: Chunk, job_class: str) -> None:
        """Send one chunk back to the topic of requests."""
        self._unacknowledged += 1
        send_chunk(self._producer, chunk, job_class, self._on_delivery)

    async def wait_acknowledged(self) -> None:
        """Return when every record is acknowledged. Raises the first failure."""
        while self._unacknowledged > 0 and self._failure is None:
            self._changed.clear()
            await self._changed.wait()
        if self._failure is not None:
            raise self._failure

    def _on_delivery(self, failure: BaseException | None) -> None:
        """Runs on the producer's thread."""
        self._loop.call_soon_threadsafe(self._record_delivery, failure)

    def _record_delivery(self, failure: BaseException | None) -> None:
        self._unacknowledged -= 1
        self._failure = self._failure or failure
        self._changed.set()


def outcome_records(job: JobRef, outcomes: list[ItemOutcome]) -> Iterator[Outcomes]:
    """Split outcomes into records below the size limit; their order is kept."""
    pending: list[ItemOutcome] = []
    size = 0
    for outcome in outcomes:
        added = len(outcome.body) + _ITEM_OVERHEAD_BYTES + 4 * len(outcome.custom_id or "")
        if pending and size + added > OUTCOMES_BYTES_MAX:
            yield Outcomes(job, pending)
            pending, size = [], 0
        pending.append(outcome)
        size += added
    if pending:
        yield Outcomes(job, pending)
