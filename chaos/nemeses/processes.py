"""kill -9 and SIGSTOP of roles; a target is `host/role`, e.g. `a/intake`."""

import contextlib
import os
import signal

from chaos.installation import Installation
from chaos.nemeses.cure import Cure, nothing


def kill(running: Installation, target: str) -> Cure:
    """Kill a role; its supervisor starts it again. A role that is dead already is left alone."""
    signal_role(running, target, signal.SIGKILL)
    return nothing


def pause(running: Installation, target: str) -> Cure:
    """Stop a role in the middle of whatever it does, and let it go on."""
    pid = signal_role(running, target, signal.SIGSTOP)

    def resume() -> None:
        if pid is not None:
            send(pid, signal.SIGCONT)

    return resume


def signal_role(running: Installation, target: str, number: signal.Signals) -> int | None:
    """Signal a role and return its process; None when it does not live."""
    host, _, role = target.partition("/")
    pid = running.hosts[host].roles().get(role)
    if pid is not None:
        send(pid, number)
    return pid


def send(pid: int, number: signal.Signals) -> None:
    """Signal a process that may be gone."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
