"""The actuators of a role whose orders are kept in memory."""

from collections.abc import Callable, Mapping

from autoscaler.actuators.actuator import Actuator
from autoscaler.actuators.factory import ActuatorDependencies
from autoscaler.actuators.keda.keda_settings import KedaSettings
from autoscaler.actuators.keda.scaling_values import ScalingValues
from autoscaler.actuators.kubernetes.kubernetes_settings import KubernetesSettings
from autoscaler.actuators_in_force import ActuatorsInForce
from autoscaler.policies.policy_file import PolicyFile
from autoscaler.settings import AutoscalerSettings
from core.clock import Clock, SystemClock
from tests.support.memory_actuator import MemoryActuator


def dependencies_of(
    clock: Clock, open_embedded: Callable[[], Actuator] | None = None
) -> ActuatorDependencies:
    """Return dependencies with default settings and without environment variables."""
    return ActuatorDependencies(
        kubernetes=KubernetesSettings(),
        keda=KedaSettings(),
        values=ScalingValues(clock.wall_s),
        clock=clock,
        env={},
        open_embedded=open_embedded,
    )


class MemoryActuators(ActuatorsInForce):
    """Orders for the actuator `name` are kept; no other actuator is opened."""

    def __init__(self, settings: AutoscalerSettings, name: str, actuator: MemoryActuator) -> None:
        dependencies = dependencies_of(SystemClock())
        super().__init__(PolicyFile(settings.policy_file), dependencies, settings.actuator)
        self._kept = {name: actuator}

    async def open(self) -> None:
        """Open no connection."""

    @property
    def actuators(self) -> Mapping[str, Actuator]:
        return self._kept
