"""A pool of one replica in virtual time: intake, log, batchers, replica, rows.

Queues, credit, dispatch, windows, plans of deadlines, grants, corrections and the exchange between
batchers are the code of the roles. Kafka, Postgres, validation and processes are not there: a
record takes `HOP_S`, a row `ROW_S`, and no CPU is ever busy.
"""

from collections.abc import Callable, Sequence
from functools import partial
from uuid import UUID

from batcher.outbound.capacity_reader import GRANTS_INTERVAL_S
from batcher.queueing.buffered_chunk import BufferedChunk
from batcher.queueing.queue_discipline import QueueDiscipline
from benchmarks.data.published_traces import Lengths
from benchmarks.data.simulated_gpu import SLOTS, SimulatedGpu
from benchmarks.simulation.batcher import Batcher
from benchmarks.simulation.events import Events
from benchmarks.simulation.intake import ROUND_S, Intake
from benchmarks.simulation.jobs import POOL, SimulatedJob
from benchmarks.simulation.replica import Replica
from gpu_consumers.flow_control.token_usage import item_charges
from jobs.expansion.windows import PoolCapacity
from topics.records.records import (
    JobRef,
    JobUsage,
    ReplicaGrants,
    ServiceReport,
    TenantUsage,
    UsageReport,
)

HOP_S = 0.005
"""From the producer of a record to its reader."""

ROW_S = 0.1
"""From the end of an item until intake has read that it has a row."""

EXPIRY_INTERVAL_S = 0.5


class SimulatedPool:
    """Jobs, and all that serves them."""

    def __init__(
        self,
        gpu: SimulatedGpu,
        *,
        batcher_count: int = 1,
        discipline: Callable[[], QueueDiscipline] | None = None,
        expires: bool = True,
    ) -> None:
        """A `discipline` runs with whole jobs on the log; None is the fair order."""
        self.events = Events()
        self.jobs: dict[UUID, SimulatedJob] = {}
        self._expires = expires
        self._replica = Replica(
            self.events,
            gpu,
            on_ended=self._record_end,
            on_grants=self._send_grants,
            on_usage=self._send_usage,
        )
        self.batchers = [
            Batcher(
                self.events,
                f"b{number}",
                self._send_batch,
                publish_demand=self._send_demand,
                publish_service=self._send_service,
                is_closed=lambda job_id: self.jobs[job_id].is_closed,
                discipline=None if discipline is None else discipline(),
            )
            for number in range(batcher_count)
        ]
        self._intake = Intake(
            self.events,
            self._emit,
            lambda: PoolCapacity(self._replica.rate.items_per_s, SLOTS),
            whole_jobs=discipline is not None,
            batcher_count=batcher_count,
        )
        self.events.repeat(ROUND_S, self._intake.run_round)
        self.events.repeat(EXPIRY_INTERVAL_S, self._expire)

    def add(self, job: SimulatedJob) -> None:
        """Add a job at its time of creation."""
        self.jobs[job.ref.job_id] = job
        self.events.call_later(
            job.created_s - self.events.monotonic_s(), partial(self._intake.add, job)
        )

    def _emit(self, job: SimulatedJob, first: int, count: int) -> None:
        batcher = self.batchers[(job.number + first // 100) % len(self.batchers)]
        self.events.call_later(HOP_S, partial(batcher.add, job.ref, job.items(first, count)))

    def _send_batch(self, batcher_id: str, chunks: Sequence[BufferedChunk]) -> None:
        items: list[tuple[JobRef, Lengths, float]] = []
        for chunk in chunks:
            lengths = self.jobs[chunk.job.job_id].lengths
            charges = item_charges(chunk.to_part(0.0))
            pairs = zip(chunk.items, charges, strict=True)
            items += [(chunk.job, lengths[item.index], charge) for item, charge in pairs]
        self.events.call_later(HOP_S, partial(self._replica.add, batcher_id, items))

    def _send_grants(self, grants: ReplicaGrants) -> None:
        rate, seen = self._replica.rate.items_per_s, self._replica.measured
        for batcher in self.batchers:
            delay_s = HOP_S + GRANTS_INTERVAL_S["bulk"] / 2
            self.events.call_later(delay_s, partial(batcher.apply_grants, grants, rate, seen))

    def _send_demand(self, batcher_id: str, waiting: int, share: float | None) -> None:
        def apply() -> None:
            is_known = batcher_id in self._replica.grants.accounts
            now_s = self.events.monotonic_s()
            self._replica.grants.set_demand(batcher_id, waiting, share, now_s=now_s)
            if not is_known:
                self._replica.publish()

        self.events.call_later(HOP_S, apply)

    def _send_service(self, report: ServiceReport) -> None:
        for batcher in self.batchers:
            self.events.call_later(HOP_S, partial(batcher.apply_service, report))

    def _send_usage(self, tenants: list[TenantUsage], jobs: list[JobUsage]) -> None:
        report = UsageReport("r", POOL, "bulk", tenants, jobs)
        for batcher in self.batchers:
            self.events.call_later(HOP_S, partial(batcher.apply_usage, report))

    def _record_end(self, ref: JobRef, lengths: Lengths) -> None:
        job = self.jobs[ref.job_id]
        job.ends.append((self.events.monotonic_s(), lengths))
        self.events.call_later(ROW_S, partial(self._write_row, job))

    def _write_row(self, job: SimulatedJob) -> None:
        job.ended += 1
        if job.ended == len(job.lengths) and not job.is_closed:
            job.settled_s = self.events.monotonic_s()
            self._intake.close(job)

    def _expire(self) -> None:
        if not self._expires:
            return
        now_s = self.events.monotonic_s()
        for job in [*self._intake.open_jobs.values()]:
            if now_s > job.deadline_s:
                job.is_closed, job.settled_s = True, now_s
                self._intake.close(job)
