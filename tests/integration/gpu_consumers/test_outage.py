"""Goal: an outage of an upstream fails no item of a job, however the upstream fails.

The replica, the writer and the retries are real, with a real broker and database. Ten minutes, and
the limits that belong to them, are divided by sixty. A loop replaces the batcher.
"""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
import sqlalchemy as sa
from aiohttp import web

from gpu_consumers.engines.openai_http.openai_http_engine import OpenAIHttpEngine
from gpu_consumers.settings import ReplicaSettings
from gpu_consumers.wiring import build_replica
from jobs.expansion.job_loads import open_jobs
from jobs.recovery.retry_policy import RetryBudgetRules, RetryRules
from jobs.store.days import job_day
from jobs.tables.retries import item_attempts
from results.writer.day_partitions import DayPartitions
from results.writer.item_writer import ItemWriter
from tests.integration.engines.upstream import Upstream, http_settings, serve
from tests.integration.gpu_consumers.threaded_replica import POOL, ThreadedReplica
from tests.integration.jobs.retries import RetryProcess
from tests.integration.jobs.rows import job_row
from tests.integration.jobs.stores import Stores
from tests.integration.results.outcomes import (
    add_running_job,
    assert_totals_agree,
    counters,
)
from topics.records.catalogue import CAPACITY, REQUESTS_BULK, RESULTS
from topics.records.chunks import split_into_chunks
from topics.records.codec import decode
from topics.records.records import Batch, Capacity, Chunk, Item, JobRef, Outcomes
from topics.settings import KafkaSettings
from topics.tail_readers.topic_tail_reader import TopicTailReader

SCALE = 60.0
COUNT = 1500
OUTAGE_S = 600 / SCALE
RULES = RetryRules(attempts_max=3, backoff_s=5 / SCALE, backoff_s_max=300 / SCALE)
MODES = ("overloaded", "broken", "cut", "throttled", "broken", "gone", "stuck")
STATUSES = {"overloaded": 503, "throttled": 429, "gone": 502, "stuck": 504}
MODE_S = OUTAGE_S / len(MODES)
ASKED_MIN = 3
"""Requests that each mode must fail, however slow the machine is."""

BODY = b'{"model":"m","input":"a"}'


class OutageReplica(ThreadedReplica):
    """A replica whose upstream fails in each mode, one after the other."""

    def __init__(self, kafka: KafkaSettings, folder: Path) -> None:
        super().__init__(kafka, folder)
        self.began_s: float | None = None
        self.met: set[str] = set()
        self._mode_index, self._mode_since_s, self._asked = 0, 0.0, 0
        self.upstream = Upstream("m", respond=self._respond, all_away=True)

    @property
    def mode(self) -> str | None:
        """The mode in which the upstream fails now; None while it works."""
        if self.began_s is None or self._mode_index == len(MODES):
            return None
        return MODES[self._mode_index]

    def _next_mode(self) -> str | None:
        """Count a request; switch to the next mode after its time and enough requests."""
        now_s = time.monotonic()
        self._mode_since_s = self._mode_since_s or now_s
        if self._asked >= ASKED_MIN and now_s - self._mode_since_s >= MODE_S:
            self._mode_index, self._mode_since_s, self._asked = self._mode_index + 1, now_s, 0
        self._asked += 1
        if (mode := self.mode) is not None:
            self.met.add(mode)
        return mode

    async def _respond(self, request: web.Request, _: bytes) -> web.StreamResponse | None:
        mode = None if self.mode is None else self._next_mode()
        if mode is None:
            return None
        if mode == "broken":
            return web.json_response({"error": {"code": "internal"}}, status=500)
        if mode == "cut":
            assert request.transport is not None
            request.transport.abort()
            raise asyncio.CancelledError
        return web.Response(status=STATUSES[mode])

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        replica = ReplicaSettings(
            pool=POOL,
            job_class="bulk",
            in_flight_batches_max=50,
            shutdown_grace_s=1.0,
            unavailable_backoff_s_max=10 / SCALE,
        )
        async with serve(self.upstream) as url:
            # Not divided: on a slow machine the outage lasts longer than its modes.
            settings = http_settings(
                url, concurrency=16, upstream_away_s_max=900, upstream_busy_s_max=10 / SCALE
            )
            engine = OpenAIHttpEngine(settings)
            await engine.start()
            self._replica, closing = build_replica(replica, self.kafka, engine, self.objects)
            self._started.set()
            try:
                with closing:
                    await self._replica.run(self.stop)
            finally:
                self.left.set()
                await engine.stop()


@pytest.fixture
def replica(kafka: KafkaSettings, tmp_path: Path) -> Iterator[OutageReplica]:
    replica = OutageReplica(kafka, tmp_path)
    yield replica
    replica.close()


def line(index: int) -> bytes:
    return b'{"custom_id":"c%d","method":"POST","url":"/v1/embeddings","body":%b}\n' % (index, BODY)


def add_job_and_file(engine: sa.Engine, replica: OutageReplica) -> tuple[JobRef, list[Item]]:
    lines = [line(index) for index in range(COUNT)]
    replica.store("files/in", b"".join(lines))
    cursor = {"item_index": COUNT, "byte_offset": 1, "line_number": COUNT}
    job_id = add_running_job(engine, COUNT, input_key="files/in", pool=POOL, cursor=cursor)
    with engine.begin() as connection:
        ref = open_jobs(connection, [job_id])[job_id].ref
        assert ref.day == job_day(job_row(connection, job_id).created_at)
    items, offset = [], 0
    for index, text in enumerate(lines):
        items.append(Item(index, f"c{index}", BODY, 1, 1, offset))
        offset += len(text)
    return ref, items


class Loop:
    """Replaces the batcher; the writer and the retries are real."""

    def __init__(self, engine: sa.Engine, replica: OutageReplica) -> None:
        self._replica = replica
        tails = (REQUESTS_BULK, RESULTS, CAPACITY)
        self.tails = [TopicTailReader(replica.kafka, topic, client_id="test") for topic in tails]
        self._writer = ItemWriter(engine, DayPartitions(engine), retries=RULES)
        stores = Stores(engine, replica.objects, replica.producer, replica.kafka)
        self._retries = RetryProcess(stores)
        self._retries.set_rules(RetryBudgetRules(items_per_s_min=10 * SCALE))
        self._waiting: list[Chunk] = []
        self._available = True
        self.sent = 0

    def run_once(self) -> None:
        requests, results, capacity = self.tails
        for record in capacity.poll(0.0):
            if record.value:
                self._available = decode(Capacity, record.value, record.headers).available
        for record in requests.poll(0.02):
            self._waiting.append(decode(Chunk, record.value, record.headers))
        if self._available:
            for chunk in self._waiting[:3]:
                self.send(chunk)
            del self._waiting[:3]
        jobs: dict[UUID, list[Any]] = {}
        for record in results.poll(0.0):
            outcomes = decode(Outcomes, record.value, record.headers)
            jobs.setdefault(outcomes.job.job_id, []).extend(outcomes.items)
        self._writer.write(jobs)
        self._retries.run(POOL)

    def send(self, chunk: Chunk) -> None:
        self.sent += 1
        self._replica.send(Batch(uuid4(), "b", [chunk]), self.sent % 8)


@pytest.mark.timeout(300)
def test_an_outage_of_ten_minutes_fails_no_item(engine: sa.Engine, replica: OutageReplica) -> None:
    ref, items = add_job_and_file(engine, replica)
    replica.start()
    loop = Loop(engine, replica)
    chunks = [Chunk(ref, chunk) for chunk in split_into_chunks(items)]
    loop.send(chunks.pop())
    deadline = time.monotonic() + 240
    while counters(engine, ref.job_id)["succeeded"] < COUNT:
        loop.run_once()
        if chunks and replica.began_s is None and counters(engine, ref.job_id)["succeeded"]:
            replica.began_s = time.monotonic()
        if chunks and replica.began_s is not None:
            loop.send(chunks.pop())
        assert time.monotonic() < deadline, counters(engine, ref.job_id)
    for tail in loop.tails:
        tail.close()

    assert replica.met == set(MODES)
    assert replica.mode is None
    assert counters(engine, ref.job_id)["failed"] == 0
    with engine.connect() as connection:
        charged = connection.scalar(sa.select(sa.func.count()).select_from(item_attempts))
    assert charged is not None
    assert charged <= 3 * 20  # up to the breaker's limit, each time that it may have closed
    assert_totals_agree(engine, ref.job_id)
