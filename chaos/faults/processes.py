"""kill -9 and SIGSTOP of roles; a target is `host/role`, e.g. `a/intake`."""

import os
import signal

from chaos.faults.healing import Heal, already_healed, no_target
from chaos.installations.installation import Installation


def kill(installation: Installation, target: str) -> Heal:
    """Kill a role; its supervisor starts it again. A role that is dead already is `no_target`."""
    return (
        no_target if signal_role(installation, target, signal.SIGKILL) is None else already_healed
    )


def pause(installation: Installation, target: str) -> Heal:
    """Stop a role in the middle of whatever it does, and let it go on."""
    pid = signal_role(installation, target, signal.SIGSTOP)
    if pid is None:
        return no_target

    def resume() -> None:
        send(pid, signal.SIGCONT)

    return resume


def signal_role(installation: Installation, target: str, number: signal.Signals) -> int | None:
    """Signal a role and return its process; None when it does not live."""
    host, _, role = target.partition("/")
    pid = installation.hosts[host].roles().get(role)
    return pid if pid is not None and send(pid, number) else None


def send(pid: int, number: signal.Signals) -> bool:
    """Signal a process; return whether it was there."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True
