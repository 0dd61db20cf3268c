"""Wires the role: the owner, the readers of signals, the policies and the actuators."""

import asyncio
import logging
import threading
from collections.abc import Mapping
from functools import partial
from typing import Final

from autoscaler.actuators.actuator import Actuator
from autoscaler.actuators.factory import build_actuators
from autoscaler.loop.decision_loop import DecisionLoop, LoopDeps
from autoscaler.loop.scaling_writer import ScalingWriter
from autoscaler.ownership.owner import Owner
from autoscaler.policies.policies import Policies
from autoscaler.policies.policy_file import PolicyFile
from autoscaler.settings import AutoscalerSettings
from autoscaler.signals.signal_store import SignalStore
from autoscaler.signals.topic_inputs import TopicInputs
from core.clock import Clock, SystemClock
from core.errors import MillraceError
from core.runtime.role_lifecycle import report_ready
from topics.clients.producer import RecordProducer
from topics.records.records import Record
from topics.settings import KafkaSettings

ROLE: Final = "autoscaler"
_LOG = logging.getLogger(__name__)


class ActuatorSet:
    """The actuators of the policies in force, which are read again when the file changes."""

    def __init__(self, file: PolicyFile, settings: AutoscalerSettings) -> None:
        """Build the actuators. Raises MillraceError."""
        self._file, self._settings = file, settings
        self._actuators = build_actuators(file.policies, settings)
        self._retired: list[Actuator] = []

    @property
    def policies(self) -> Policies:
        """The policies in force."""
        return self._file.policies

    @property
    def actuators(self) -> Mapping[str, Actuator]:
        """The actuators by name."""
        return self._actuators

    def refresh(self) -> None:
        """Read a changed file; a bad one keeps what is in force, and each problem is logged."""
        reload = self._file.refresh()
        if reload is None:
            return
        for problem in reload.problems:
            _LOG.error("the scaling policies are not valid", extra={"reason": problem})
        if not reload.is_accepted:
            return
        try:
            built = build_actuators(self._file.policies, self._settings)
        except MillraceError as error:
            _LOG.error(
                "the actuators are not valid", extra={"code": error.code, "reason": str(error)}
            )
            return
        kept = {id(one) for one in built.values()}
        self._retired += [one for one in self._actuators.values() if id(one) not in kept]
        self._actuators = built
        _LOG.info("the scaling policies changed")

    async def close(self) -> None:
        """Close all actuators; errors are logged."""
        for one in [*self._retired, *self._actuators.values()]:
            try:
                await asyncio.wait_for(one.close(), 5)
            except (MillraceError, TimeoutError) as error:
                _LOG.warning("an actuator did not close", extra={"reason": type(error).__name__})


def actuator_name(settings: AutoscalerSettings, policies: Policies, pool: str) -> str:
    """Return the name of a pool's actuator: that of its policy, else that of the settings."""
    named: str = getattr(policies.policy_of(pool), "actuator", "")
    return named or settings.actuator


async def run_autoscaler(
    settings: AutoscalerSettings,
    kafka: KafkaSettings,
    stop: threading.Event,
    *,
    process_id: str,
    actuators: ActuatorSet,
    clock: Clock | None = None,
) -> None:
    """Decide while this process is the owner, until `stop`. Raises MillraceError."""
    clock = clock or SystemClock()
    loop = asyncio.get_running_loop()
    producer = RecordProducer(kafka, client_id=process_id, linger_ms=1, waits_for_partitions=True)
    store: SignalStore

    def receive(records: list[Record]) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(lambda: store.record(records, clock.wall_s()))

    inputs = TopicInputs(
        kafka,
        client_id=process_id,
        unavailable_s_max=settings.kafka_wait_s,
        on_records=receive,
    )
    store = SignalStore(inputs.is_readable)
    owner = Owner(
        kafka,
        producer,
        owner_id=process_id,
        clock=clock,
        unavailable_s_max=settings.kafka_wait_s,
    )
    decisions = DecisionLoop(
        LoopDeps(
            owner=owner,
            store=store,
            writer=ScalingWriter(producer),
            policies=lambda: actuators.policies,
            actuators=lambda: actuators.actuators,
            actuator_name=partial(actuator_name, settings),
            is_caught_up=lambda: inputs.is_caught_up,
            clock=clock,
        )
    )
    inputs.start()
    owner.start()
    watch = asyncio.create_task(_watch(owner, inputs, actuators))
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
        await asyncio.to_thread(inputs.stop)
        await actuators.close()
        await asyncio.to_thread(producer.close)


async def _watch(owner: Owner, inputs: TopicInputs, actuators: ActuatorSet) -> None:
    """Read changed policies, and end the role when a thread ended. Raises MillraceError."""
    while True:
        owner.raise_failure()
        inputs.raise_failure()
        actuators.refresh()
        await asyncio.sleep(1)
