"""Goal: what a job commits becomes messages, each once, whatever repeats or dies on the way."""

import json
from collections.abc import Iterator
from datetime import datetime
from typing import Any
from uuid import UUID

import pytest
import sqlalchemy as sa

from core.clock import SystemClock
from core.ids import new_uuid
from core.outcomes import Outcome
from core.states import JobState
from jobs.days import job_day
from jobs.outbox_relay import OutboxRelay
from jobs.outbox_rows import event_insert
from jobs.progress_tables import job_counters
from jobs.requests import NewRequest, create_request
from jobs.tables import jobs
from results.partitions import DayPartitions
from results.retention.deletion import delete_batch
from results.tables import items
from results.webhooks.callbacks import Callback, add_callback
from results.webhooks.endpoints import EndpointChange, create_endpoint
from results.webhooks.events import EVENT_TYPES, ITEM_FAILED, PROGRESS
from results.webhooks.reader import EventReader
from results.webhooks.recording import record_events
from results.webhooks.removal import MessageRemoval
from results.webhooks.tables import webhook_deliveries, webhook_messages, webhook_watches
from results.webhooks.urls import parse_url
from results.webhooks.watching import Watcher
from storage.postgres import DATABASE_AWAY
from tests.integration.jobs.log_reader import records_of
from tests.integration.jobs.rows import add_job, add_tenant
from tests.integration.webhooks.conftest import SEALER, Site
from topics.catalogue import DEAD_LETTERS, EVENTS
from topics.codec import decode
from topics.consumer import LogConsumer
from topics.partitioner import job_partition
from topics.producer import LogProducer
from topics.records import DeadLetter, JobEvent
from topics.settings import KafkaSettings

URL = "https://8.8.8.8/hook"


@pytest.fixture
def consumer(kafka: KafkaSettings) -> Iterator[LogConsumer]:
    consumer = LogConsumer(
        kafka,
        group="webhooks",
        topics=[EVENTS.name],
        client_id="test",
        on_assign=lambda _: None,
        on_revoke=lambda _: None,
    )
    yield consumer
    consumer.close()


def hearing(site: Site, *event_types: str) -> UUID:
    with site.engine.begin() as connection:
        row, _ = create_endpoint(
            connection,
            site.tenant_id,
            EndpointChange("test", URL, event_types or EVENT_TYPES),
            SEALER,
            endpoints_max=100,
        )
    return UUID(str(row.id))


def running_job(site: Site, total: int = 100, tenant_id: UUID | None = None) -> UUID:
    with site.engine.begin() as connection:
        return add_job(
            connection, tenant_id or site.tenant_id, state="in_progress", total_count=total
        )


def event_of(site: Site, job_id: UUID, state: JobState, tenant_id: UUID | None = None) -> JobEvent:
    with site.engine.begin() as connection:
        now_s = float(connection.scalar(sa.text("SELECT extract(epoch FROM now())")) or 0)
    return JobEvent(
        event_id=new_uuid(),
        job_id=job_id,
        tenant_id=tenant_id or site.tenant_id,
        state=state.value,
        at_s=now_s,
    )


def record(site: Site, *events: JobEvent) -> int:
    with site.engine.begin() as connection:
        return record_events(connection, events)


def told(site: Site) -> list[dict[str, Any]]:
    """The bodies of all messages in the order of their creation."""
    query = sa.select(webhook_messages.c.body).order_by(webhook_messages.c.created_at)
    with site.engine.begin() as connection:
        return [json.loads(body) for body in connection.scalars(query)]


def dead_letters(kafka: KafkaSettings) -> list[DeadLetter]:
    return [decode(DeadLetter, r.value, r.headers) for r in records_of(kafka, DEAD_LETTERS)]


def test_an_event_of_a_job_becomes_a_delivery_through_the_log(
    site: Site, kafka: KafkaSettings, producer: LogProducer, consumer: LogConsumer
) -> None:
    endpoint = hearing(site, "batch.completed")
    hearing(site, "batch.failed")
    job = running_job(site)
    with site.engine.begin() as connection:
        now_s = float(connection.scalar(sa.text("SELECT extract(epoch FROM now())")) or 0)
        for _ in range(2):
            connection.execute(event_insert(job, site.tenant_id, JobState.COMPLETED, now_s))
    partition = job_partition(job, EVENTS.partition_count)
    producer.send(EVENTS.name, b"no event", partition=partition, headers=[("kind", b"event")])
    producer.flush(30)
    relay = OutboxRelay(site.engine, producer, SystemClock())
    relay.step()
    producer.flush(30)
    woken: list[int] = []
    reader = EventReader(site.engine, consumer, producer, lambda: woken.append(1))
    while len(site.deliveries(endpoint)) < 2:
        reader.step()

    assert woken
    assert [m["type"] for m in told(site)] == ["batch.completed"] * 2
    assert {m["data"]["id"] for m in told(site)} == {f"batch_{job.hex}"}
    assert all(m["data"].keys() == {"id"} for m in told(site))
    with site.engine.begin() as connection:
        assert connection.scalar(sa.select(sa.func.count()).select_from(webhook_deliveries)) == 2
    (letter,) = dead_letters(kafka)  # the unreadable one did not stop those behind it
    assert letter.value == b"no event"


def test_a_dead_letter_is_sent_once_though_postgres_is_away(
    site: Site, kafka: KafkaSettings, producer: LogProducer, consumer: LogConsumer
) -> None:
    producer.send(EVENTS.name, b"no event", partition=0, headers=[("kind", b"event")])
    producer.flush(30)
    away = sa.create_engine("postgresql+psycopg://nobody@127.0.0.1:1/none")
    reader = EventReader(away, consumer, producer, lambda: None)
    tries = 0
    while tries < 3:
        try:
            reader.step()
        except DATABASE_AWAY:
            tries += 1
    reader.engine = site.engine
    reader.step()

    assert len(dead_letters(kafka)) == 1


def test_a_repeated_event_adds_nothing(site: Site) -> None:
    hearing(site)
    event = event_of(site, running_job(site), JobState.COMPLETED)

    assert [record(site, event), record(site, event), record(site, event, event)] == [1, 0, 0]
    assert len(told(site)) == 1


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (JobState.COMPLETED, ["job.completed"]),
        (JobState.EXPIRED, ["job.expired"]),
        (JobState.CANCELLED, ["job.cancelled"]),
        (JobState.FINALIZING, []),
    ],
)
def test_the_end_of_a_single_request_is_told(
    site: Site, state: JobState, expected: list[str]
) -> None:
    hearing(site)
    request = NewRequest(
        job_id=new_uuid(),
        tenant_id=site.tenant_id,
        endpoint="/v1/embeddings",
        input_key="requests/one",
        input_bytes=1,
        model="m",
        model_version="1",
        pool="p",
        timeout_s=60.0,
        traceparent="",
    )
    with site.engine.begin() as connection:
        create_request(connection, request)
    assert record(site, event_of(site, request.job_id, state)) == len(expected)
    assert [m["type"] for m in told(site)] == expected
    assert {m["data"]["id"] for m in told(site)} <= {f"job_{request.job_id.hex}"}


def test_nobody_hears_of_what_is_not_theirs(site: Site) -> None:
    hearing(site)
    with site.engine.begin() as connection:
        stranger = add_tenant(connection)
    foreign = running_job(site, tenant_id=stranger)
    assert record(site, event_of(site, foreign, JobState.COMPLETED, stranger)) == 0
    assert record(site, event_of(site, new_uuid(), JobState.COMPLETED)) == 0


def test_what_happened_before_an_endpoint_is_not_for_it(site: Site) -> None:
    event = event_of(site, running_job(site), JobState.COMPLETED)
    hearing(site)

    assert record(site, event) == 0


def test_a_callback_hears_of_its_job_alone(site: Site) -> None:
    job, other = running_job(site), running_job(site)
    callback = Callback(URL, parse_url(URL, allow_private=False))
    with site.engine.begin() as connection:
        endpoint = add_callback(connection, site.tenant_id, job, callback, SEALER)

    assert record(site, event_of(site, job, JobState.EXPIRED)) == 1
    assert record(site, event_of(site, other, JobState.EXPIRED)) == 0
    (delivery,) = site.deliveries(endpoint)
    assert delivery.lane == f"c:{site.tenant_id.hex}:https://8.8.8.8:443"


def test_the_end_of_a_batch_is_told_though_it_was_deleted_since(site: Site) -> None:
    hearing(site)
    with site.engine.begin() as connection:
        ended = {"state": "completed", "completed_at": sa.func.now(), "total_count": 1}
        job = add_job(connection, site.tenant_id, **ended)
    event = event_of(site, job, JobState.COMPLETED)
    with site.engine.begin() as connection:
        delete_batch(connection, site.tenant_id, job, key_id=new_uuid())

    assert record(site, event) == 1
    assert [m["type"] for m in told(site)] == ["batch.completed"]
    with site.engine.begin() as connection:  # what it had is gone, so nothing is to be looked at
        assert not connection.execute(sa.select(webhook_watches)).all()


class Progressing:
    """A job whose counters and rows move as the results writer moves them."""

    def __init__(self, site: Site, total: int) -> None:
        self.site, self.job_id = site, running_job(site, total)
        self._next = 0
        with site.engine.begin() as connection:
            created: datetime = connection.execute(
                sa.select(jobs.c.created_at).where(jobs.c.id == self.job_id)
            ).scalar_one()
        self._day = job_day(created)
        DayPartitions(site.engine).ensure([self._day])
        self.woken = 0
        self.watcher = Watcher(site.engine, 0.0, self._wake)

    def _wake(self) -> None:
        self.woken += 1

    def end(self, *, succeeded: int = 0, failed: int = 0, settled: bool = False) -> None:
        rows = [
            {
                "job_id": self.job_id,
                "job_day": self._day,
                "item_index": self._next + number,
                "outcome": int(Outcome.FAILED),
                "custom_id": f"id-{self._next + number}",
                **dict.fromkeys(("status_code", "attempt", "input_tokens", "output_tokens"), 0),
                **dict.fromkeys(("cached_tokens", "reasoning_tokens"), 0),
            }
            for number in range(failed)
        ]
        self._next += failed
        with self.site.engine.begin() as connection:
            if rows:
                connection.execute(items.insert(), rows)
            connection.execute(
                sa.update(job_counters)
                .where(job_counters.c.job_id == self.job_id)
                .values(
                    succeeded=job_counters.c.succeeded + succeeded,
                    failed=job_counters.c.failed + failed,
                )
            )
            if settled:
                connection.execute(
                    sa.update(jobs)
                    .where(jobs.c.id == self.job_id)
                    .values(settled_at=sa.func.now(), state="finalizing")
                )

    def told(self, event_type: str) -> list[dict[str, Any]]:
        return [m["data"]["millrace"] for m in told(self.site) if m["type"] == event_type]

    def watch(self) -> sa.Row[Any]:
        with self.site.engine.begin() as connection:
            return connection.execute(sa.select(webhook_watches)).one()


def test_each_mark_of_progress_is_told_once(site: Site) -> None:
    hearing(site, PROGRESS)
    job = Progressing(site, 100)
    record(site, event_of(site, job.job_id, JobState.IN_PROGRESS))
    for count in (10, 15, 10, 45):
        job.end(succeeded=count)
        job.watcher.step()
        job.watcher.step()
    job.end(succeeded=20, settled=True)
    job.watcher.step()

    assert [m["percent"] for m in job.told(PROGRESS)] == [25, 50, 75]
    assert [m["succeeded"] for m in job.told(PROGRESS)] == [25, 80, 80]
    assert job.watch().closed_at is not None
    assert job.woken == 2


def test_jobs_that_move_all_the_time_are_looked_at_once_a_step(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("results.webhooks.watching._JOBS_MAX", 2)
    hearing(site, ITEM_FAILED)
    running = [Progressing(site, 1000) for _ in range(5)]
    for job in running:
        record(site, event_of(site, job.job_id, JobState.IN_PROGRESS))
    looks = 0

    def move() -> None:
        nonlocal looks
        looks += 1
        assert looks < 9
        for job in running:
            job.end(failed=1)

    move()
    Watcher(site.engine, 0.0, move, lambda: True).step()
    assert told(site) == []
    Watcher(site.engine, 0.0, move).step()

    assert looks == 4
    assert {m["data"]["id"] for m in told(site)} == {f"batch_{job.job_id.hex}" for job in running}
    assert len(told(site)) == 5


def test_nothing_is_written_of_a_job_of_which_nothing_is_told(site: Site) -> None:
    hearing(site, PROGRESS)
    job = Progressing(site, 100)
    record(site, event_of(site, job.job_id, JobState.IN_PROGRESS))
    before = job.watch()
    job.end(succeeded=20)
    job.watcher.step()

    assert job.watch() == before


def test_what_a_running_job_did_before_an_endpoint_is_not_for_it(site: Site) -> None:
    job = Progressing(site, 100)
    job.end(succeeded=50, failed=2)
    hearing(site, PROGRESS, ITEM_FAILED)
    job.watcher.step()
    assert told(site) == []
    job.end(succeeded=22, failed=1)
    job.watcher.step()
    (progress,), (failed,) = job.told(PROGRESS), job.told(ITEM_FAILED)

    assert progress["percent"] == 75
    assert (failed["failed_count"], failed["failed_total"]) == (1, 3)
    assert [item["custom_id"] for item in failed["items"]] == ["id-2"]


def test_a_new_endpoint_takes_nothing_from_one_that_was_there(site: Site) -> None:
    """The log has yet to tell that the job began."""
    hearing(site, PROGRESS)
    job = Progressing(site, 100)
    job.end(succeeded=30)
    hearing(site, PROGRESS)
    job.watcher.step()

    assert [m["percent"] for m in job.told(PROGRESS)] == [25]


def test_failed_items_are_told_together_and_each_is_counted_once(site: Site) -> None:
    hearing(site, ITEM_FAILED)
    job = Progressing(site, 1000)
    record(site, event_of(site, job.job_id, JobState.IN_PROGRESS))
    job.end(succeeded=50)
    job.watcher.step()
    assert told(site) == []
    for count in (3, 250, 2):
        job.end(failed=count)
        job.watcher.step()
        job.watcher.step()
    first, second, third = job.told(ITEM_FAILED)

    assert [m["failed_count"] for m in (first, second, third)] == [3, 250, 2]
    assert [m["failed_total"] for m in (first, second, third)] == [3, 253, 255]
    assert [i["custom_id"] for i in first["items"]] == ["id-0", "id-1", "id-2"]
    assert [i["index"] for i in second["items"]] == list(range(3, 103))
    assert [i["index"] for i in third["items"]] == [253, 254]


def test_failed_items_wait_for_their_second(site: Site) -> None:
    hearing(site, ITEM_FAILED)
    job = Progressing(site, 10)
    job.watcher.pause_s = 3600
    record(site, event_of(site, job.job_id, JobState.IN_PROGRESS))
    for _ in range(3):
        job.end(failed=1)
        job.watcher.step()
    job.end(failed=7, settled=True)
    job.watcher.step()
    assert [m["failed_count"] for m in job.told(ITEM_FAILED)] == [1]
    assert job.watch().closed_at is None
    job.watcher.pause_s = 0
    job.watcher.step()

    assert [m["failed_count"] for m in job.told(ITEM_FAILED)] == [1, 9]
    assert job.watch().closed_at is not None


def test_a_job_that_was_over_before_it_was_watched_tells_its_failed_items(site: Site) -> None:
    hearing(site, ITEM_FAILED, "batch.completed")
    job = Progressing(site, 10)
    job.end(succeeded=8, failed=2, settled=True)
    record(site, event_of(site, job.job_id, JobState.COMPLETED))
    job.watcher.step()

    assert [m["failed_count"] for m in job.told(ITEM_FAILED)] == [2]


def test_a_new_endpoint_hears_of_a_job_that_runs(site: Site) -> None:
    job = Progressing(site, 4)
    hearing(site, PROGRESS)
    job.end(succeeded=1)
    job.watcher.step()

    assert [m["percent"] for m in job.told(PROGRESS)] == [25]


def test_a_watch_without_news_is_not_written(site: Site) -> None:
    hearing(site, PROGRESS)
    job = Progressing(site, 100)
    record(site, event_of(site, job.job_id, JobState.IN_PROGRESS))
    job.end(succeeded=1)
    job.watcher.step()
    with site.engine.begin() as connection:
        before = connection.scalar(sa.text("SELECT xmin::text FROM webhook_watches"))
    job.watcher.step()
    with site.engine.begin() as connection:
        assert connection.scalar(sa.text("SELECT xmin::text FROM webhook_watches")) == before


def test_old_messages_go_with_their_history_and_new_ones_stay(site: Site) -> None:
    endpoint = hearing(site)
    record(site, event_of(site, running_job(site), JobState.COMPLETED))
    with site.engine.begin() as connection:
        connection.execute(
            sa.update(webhook_messages).values(
                created_at=sa.func.now() - sa.text("interval '31 days'")
            )
        )
    record(site, event_of(site, running_job(site), JobState.COMPLETED))
    MessageRemoval(site.engine, 30).step()

    assert len(told(site)) == 1
    assert len(site.deliveries(endpoint)) == 1
