"""Faults of Postgres and of brokers; a target is the service's name, `postgres` or `kafka-N`."""

import signal
from typing import Final

import psutil

from chaos.faults.healing import Cure, missed, nothing
from chaos.faults.processes import send
from chaos.installations.hosts import wait_until
from chaos.installations.installation import Installation

GONE_S_MAX: Final = 10.0


def restart_at_once(running: Installation, target: str) -> Cure:
    """End Postgres as `pg_ctl restart -m immediate` does: by SIGQUIT, without a checkpoint."""
    return nothing if _send(running, target, signal.SIGQUIT) else missed


def kill(running: Installation, target: str) -> Cure:
    """Kill a service, wait until it is gone, and keep it down until it is healed.

    One that is down already is `missed`. Raises DrillError when it does not go.
    """
    running.hold_down(target)

    def let_up() -> None:
        running.let_up(target)

    try:
        if not _send(running, target, signal.SIGKILL):
            let_up()
            return missed
        wait_until(lambda: running.service(target) is None, GONE_S_MAX, f"the end of {target}")
    except BaseException:
        let_up()
        raise
    return let_up


def pause(running: Installation, target: str) -> Cure:
    """Stop a service and all its children: connections stay open, nothing answers."""
    pid = running.service(target)
    if pid is None:
        return missed
    stopped = [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]
    for process in stopped:
        send(process, signal.SIGSTOP)

    def resume() -> None:
        for process in reversed(stopped):
            send(process, signal.SIGCONT)

    return resume


def _send(running: Installation, target: str, number: signal.Signals) -> bool:
    pid = running.service(target)
    return pid is not None and send(pid, number)
