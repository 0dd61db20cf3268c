"""Goal: over a real broker work leads to an order, and a successor orders with a higher epoch."""

import asyncio
import threading
import time
from pathlib import Path

import pytest

from autoscaler.actuators_in_force import EMBEDDED
from autoscaler.autoscaler_role import run_autoscaler
from autoscaler.settings import AutoscalerSettings
from tests.support.autoscaler_world import L4, POOL, bulk_of
from tests.support.memory_actuator import MemoryActuator
from tests.support.memory_actuators import MemoryActuators
from tests.support.until import until_true
from topics.clients.producer import RecordProducer
from topics.records.catalogue import BACKLOG
from topics.records.codec import encode, kind_headers
from topics.records.scaling import Backlog
from topics.settings import KafkaSettings


@pytest.mark.usefixtures("role_state")
async def test_a_successor_orders_the_same_replicas_with_a_higher_epoch(
    kafka: KafkaSettings, producer: RecordProducer, tmp_path: Path
) -> None:
    path = tmp_path / "scaling.toml"
    path.write_text(L4)
    settings = AutoscalerSettings(policy_file=path, interval_s=0.2)
    actuator = MemoryActuator()
    stops = [threading.Event(), threading.Event()]

    async def publish() -> None:
        deadline_s = time.time() + 5_000
        while True:
            record = Backlog(
                intake_id="i",
                pool=POOL,
                at_s=time.time(),
                epoch=1,
                buckets=[bulk_of(7_200_000.0, deadline_s)],
            )
            headers = kind_headers(Backlog)
            producer.send(BACKLOG.name, encode(record), partition=0, key=b"i", headers=headers)
            await asyncio.sleep(0.5)

    def run(number: int) -> "asyncio.Task[None]":
        name, actuators = f"process-{number}", MemoryActuators(settings, EMBEDDED, actuator)
        return asyncio.create_task(
            run_autoscaler(settings, kafka, stops[number], process_id=name, actuators=actuators)
        )

    publisher = asyncio.create_task(publish())
    first = run(0)
    await until_true(lambda: actuator.orders)
    second = run(1)
    stops[0].set()
    await first
    await until_true(lambda: actuator.orders[-1].epoch == 2)
    stops[1].set()
    await second
    publisher.cancel()

    assert {(one.epoch, one.replicas) for one in actuator.orders} == {(1, 2), (2, 2)}
    assert {one.kinds for one in actuator.orders} == {actuator.orders[0].kinds}
