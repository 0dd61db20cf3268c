"""A real log of outcomes, a writer that reads it, and the audit and rebuild of its jobs."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any
from uuid import UUID

import sqlalchemy as sa

from core.clock import SystemClock
from core.errors import MillraceError
from core.object_names import answer_prefix
from core.states import CloseReason
from jobs.store.days import job_day
from results.audit.item_fingerprints import RowFingerprints
from results.audit.job_log import LogRead, committed_offset, tally_log
from results.rebuilding.log_replay import LogReplay
from results.rebuilding.rebuild import RebuildOutcome, RebuiltJob, rebuild
from results.rebuilding.shadow_tables import shadow_engine
from results.settings import WriterSettings
from results.tables import billed_calls
from results.writer.call_billing import write_bills
from results.writer.copied_results import CopyWriter
from results.writer.crash_budgets import CrashBudgets
from results.writer.day_partitions import DayPartitions
from results.writer.item_writer import ItemWriter
from results.writer.job_closer import JobCloser
from results.writer.writer import GROUP, OutcomeRouter, ResultsWriter
from storage.postgres.engines import DATABASE_UNAVAILABLE
from storage.postgres.items import job_slices
from storage.postgres.settings import DatabaseSettings
from tests.integration.results.outcomes import (
    add_running_job,
    counters,
    failed,
    fetch,
    item_table,
    job,
    job_ref,
    ledger,
    outcome,
)
from tests.support.until import until
from topics.clients.admin import TopicAdmin
from topics.clients.consumer import GroupConsumer
from topics.clients.producer import RecordProducer
from topics.records.catalogue import RESULTS
from topics.records.codec import encode, kind_headers
from topics.records.partitioner import job_partition
from topics.records.records import CopiesDue, ItemOutcome, JobClose, Outcomes
from topics.settings import KafkaSettings

TOTAL = 60  # items of the job with every outcome
AGAIN = {"retryable": True, "status_code": 500, "input_tokens": 2}
DEADLINE_S = 30
UNCOUNTED = {"updated_at": 0, "changed_xid": 0}  # columns of counters that count nothing


class Running:
    """A writer in a thread."""

    def __init__(self, engine: sa.Engine, kafka: KafkaSettings, **settings: float) -> None:
        partitions = DayPartitions(engine)
        self.producer = RecordProducer(kafka, client_id="writer", waits_for_partitions=True)
        self.writer = ResultsWriter(
            router=OutcomeRouter(
                items=ItemWriter(engine, partitions),
                closes=JobCloser(engine, partitions, slice_items=10),
                copies=CopyWriter(engine, slice_items=7),
            ),
            bill=partial(write_bills, engine, DayPartitions(engine, billed_calls)),
            count_process_ends=CrashBudgets(engine, 3600).count_process_ends,
            producer=self.producer,
            settings=WriterSettings.model_validate(settings),
            commit_interval_s=0.05,
            clock=SystemClock(),
        )
        self.consumer = GroupConsumer(
            kafka,
            group=GROUP,
            topics=[RESULTS.name],
            client_id="writer",
            on_assign=lambda _: None,
            on_revoke=self.writer.on_revoke,
        )
        self.stop = threading.Event()
        self.failure: BaseException | None = None
        self.thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            self.writer.run(self.consumer, self.stop)
        except MillraceError as failure:
            self.failure = failure
        except DATABASE_UNAVAILABLE as failure:
            self.failure = failure


@contextmanager
def running(engine: sa.Engine, kafka: KafkaSettings, **settings: float) -> Iterator[Running]:
    role = Running(engine, kafka, **settings)
    role.thread.start()
    try:
        yield role
    finally:
        role.stop.set()
        role.thread.join(DEADLINE_S)
        role.consumer.close()
        role.producer.close()


@dataclass(frozen=True)
class JobLog:
    """A log, the tables that its writer fills, and what audits and rebuilds find in both."""

    engine: sa.Engine
    kafka: KafkaSettings
    producer: RecordProducer
    database: DatabaseSettings

    def send(self, job_id: UUID, *records: Outcomes | JobClose | CopiesDue) -> None:
        for record in records:
            self.producer.send(
                RESULTS.name,
                encode(record),
                partition=job_partition(job_id, RESULTS.partition_count),
                key=job_id.bytes,
                headers=kind_headers(type(record)),
            )
        self.producer.flush(40)

    def send_items(self, job_id: UUID, indexes: range) -> None:
        self.send(job_id, outcomes_of(job_id, *map(outcome, indexes)))

    @property
    def lag(self) -> int:
        return sum(TopicAdmin(self.kafka).lag(GROUP, RESULTS).values())

    def write(self, job_id: UUID, *records: Outcomes | JobClose | CopiesDue) -> None:
        """Send records and run a writer until it has committed all of them."""
        self.send(job_id, *records)
        with running(self.engine, self.kafka):
            until(lambda: self.lag == 0)

    def write_every_outcome(self) -> UUID:
        """Add a job with every kind of outcome."""
        job_id = add_running_job(self.engine, TOTAL)
        of_job = partial(outcomes_of, job_id)
        self.write(
            job_id,
            of_job(*map(outcome, range(20))),
            of_job(*[outcome(index, body=b"other") for index in range(10, 30)]),
            of_job(failed(30), failed(31, **AGAIN), failed(32, **AGAIN)),
            of_job(outcome(31, attempt=2), failed(32, attempt=2, **AGAIN)),
            of_job(failed(32, attempt=3, **AGAIN), outcome(33, custom_id="a\0b")),
            of_job(
                outcome(TOTAL + 5), outcome(34, body=b"", body_key=answer_prefix(job_id) + "34")
            ),
            JobClose(job_id, 0, CloseReason.CANCELLED),
            of_job(outcome(50)),
            JobClose(job_id, 0, CloseReason.EXPIRED),
        )
        assert job(self.engine, job_id)["settled_at"] is not None
        return job_id

    def tally(self, job_id: UUID, *, wait_s: float = 40) -> tuple[RowFingerprints, LogRead]:
        created_at = job(self.engine, job_id)["created_at"]
        rows = RowFingerprints(TOTAL)
        with self.engine.connect() as connection:
            rows.read(connection, (job_id, job_day(created_at)), range(TOTAL))
        read = tally_log(
            self.kafka,
            (job_id, created_at),
            rows,
            written_to=committed_offset(self.kafka, job_id),
            stop_at_s=time.monotonic() + wait_s,
        )
        return rows, read

    def rebuild_all(
        self, *job_ids: UUID, apply: bool = False, attempts_max: int = 3
    ) -> dict[UUID, RebuiltJob]:
        """Rebuild these jobs, or every job."""
        settings = WriterSettings(attempts_max=attempts_max)
        replay = LogReplay(self.kafka, settings, timeout_s=30)
        with shadow_engine(self.database, self.engine) as shadow:
            found = rebuild(self.engine, shadow, replay, list(job_ids) or None, apply=apply)
            return {one.job_id: one for one in found}

    def rebuild(self, job_id: UUID, **options: Any) -> RebuiltJob:
        return self.rebuild_all(job_id, **options)[job_id]

    def state(self, job_id: UUID) -> Any:
        """Everything that the tables have on a job."""
        query = sa.select(job_slices).where(job_slices.c.job_id == job_id)
        return (
            [tuple(row) for row in item_table(self.engine, job_id)],
            {**counters(self.engine, job_id)},
            ledger(self.engine, job_id),
            fetch(self.engine, query.order_by(job_slices.c.first_sequence)),
            {**job(self.engine, job_id)},
        )


def outcomes_of(job_id: UUID, *outcomes: ItemOutcome) -> Outcomes:
    return Outcomes(job_ref(job_id), list(outcomes))


def outcomes_by_job(rebuilt: dict[UUID, RebuiltJob]) -> dict[UUID, RebuildOutcome]:
    return {job_id: one.outcome for job_id, one in rebuilt.items()}
