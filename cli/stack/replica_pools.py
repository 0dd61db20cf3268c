"""Carries out orders for the replicas of an embedded stack: which children start and which retire.

An order is absolute. What differs from it changes in `reconcile`, which the supervisor's loop
repeats: a replica starts when one of the stack's slots is free. A slot is a number from 1 to
`REPLICAS_MAX` that belongs to one process from its start until it has ended, with a port for its
metrics, and is part of the child's name, `replica-POOL-NUMBER`.
"""

import logging
import socket
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import count
from typing import Final, TypeAlias

from autoscaler.actuators.actuator import (
    ActuatorConflictError,
    ActuatorDeniedError,
    KindCount,
    PoolOrder,
    StaleEpochError,
    UnknownPoolError,
    counts_by_kind,
)
from autoscaler.actuators.socket_messages import PoolAnswer, ReplicaAnswer
from cli.stack.processes.child import Child
from cli.stack.processes.supervisor import ChildState, Supervisor
from core.ids import new_uuid

REPLICAS_MAX: Final = 64
"""Replicas of an embedded stack, over all pools; those that still end hold a slot, too."""

ROLE: Final = "gpu-consumer"
_LOG = logging.getLogger(__name__)

ReplicaKind: TypeAlias = tuple[str, str, bool]
"""GPU type, zone and whether it is spot."""


@dataclass(slots=True, kw_only=True)
class PoolReplica:
    """A replica that an order wants, and the child that runs it."""

    pool: str
    number: int
    kind: ReplicaKind
    started: int  # grows with each start of the stack
    is_standby: bool = False  # starts out of its group
    replica_id: str = ""  # of its newest process

    @property
    def name(self) -> str:
        """The name of its child."""
        return child_name(self.pool, self.number)

    def env(self) -> dict[str, str]:
        """Return the variables of a new process, which gets a new id.

        An id names one process: two lives under one id would look like one replica.
        """
        self.replica_id = new_pool_replica_id(self.pool)
        gpu_type, zone, is_spot = self.kind
        given = {
            "MILLRACE_GPU_REPLICA_ID": self.replica_id,
            "MILLRACE_GPU_TYPE": gpu_type,
            "MILLRACE_GPU_ZONE": zone,
            "MILLRACE_GPU_SPOT": "true" if is_spot else "",
            "MILLRACE_GPU_STANDBY": "true" if self.is_standby else "",
        }
        return {name: value for name, value in given.items() if value}


MakeChild: TypeAlias = Callable[[PoolReplica], Child]
"""Returns the child of a replica; its `env_of_start` is the replica's `env`."""


@dataclass(slots=True)
class _Pool:
    order: PoolOrder
    replicas: list[PoolReplica] = field(default_factory=list)  # that exist, by start


def child_name(pool: str, number: int) -> str:
    """Return the name of the child in a slot."""
    return f"replica-{pool}-{number}"


def new_pool_replica_id(pool: str) -> str:
    """Return the id of a new process, as a replica without an id would name itself."""
    return f"{pool}-{socket.gethostname()}-{new_uuid().hex[:8]}"


class ReplicaPools:
    """The replicas of a stack's pools. Only the thread of the supervisor's loop calls it."""

    def __init__(self, supervisor: Supervisor, make_child: MakeChild, pools: Iterable[str]) -> None:
        """Have no replica in any of `pools` yet."""
        self._supervisor, self._make_child = supervisor, make_child
        self._starts = count(1)
        self._pools = {
            pool: _Pool(PoolOrder(pool=pool, epoch=0, sequence=0, kinds=())) for pool in pools
        }

    def apply(self, order: PoolOrder) -> PoolAnswer:
        """Carry out an order, as far as slots are free; the rest follows.

        Raises StaleEpochError, ActuatorConflictError for an order that came too late,
        UnknownPoolError, and ActuatorDeniedError for too many replicas.
        """
        pool = self._pool(order.pool)
        self._require_newer(order, pool.order)
        self._require_possible(order)
        pool.order = order
        for replica in [one for one in pool.replicas if one.replica_id in set(order.removals)]:
            self._retire(pool, replica)
        self._mark_woken(pool)
        self._retire_surplus(pool)
        self.reconcile()
        return self.observe(order.pool)

    def observe(self, pool: str) -> PoolAnswer:
        """Return the last order's replicas and epoch. Raises UnknownPoolError."""
        found = self._pool(pool)
        restarts = {child.name: child.restarts for child in self._supervisor.children(ROLE)}
        return PoolAnswer(
            kinds=tuple(
                KindCount(gpu_type=gpu_type, zone=zone, spot=spot, replicas=replicas)
                for (gpu_type, zone, spot), replicas in counts_by_kind(found.order.kinds).items()
            ),
            epoch=found.order.epoch,
            replicas=tuple(
                ReplicaAnswer(replica_id=one.replica_id, restarts=restarts.get(one.name, 0))
                for one in found.replicas
            ),
        )

    def reconcile(self) -> None:
        """Start replicas that orders want, while slots are free. Does not block."""
        missing = [(pool, kind) for pool in self._pools.values() for kind in _missing(pool)]
        if not missing:
            return
        used = {_number(child) for child in self._supervisor.children(ROLE)}
        free = [number for number in range(1, REPLICAS_MAX + 1) if number not in used]
        for (pool, kind), number in zip(missing, free, strict=False):
            self._start(pool, kind, number)

    def _start(self, pool: _Pool, kind: ReplicaKind, number: int) -> None:
        standby = sum(replica.is_standby for replica in pool.replicas)
        replica = PoolReplica(
            pool=pool.order.pool,
            number=number,
            kind=kind,
            started=next(self._starts),
            is_standby=standby < pool.order.standby,
        )
        pool.replicas.append(replica)
        self._supervisor.add(self._make_child(replica))
        _LOG.info("replica_started", extra={"child": replica.name, "epoch": pool.order.epoch})

    def _retire(self, pool: _Pool, replica: PoolReplica) -> None:
        pool.replicas.remove(replica)
        self._supervisor.retire(replica.name)

    def _retire_surplus(self, pool: _Pool) -> None:
        """Retire the newest replicas of each kind that has more than were ordered."""
        counts = counts_by_kind(pool.order.kinds)
        for kind in {replica.kind for replica in pool.replicas}:
            existing = [replica for replica in pool.replicas if replica.kind == kind]
            for replica in existing[counts.get(kind, 0) :]:
                self._retire(pool, replica)

    def _mark_woken(self, pool: _Pool) -> None:
        """Regard the oldest replicas in standby as awake while the order has more awake ones.

        An autoscaler wakes replicas before it adds others, so those that an order adds at an
        unchanged `standby` refill the warm pool. Only the next start of a replica reads the mark;
        it wakes by the topic `scaling`.
        """
        standby = [replica for replica in pool.replicas if replica.is_standby]
        awake = len(pool.replicas) - len(standby)
        surplus = len(standby) - pool.order.standby
        missing = pool.order.replicas - pool.order.standby - awake
        for replica in standby[: max(0, surplus, missing)]:
            replica.is_standby = False

    def _pool(self, name: str) -> _Pool:
        if name not in self._pools:
            raise UnknownPoolError("The pool is not one of this stack.")
        return self._pools[name]

    def _require_newer(self, order: PoolOrder, last: PoolOrder) -> None:
        if order.epoch < last.epoch:
            raise StaleEpochError(f"The pool follows epoch {last.epoch}.")
        if order.epoch == last.epoch and order.sequence < last.sequence:
            raise ActuatorConflictError(f"The pool has carried out order {last.sequence}.")

    def _require_possible(self, order: PoolOrder) -> None:
        if any(kind.replicas < 0 for kind in order.kinds):
            raise ActuatorDeniedError("The order has a negative number of replicas.")
        others = sum(
            pool.order.replicas for name, pool in self._pools.items() if name != order.pool
        )
        if others + order.replicas > REPLICAS_MAX:
            raise ActuatorDeniedError(
                f"An embedded stack has at most {REPLICAS_MAX} replicas; other pools have {others}."
            )


def _missing(pool: _Pool) -> list[ReplicaKind]:
    """Return a kind for each replica that the order has and the pool has not."""
    missing = []
    for kind, replicas in counts_by_kind(pool.order.kinds).items():
        existing = sum(replica.kind == kind for replica in pool.replicas)
        missing += [kind] * (replicas - existing)
    return missing


def _number(child: ChildState) -> int:
    return int(child.name.rpartition("-")[2])
