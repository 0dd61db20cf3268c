"""The interface of actuators: an order says how many replicas of each kind a pool is to have.

Orders are absolute, so a repeated one changes nothing. An actuator refuses an order whose epoch is
lower than the highest that it has carried out for the pool, even after a restart of this process:
the platform keeps the epoch (fencing tokens, Kleppmann, "How to do distributed locking", 2016).
"""

from collections.abc import Iterable
from typing import ClassVar, Final, Protocol

from msgspec import Struct

from core.errors import Disposition, MillraceError

EPOCH_MAX: Final = 2**53 - 1
"""The highest epoch that an answer may have: each JSON reader keeps such a number exact."""

EPOCH_LEAP_MAX: Final = 1_000_000
"""How far an epoch that a platform has seen may be above the log's: more is no epoch of this log.

An epoch grows by 1 with each owner. To follow an absurd one would refuse all later owners.
"""


class KindCount(Struct, frozen=True, kw_only=True):
    """Replicas of one kind."""

    gpu_type: str = ""  # empty: the policy names no GPU types
    zone: str = ""
    spot: bool = False
    replicas: int = 0


class PoolOrder(Struct, frozen=True, kw_only=True):
    """The replicas that a pool is to have."""

    pool: str
    epoch: int
    sequence: int  # grows with each order of the epoch
    kinds: tuple[KindCount, ...]  # those of the warm pool included; a missing kind: 0
    standby: int = 0  # of them: start out of the group
    removals: tuple[str, ...] = ()  # ids of the replicas to end, where the actuator can choose

    @property
    def replicas(self) -> int:
        """All replicas of the order."""
        return sum(kind.replicas for kind in self.kinds)


def counts_by_kind(kinds: Iterable[KindCount]) -> dict[tuple[str, str, bool], int]:
    """Return the replicas by GPU type, zone and spot, without kinds that have none."""
    counts: dict[tuple[str, str, bool], int] = {}
    for kind in kinds:
        if kind.replicas:
            key = (kind.gpu_type, kind.zone, kind.spot)
            counts[key] = counts.get(key, 0) + kind.replicas
    return counts


class Observed(Struct, frozen=True, kw_only=True):
    """The replicas of a pool that the platform is told to run, by kind."""

    kinds: tuple[KindCount, ...]
    epoch: int = 0  # the highest of the orders that it carried out; 0: none yet


class Actuator(Protocol):
    """Starts and ends the replicas of pools. All methods end within 10 s."""

    kind: ClassVar[str]
    chooses_removals: ClassVar[bool]  # whether `PoolOrder.removals` are the ones that go

    async def apply(self, order: PoolOrder) -> None:
        """Carry out an order; return when the platform has accepted it.

        Raises ActuatorError: the pool then keeps what it has, and the order is sent again.
        """

    async def observe(self, pool: str) -> Observed:
        """Return what the platform is told to run. Raises ActuatorError."""

    async def close(self) -> None:
        """Release connections."""


class ActuatorError(MillraceError):
    """The actuator did not carry out the order."""

    code = "actuator_failed"
    disposition = Disposition.RETRY


class StaleEpochError(ActuatorError):
    """The actuator has carried out orders of a newer autoscaler."""

    code = "stale_epoch"


class ActuatorDeniedError(ActuatorError):
    """The platform denies the autoscaler this act."""

    code = "actuator_denied"


class ActuatorConflictError(ActuatorError):
    """The replicas were changed by somebody else at the same time."""

    code = "actuator_conflict"


class ActuatorTimeoutError(ActuatorError):
    """The actuator did not answer in time."""

    code = "actuator_timeout"


class UnexpectedAnswerError(ActuatorError):
    """The answer of the actuator cannot be true."""

    code = "actuator_answer"


class ForeignScalerError(ActuatorError):
    """Another scaler or actuator changes the replicas of this pool."""

    code = "foreign_scaler"


class UnknownPoolError(ActuatorError):
    """The platform has nothing that runs replicas of this pool or kind."""

    code = "unknown_pool"
