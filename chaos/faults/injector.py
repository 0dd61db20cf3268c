"""Carries a plan out: applies each fault at its time, and heals it at its end."""

import heapq
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import psutil
from confluent_kafka import KafkaException

from chaos.clients.history import Recorder
from chaos.errors import DrillError
from chaos.faults import network, processes, redelivery, services
from chaos.faults.healing import Cure, missed
from chaos.faults.plan import Fault, Kind
from chaos.installations.installation import Installation
from core.errors import MillraceError

Apply = Callable[[Installation, str], Cure]

FAULTS: Final[Mapping[str, Apply]] = {
    "kill": processes.kill,
    "pause": processes.pause,
    "network": network.misbehave,
    "postgres-restart": services.restart_at_once,
    "postgres-pause": services.pause,
    "broker-kill": services.kill,
    "publish-again": redelivery.publish_again,
    "rewind": redelivery.rewind,
    "lose-records": redelivery.lose,
}

_EXPECTED: Final = (DrillError, KafkaException, MillraceError, OSError, psutil.Error)
"""What a fault may meet in the middle of others."""

_TOPICS: Final = ("requests", "batches", "results")
_FATAL_ROLES: Final = (
    "api",
    "intake",
    "batcher",
    "gpu-consumer",
    "results-writer",
    "finaliser",
    "webhooks",
)


def kinds(hosts: Sequence[str], lease_s: float) -> list[Kind]:
    """Return what a storm may draw on an installation of these hosts."""

    def members(topic: str) -> list[str]:
        """Return whom a rewind stops and lets go on."""
        _, _, role = redelivery.topics_of(redelivery.POOL)[topic]
        return [f"{host}/{role}" for host in hosts]

    roles = tuple(f"{host}/{role}" for host in hosts for role in _FATAL_ROLES)
    modes = ("latency", "blackhole", "throttle", "refuse", "reset")
    routes = tuple(
        f"{service}-{host}:{mode}"
        for service in ("kafka", "postgres")
        for host in hosts
        for mode in modes
    )
    return [
        Kind(name="kill", targets=roles, weight=5),
        Kind(name="pause", targets=roles, lasts_s=(lease_s, 3 * lease_s), weight=4),
        Kind(name="network", targets=routes, places=_route, lasts_s=(1, 6), weight=4),
        Kind(name="postgres-restart", targets=("postgres",), weight=1, times_max=3),
        Kind(name="postgres-pause", targets=("postgres",), lasts_s=(1, 5), weight=0.7, times_max=2),
        Kind(name="broker-kill", targets=("kafka-1",), lasts_s=(0.1, 5), weight=1, times_max=2),
        Kind(name="publish-again", targets=_TOPICS, weight=1),
        Kind(name="rewind", targets=_TOPICS, places=members, weight=0.7, times_max=1),
        Kind(name="lose-records", targets=_TOPICS, weight=0.7, times_max=1),
    ]


def _route(target: str) -> tuple[str]:
    return (target.partition(":")[0],)


class Conductor:
    """Runs one plan in a thread of its own."""

    def __init__(self, running: Installation, faults: Sequence[Fault], recorder: Recorder) -> None:
        """Nothing happens yet."""
        self._running, self._faults, self._recorder = running, faults, recorder
        self._thread = threading.Thread(target=self._run, name="nemesis", daemon=True)
        self.hits: Counter[str] = Counter()  # by kind
        self.failures: list[str] = []  # faults that hit nobody, and why
        self.unhealed: list[str] = []
        self.healed_s = float("inf")  # monotonic; when the last fault was healed

    def start(self) -> None:
        """Begin the plan now."""
        self._thread.start()

    def join(self) -> None:
        """Wait until every fault has been healed."""
        self._thread.join()

    def _run(self) -> None:
        began_s = time.monotonic()
        cures: list[tuple[float, int, str, Cure]] = []
        try:
            for number, fault in enumerate(self._faults):
                self._heal(cures, began_s, fault.at_s)
                time.sleep(max(0.0, began_s + fault.at_s - time.monotonic()))
                name = f"{fault.kind} {fault.target}"
                cure = self._apply(fault, name)
                if cure is not None:
                    self.hits[fault.kind] += 1
                    heapq.heappush(cures, (fault.ends_s, number, name, cure))
                # One that takes long to apply puts off the rest, which would else end as it begins.
                began_s = max(began_s, time.monotonic() - fault.at_s)
        finally:  # or what is stopped would stay so, and be taken for what it is not
            self._heal(cures, began_s, float("inf"))
            self.healed_s = time.monotonic()

    def _apply(self, fault: Fault, name: str) -> Cure | None:
        self._recorder.note("nemesis", "fault", name, "invoke", lasts_s=fault.lasts_s)
        try:
            cure = FAULTS[fault.kind](self._running, fault.target)
        except _EXPECTED as failure:
            self._fail(name, type(failure).__name__)
            return None
        if cure is missed:
            self._fail(name, "nobody there")
            return None
        self._recorder.note("nemesis", "fault", name, "ok")
        return cure

    def _fail(self, name: str, reason: str) -> None:
        self._recorder.note("nemesis", "fault", name, "fail", reason=reason)
        self.failures.append(f"{name}: {reason}")

    def _heal(
        self, cures: list[tuple[float, int, str, Cure]], began_s: float, until_s: float
    ) -> None:
        while cures and cures[0][0] <= until_s:
            ends_s, _, name, cure = heapq.heappop(cures)
            time.sleep(max(0.0, began_s + ends_s - time.monotonic()))
            try:
                cure()
            except Exception as failure:  # noqa: BLE001  the others still have to be healed
                self._recorder.note("nemesis", "heal", name, "fail", reason=type(failure).__name__)
                self.unhealed.append(f"{name}: {failure!r}")
            else:
                self._recorder.note("nemesis", "heal", name, "ok")
