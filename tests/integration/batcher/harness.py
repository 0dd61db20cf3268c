"""Harness of batcher tests: a writer of requests, a replica that grants credit, the process."""

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import ExitStack, suppress
from functools import cached_property
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec

from batcher.faust_app.request_stream import group_of
from tests.support.capacity_records import grants_of
from tests.support.until import until
from tests.unit.batcher import builders
from topics.clients.admin import TopicAdmin
from topics.clients.producer import RecordProducer
from topics.errors import KafkaUnavailableError
from topics.records.catalogue import (
    CALLERS,
    CAPACITY,
    DEMAND,
    GRANTS,
    REQUESTS,
    SHARED_TOPICS,
    Topic,
    batches_topic,
    grants_partition,
)
from topics.records.chunks import send_chunk
from topics.records.codec import chunk_headers, decode, encode, kind_headers
from topics.records.partitioner import request_partition
from topics.records.records import (
    Batch,
    CallerHeartbeat,
    CallRef,
    Capacity,
    Chunk,
    Demand,
    Item,
    JobRef,
    Record,
)
from topics.settings import KafkaSettings
from topics.tail_readers.caller_liveness import CALLER_HEARTBEAT_S
from topics.tail_readers.topic_tail_reader import TopicTailReader

ROOT = Path(__file__).parents[3]
POOL = "pool"
_LOG = logging.getLogger(__name__)


def create_topics(kafka: KafkaSettings, *pools: str) -> None:
    """Create the topics of a batcher."""
    batches = [batches_topic(pool, kind) for pool in pools for kind in ("bulk", "interactive")]
    TopicAdmin(kafka).create([*SHARED_TOPICS, *batches])


def job_ref(number: int, *, tenant: int | None = None, pool: str = POOL) -> JobRef:
    """Return a job, of its own tenant by default."""
    return builders.job_ref(
        number,
        tenant_id=UUID(int=tenant or number),
        day=20_000,
        pool=pool,
        deadline_s=time.time() + 3600,
    )


def call_ref(
    number: int,
    caller_id: str,
    *,
    durable: bool = False,
    deadline_s: float | None = None,
    begin_by_s: float = 0.0,
) -> JobRef:
    """Return an online call of its own tenant, by default with an hour to its deadline."""
    return msgspec.structs.replace(
        job_ref(number),
        call=CallRef(caller_id, 0, durable=durable, begin_by_s=begin_by_s),
        **({} if deadline_s is None else {"deadline_s": deadline_s}),
    )


def expected(job: JobRef, count: int) -> Counter[tuple[UUID, int]]:
    """Return each of the first `count` items of `job` once."""
    return Counter({(job.job_id, index): 1 for index in range(count)})


class Requests:
    """Writes chunk records as intake and the API do."""

    def __init__(self, kafka: KafkaSettings, job_class: str = "bulk") -> None:
        self.producer = RecordProducer(kafka, client_id="test-intake", linger_ms=2)
        self._class = job_class
        self._topic = REQUESTS[job_class]

    def send(
        self, job: JobRef, count: int, *, first: int = 0, chunk: int = 100, size: int = 200
    ) -> None:
        """Send items `first` to `first + count` in chunks."""
        body = b'{"x":"' + b"y" * size + b'"}'
        for sequence, start in enumerate(range(first, first + count, chunk)):
            end = min(start + chunk, first + count)
            items = [Item(index, f"c{index}", body, 10) for index in range(start, end)]
            record = Chunk(job, items)
            self.producer.send(
                self._topic.name,
                encode(record),
                partition=request_partition(
                    job.pool, job.tenant_id, sequence, self._topic.partition_count
                ),
                headers=chunk_headers(record, self._class),
            )
        self.producer.flush(40)

    def send_calls(self, *jobs: JobRef) -> None:
        """Send online calls, each a chunk of one item."""
        for job in jobs:
            send_chunk(self.producer, Chunk(job, [Item(0, "", b"{}", 10)]), self._class)
        self.producer.flush(40)

    def send_raw(self, value: bytes | None, headers: list[tuple[str, bytes]]) -> None:
        """Send an arbitrary record."""
        self.producer.send(self._topic.name, value, partition=0, headers=headers)
        self.producer.flush(40)


class Caller:
    """Publishes the heartbeat of an API replica."""

    def __init__(self, kafka: KafkaSettings, caller_id: str) -> None:
        self.caller_id = caller_id
        self._producer = RecordProducer(kafka, client_id=caller_id, linger_ms=0)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._beat, daemon=True)
        self._thread.start()

    def abort(self, *jobs: JobRef) -> None:
        """Abort these calls."""
        self._publish([job.job_id for job in jobs])

    def stop(self) -> None:
        """Stop without a farewell record."""
        self._stopping.set()
        self._thread.join(20)
        self._producer.close()

    def _beat(self) -> None:
        while not self._stopping.wait(CALLER_HEARTBEAT_S):
            self._publish([])

    def _publish(self, aborted: list[UUID]) -> None:
        self._producer.send(
            CALLERS.name,
            encode(CallerHeartbeat(self.caller_id, time.time(), aborted=aborted)),
            partition=0,
            key=self.caller_id.encode(),
            headers=kind_headers(CallerHeartbeat),
        )


class Replica:
    """Grants a window to every batcher that publishes demand, and finishes batches in order."""

    def __init__(
        self,
        kafka: KafkaSettings,
        *,
        job_class: str = "bulk",
        pool: str = POOL,
        window: int = 400,
        concurrency: int = 64,
        items_per_s: float = 1e6,
        has_grants: bool = True,  # False: grants on `capacity` only, as earlier releases
    ) -> None:
        self._kafka, self._class, self._pool = kafka, job_class, pool
        self._has_grants, self._grants_partition = has_grants, grants_partition(job_class)
        self.window, self._concurrency = window, concurrency
        self._producer = RecordProducer(kafka, client_id="test-replica", linger_ms=0)
        self._batches = TopicTailReader(
            kafka, batches_topic(pool, job_class), client_id="test-batches"
        )
        self._demand = TopicTailReader(kafka, DEMAND, client_id="test-demand")
        self._items_per_s = items_per_s
        self._ran_s, self._budget = time.monotonic(), 0.0
        self._running: list[tuple[str, int]] = []  # batcher and item count of each batch
        self._finished: Counter[str] = Counter()
        self.sent: Counter[str] = Counter()
        self.waiting: dict[str, int] = {}
        self.batches: list[Batch] = []
        self.partitions: set[int] = set()
        self.over_granted = False
        self.first_demand_s = 0.0
        self._granted: dict[str, int] = {}
        self._epoch = int(time.time() * 1000)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop publishing."""
        self._stopping.set()
        self._thread.join(20)
        for closing in (self._batches, self._demand, self._producer):
            closing.close()

    @property
    def demand_age_s(self) -> float:
        """Seconds since the first demand."""
        return time.monotonic() - self.first_demand_s if self.first_demand_s else 0.0

    def items(self) -> Counter[tuple[UUID, int]]:
        """Return how often each item came."""
        return Counter(
            (part.job.job_id, item.index)
            for batch in list(self.batches)
            for part in batch.parts
            for item in part.items
        )

    def _run(self) -> None:
        published_s = 0.0
        while not self._stopping.is_set():
            heard = self._read_demand()
            finished = self._finish_batches()
            if heard or finished or time.monotonic() - published_s > 0.2:
                published_s = time.monotonic()
                self._publish()

    def _read_demand(self) -> bool:
        news = False
        for record in self._demand.poll(0):
            demand = decode(Demand, record.value, record.headers)
            if demand.job_class == self._class:
                self.first_demand_s = self.first_demand_s or time.monotonic()
                news = news or demand.batcher_id not in self.waiting
                self.waiting[demand.batcher_id] = demand.waiting.get(self._pool, 0)
        return news

    def _finish_batches(self) -> bool:
        records = self._batches.poll(0.02)
        for record in records:
            batch = decode(Batch, record.value, record.headers)
            self.partitions.add(record.partition)
            count = sum(len(part.items) for part in batch.parts)
            assert dict(record.headers)["items"] == b"%d" % count
            self.sent[batch.batcher_id] += count
            if self.sent[batch.batcher_id] > self._granted.get(batch.batcher_id, 0):
                self.over_granted = True
            self._running.append((batch.batcher_id, count))
            self.batches.append(batch)
        return self._run_batches()

    def _run_batches(self) -> bool:
        """Finish batches no faster than the rate and without bursts."""
        now_s = time.monotonic()
        self._budget += min(0.1, now_s - self._ran_s) * self._items_per_s
        self._ran_s = now_s
        finished = False
        while self._running and self._running[0][1] <= self._budget:
            batcher_id, count = self._running.pop(0)
            self._budget -= count
            self._finished[batcher_id] += count
            finished = True
        if not self._running:
            self._budget = 0.0
        return finished

    def _publish(self) -> None:
        for name in self.waiting:
            self._granted[name] = self._finished[name] + self.window
        capacity = Capacity(
            replica_id=f"replica-{self._pool}",
            epoch=self._epoch,
            pool=self._pool,
            job_class=self._class,
            partitions=[1, 3],
            granted={} if self._has_grants else dict(self._granted),
            items_per_s=1000.0,
            concurrency=self._concurrency,
        )
        self._send(CAPACITY, capacity, 0)
        if self._has_grants:
            self._send(GRANTS, grants_of(capacity, dict(self._granted)), self._grants_partition)

    def _send(self, topic: Topic, record: Record, partition: int) -> None:
        replica = f"replica-{self._pool}:{self._class}"
        key = replica if topic is GRANTS else f"{self._pool}:{replica}"
        sent: Any = {"key": key.encode(), "headers": kind_headers(type(record))}
        self._producer.send(topic.name, encode(record), partition=partition, **sent)


class BatcherProcess:
    """`python -m batcher`, as the supervisor runs it."""

    def __init__(
        self, kafka: KafkaSettings, database_url: str, log: Path, **settings: object
    ) -> None:
        environment = {
            **os.environ,
            "MILLRACE_KAFKA_BOOTSTRAP_SERVERS": kafka.bootstrap_servers,
            "MILLRACE_KAFKA_TOPIC_PREFIX": kafka.topic_prefix,
            "MILLRACE_DATABASE_URL": database_url,
        }
        for name, value in settings.items():
            key = name.upper() if name.isupper() else f"MILLRACE_BATCHER_{name.upper()}"
            environment[key] = str(value)
        self.log = log
        with log.open("ab") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "batcher"], cwd=ROOT, env=environment, stdout=out, stderr=out
            )

    def ready(self) -> None:
        """Wait until it has partitions."""
        until(lambda: '"event":"ready"' in self.log.read_text())

    def kill(self) -> None:
        """kill -9."""
        self.process.kill()
        self.process.wait(10)

    def stop(self) -> int:
        """SIGTERM; return the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(20)

    def end(self) -> None:
        """Kill the process if it still runs; a test that fails shows the end of its log."""
        if self.process.poll() is None:
            self.kill()
        with suppress(FileNotFoundError):  # the folder of a test that passed may be gone
            text = self.log.read_text()[-5_000:]
            _LOG.info("%s, exit code %s: %s", self.log.name, self.process.returncode, text)


class Bench:
    """What a test starts; all of it ends with `closing`."""

    def __init__(
        self, kafka: KafkaSettings, database_url: str, folder: Path, closing: ExitStack
    ) -> None:
        self.kafka, self.database_url, self.folder = kafka, database_url, folder
        self._closing = closing
        self._admin = TopicAdmin(kafka)
        self._batcher_count = 0

    @cached_property
    def requests(self) -> Requests:
        """The writer of bulk requests."""
        return self._requests("bulk")

    @cached_property
    def calls(self) -> Requests:
        """The writer of online calls."""
        return self._requests("interactive")

    @cached_property
    def caller(self) -> Caller:
        """A caller whose heartbeats begin now."""
        caller = Caller(self.kafka, "api-1")
        self._closing.callback(caller.stop)
        return caller

    def start_replica(self, **options: Any) -> Replica:
        replica = Replica(self.kafka, **options)
        self._closing.callback(replica.stop)
        return replica

    def start_batcher(self, **settings: object) -> BatcherProcess:
        self._batcher_count += 1
        log = self.folder / f"batcher-{self._batcher_count}.log"
        process = BatcherProcess(self.kafka, self.database_url, log, **settings)
        self._closing.callback(process.end)
        return process

    def lag(self, job_class: str = "bulk") -> int:
        """Return the uncommitted records of the batchers; -1 while unknown."""
        try:
            return sum(self._admin.lag(group_of(job_class), REQUESTS[job_class]).values())
        except KafkaUnavailableError:  # for a moment after a topic's creation
            return -1

    def _requests(self, job_class: str) -> Requests:
        requests = Requests(self.kafka, job_class)
        self._closing.callback(requests.producer.close)
        return requests
