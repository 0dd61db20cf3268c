"""The two autoscalers of a host: the one of `millrace up`, and a second one beside it."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
import psutil

from chaos.errors import DrillError
from chaos.installations.hosts import ROOT, Host, wait_until
from cli.stack.processes.child import Child
from cli.stack.processes.supervisor import Supervisor

ROLE: Final = "autoscaler"
SECOND: Final = "autoscaler-2"
READY_S_MAX: Final = 60.0
_OWN: Final = ("MILLRACE_AUTOSCALER_METRICS_PORT", "MILLRACE_KAFKA_MEMBERS_FOLDER")
"""Variables whose value belongs to one process."""


class _LogLine(msgspec.Struct):
    event: str = ""
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class Autoscalers:
    """Both autoscalers; each is started again when it ends."""

    host: Host
    logs: Path
    supervisor: Supervisor  # of the second one

    def wait(self, check: Callable[[], bool], timeout_s: float, what: str) -> None:
        """Wait as `wait_until` does, and keep the second one running. Raises DrillError."""

        def step() -> bool:
            self.supervisor.run_once()
            return check()

        wait_until(step, timeout_s, what)

    def owner_pid(self, epoch: int) -> int | None:
        """Return the process id of the one that decides in an epoch; None if that is not logged."""
        if _decides(self.logs / f"{SECOND}.log", epoch):
            return self.supervisor.pid(SECOND)
        if _decides(self.host.data / "logs" / f"{ROLE}.log", epoch):
            return self.host.roles().get(ROLE)
        return None


@contextmanager
def second_autoscaler(host: Host, logs: Path) -> Iterator[Autoscalers]:
    """Run an autoscaler with the settings of the host's own for a block. Raises DrillError.

    Call this from the main thread: the process dies with that thread.
    """
    environ = psutil.Process(host.pid(ROLE)).environ()
    child = Child(
        name=SECOND,
        role=ROLE,
        argv=tuple(psutil.Process(host.pid(ROLE)).cmdline()),
        env={name: value for name, value in environ.items() if name not in _OWN},
        inherits=(),
        cwd=str(ROOT),
        parent_death_signal=signal.SIGKILL,
        backoff_s_max=1.0,
    )
    supervisor = Supervisor(logs)
    both = Autoscalers(host, logs, supervisor)
    log = logs / f"{SECOND}.log"
    try:
        supervisor.start([child])
        both.wait(lambda: b'"ready"' in log.read_bytes(), READY_S_MAX, "the second autoscaler")
        yield both
    finally:
        with suppress(ProcessLookupError, DrillError):
            if (pid := supervisor.pid(SECOND)) is not None:
                psutil.Process(pid).resume()  # a paused process ignores SIGTERM
        supervisor.stop()


def _decides(log: Path, epoch: int) -> bool:
    """Return whether a log says that its process decides in this epoch."""
    for line in log.read_bytes().splitlines():
        if b"this process decides" not in line:
            continue
        with suppress(msgspec.DecodeError):
            found = msgspec.json.decode(line, type=_LogLine)
            if found.epoch == epoch:
                return True
    return False
