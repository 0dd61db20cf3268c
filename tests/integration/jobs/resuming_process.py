"""An intake process that expands and resumes a running job whose owner controls it."""

from collections.abc import Callable
from typing import Any

from jobs.leasing.job_backoff import JobBackoff
from jobs.recovery.re_emit import ReEmitter
from jobs.recovery.resume import BACKOFF, ResumeSweep
from jobs.store.controls import JobChange, change_job
from tests.integration.jobs.expansion_process import ExpansionProcess
from tests.integration.jobs.log_reader import chunks_by_partition
from tests.integration.jobs.rows import add_running_job, add_tenant, outbox_records
from tests.integration.jobs.stores import Stores
from tests.support.clock import ManualClock
from topics.records.catalogue import CONTROL
from topics.records.records import JobControl

COUNT = 300


class Intake(ExpansionProcess):
    """Expansion and resume of one intake process, and a running job of 300 items."""

    def __init__(self, stores: Stores) -> None:
        engine, objects, producer, self.kafka = stores
        super().__init__(engine, objects, producer)
        self.objects = objects
        emitter = ReEmitter(engine, objects, producer, self.leases)
        self.resume_clock = ManualClock()
        self.resumes = ResumeSweep(
            engine,
            emitter,
            self.resume_clock,
            self.cache,
            window_items_max=20_000,
            backoff=JobBackoff(BACKOFF, lambda: 1.0),
        )
        with engine.begin() as connection:
            self.tenant_id = add_tenant(connection)
            self.job_id = add_running_job(connection, self.tenant_id, COUNT)

    def control(self, *operations: Callable[..., object], **given: object) -> None:
        """Run operations of the owner, each in its own transaction."""
        for operation in operations:
            with self.engine.begin() as connection:
                operation(connection, self.tenant_id, self.job_id, **given)

    def change(self, **change: Any) -> None:
        self.control(change_job, change=JobChange(**change))

    def expand(self, count: int) -> None:
        self.expander.run_once({self.job_id: count})

    def controls(self) -> list[JobControl]:
        """Return the control records in order."""
        with self.engine.begin() as connection:
            return outbox_records(connection, CONTROL, JobControl)

    def valid_indexes(self) -> list[int]:
        """Return the indexes on the log that the first pause did not void, sorted, with repeats."""
        return sorted(
            item.index
            for chunks in chunks_by_partition(self.kafka).values()
            for chunk in chunks
            if chunk.job.version >= 1
            for item in chunk.items
        )
