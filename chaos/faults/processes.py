"""SIGKILL and SIGSTOP of roles. A target is `host/role`, such as `a/intake`."""

import os
import signal

from chaos.faults.healing import Heal, already_healed, no_target
from chaos.installations.installation import Installation


def kill(installation: Installation, target: str) -> Heal:
    """Kill a role, which its supervisor restarts; `no_target` when it is dead."""
    return (
        no_target if signal_role(installation, target, signal.SIGKILL) is None else already_healed
    )


def pause(installation: Installation, target: str) -> Heal:
    """Pause a role with SIGSTOP; healing resumes it."""
    pid = signal_role(installation, target, signal.SIGSTOP)
    if pid is None:
        return no_target

    def resume() -> None:
        send_signal(pid, signal.SIGCONT)

    return resume


def signal_role(installation: Installation, target: str, number: signal.Signals) -> int | None:
    """Signal a role and return its process id, or None when it is dead."""
    host, _, role = target.partition("/")
    pid = installation.hosts[host].roles().get(role)
    return pid if pid is not None and send_signal(pid, number) else None


def send_signal(pid: int, number: signal.Signals) -> bool:
    """Signal a process; return whether it exists."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True
