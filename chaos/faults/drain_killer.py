"""Kills replicas by SIGKILL while they drain."""

import random
import threading
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Final

import psutil

from chaos.errors import DrillError
from chaos.installations.hosts import Host, role_of
from chaos.installations.scaling_relay import ScalingRelay

DELAY_S_MAX: Final = 0.4
"""A drain of short items takes about as long."""

_WATCH_S: Final = 2.0
_POLL_S: Final = 0.05


class DrainKiller:
    """Kills what the host retires, at a random time after the order."""

    def __init__(
        self,
        host: Host,
        relay: ScalingRelay,
        pool: str,
        was_warm: Callable[[str], bool],
        chance: random.Random,
    ) -> None:
        """`was_warm` tells whether a replica, by id, ever had its model loaded."""
        self._host, self._relay, self._pool = host, relay, pool
        self._was_warm, self._chance = was_warm, chance
        self.killed: set[str] = set()  # replicas that drained, by id
        self.other_kills = 0  # of replicas that were not warm yet
        self.seen: set[str] = set()  # replicas that were retired

    def run(self, stop: threading.Event) -> None:
        """Watch each order's effect until `stop`."""
        known = 0
        while not stop.wait(_POLL_S):
            if len(self._relay.orders) == known:
                continue
            known = len(self._relay.orders)
            for _ in range(int(_WATCH_S / _POLL_S)):
                with suppress(DrillError):
                    self._kill_retired(stop)
                if stop.wait(_POLL_S):
                    return

    def _kill_retired(self, stop: threading.Event) -> None:
        running = self._replicas()  # before the host is asked: none of them starts later
        existing = {one.replica_id for one in self._relay.observe(self._pool).replicas}
        retired = sorted(running.keys() - existing - self.seen)
        delays_s = sorted(self._chance.uniform(0, DELAY_S_MAX) for _ in retired)
        waited_s = 0.0
        for replica_id, delay_s in zip(retired, delays_s, strict=True):
            self.seen.add(replica_id)
            if stop.wait(delay_s - waited_s):
                return
            waited_s = delay_s
            if not _kill(running[replica_id]):
                continue
            if self._was_warm(replica_id):
                self.killed.add(replica_id)
            else:
                self.other_kills += 1

    def _replicas(self) -> dict[str, psutil.Process]:
        """Return the running replicas of the pool by id."""
        found = {}
        for child in psutil.Process(self._host.process.pid).children():
            with suppress(psutil.Error):
                environ = child.environ() if role_of(child) == "gpu-consumer" else {}
                if environ.get("MILLRACE_GPU_POOL") == self._pool:
                    found[environ["MILLRACE_GPU_REPLICA_ID"]] = child
        return found


def _kill(process: psutil.Process) -> bool:
    """Kill a process; return whether it still ran."""
    try:
        if process.status() == psutil.STATUS_ZOMBIE:
            return False
        process.kill()
    except psutil.Error:
        return False
    return True


def running_replicas(host: Host) -> Collection[int]:
    """Return the process ids of all replicas of a host, those that drain included."""
    found = []
    for child in psutil.Process(host.process.pid).children():
        with suppress(psutil.Error):
            if role_of(child) == "gpu-consumer" and child.status() != psutil.STATUS_ZOMBIE:
                found.append(child.pid)
    return found
