"""Kills and pauses of processes.

A role is named `host/role`, such as `a/intake`; a service is `postgres` or `kafka-N`.
"""

import os
import signal
from functools import partial
from typing import Final

import psutil

from chaos.faults.healing import Heal, already_healed, no_target
from chaos.installations.hosts import wait_until
from chaos.installations.installation import Installation

EXIT_S_MAX: Final = 10.0


def kill_role(installation: Installation, target: str) -> Heal:
    """Kill a role, which its supervisor restarts; `no_target` when it is dead."""
    pid = _role_pid(installation, target)
    return already_healed if pid and send_signal(pid, signal.SIGKILL) else no_target


def pause_role(installation: Installation, target: str) -> Heal:
    """Pause a role with SIGSTOP; healing resumes it."""
    pid = _role_pid(installation, target)
    if pid is None or not send_signal(pid, signal.SIGSTOP):
        return no_target
    return partial(_send_to_all, [pid], signal.SIGCONT)


def restart_service(installation: Installation, target: str) -> Heal:
    """Stop Postgres by SIGQUIT, as `pg_ctl restart -m immediate` does, without a checkpoint."""
    return already_healed if _signal_service(installation, target, signal.SIGQUIT) else no_target


def kill_service(installation: Installation, target: str) -> Heal:
    """Kill a service, wait until it has ended, and keep it down until it is healed.

    `no_target` when it is down already. Raises DrillError when it does not end.
    """
    installation.keep_down(target)
    heal = partial(installation.allow_start, target)
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


def pause_service(installation: Installation, target: str) -> Heal:
    """Pause a service and its children: connections stay open, requests hang."""
    pid = installation.service_pid(target)
    if pid is None:
        return no_target
    paused = [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]
    _send_to_all(paused, signal.SIGSTOP)
    return partial(_send_to_all, paused[::-1], signal.SIGCONT)


def send_signal(pid: int, number: signal.Signals) -> bool:
    """Signal a process; return whether it exists."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def _send_to_all(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        send_signal(pid, number)


def _role_pid(installation: Installation, target: str) -> int | None:
    host, _, role = target.partition("/")
    return installation.hosts[host].roles().get(role)


def _signal_service(installation: Installation, target: str, number: signal.Signals) -> bool:
    pid = installation.service_pid(target)
    return pid is not None and send_signal(pid, number)
