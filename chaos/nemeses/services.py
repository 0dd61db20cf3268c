"""Faults of Postgres and of brokers; a target is the service's name, `postgres` or `kafka-N`."""

import signal

import psutil

from chaos.installation import Installation
from chaos.nemeses.cure import Cure, missed, nothing
from chaos.nemeses.processes import send


def restart_at_once(running: Installation, target: str) -> Cure:
    """End Postgres as `pg_ctl restart -m immediate` does: by SIGQUIT, without a checkpoint."""
    return nothing if _send(running, target, signal.SIGQUIT) else missed


def kill(running: Installation, target: str) -> Cure:
    """Kill a service and keep it down until it is healed; one that is down stays down so long."""
    running.hold_down(target)
    _send(running, target, signal.SIGKILL)

    def let_up() -> None:
        running.let_up(target)

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
