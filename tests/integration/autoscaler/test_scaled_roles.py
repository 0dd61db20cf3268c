"""Goal: over a real broker the lag of a group is read, and it raises the role of the group."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from autoscaler.autoscaler_role import run_autoscaler
from autoscaler.policy.role_need import Role, role_key
from autoscaler.settings import AutoscalerSettings
from autoscaler.signals.group_lags import group_reader
from core.clock import SystemClock
from tests.support.memory_actuator import MemoryActuator
from tests.support.memory_actuators import MemoryActuators
from tests.support.until import until_true
from topics.clients.admin import TopicAdmin
from topics.clients.consumer import GroupConsumer
from topics.clients.producer import RecordProducer
from topics.records.catalogue import RESULTS
from topics.settings import KafkaSettings

RECORDS = 900
DONE = 400
POLICIES = """
[actuators.memory]
kind = "kubernetes"
[roles.results-writer]
target_per_s = 100
drain_s = 2
replicas_max = 8
"""


@contextmanager
def member(kafka: KafkaSettings) -> Iterator[GroupConsumer]:
    """A member of the group of results-writers, which commits what a test tells it to."""
    consumer = GroupConsumer(
        kafka,
        group="results-writer",
        topics=[RESULTS.name],
        client_id="w",
        on_assign=lambda _: None,
        on_revoke=lambda _: None,
    )
    try:
        yield consumer
    finally:
        consumer.close()


def commit_records(producer: RecordProducer, consumer: GroupConsumer) -> None:
    """Append records to one partition, of which the group has done the first."""
    for _ in range(RECORDS):
        producer.send(RESULTS.name, b"x", partition=3)
    producer.flush(30)
    read = 0
    while read < RECORDS:
        read += len(consumer.poll(RECORDS, 0.2))
    assert consumer.commit({(RESULTS.name, 3): DONE})


def test_offsets_and_members_of_a_group_are_read(
    kafka: KafkaSettings, producer: RecordProducer
) -> None:
    read = group_reader(TopicAdmin(kafka), SystemClock())
    empty = read(Role.RESULTS_WRITER)
    assert set(empty.offsets.values()) == {(0, 0)}
    assert (len(empty.offsets), empty.members) == (RESULTS.partition_count, 0)

    with member(kafka) as consumer:
        commit_records(producer, consumer)
        found = read(Role.RESULTS_WRITER)
    assert found.members == 1
    assert {n: place for n, place in found.offsets.items() if place[1]} == {3: (DONE, RECORDS)}


@pytest.mark.usefixtures("role_state")
async def test_a_results_writer_that_lags_gets_more_processes(
    kafka: KafkaSettings, producer: RecordProducer, tmp_path: Path
) -> None:
    path = tmp_path / "scaling.toml"
    path.write_text(POLICIES)
    settings = AutoscalerSettings(policy_file=path, interval_s=0.2)
    actuator, stop = MemoryActuator(), threading.Event()
    with member(kafka) as consumer:
        commit_records(producer, consumer)
        role = asyncio.create_task(
            run_autoscaler(
                settings,
                kafka,
                stop,
                process_id="a",
                actuators=MemoryActuators(settings, "memory", actuator),
            )
        )
        await until_true(lambda: actuator.orders)
        stop.set()
        await role

    first = actuator.orders[0]
    assert first.pool == role_key(Role.RESULTS_WRITER)
    assert first.replicas == 3  # 500 records wait / (100 × 2 s), rounded up
