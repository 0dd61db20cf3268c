"""Wires the role: the owner, the readers of signals, the policies and the actuators."""

import asyncio
import threading
from typing import Final

from autoscaler.actuators.keda.scaling_values import ScalingValues
from autoscaler.actuators_in_force import ActuatorsInForce
from autoscaler.loop.decision_loop import DecisionLoop
from autoscaler.loop.loop_deps import LoopDeps
from autoscaler.loop.scaling_writer import ScalingWriter
from autoscaler.ownership.owner import Owner
from autoscaler.policy.role_need import Role
from autoscaler.settings import AutoscalerSettings
from autoscaler.signals.group_lags import GroupLags, group_reader
from autoscaler.signals.role_signals import role_signals
from autoscaler.signals.signal_store import SignalStore
from autoscaler.signals.topic_inputs import TopicInputs
from core.clock import Clock, SystemClock
from core.runtime.role_lifecycle import report_ready
from topics.clients.admin import TopicAdmin
from topics.clients.producer import RecordProducer
from topics.records.records import Record
from topics.records.scaling import PoolScaling, WakeRequest
from topics.settings import KafkaSettings

ROLE: Final = "autoscaler"


async def run_autoscaler(
    settings: AutoscalerSettings,
    kafka: KafkaSettings,
    stop: threading.Event,
    *,
    process_id: str,
    actuators: ActuatorsInForce,
    clock: Clock | None = None,
) -> None:
    """Decide while this process is the owner, until `stop`. Raises MillraceError.

    KEDA's scaler in this process serves the decisions of every owner.
    """
    clock = clock or SystemClock()
    loop, wait_s = asyncio.get_running_loop(), settings.kafka_wait_s
    producer = RecordProducer(kafka, client_id=process_id, linger_ms=1, waits_for_partitions=True)
    store: SignalStore

    def receive(records: list[Record]) -> None:
        decided = [one for one in records if isinstance(one, PoolScaling)]
        if decided and not loop.is_closed():
            loop.call_soon_threadsafe(_restore_all, actuators.values, decided)
        elif not loop.is_closed():
            loop.call_soon_threadsafe(_record, records, store, decisions, clock)

    inputs = TopicInputs(kafka, client_id=process_id, unavailable_s_max=wait_s, on_records=receive)
    store = SignalStore(inputs.is_readable)
    owner = Owner(kafka, producer, owner_id=process_id, clock=clock, unavailable_s_max=wait_s)
    lags = _group_lags(kafka, owner, actuators, clock)
    decisions = DecisionLoop(
        LoopDeps(
            owner=owner,
            store=store,
            writer=ScalingWriter(producer),
            policies=lambda: actuators.policies,
            actuators=lambda: actuators.actuators,
            actuator_name=actuators.name_of,
            is_caught_up=lambda: inputs.is_caught_up,
            clock=clock,
            role_signals=lambda role, now_s: role_signals(role, store.backlog, lags.loads, now_s),
            note_existing=actuators.values.note_existing,
        )
    )
    await actuators.open()
    inputs.start()
    owner.start()
    lags.start()
    watch = asyncio.create_task(_watch((owner, inputs, lags), actuators))
    try:
        report_ready()
        decide = asyncio.create_task(decisions.run(stop, settings.interval_s))
        done, _ = await asyncio.wait({watch, decide}, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        watch.cancel()
        stop.set()
        await asyncio.to_thread(owner.stop)
        await asyncio.to_thread(lags.stop)
        await asyncio.to_thread(inputs.stop)
        await actuators.close()
        await asyncio.to_thread(producer.close)


def _group_lags(
    kafka: KafkaSettings, owner: Owner, actuators: ActuatorsInForce, clock: Clock
) -> GroupLags:
    """Return the reader of the groups of scaled roles; only the owner reads."""

    def scaled_roles() -> set[Role]:
        is_owner = owner.epoch is not None
        return {Role(name) for name in actuators.policies.roles} if is_owner else set()

    return GroupLags(group_reader(TopicAdmin(kafka), clock), scaled_roles, clock.monotonic_s)


async def _watch(
    threads: tuple[Owner, TopicInputs, GroupLags], actuators: ActuatorsInForce
) -> None:
    """Read changed policies, and end the role when a thread ended. Raises MillraceError."""
    while True:
        for thread in threads:
            thread.raise_failure()
        await actuators.refresh()
        await asyncio.sleep(1)


def _record(
    records: list[Record], store: SignalStore, decisions: DecisionLoop, clock: Clock
) -> None:
    store.record(records, clock.wall_s())
    for one in records:
        if isinstance(one, WakeRequest):
            decisions.note_work(one.pool)


def _restore_all(values: ScalingValues, decided: list[PoolScaling]) -> None:
    for record in decided:
        values.restore(record)
