"""Hosts of an installation: each is a `millrace up` with every role, on shared services."""

import contextlib
import os
import shutil
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from benchmarks.stacks import stack
from chaos.errors import DrillError
from chaos.installations.settings import CLOCK_FOLDER
from cli.stack.processes.child import ChildProcess
from cli.stack.processes.role_children import MODULES

READY_S_MAX = 180.0
STOP_S_MAX = 25.0
ROOT = Path(__file__).parents[2]
_POLL_S = 0.05


@dataclass(slots=True)
class Host:
    """One running `millrace up`."""

    name: str
    data: Path
    process: ChildProcess
    url: str = ""
    key: str = ""
    pids: dict[str, int] = field(default_factory=dict)

    def roles(self) -> dict[str, int]:
        """Return the process id of every live role."""
        found = {}
        for child in psutil.Process(self.process.pid).children():
            try:
                if role := role_of(child):
                    found[role] = child.pid
            except psutil.Error:
                continue
        return found

    def pid(self, role: str, timeout_s: float = 20.0) -> int:
        """Return the process id of a role, waiting for its restart. Raises DrillError."""
        wait_until(lambda: role in self.roles(), timeout_s, f"{role} of host {self.name}")
        return self.roles()[role]

    def replica_pid(self, pool: str) -> int:
        """Return the process id of the replica of a pool. Raises DrillError without one."""
        for child in psutil.Process(self.process.pid).children():
            with contextlib.suppress(psutil.Error):
                is_replica = role_of(child) == "gpu-consumer"
                if is_replica and child.environ().get("MILLRACE_GPU_POOL") == pool:
                    return child.pid
        raise DrillError(f"host {self.name} has no replica of {pool}")

    def stop(self) -> None:
        """Stop the host."""
        self.process.send(signal.SIGCONT)
        for pid in self.roles().values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)  # a paused process ignores SIGTERM
        self.process.stop(STOP_S_MAX)

    def replica_deaths(self) -> int:
        """Count the deaths of its replica in the supervisor's log."""
        lines = (self.data / "logs" / "up.log").read_text(errors="replace").splitlines()
        return sum("child_died" in line and "gpu-" in line for line in lines)


def start_host(
    name: str,
    data: Path,
    options: Sequence[str],
    env: Mapping[str, str],
    *,
    secrets_from: Host | None,
) -> Host:
    """Start a host without waiting for it; `secrets_from` is a host whose secret key it shares.

    Call this from the main thread: the host dies with that thread.
    """
    data.mkdir(parents=True, exist_ok=True)
    if secrets_from is not None:
        shutil.copy(secrets_from.data / "webhook-key", data / "webhook-key")
    path = os.pathsep.join([str(CLOCK_FOLDER), str(ROOT), os.environ.get("PYTHONPATH", "")])
    return Host(name, data, stack.spawn_stack(data, options, {"PYTHONPATH": path, **env}))


def await_ready(host: Host) -> Host:
    """Wait until the host is ready. Raises DrillError."""
    log = host.data / "logs" / "up.log"

    def is_ready() -> bool:
        if ready := stack.parse_ready(log.read_text(errors="replace")):
            host.url, host.key = ready
        if host.process.has_ended():
            raise DrillError(f"host {host.name} ended: {log.read_text()[-800:]}")
        return bool(host.url)

    wait_until(is_ready, READY_S_MAX, f"host {host.name}")
    return host


def role_of(process: psutil.Process) -> str | None:
    """Return the role that a process runs."""
    role = stack.role_of(process.cmdline())
    if role not in MODULES:
        return None
    job_class = process.environ().get("MILLRACE_BATCHER_JOB_CLASS") if role == "batcher" else ""
    return "batcher-interactive" if job_class == "interactive" else role


def wait_until(check: Callable[[], bool], timeout_s: float, what: str) -> None:
    """Poll `check` until it is true. Raises DrillError, naming `what`, after `timeout_s`."""
    deadline_s = time.monotonic() + timeout_s
    while not check():
        if time.monotonic() > deadline_s:
            raise DrillError(f"waited {timeout_s:g} s for {what}")
        time.sleep(_POLL_S)
