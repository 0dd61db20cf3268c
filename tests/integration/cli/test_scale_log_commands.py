"""Goal: `millrace scale` says what the log has, and writes orders that a reader of it finds."""

import json
import time
from typing import Any

import msgspec
import pytest
from confluent_kafka import OFFSET_END, TIMESTAMP_CREATE_TIME, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)
from typer.testing import CliRunner, Result

from autoscaler.policy.scaling_history import first_history
from autoscaler.policy.scaling_step import decide
from cli.admin.scaling_records import read_scaling
from cli.exits import ExitCode
from cli.main import app
from tests.support.scaling import rules_of, signals_of, warm
from tests.support.until import until
from topics.clients.producer import RecordProducer
from topics.records.catalogue import SCALING, SCALING_DECISIONS
from topics.records.codec import encode, kind_headers
from topics.records.scaling import DecisionEntry, PoolScaling
from topics.settings import KafkaSettings

POOL = "chat"


def decision_json(per_s: float, at_s: float) -> bytes:
    rules = rules_of(min_replicas=1, max_replicas=9)
    signals = signals_of(per_s, warm(2), at_s)
    return msgspec.json.encode(decide(rules, signals, first_history(at_s, 2), at_s)[0])


def accept_past_times(kafka: KafkaSettings) -> None:
    """Let the topic of decisions keep the times that a record brings."""
    kind = ConfigEntry(
        "message.timestamp.type", "CreateTime", incremental_operation=AlterConfigOpType.SET
    )
    name = kafka.topic_prefix + SCALING_DECISIONS.name
    resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=[kind])
    admin = AdminClient(kafka.client_options())
    for done in admin.incremental_alter_configs([resource]).values():
        done.result(30)
    until(lambda: probed_timestamp_type(kafka, name) == TIMESTAMP_CREATE_TIME)
    for deleted in admin.delete_records([TopicPartition(name, 0, OFFSET_END)]).values():
        deleted.result(30)


def probed_timestamp_type(kafka: KafkaSettings, name: str) -> int:
    """Return how the broker takes times, by a record of another pool: a change takes a moment."""
    found: list[int] = []
    entry = DecisionEntry(pool="probe", epoch=0, at_s=0.0, applied=False, decision=b"{}")
    probe = Producer(kafka.client_options())
    probe.produce(
        name,
        encode(entry),
        b"probe",
        headers=kind_headers(DecisionEntry),
        timestamp=1,
        on_delivery=lambda _, sent: found.append(sent.timestamp()[0]),
    )
    assert probe.flush(40) == 0
    return found[0]


def send_decisions(kafka: KafkaSettings, producer: RecordProducer, now_s: float) -> None:
    """Three entries of the history, appended when they were decided; the last is in force."""
    accept_past_times(kafka)
    past = Producer(kafka.client_options())
    for age_s, per_s in ((5000.0, 1000.0), (600.0, 3100.0), (5.0, 4700.0)):
        at_s = now_s - age_s
        entry = DecisionEntry(
            pool=POOL,
            epoch=1,
            at_s=at_s,
            applied=age_s != 600.0,
            decision=decision_json(per_s, at_s),
        )
        past.produce(
            kafka.topic_prefix + SCALING_DECISIONS.name,
            encode(entry),
            POOL.encode(),
            headers=kind_headers(DecisionEntry),
            timestamp=int(at_s * 1000),
        )
    assert past.flush(40) == 0
    record = PoolScaling(
        pool=POOL,
        epoch=1,
        sequence=3,
        at_s=now_s,
        mode="active",
        actuator="embedded",
        target=6,
        kinds=[],
        removals=[],
        awake=[],
        standby=0,
        start_s=20.0,
        wake_s=1.0,
        decision=decision_json(4700.0, now_s - 5),
    )
    headers = kind_headers(PoolScaling)
    producer.send(SCALING.name, encode(record), partition=0, key=POOL.encode(), headers=headers)
    producer.flush(40)


@pytest.fixture
def now_s() -> float:
    return time.time()


def scale(kafka: KafkaSettings, *arguments: str) -> Result:
    env = {
        "MILLRACE_KAFKA_BOOTSTRAP_SERVERS": kafka.bootstrap_servers,
        "MILLRACE_KAFKA_TOPIC_PREFIX": kafka.topic_prefix,
    }
    return CliRunner().invoke(app, ["scale", *arguments], env=env)


def parsed(done: Result) -> Any:
    assert done.exit_code == ExitCode.OK, done.stderr
    return json.loads(done.stdout)


def test_the_log_is_shown_explained_and_listed(
    kafka: KafkaSettings, producer: RecordProducer, now_s: float
) -> None:
    send_decisions(kafka, producer, now_s)

    (shown,) = parsed(scale(kafka, "status", "-o", "json"))
    assert (shown["pool"], shown["target"], shown["override"]) == (POOL, 6, None)
    assert scale(kafka, "explain", POOL).stdout.startswith("chat is to have 6 replicas: ")
    before = scale(kafka, "explain", POOL, "--at", "-8m").stdout
    assert before.startswith("chat is to have 4 replicas: ")
    assert "It was not applied: the mode was observe." in before
    long_ago = parsed(scale(kafka, "explain", POOL, "--at", "-1h", "-o", "json"))
    assert long_ago["decision"]["target"] == 2
    listed = parsed(scale(kafka, "history", POOL, "--since", "-20m", "-o", "json"))
    assert [one["decision"]["target"] for one in listed] == [4, 6]
    table = scale(kafka, "history", POOL, "--since", "-2h", "--limit", "3").stdout.splitlines()
    assert table[0].startswith("TIME ")
    assert len(table) == 4


def test_orders_are_written_and_those_out_of_bounds_are_not(
    kafka: KafkaSettings, producer: RecordProducer, now_s: float
) -> None:
    send_decisions(kafka, producer, now_s)

    done = scale(kafka, "set", POOL, "3", "--until", "+2h", "--reason", "a load test")
    assert done.exit_code == ExitCode.OK, done.stderr
    order = read_scaling(kafka).override(POOL, now_s)
    assert order is not None
    assert (order.mode, order.replicas, order.reason) == ("set", 3, "a load test")
    assert "An operator ordered: set to 3" in scale(kafka, "explain", POOL).stdout

    refused = scale(kafka, "set", POOL, "10")
    assert refused.exit_code == ExitCode.USAGE
    assert refused.stderr.splitlines() == [
        "millrace: 10 is not within the bounds of 'chat' now: 1 to 9."
    ]
    assert scale(kafka, "pause", POOL).exit_code == ExitCode.OK
    paused = read_scaling(kafka).override(POOL, now_s)
    assert paused is not None
    assert paused.mode == "paused"
    assert scale(kafka, "resume", POOL).exit_code == ExitCode.OK
    assert read_scaling(kafka).override(POOL, now_s) is None


def test_a_pool_that_the_log_does_not_have_is_one_line(kafka: KafkaSettings) -> None:
    # Partitions of new topics may have no leader for a moment.
    last = "explain", "none", "--at", "-2h"
    until(lambda: scale(kafka, *last).exit_code == ExitCode.NOT_FOUND)
    for arguments in (
        ("explain", "none"),
        ("explain", "none", "--at", "-2h"),
        ("pause", "none"),
        ("set", "none", "1"),
    ):
        done = scale(kafka, *arguments)
        assert (done.exit_code, done.stdout) == (ExitCode.NOT_FOUND, ""), done.stderr
        (line,) = done.stderr.splitlines()
        assert line.startswith("millrace: The log has no decision about the pool 'none'")
    assert scale(kafka, "status").exit_code == ExitCode.OK
    assert scale(kafka, "history", "none", "--since", "yesterday").exit_code == ExitCode.USAGE
