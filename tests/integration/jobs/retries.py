"""A retry process with a manual clock, and rows of waiting retries."""

import random
from collections.abc import Callable
from typing import Any
from uuid import UUID

import sqlalchemy as sa

from jobs.expansion.pool_capacity import PoolCapacities
from jobs.recovery.retry_emission import RetryEmitter
from jobs.recovery.retry_policy import RetryBudgetRules
from jobs.tables.retries import item_retries
from tests.integration.jobs.log_reader import chunks_by_partition, indexes
from tests.integration.jobs.rows import add_running_job, add_tenant, execute, input_line
from tests.integration.jobs.stores import Stores
from tests.support.capacity_records import capacity_record
from tests.support.clock import ManualClock
from topics.records.records import Item

OFFSETS = [sum(len(input_line(before)) + 1 for before in range(index)) for index in range(300)]

EXPECTED_OUTPUT = 900.0
"""Tokens of a sequence, as the emitter knows them."""


class RetryProcess:
    """A retry emitter whose clock and pools a test sets, with the rows and the log it works on."""

    def __init__(self, stores: Stores) -> None:
        self.stores = stores
        self.engine, self.objects, self.producer, self.kafka = stores
        self.clock = ManualClock()
        self.set_rules(RetryBudgetRules(share=1.0, items_per_s_min=1000.0, burst_s=10.0))

    def set_rules(
        self, rules: RetryBudgetRules, fraction: Callable[[], float] = random.random
    ) -> None:
        """Start with a new emitter."""
        self._emitter = RetryEmitter(
            self.engine,
            self.objects,
            self.producer,
            rules,
            self.clock,
            fraction,
            expected_output=lambda _: EXPECTED_OUTPUT,
        )

    def other(self) -> "RetryProcess":
        """Return another process on the same rows and log."""
        return RetryProcess(self.stores)

    def run(self, *pools: str) -> None:
        capacities = PoolCapacities(self.clock)
        capacities.update(capacity_record(pool, pool=pool) for pool in pools or ("pool-small",))
        self._emitter.run_once(capacities)

    def add_job(self, *, tenant_id: UUID | None = None, **columns: Any) -> UUID:
        """Add a job of 300 items that were all emitted."""
        cursor = {"item_index": 300, "byte_offset": 1, "line_number": 300}
        with self.engine.begin() as connection:
            tenant = tenant_id or add_tenant(connection)
            return add_running_job(connection, tenant, 300, cursor=cursor, **columns)

    def schedule(
        self, job_id: UUID, *item_indexes: int, due_s: float = -1, attempt: int = 2
    ) -> None:
        """Let items wait for an attempt; it is due by default."""
        due_at = sa.func.now() + sa.func.make_interval(0, 0, 0, 0, 0, 0, due_s)
        same = {"job_id": job_id, "attempt": attempt}
        rows = [same | {"item_index": n, "line_offset": OFFSETS[n]} for n in item_indexes]
        with self.engine.begin() as connection:
            connection.execute(item_retries.insert().values(due_at=due_at), rows)

    def forget_offsets(self, above: int = -1) -> None:
        """Let the offsets of the lines of the later waiting items be unknown."""
        later = sa.update(item_retries).where(item_retries.c.item_index > above)
        execute(self.engine, later.values(line_offset=None))

    def waiting(self) -> list[tuple[int, int]]:
        """Return index and attempt of each waiting retry, sorted."""
        query = sa.select(item_retries.c.item_index, item_retries.c.attempt)
        with self.engine.connect() as connection:
            return sorted((index, attempt) for index, attempt in connection.execute(query))

    def indexes(self) -> list[int]:
        """Return the indexes of the emitted items, sorted, repeats included."""
        return indexes(self.kafka)

    def emitted(self) -> list[Item]:
        """Return the emitted items in the order of their indexes."""
        chunks = [c for found in chunks_by_partition(self.kafka).values() for c in found]
        return sorted((i for c in chunks for i in c.items), key=lambda item: item.index)
