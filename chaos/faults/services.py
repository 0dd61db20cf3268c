"""Faults of Postgres and of brokers; a target is the service's name, `postgres` or `kafka-N`."""

import signal
from typing import Final

import psutil

from chaos.faults.healing import Heal, already_healed, no_target
from chaos.faults.processes import send
from chaos.installations.hosts import wait_until
from chaos.installations.installation import Installation

GONE_S_MAX: Final = 10.0


def restart_immediately(installation: Installation, target: str) -> Heal:
    """End Postgres as `pg_ctl restart -m immediate` does: by SIGQUIT, without a checkpoint."""
    return already_healed if _send(installation, target, signal.SIGQUIT) else no_target


def kill(installation: Installation, target: str) -> Heal:
    """Kill a service, wait until it is gone, and keep it down until it is healed.

    One that is down already is `no_target`. Raises DrillError when it does not go.
    """
    installation.keep_down(target)

    def allow_start() -> None:
        installation.allow_start(target)

    try:
        if not _send(installation, target, signal.SIGKILL):
            allow_start()
            return no_target
        wait_until(lambda: installation.service(target) is None, GONE_S_MAX, f"the end of {target}")
    except BaseException:
        allow_start()
        raise
    return allow_start


def pause(installation: Installation, target: str) -> Heal:
    """Stop a service and all its children: connections stay open, nothing answers."""
    pid = installation.service(target)
    if pid is None:
        return no_target
    stopped = [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]
    for process in stopped:
        send(process, signal.SIGSTOP)

    def resume() -> None:
        for process in reversed(stopped):
            send(process, signal.SIGCONT)

    return resume


def _send(installation: Installation, target: str, number: signal.Signals) -> bool:
    pid = installation.service(target)
    return pid is not None and send(pid, number)
