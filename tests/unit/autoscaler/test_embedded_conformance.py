"""Goal: the actuator `embedded` passes the suite of all actuators on real pools and a socket."""

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from autoscaler.actuators.actuator import (
    Actuator,
    ActuatorConflictError,
    ActuatorDeniedError,
    PoolOrder,
)
from autoscaler.actuators.embedded import EmbeddedActuator
from autoscaler.actuators.socket_messages import PoolAnswer
from cli.stack.processes.child import Child
from cli.stack.replica_pools import PoolReplica, ReplicaPools
from tests.support.actuator_conformance import (
    ActuatorConformance,
    Fault,
    Kind,
    RemotePlatformConformance,
)
from tests.support.scaling_sockets import carried_out, scaling_socket
from tests.support.supervised_children import SupervisedStack, role

ABSURD = PoolAnswer(kinds=(), epoch=-1)


class EmbeddedPlatform:
    """Pools of scripted processes behind a real socket."""

    pool, unknown_pool = "pool", "other"
    kinds: tuple[Kind, ...] = (("", "", False), ("h100", "z1", True))

    def __init__(self, path: Path, closing: ExitStack) -> None:
        self._path = path
        self._fault: Fault | None = None
        self._step = threading.Lock()  # no fault begins within a step of the loop
        self._stack = SupervisedStack()
        self._pools = ReplicaPools(self._stack.supervisor, self._child, [self.pool])
        self._kinds: dict[str, Kind] = {}
        self._served = closing.enter_context(scaling_socket(path, self))
        closing.enter_context(carried_out(self._loop))

    def _loop(self) -> None:
        with self._step:
            if self._fault is not Fault.HANG:
                self._served.answer_waiting()
            self._stack.supervisor.run_once()

    def _child(self, replica: PoolReplica) -> Child:
        self._kinds[replica.name] = replica.kind
        return role(replica.name, role="gpu-consumer")

    def apply(self, order: PoolOrder) -> PoolAnswer:
        self._refuse()
        return self._pools.apply(order) if self._fault is None else ABSURD

    def observe(self, pool: str) -> PoolAnswer:
        self._refuse()
        return self._pools.observe(pool) if self._fault is None else ABSURD

    def _refuse(self) -> None:
        if self._fault is Fault.DENIED:
            raise ActuatorDeniedError
        if self._fault is Fault.CONFLICT:
            raise ActuatorConflictError

    async def open_actuator(self, name: str = "main", timeout_s: float = 8.0) -> Actuator:
        return EmbeddedActuator(str(self._path), timeout_s=timeout_s)

    def replicas(self) -> dict[Kind, int]:
        found: dict[Kind, int] = {}
        for child in self._stack.supervisor.children("gpu-consumer"):
            if not child.is_retiring:
                kind = self._kinds[child.name]
                found[kind] = found.get(kind, 0) + 1
        return found

    def writes(self) -> int:
        return len(self._stack.processes) + len(self._stack.events)

    def break_with(self, fault: Fault | None) -> None:
        with self._step:
            self._fault = fault


@pytest.fixture
def platform(tmp_path: Path) -> Iterator[EmbeddedPlatform]:
    with ExitStack() as closing:
        yield EmbeddedPlatform(tmp_path / "scaling.sock", closing)


class TestEmbedded(ActuatorConformance, RemotePlatformConformance):
    """Not FencedPlatformConformance: the socket knows no names of actuators."""
