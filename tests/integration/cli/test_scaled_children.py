"""Goal: real processes come and go by orders that an actuator sends through the socket."""

import asyncio
import json
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from autoscaler.actuators.actuator import KindCount, PoolOrder
from autoscaler.actuators.embedded import EmbeddedActuator
from cli.stack.processes.child import Child
from cli.stack.processes.supervisor import Supervisor
from cli.stack.replica_pools import PoolReplica, ReplicaPools
from cli.stack.scaling_socket import ScalingSocket
from tests.support.until import until

PROGRAM = """
import json, os, signal, sys, time
mine = {n: v for n, v in os.environ.items() if n.startswith("MILLRACE_GPU_")}
signal.signal(signal.SIGTERM, (lambda *_: None) if "deaf" in sys.argv else (
    lambda *_: (print(json.dumps({"drained": mine}), flush=True), os._exit(0))))
print(json.dumps({"started": mine}), flush=True)
while True:
    time.sleep(60)
"""


class Stack:
    """A pool on real processes. `carry_out` runs the supervisor's loop in the main thread."""

    def __init__(self, folder: Path, closing: ExitStack, *arguments: str) -> None:
        self._logs, self._arguments = folder / "logs", arguments
        self.supervisor = Supervisor(self._logs)
        closing.callback(self.supervisor.stop)
        pools = ReplicaPools(self.supervisor, self._child, ["pool"])
        served = closing.enter_context(
            ScalingSocket(folder / "scaling.sock", apply=pools.apply, observe=pools.observe)
        )
        self.supervisor.repeat_task(served.answer_waiting)
        self.supervisor.repeat_task(pools.reconcile)
        self.actuator = EmbeddedActuator(str(folder / "scaling.sock"), timeout_s=30.0)
        self._sequence = 0

    def _child(self, replica: PoolReplica) -> Child:
        return Child(
            name=replica.name,
            role="gpu-consumer",
            argv=(sys.executable, "-c", PROGRAM, *self._arguments),
            env_of_start=replica.env,
            drain_timeout_s=0.5 if self._arguments else 45.0,
        )

    def order(self, replicas: int, *removals: str) -> None:
        """Order from another thread, as another process would, and carry it out here."""
        self._sequence += 1
        kinds = (KindCount(gpu_type="l4", replicas=replicas),)
        order = PoolOrder(
            pool="pool", epoch=1, sequence=self._sequence, kinds=kinds, removals=removals
        )
        with ThreadPoolExecutor(1) as threads:
            answered = threads.submit(lambda: asyncio.run(self.actuator.apply(order)))
            self.carry_out_until(answered.done)
            answered.result()

    def carry_out_until(self, condition: Callable[[], object]) -> None:
        def is_true() -> bool:
            self.supervisor.run_once()
            return bool(condition())

        until(is_true)

    def pids(self) -> set[int]:
        return {child.pid for child in self.supervisor.children("gpu-consumer") if child.pid}

    def lines(self, number: int) -> list[dict[str, dict[str, str]]]:
        log = self._logs / f"replica-pool-{number}.log"
        return [json.loads(line) for line in log.read_text().splitlines()]


@pytest.fixture
def closing() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def test_processes_start_drain_and_end_by_orders(tmp_path: Path, closing: ExitStack) -> None:
    stack = Stack(tmp_path, closing)
    stack.order(2)
    stack.carry_out_until(lambda: stack.lines(1) and stack.lines(2))
    pids = stack.pids()
    started = stack.lines(1)[0]["started"]
    assert len(pids) == 2
    assert started["MILLRACE_GPU_TYPE"] == "l4"

    stack.order(1, started["MILLRACE_GPU_REPLICA_ID"])
    stack.carry_out_until(lambda: len(stack.supervisor.children("gpu-consumer")) == 1)

    assert [list(line) for line in stack.lines(1)] == [["started"], ["drained"]]
    assert [list(line) for line in stack.lines(2)] == [["started"]]
    assert len(stack.pids()) == 1
    assert stack.pids() < pids


def test_a_killed_process_starts_again_under_a_new_id(tmp_path: Path, closing: ExitStack) -> None:
    stack = Stack(tmp_path, closing)
    stack.order(1)
    stack.carry_out_until(lambda: stack.lines(1))

    psutil.Process(stack.pids().pop()).kill()
    stack.carry_out_until(lambda: len(stack.lines(1)) == 2)

    ids = {line["started"]["MILLRACE_GPU_REPLICA_ID"] for line in stack.lines(1)}
    assert len(ids) == 2


def test_a_process_that_does_not_drain_is_killed(tmp_path: Path, closing: ExitStack) -> None:
    stack = Stack(tmp_path, closing, "deaf")
    stack.order(1)
    stack.carry_out_until(lambda: stack.lines(1))
    (pid,) = stack.pids()

    stack.order(0)
    stack.carry_out_until(lambda: not stack.supervisor.children("gpu-consumer"))

    assert not psutil.pid_exists(pid)
