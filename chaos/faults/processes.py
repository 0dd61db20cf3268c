"""kill -9 and SIGSTOP of roles; a target is `host/role`, e.g. `a/intake`."""

import os
import signal

from chaos.faults.healing import Cure, missed, nothing
from chaos.installations.installation import Installation


def kill(running: Installation, target: str) -> Cure:
    """Kill a role; its supervisor starts it again. A role that is dead already is `missed`."""
    return missed if signal_role(running, target, signal.SIGKILL) is None else nothing


def pause(running: Installation, target: str) -> Cure:
    """Stop a role in the middle of whatever it does, and let it go on."""
    pid = signal_role(running, target, signal.SIGSTOP)
    if pid is None:
        return missed

    def resume() -> None:
        send(pid, signal.SIGCONT)

    return resume


def signal_role(running: Installation, target: str, number: signal.Signals) -> int | None:
    """Signal a role and return its process; None when it does not live."""
    host, _, role = target.partition("/")
    pid = running.hosts[host].roles().get(role)
    return pid if pid is not None and send(pid, number) else None


def send(pid: int, number: signal.Signals) -> bool:
    """Signal a process; return whether it was there."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True
