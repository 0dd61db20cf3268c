"""The numbers of replicas that an HPA reads, by pool and kind.

They come from orders of this process and from the records of the topic `scaling`, so every process
of the role serves the values of the one that decides, and a new owner knows the highest epoch.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Final

import msgspec

from autoscaler.actuators.actuator import (
    ActuatorError,
    ForeignScalerError,
    KindCount,
    PoolOrder,
    StaleEpochError,
)
from topics.records.scaling import PoolScaling

FRESH_S: Final = 15.0
"""Age from which a decision is not served: its autoscaler may be dead."""

POOLS_MAX: Final = 1_000
_ACTIVE: Final = "active"


class UnavailableValueError(ActuatorError):
    """No fresh decision is known for the pool."""

    code = "scaling_unavailable"


class KindSelector(msgspec.Struct, frozen=True):
    """Which kinds of replica a scaler asks for; None: of any."""

    gpu_type: str | None = None
    zone: str | None = None
    spot: bool | None = None

    def count(self, kinds: Iterable[KindCount]) -> int:
        """Return the replicas of the kinds that fit."""
        return sum(kind.replicas for kind in kinds if self._selects(kind))

    def _selects(self, kind: KindCount) -> bool:
        return (
            self.gpu_type in {None, kind.gpu_type}
            and self.zone in {None, kind.zone}
            and self.spot in {None, kind.spot}
        )


class PoolValue(msgspec.Struct, frozen=True):
    """What was decided last for a pool."""

    actuator: str
    epoch: int
    sequence: int
    at_s: float
    kinds: tuple[KindCount, ...]
    mode: str = _ACTIVE


class ScalingValues:
    """The newest decision of each pool. Belongs to one event loop."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        """`now_s` returns seconds since the epoch."""
        self._now_s = now_s
        self._values: dict[str, PoolValue] = {}
        self._existing: Mapping[str, tuple[KindCount, ...]] = {}
        self._changed = asyncio.Event()

    def publish(self, order: PoolOrder, actuator: str) -> None:
        """Serve an order from now on.

        Raises StaleEpochError, and ForeignScalerError while another actuator scales the pool.
        """
        known = self._values.get(order.pool)
        if known is not None:
            if known.epoch > order.epoch:
                raise StaleEpochError(epoch=known.epoch)
            if known.actuator != actuator and self._is_fresh(known):
                raise ForeignScalerError(actuator=known.actuator)
        elif len(self._values) >= POOLS_MAX:
            raise ActuatorError("There are too many pools.")
        value = PoolValue(actuator, order.epoch, order.sequence, self._now_s(), order.kinds)
        self._set(order.pool, value)

    def restore(self, record: PoolScaling) -> None:
        """Serve a record of the topic `scaling`, unless a newer decision is known."""
        known = self._values.get(record.pool)
        newest = (record.epoch, record.sequence)
        if known is not None and newest < (known.epoch, known.sequence):
            return
        if known is None and len(self._values) >= POOLS_MAX:
            return
        kinds = tuple(
            KindCount(gpu_type=k.gpu_type, zone=k.zone, spot=k.spot, replicas=k.replicas)
            for k in record.kinds
        )
        # A clock that is ahead must not keep a value fresh after its autoscaler has died.
        at_s = min(record.at_s, self._now_s())
        value = PoolValue(record.actuator, record.epoch, record.sequence, at_s, kinds, record.mode)
        self._set(record.pool, value)

    def note_existing(self, existing: Mapping[str, tuple[KindCount, ...]]) -> None:
        """Remember the replicas that exist, by pool: HPAs compare values with their number."""
        self._existing = existing

    def existing(self, pool: str, selector: KindSelector) -> int | None:
        """Return how many replicas exist. None: unknown."""
        found = self._existing.get(pool)
        return None if found is None else selector.count(found)

    def last(self, pool: str) -> PoolValue | None:
        """Return the last decision, however old."""
        return self._values.get(pool)

    def fresh(self, pool: str, actuator: str) -> PoolValue:
        """Return the decision that may be served. Raises UnavailableValueError.

        That is one of an active pool which this actuator scales, and less than FRESH_S old.
        """
        found = self._values.get(pool)
        if (
            found is None
            or found.actuator != actuator
            or found.mode != _ACTIVE
            or not self._is_fresh(found)
        ):
            raise UnavailableValueError
        return found

    async def wait_change(self, timeout_s: float) -> None:
        """Return after the next change, or after `timeout_s`."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()
        except TimeoutError:
            return

    def _is_fresh(self, value: PoolValue) -> bool:
        return self._now_s() - value.at_s < FRESH_S

    def _set(self, pool: str, value: PoolValue) -> None:
        self._values[pool] = value
        self._changed.set()
        self._changed = asyncio.Event()


def value_past_tolerance(target: int, current: int) -> int:
    """Return the value that makes an HPA with a tolerance of 10 % reach at least `target`. Pure.

    An HPA does nothing while value / current is within 0.9 and 1.1. A small addition becomes the
    least value above 1.1. A small removal is not made: a value below 0.9 would end replicas that
    are needed, and what is left over ends with the next larger change.
    """
    if current <= 0 or target == current:
        return target
    if target > current:
        return max(target, current * 11 // 10 + 1)
    return target if target * 10 < current * 9 else current
