"""Goal: in a pool of two model versions each item runs where its version is, or waits for it."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from msgspec.structs import replace

from core.clock import SystemClock
from gpu_consumers.engines.settings import EngineSettings
from gpu_consumers.engines.simulated.settings_hash import simulated_engine_hash
from jobs.estimates.pool_rates import PoolRates
from jobs.estimates.waiting_reasons import PoolView, WaitingReason
from jobs.expansion.pool_versions import has_versions
from results.webhooks.events.progress_estimates import CapacityReports
from tests.integration.batcher.harness import BatcherProcess, Requests, create_topics, job_ref
from tests.integration.gpu_consumers.replica_processes import SESSION_S, ReplicaProcess
from tests.integration.gpu_consumers.threaded_replica import POOL
from tests.support.until import until
from topics.records.catalogue import CAPACITY, RESULTS
from topics.records.codec import decode
from topics.records.records import JobRef, Outcomes
from topics.settings import KafkaSettings
from topics.tail_readers.topic_tail_reader import TopicTailReader

V1, V2 = "1" * 64, "2" * 64
LATENCIES_MS = {V1: 200, V2: 20}
"""They make the engines differ: outcomes name the engine that ran them."""

COUNT = 60


def engine_hash(version: str) -> str:
    settings = EngineSettings(
        kind="simulated", model_name="m", concurrency=8, simulated_latency_ms=LATENCIES_MS[version]
    )
    return simulated_engine_hash(settings)


class MixedPool:
    """A batcher, replicas of two versions, and what they published."""

    def __init__(
        self, kafka: KafkaSettings, database_url: str, folder: Path, closing: ExitStack
    ) -> None:
        self.kafka, self._folder, self._closing = kafka, folder, closing
        create_topics(kafka, POOL)
        self._results = TopicTailReader(kafka, RESULTS, client_id="test-results")
        self._capacity = TopicTailReader(kafka, CAPACITY, client_id="test-capacity")
        self.rates = PoolRates()
        self._reports = CapacityReports(self.rates, SystemClock())
        self._requests = Requests(kafka)
        for one in (self._results, self._capacity, self._requests.producer):
            closing.callback(one.close)
        batcher = BatcherProcess(kafka, database_url, folder / "batcher.log")
        closing.callback(batcher.end)
        self.ran: dict[tuple[JobRef, int], str] = {}  # the engine that ran an item first
        self._jobs: dict[object, JobRef] = {}

    def start(self, name: str, version: str) -> ReplicaProcess:
        replica = ReplicaProcess(
            self.kafka,
            self._folder,
            name,
            MILLRACE_ENGINE_MODEL_VERSION=version,
            MILLRACE_ENGINE_CONCURRENCY="8",
            MILLRACE_ENGINE_SIMULATED_LATENCY_MS=str(LATENCIES_MS[version]),
        )
        self._closing.callback(replica.process.kill_and_reap)
        until(lambda: replica.metrics().get("millrace_role_ready") == 1, timeout_s=60)
        return replica

    def send(self, number: int, version: str) -> JobRef:
        job = replace(job_ref(number, tenant=1, pool=POOL), model_version=version)
        self._jobs[job.job_id] = job
        self._requests.send(job, COUNT, chunk=10)
        return job

    def ran_count(self, job: JobRef) -> int:
        self.read()
        return sum(known == job for known, _ in self.ran)

    def read(self) -> None:
        """Apply what was published since the last call."""
        for record in self._results.poll(0.1):
            outcomes = decode(Outcomes, record.value, record.headers)
            for item in outcomes.items:
                assert item.attempt == 1
                key = self._jobs[outcomes.job.job_id], item.index
                self.ran.setdefault(key, outcomes.engine)
        self._reports.receive(self._capacity.poll(0.1))

    def reason(self, job: JobRef) -> WaitingReason:
        """Return why an emitted item of a job waits."""
        self.read()
        state = self.rates.state(POOL, SystemClock().monotonic_s())
        has_version = has_versions(state.versions, POOL, job.model_version)
        return PoolView(has_replica=state.has_replica, has_version=has_version).on_log


@pytest.fixture
def pool(kafka: KafkaSettings, database_url: str, tmp_path: Path) -> Iterator[MixedPool]:
    with ExitStack() as closing:
        yield MixedPool(kafka, database_url, tmp_path, closing)


@pytest.mark.timeout(240)
def test_each_item_runs_where_its_version_is_or_waits_for_it(pool: MixedPool) -> None:
    first = pool.start("first", V1)
    second = pool.start("second", V2)
    jobs = [pool.send(1, V1), pool.send(2, V2)]
    until(lambda: all(pool.ran_count(job) == COUNT for job in jobs), timeout_s=60)

    # Its items are redelivered to the replica of the other version, which must not run them.
    interrupted = pool.send(3, V1)
    until(lambda: pool.ran_count(interrupted) > 0, timeout_s=30)
    first.process.kill_and_reap()
    until(lambda: pool.reason(interrupted) is WaitingReason.NO_VERSION, timeout_s=30)
    until(lambda: second.metrics().get("millrace_items_other_version_total"), timeout_s=30)
    others = pool.send(4, V2)
    until(lambda: pool.ran_count(others) == COUNT, timeout_s=60)
    assert pool.reason(others) is WaitingReason.FAIR_TURN
    assert pool.ran_count(interrupted) < COUNT

    pool.start("third", V1)
    until(lambda: pool.ran_count(interrupted) == COUNT, timeout_s=60 + SESSION_S)
    for (job, _), engine in pool.ran.items():
        assert engine == engine_hash(job.model_version)
