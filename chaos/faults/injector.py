"""Injects the faults of a plan at their times and heals each at its end."""

import heapq
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Self

import psutil
from confluent_kafka import KafkaException

from chaos.clients.history import Phase, Recorder
from chaos.errors import DrillError
from chaos.faults import connections, processes, redelivery
from chaos.faults.healing import Heal, no_target
from chaos.faults.plan import Fault, FaultKind
from chaos.installations.installation import Installation
from cli.stack.processes.role_children import MODULES
from core.errors import MillraceError

Apply = Callable[[Installation, str], Heal]

FAULTS: Final[Mapping[str, Apply]] = {
    "kill": processes.kill_role,
    "pause": processes.pause_role,
    "network": connections.set_proxy_mode,
    "postgres-restart": processes.restart_service,
    "postgres-pause": processes.pause_service,
    "broker-kill": processes.kill_service,
    "publish-again": redelivery.republish_records,
    "rewind": redelivery.rewind_offsets,
    "lose-records": redelivery.delete_records,
}

_EXPECTED: Final = (DrillError, KafkaException, MillraceError, OSError, psutil.Error)
"""Errors that a fault may raise while other faults are active."""


def fault_kinds(hosts: Sequence[str], lease_s: float) -> list[FaultKind]:
    """Return the kinds of faults that a storm may draw on these hosts."""

    def members(topic: str) -> list[str]:
        """Return the members that a rewind pauses."""
        return [f"{host}/{redelivery.CONSUMED[topic].role}" for host in hosts]

    roles = tuple(f"{host}/{role}" for host in hosts for role in MODULES)
    topics = tuple(redelivery.CONSUMED)
    modes = ("latency", "blackhole", "throttle", "refuse", "reset")
    routes = tuple(
        f"{service}-{host}:{mode}"
        for service in ("kafka", "postgres")
        for host in hosts
        for mode in modes
    )
    return [
        FaultKind(name="kill", targets=roles, weight=5),
        FaultKind(name="pause", targets=roles, lasts_s=(lease_s, 3 * lease_s), weight=4),
        FaultKind(name="network", targets=routes, resources=_route, lasts_s=(1, 6), weight=4),
        FaultKind(name="postgres-restart", targets=("postgres",), weight=1, times_max=3),
        FaultKind(
            name="postgres-pause", targets=("postgres",), lasts_s=(1, 5), weight=0.7, times_max=2
        ),
        FaultKind(
            name="broker-kill", targets=("kafka-1",), lasts_s=(0.1, 5), weight=1, times_max=2
        ),
        FaultKind(name="publish-again", targets=topics, weight=1),
        FaultKind(name="rewind", targets=topics, resources=members, weight=0.7, times_max=1),
        FaultKind(name="lose-records", targets=topics, weight=0.7, times_max=1),
    ]


def _route(target: str) -> tuple[str]:
    return (target.partition(":")[0],)


class FaultInjector:
    """Runs one plan in a thread of its own, for a block that waits for its end."""

    def __init__(
        self, installation: Installation, faults: Sequence[Fault], recorder: Recorder
    ) -> None:
        """Prepare the thread; the block starts it."""
        self._installation, self._faults, self._recorder = installation, faults, recorder
        self._thread = threading.Thread(target=self._run, name="nemesis", daemon=True)
        self.hits: Counter[str] = Counter()  # by kind
        self.failures: list[str] = []  # faults that hit nothing, and why
        self.unhealed: list[str] = []
        self.healed_s = float("inf")  # monotonic time when the last fault was healed

    def __enter__(self) -> Self:
        """Start the plan now."""
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Wait until every fault is healed; not after an interrupt, which ends the installation."""
        if kind is None or issubclass(kind, Exception):
            self._thread.join()

    def _run(self) -> None:
        started_s = time.monotonic()
        heals: list[tuple[float, int, str, Heal]] = []
        try:
            for number, fault in enumerate(self._faults):
                self._heal(heals, started_s, fault.at_s)
                time.sleep(max(0.0, started_s + fault.at_s - time.monotonic()))
                name = f"{fault.kind} {fault.target}"
                heal = self._apply(fault, name)
                if heal is not None:
                    self.hits[fault.kind] += 1
                    heapq.heappush(heals, (fault.ends_s, number, name, heal))
                # A fault that is slow to inject delays the rest; else they would end at once.
                started_s = max(started_s, time.monotonic() - fault.at_s)
        finally:  # paused processes must not outlive the plan
            self._heal(heals, started_s, float("inf"))
            self.healed_s = time.monotonic()

    def _apply(self, fault: Fault, name: str) -> Heal | None:
        self._record("fault", name, "invoke", lasts_s=fault.lasts_s)
        try:
            heal = FAULTS[fault.kind](self._installation, fault.target)
            reason = "no target" if heal is no_target else ""
        except _EXPECTED as failure:
            reason = type(failure).__name__
        if reason:
            self._record("fault", name, "fail", reason=reason)
            self.failures.append(f"{name}: {reason}")
            return None
        self._record("fault", name, "ok")
        return heal

    def _heal(
        self, heals: list[tuple[float, int, str, Heal]], started_s: float, until_s: float
    ) -> None:
        while heals and heals[0][0] <= until_s:
            ends_s, _, name, heal = heapq.heappop(heals)
            time.sleep(max(0.0, started_s + ends_s - time.monotonic()))
            try:
                heal()
            except Exception as failure:  # noqa: BLE001  heal the other faults as well
                self._record("heal", name, "fail", reason=type(failure).__name__)
                self.unhealed.append(f"{name}: {failure!r}")
            else:
                self._record("heal", name, "ok")

    def _record(self, op: str, name: str, phase: Phase, **detail: object) -> None:
        self._recorder.record("nemesis", op, name, phase, **detail)
