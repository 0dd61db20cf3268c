"""Goal: job events become messages, each once, despite redelivery and crashes."""

from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from core.clock import SystemClock
from core.ids import new_uuid
from core.states import JobState
from jobs.outbox_relay import OutboxRelay
from jobs.store.outbox import event_insert
from jobs.store.single_requests import NewRequest, create_request
from results.retention.deletion import delete_batch
from results.webhooks.delivery.message_removal import MessageRemoval
from results.webhooks.events.event_reader import JobEventReader
from results.webhooks.tables import webhook_deliveries, webhook_messages, webhook_watches
from storage.postgres.engines import DATABASE_UNAVAILABLE
from tests.integration.jobs.log_reader import records_of
from tests.integration.jobs.rows import add_job, add_tenant
from tests.integration.results.outcomes import count, days_ago
from tests.integration.webhooks.conftest import Site
from tests.integration.webhooks.job_events import (
    add_endpoint,
    event_of,
    message_bodies,
    record,
    running_job,
)
from topics.clients.consumer import GroupConsumer
from topics.clients.producer import RecordProducer
from topics.records.catalogue import DEAD_LETTERS, EVENTS
from topics.records.codec import decode
from topics.records.partitioner import job_partition
from topics.records.records import DeadLetter
from topics.settings import KafkaSettings


@pytest.fixture
def consumer(kafka: KafkaSettings) -> Iterator[GroupConsumer]:
    consumer = GroupConsumer(
        kafka,
        group="webhooks",
        topics=[EVENTS.name],
        client_id="test",
        on_assign=lambda _: None,
        on_revoke=lambda _: None,
    )
    yield consumer
    consumer.close()


def dead_letters(kafka: KafkaSettings) -> list[DeadLetter]:
    return [decode(DeadLetter, r.value, r.headers) for r in records_of(kafka, DEAD_LETTERS)]


def test_job_event_becomes_a_delivery(
    site: Site, kafka: KafkaSettings, producer: RecordProducer, consumer: GroupConsumer
) -> None:
    endpoint = add_endpoint(site, "batch.completed")
    add_endpoint(site, "batch.failed")
    job = running_job(site)
    with site.engine.begin() as connection:
        for _ in range(2):
            connection.execute(event_insert(job, site.tenant_id, JobState.COMPLETED, site.now_s))
    partition = job_partition(job, EVENTS.partition_count)
    producer.send(EVENTS.name, b"no event", partition=partition, headers=[("kind", b"event")])
    producer.flush(30)
    OutboxRelay(site.engine, producer, SystemClock()).run_once()
    producer.flush(30)
    woken: list[int] = []
    reader = JobEventReader(site.engine, consumer, producer, lambda: woken.append(1))
    while len(site.deliveries(endpoint)) < 2:
        reader.run_once()

    assert woken
    assert [m["type"] for m in message_bodies(site)] == ["batch.completed"] * 2
    assert {m["data"]["id"] for m in message_bodies(site)} == {f"batch_{job.hex}"}
    assert all(m["data"].keys() == {"id"} for m in message_bodies(site))
    assert count(site.engine, webhook_deliveries) == 2
    producer.flush(30)
    (letter,) = dead_letters(kafka)  # the unreadable record did not block later ones
    assert letter.value == b"no event"


def test_dead_letter_is_sent_once_while_postgres_is_unavailable(
    site: Site, kafka: KafkaSettings, producer: RecordProducer, consumer: GroupConsumer
) -> None:
    producer.send(EVENTS.name, b"no event", partition=0, headers=[("kind", b"event")])
    producer.flush(30)
    unavailable = sa.create_engine("postgresql+psycopg://nobody@127.0.0.1:1/none")
    reader = JobEventReader(unavailable, consumer, producer, lambda: None)
    tries = 0
    while tries < 3:
        try:
            reader.run_once()
        except DATABASE_UNAVAILABLE:
            tries += 1
    reader.engine = site.engine
    reader.run_once()

    producer.flush(30)
    assert len(dead_letters(kafka)) == 1


def test_event_is_recorded_once_and_not_for_later_endpoints(site: Site) -> None:
    earlier = event_of(site, running_job(site), JobState.COMPLETED)
    add_endpoint(site)
    event = event_of(site, running_job(site), JobState.COMPLETED)

    assert record(site, earlier) == 0
    assert [record(site, event), record(site, event), record(site, event, event)] == [1, 0, 0]
    assert len(message_bodies(site)) == 1


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (JobState.COMPLETED, ["job.completed"]),
        (JobState.EXPIRED, ["job.expired"]),
        (JobState.CANCELLED, ["job.cancelled"]),
        (JobState.FINALIZING, []),
    ],
)
def test_end_of_a_single_request_is_announced(
    site: Site, state: JobState, expected: list[str]
) -> None:
    add_endpoint(site)
    given: dict[str, Any] = {"endpoint": "/v1/embeddings", "input_key": "requests/one"}
    given |= {"input_bytes": 1, "model": "m", "model_version": "1", "pool": "p", "timeout_s": 60.0}
    request = NewRequest(job_id=new_uuid(), tenant_id=site.tenant_id, traceparent="", **given)
    with site.engine.begin() as connection:
        create_request(connection, request)
    assert record(site, event_of(site, request.job_id, state)) == len(expected)
    assert [m["type"] for m in message_bodies(site)] == expected
    assert {m["data"]["id"] for m in message_bodies(site)} <= {f"job_{request.job_id.hex}"}


def test_endpoint_receives_no_events_of_other_tenants(site: Site) -> None:
    add_endpoint(site)
    with site.engine.begin() as connection:
        stranger = add_tenant(connection)
    foreign = running_job(site, tenant_id=stranger)
    assert record(site, event_of(site, foreign, JobState.COMPLETED, stranger)) == 0
    assert record(site, event_of(site, new_uuid(), JobState.COMPLETED)) == 0


def test_callback_receives_events_of_its_job_only(site: Site) -> None:
    job, other = running_job(site), running_job(site)
    endpoint = site.callback(job)

    assert record(site, event_of(site, job, JobState.EXPIRED)) == 1
    assert record(site, event_of(site, other, JobState.EXPIRED)) == 0
    (delivery,) = site.deliveries(endpoint)
    assert delivery.lane == f"c:{site.tenant_id.hex}:https://8.8.8.8:443"


def test_end_of_a_deleted_batch_is_announced(site: Site) -> None:
    add_endpoint(site)
    with site.engine.begin() as connection:
        ended = {"state": "completed", "completed_at": sa.func.now(), "total_count": 1}
        job = add_job(connection, site.tenant_id, **ended)
    event = event_of(site, job, JobState.COMPLETED)
    with site.engine.begin() as connection:
        delete_batch(connection, site.tenant_id, job, key_id=new_uuid())

    assert record(site, event) == 1
    assert [m["type"] for m in message_bodies(site)] == ["batch.completed"]
    # Its rows are removed, so there is nothing to watch.
    assert count(site.engine, webhook_watches) == 0


def test_expired_messages_are_removed_with_their_history(site: Site) -> None:
    endpoint = add_endpoint(site)
    record(site, event_of(site, running_job(site), JobState.COMPLETED))
    site.execute(sa.update(webhook_messages).values(created_at=days_ago(31)))
    record(site, event_of(site, running_job(site), JobState.COMPLETED))
    MessageRemoval(site.engine, 30).run_once()

    assert len(message_bodies(site)) == 1
    assert len(site.deliveries(endpoint)) == 1
