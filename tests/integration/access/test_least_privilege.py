"""Goal: with the printed ACLs and grants each role can do its work, and nothing else."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
import pytest
import sqlalchemy as sa
from confluent_kafka import OFFSET_BEGINNING, KafkaError, Producer, TopicPartition
from confluent_kafka import Consumer as KafkaConsumer
from openai import OpenAI

from migrations.role_rights import OWNED, RIGHTS
from migrations.schema import SCHEMA
from tenancy.operator_keys import OperatorRole, create_operator_key
from tests.integration.access.least_privilege import (
    DATABASE_USERS,
    KAFKA_USERS,
    PREFIX,
    Installation,
    running_installation,
)
from tests.integration.webhooks.receivers import ok, receiving
from tests.support.job_checks import chat_line, create, ended, submit, upload, watch
from tests.support.until import until
from topics.records.catalogue import SHARED_TOPICS, pool_topics

ENV = {
    "MILLRACE_ENGINE_SIMULATED_LATENCY_MS": "20",
    "MILLRACE_ENGINE_SIMULATED_FAULTS": json.dumps([{"contains": "poison", "fault": "error500"}]),
    "MILLRACE_WRITER_RETRY_BACKOFF_S": "0.2",
    "MILLRACE_FINALISER_REMOVAL_INTERVAL_S": "0.5",
}
REFUSED_WORDS = ("permission denied", "must be owner", "not authorized", "AUTHORIZATION_FAILED")


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    with running_installation(tmp_path_factory.mktemp("access"), ENV) as found:
        yield found


@pytest.mark.timeout(300)
def test_every_role_does_its_work_with_its_own_rights(installation: Installation) -> None:
    client = OpenAI(base_url=f"{installation.url}/v1", api_key=installation.key, max_retries=3)
    model = installation.model.name
    with receiving(ok) as receiver:
        client.webhooks.create(
            name="all",
            url=receiver.url,
            event_types=["batch.completed"],
        )
        lines = [chat_line(0, model, text="poison"), *(chat_line(n, model) for n in range(1, 300))]
        job = create(
            client, upload(client, b"".join(lines)), deduplicate=True, callback_url=receiver.url
        )
        watch(client, job.id, lambda found: found.status in {"in_progress", "completed"})
        items = client.get(f"/batches/{job.id}/items", cast_to=dict[str, Any])
        assert items["data"]
        answer = ask(client, model)
        assert answer.choices
        durable = ask(client, model, extra_headers={"Idempotency-Key": "once"})
        again = ask(client, model, extra_headers={"Idempotency-Key": "once"})
        assert durable.id == again.id
        stream = client.chat.completions.create(
            model=model, messages=[{"role": "user", "content": "hi"}], stream=True
        )
        assert list(stream)
        cancelled = submit(client, model, 3000)
        client.batches.cancel(cancelled.id)
        assert watch(client, cancelled.id, ended).status == "cancelled"
        done = watch(client, job.id, ended)
        assert done.status == "completed", done
        counts = (done.model_extra or {})["millrace"]
        assert (counts["succeeded"], counts["failed"]) == (299, 1)
        until(lambda: len(receiver.requests) >= 2, "endpoint and callback", 60)
        client.delete(f"/batches/{job.id}", cast_to=dict[str, Any])
        scaling = installation.data / "logs/autoscaler.log"
        until(lambda: "this process decides" in scaling.read_text(), "an owner", 60)
    administer(installation)
    assert not any(installation.supervisor.restart_counts().values())
    assert refusals_in(installation.data / "logs") == []


def administer(installation: Installation) -> None:
    """Create a tenant by an operator key, give it something, and delete it again."""
    engine = sa.create_engine(installation.database_url, poolclass=sa.NullPool)
    with engine.begin() as connection:
        operator = create_operator_key(connection, "test", OperatorRole.ADMIN).secret
    with httpx.Client(base_url=f"{installation.url}/v1/admin", timeout=30) as client:
        client.headers["authorization"] = f"Bearer {operator}"
        tenant = client.post("/tenants", json={"name": "new"}).raise_for_status().json()["id"]
        path = f"/tenants/{tenant}"
        client.post(path, json={"call_timeout_ms": 60_000}).raise_for_status()
        key = client.post(f"{path}/keys", json={}).raise_for_status().json()
        as_tenant = OpenAI(base_url=f"{installation.url}/v1", api_key=key["secret"])
        as_tenant.webhooks.create(name="n", url="https://8.8.8.8/", event_types=["batch.completed"])
        upload(as_tenant, b"{}")
        other = client.post(f"{path}/keys", json={}).raise_for_status().json()["id"]
        client.delete(f"/keys/{other}").raise_for_status()
        client.delete(path).raise_for_status()
    left = sa.text(
        "SELECT (SELECT count(*) FROM files WHERE tenant_id = :tenant AND deleted_at IS NULL) "
        "+ (SELECT count(*) FROM webhook_endpoints WHERE tenant_id = :tenant AND url <> '')"
    ).bindparams(tenant=UUID(tenant.removeprefix("ten_")))

    def is_erased() -> bool:
        with engine.connect() as connection:
            return not connection.scalar(left)

    until(is_erased, "the data of the tenant", 90)


def ask(client: OpenAI, model: str, **options: Any) -> Any:
    messages: Any = [{"role": "user", "content": "hello"}]
    return client.chat.completions.create(model=model, messages=messages, **options)


def refusals_in(folder: Path) -> list[str]:
    return [
        f"{path.name}: {line}"
        for path in folder.glob("*.log")
        for line in path.read_text().splitlines()
        if any(word in line for word in REFUSED_WORDS)
    ]


@pytest.mark.parametrize("role", KAFKA_USERS)
def test_no_role_writes_or_reads_a_topic_that_is_not_its_own(
    installation: Installation, role: str
) -> None:
    topics = [*SHARED_TOPICS, *pool_topics(installation.model.pool)]
    options = installation.kafka_of(role).client_options()
    producer = Producer({**options, "message.timeout.ms": 15_000})
    consumer = KafkaConsumer(
        {**options, "group.id": f"{PREFIX}no-group", "enable.partition.eof": True}
    )
    try:
        foreign = [topic.name for topic in topics if role not in topic.written_by]
        assert foreign
        errors = dict.fromkeys(foreign, None)

        def report(error: KafkaError | None, message: Any) -> None:
            errors[message.topic().removeprefix(PREFIX)] = error and error.code()

        for name in foreign:
            producer.produce(PREFIX + name, b"forged", partition=0, on_delivery=report)
        producer.flush(40)
        refused = {KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError._MSG_TIMED_OUT}
        assert {name: code for name, code in errors.items() if code not in refused} == {}
        unread = [topic.name for topic in topics if role not in topic.read_by]
        for name in unread:
            assert is_unreadable(consumer, PREFIX + name), name
        for topic in topics:
            if role in topic.read_by:
                assert not is_unreadable(consumer, PREFIX + topic.name), topic.name
    finally:
        consumer.close()


def is_unreadable(consumer: KafkaConsumer, topic: str) -> bool:
    """Whether the broker refuses to let the consumer read a topic."""
    if consumer.list_topics(topic, timeout=30).topics[topic].error is not None:
        return True  # not even described
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    try:
        for _ in range(200):
            message = consumer.poll(0.1)
            if message is None:
                continue
            error = message.error()
            if error is None or error.code() == KafkaError._PARTITION_EOF:
                return False
            if error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                return True
    finally:
        consumer.unassign()
    raise AssertionError(f"neither records nor a refusal from {topic}")


@pytest.mark.parametrize("role", DATABASE_USERS)
def test_no_role_reads_a_table_that_is_not_its_own(installation: Installation, role: str) -> None:
    group = {"results-writer": "results", "finaliser": "results"}.get(role, role)
    own = {*RIGHTS[group], *(OWNED if group == "results" else [])}
    foreign = sorted(SCHEMA.tables.keys() - own)
    assert foreign
    engine = sa.create_engine(installation.database_of(role), poolclass=sa.NullPool)
    with engine.connect() as connection:
        for table in sorted(own):
            if table != "outbox":  # the writers of `outbox` do not read it
                connection.execute(sa.text(f"SELECT 1 FROM {table} LIMIT 1"))
    for table in foreign:
        with (
            engine.connect() as connection,
            pytest.raises(sa.exc.ProgrammingError, match="permission denied"),
        ):
            connection.execute(sa.text(f"SELECT 1 FROM {table} LIMIT 1"))


def test_a_gpu_consumer_has_no_user_in_postgres(installation: Installation) -> None:
    engine = sa.create_engine(installation.database_url, poolclass=sa.NullPool)
    with engine.connect() as connection:
        users = connection.scalars(sa.text("SELECT rolname FROM pg_roles")).all()
    assert {name for name in users if name.startswith("millrace_")} == {
        *DATABASE_USERS.values(),
        "millrace_results",
        "millrace_tenant",
    }
