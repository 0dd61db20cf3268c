"""A replica in virtual time: the simulated GPU, and the grants and corrections that it sends."""

from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from uuid import UUID

from benchmarks.data.published_traces import Lengths
from benchmarks.data.simulated_gpu import SLOTS, SimulatedGpu
from benchmarks.simulation.events import Events
from benchmarks.simulation.jobs import ENDPOINT, POOL
from gpu_consumers.engines.simulated.engine_steps import RunningSequence, StepState, StepTimes
from gpu_consumers.flow_control.capacity_publisher import REPEAT_S
from gpu_consumers.flow_control.compute_rates import ComputeRates
from gpu_consumers.flow_control.grants import Grants, MeasuredRate, bulk_limit, publish_threshold
from gpu_consumers.flow_control.token_usage import REPORT_S
from gpu_consumers.settings import ReplicaSettings
from topics.records.records import EndpointCompute, JobRef, JobUsage, ReplicaGrants, TenantUsage

BATCH_ITEMS: int = ReplicaSettings.model_fields["batch_items"].default


class Replica:
    """One replica, whose items run in the order of their arrival."""

    def __init__(
        self,
        events: Events,
        gpu: SimulatedGpu,
        *,
        on_ended: Callable[[JobRef, Lengths], None],
        on_grants: Callable[[ReplicaGrants], None],
        on_usage: Callable[[list[TenantUsage], list[JobUsage]], None],
    ) -> None:
        """All callbacks are called when the replica sends; delays are the receiver's."""
        self._events = events
        self._on_ended, self._on_grants, self._on_usage = on_ended, on_grants, on_usage
        env = [float(value) / 1000 for value in gpu.env.values()]
        self._times, self._steps = StepTimes(*env), StepState()
        self._is_running = False
        self._waiting: deque[tuple[JobRef, Lengths, float, str]] = deque()
        self._running = self._in_flight = self._unpublished = 0
        self.grants, self.rate, self.compute = Grants(), MeasuredRate(), ComputeRates()
        self._corrections: defaultdict[UUID, float] = defaultdict(float)
        self._of_jobs: defaultdict[tuple[str, UUID, UUID], float] = defaultdict(float)
        events.repeat(REPEAT_S, self._refresh)
        events.repeat(REPORT_S, self._report)

    @property
    def measured(self) -> list[EndpointCompute]:
        """The measured times of tokens."""
        return self.compute.measured()

    def add(self, batcher_id: str, items: Sequence[tuple[JobRef, Lengths, float]]) -> None:
        """Run the items of a batch, each with what it was charged."""
        self.grants.add_arrived(batcher_id, len(items))
        self._in_flight += len(items)
        self.rate.mark_busy(self._in_flight, now_s=self._events.monotonic_s())
        self._waiting.extend((*item, batcher_id) for item in items)
        self._fill()
        if not self._is_running and not self._steps.is_empty:
            self._is_running = True
            self._start_step()

    def _fill(self) -> None:
        while self._waiting and self._running < SLOTS:
            job, lengths, charge, batcher_id = self._waiting.popleft()
            self._running += 1

            def end(
                job: JobRef = job,
                lengths: Lengths = lengths,
                charge: float = charge,
                batcher_id: str = batcher_id,
            ) -> None:
                self._end(job, lengths, charge, batcher_id)

            self._steps.add(RunningSequence(lengths.prompt, lengths.output, on_end=end))

    def _start_step(self) -> None:
        seconds = self._times.seconds(*self._steps.start_step())
        self._events.call_later(seconds, self._end_step)

    def _end_step(self) -> None:
        for sequence in self._steps.end_step():
            sequence.on_end()
        self._fill()
        if self._steps.is_empty:
            self._is_running = False
        else:
            self._start_step()

    def _end(self, job: JobRef, lengths: Lengths, charge: float, batcher_id: str) -> None:
        self._running -= 1
        self._in_flight -= 1
        self.grants.add_finished(batcher_id, 1)
        self.rate.add_answered(1)
        if not self._in_flight:
            self.rate.mark_idle(now_s=self._events.monotonic_s())
        self.compute.add_tokens(ENDPOINT, lengths.prompt, lengths.output)
        used = lengths.prompt + self.compute.output_weight(ENDPOINT) * lengths.output
        self._corrections[job.tenant_id] += (used - charge) / job.weight
        self._of_jobs[batcher_id, job.tenant_id, job.job_id] += used - charge
        self._on_ended(job, lengths)
        self._unpublished += 1
        if self._unpublished >= publish_threshold(self._limit(), "bulk"):
            self.publish()

    def _limit(self) -> int:
        return bulk_limit(SLOTS, self.rate.items_per_s, BATCH_ITEMS)

    def _refresh(self) -> None:
        now_s = self._events.monotonic_s()
        closed = self.rate.update(self._in_flight, concurrency=SLOTS, now_s=now_s)
        if closed is not None:
            self.compute.close_window(closed.busy_s, was_full=closed.was_full)
        self.publish()

    def publish(self) -> None:
        """Send grants."""
        self._unpublished = 0
        granted = self.grants.compute_grants(self._limit(), now_s=self._events.monotonic_s())
        self._on_grants(ReplicaGrants("r", 1, POOL, "bulk", [0], granted, SLOTS))

    def _report(self) -> None:
        tenants = [TenantUsage(*one) for one in self._corrections.items()]
        jobs = [JobUsage(*key, correction) for key, correction in self._of_jobs.items()]
        self._corrections, self._of_jobs = defaultdict(float), defaultdict(float)
        if tenants:
            self._on_usage(tenants, jobs)
