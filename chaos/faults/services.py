"""Faults of Postgres and brokers. A target is the service's name: `postgres` or `kafka-N`."""

import signal
from typing import Final

import psutil

from chaos.faults.healing import Heal, already_healed, no_target
from chaos.faults.processes import send_signal
from chaos.installations.hosts import wait_until
from chaos.installations.installation import Installation

EXIT_S_MAX: Final = 10.0


def restart_immediately(installation: Installation, target: str) -> Heal:
    """Stop Postgres by SIGQUIT, as `pg_ctl restart -m immediate` does, without a checkpoint."""
    return already_healed if _signal_service(installation, target, signal.SIGQUIT) else no_target


def kill(installation: Installation, target: str) -> Heal:
    """Kill a service, wait until it has ended, and keep it down until it is healed.

    `no_target` when it is down already. Raises DrillError when it does not end.
    """
    installation.keep_down(target)

    def heal() -> None:
        installation.allow_start(target)

    try:
        if not _signal_service(installation, target, signal.SIGKILL):
            heal()
            return no_target
        wait_until(
            lambda: installation.service_pid(target) is None, EXIT_S_MAX, f"the end of {target}"
        )
    except BaseException:
        heal()
        raise
    return heal


def pause(installation: Installation, target: str) -> Heal:
    """Pause a service and its children: connections stay open, requests hang."""
    pid = installation.service_pid(target)
    if pid is None:
        return no_target
    paused = [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]
    for process in paused:
        send_signal(process, signal.SIGSTOP)

    def resume() -> None:
        for process in reversed(paused):
            send_signal(process, signal.SIGCONT)

    return resume


def _signal_service(installation: Installation, target: str, number: signal.Signals) -> bool:
    pid = installation.service_pid(target)
    return pid is not None and send_signal(pid, number)
