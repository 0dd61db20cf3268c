"""A retry process with a manual clock, and rows of waiting retries."""

import random
from collections.abc import Callable
from uuid import UUID

import sqlalchemy as sa

from jobs.expansion.pool_capacity import PoolCapacities
from jobs.recovery.retry_emission import RetryEmitter
from jobs.recovery.retry_policy import RetryBudgetRules
from jobs.tables.retries import item_retries
from storage.objects.local_object_store import LocalObjectStore
from tests.integration.jobs.conftest import input_line
from tests.integration.jobs.log_reader import chunks_by_partition
from tests.support.clock import ManualClock
from topics.clients.producer import RecordProducer
from topics.records.codec import encode, kind_headers
from topics.records.received_record import ReceivedRecord
from topics.records.records import Capacity, Item
from topics.settings import KafkaSettings

OFFSETS = [sum(len(input_line(before)) + 1 for before in range(index)) for index in range(300)]
RICH = RetryBudgetRules(share=1.0, items_per_s_min=1000.0, burst_s=10.0)


class RetryProcess:
    """A retry emitter whose clock and pools a test sets."""

    def __init__(
        self,
        engine: sa.Engine,
        objects: LocalObjectStore,
        producer: RecordProducer,
        rules: RetryBudgetRules = RICH,
        fraction: Callable[[], float] = random.random,
    ) -> None:
        self.clock = ManualClock()
        self._emitter = RetryEmitter(engine, objects, producer, rules, self.clock, fraction)

    def run(self, *pools: str) -> None:
        capacities = PoolCapacities(self.clock)
        for pool in pools or ("pool-small",):
            capacity = Capacity(pool, 1, pool, "bulk", [0], {}, 100.0, 1)
            record = ReceivedRecord(
                "capacity", 0, 0, pool.encode(), kind_headers(Capacity), encode(capacity), 0
            )
            capacities.update([record])
        self._emitter.run_once(capacities)


def wait_for_retry(
    engine: sa.Engine, job_id: UUID, *item_indexes: int, due_s: float = -1, attempt: int = 2
) -> None:
    due_at = sa.func.now() + sa.func.make_interval(0, 0, 0, 0, 0, 0, due_s)
    with engine.begin() as connection:
        for index in item_indexes:
            connection.execute(
                item_retries.insert().values(
                    job_id=job_id,
                    item_index=index,
                    attempt=attempt,
                    due_at=due_at,
                    line_offset=OFFSETS[index],
                )
            )


def waiting(engine: sa.Engine) -> list[tuple[int, int]]:
    query = sa.select(item_retries.c.item_index, item_retries.c.attempt)
    with engine.connect() as connection:
        return sorted((index, attempt) for index, attempt in connection.execute(query))


def emitted(kafka: KafkaSettings) -> list[Item]:
    chunks = [c for found in chunks_by_partition(kafka).values() for c in found]
    return sorted((i for c in chunks for i in c.items), key=lambda item: item.index)
