"""An actuator that serves its orders to KEDA, which changes the replicas itself.

An order is carried out as soon as it can be read. The epoch that fences older autoscalers is in the
topic `scaling`, from which `ScalingValues.restore` gets it again after a restart.
"""

from typing import ClassVar

from autoscaler.actuators.actuator import Observed, PoolOrder
from autoscaler.actuators.keda.external_scaler import ExternalScalerServer
from autoscaler.actuators.keda.scaling_values import ScalingValues
from autoscaler.actuators.keda.value_server import ValueServer


class KedaActuator:
    """Serves the numbers of replicas of pools."""

    kind: ClassVar[str] = "keda"
    chooses_removals: ClassVar[bool] = False

    def __init__(
        self,
        name: str,
        values: ScalingValues,
        scaler: ExternalScalerServer,
        value_server: ValueServer,
    ) -> None:
        """`name` is that of the table in the policy file. The servers end with the actuator."""
        self._name = name
        self._values = values
        self.scaler = scaler
        self.value_server = value_server

    async def start(self) -> None:
        """Open both servers. Raises OSError; then none is open."""
        try:
            await self.scaler.start()
            await self.value_server.start()
        except OSError:
            await self.close()
            raise

    async def apply(self, order: PoolOrder) -> None:
        """Serve an order. Raises StaleEpochError, ForeignScalerError."""
        self._values.publish(order, self._name)

    async def observe(self, pool: str) -> Observed:
        """Return what KEDA is told, whether or not it did it yet."""
        found = self._values.last(pool)
        if found is None:
            return Observed(kinds=())
        return Observed(kinds=found.kinds, epoch=found.epoch)

    async def close(self) -> None:
        """Close both servers."""
        await self.scaler.stop()
        await self.value_server.stop()
