"""`millrace up` as a child process, and the processes of its roles."""

import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.children.line_child import ROOT
from benchmarks.runs import VoidRunError
from benchmarks.stacks.load_runs import Server
from benchmarks.statistics.cpu import child_pids
from cli.stack.processes.child import Child, ChildProcess, spawn
from cli.stack.processes.role_children import MODULES

READY_S_MAX = 300.0
STOP_S_MAX = 30.0
MILLRACE = ("cli.main",)
"""The program of `millrace up`."""

PYTHON = Path(".venv/bin/python")
"""The interpreter of a checkout."""

REPLACED = {
    "benchmarks.children.discipline_batcher": "batcher",
    "benchmarks.children.small_cache_replica": "gpu-consumer",
}
"""Modules that run in place of a role, and the role."""

_POLL_S = 0.1


@dataclass(frozen=True, slots=True)
class RunningStack:
    """A ready embedded stack."""

    server: Server
    pid: int

    def roles(self) -> dict[str, int]:
        """Return the process id of every role, the broker, the database and the supervisor."""
        found = {"supervisor": self.pid}
        for pid in child_pids(self.pid):
            name = role_of(_command_line(pid))
            while name in found:
                name += "+"  # replicas of several pools
            found[name] = pid
        return found


@contextmanager
def running_stack(
    data: Path,
    *options: str,
    env: Mapping[str, str] | None = None,
    program: Sequence[str] = MILLRACE,
    checkout: Path | None = None,
) -> Iterator[RunningStack]:
    """Start a stack on `data` with options of `millrace up`, and stop it after the block.

    `env` is added to its environment. A `program` of `benchmarks.children` replaces a role.
    `checkout` is the root of another checkout of Millrace with its `.venv`, whose code runs. Raises
    VoidRunError when it does not become ready.
    """
    log = data / "logs" / "up.log"
    log.unlink(missing_ok=True)  # left by an earlier run on the same data
    process = spawn_stack(data, options, env or {}, program=program, checkout=checkout)
    try:
        yield RunningStack(_wait_until_ready(process, log), process.pid)
    finally:
        process.stop(STOP_S_MAX)


def spawn_stack(
    data: Path,
    options: Sequence[str],
    env: Mapping[str, str],
    *,
    program: Sequence[str] = MILLRACE,
    checkout: Path | None = None,
) -> ChildProcess:
    """Start `millrace up` without waiting for it; it dies with the thread that calls this."""
    if program != MILLRACE:
        env = {"PYTHONPATH": str(ROOT), **env}  # roles run with `-P` and import the replaced one
    python = sys.executable if checkout is None else str(checkout / PYTHON)
    command = (python, "-m", *program, "up", "--data", str(data), "--port", "0")
    child = Child(name="up", argv=(*command, *options), env=env, parent_death_signal=signal.SIGTERM)
    return spawn(child, data / "logs")


def parse_ready(text: str) -> Server | None:
    """Return the API once the output has the line `ready URL key KEY`."""
    for line in text.splitlines():
        match line.split(" "):
            case ["ready", url, "key", key]:
                return Server(url, key)
    return None


def role_of(command_line: list[str]) -> str:
    """Return the role of a command line: a module of Millrace, the broker or the database."""
    if "kafka.Kafka" in command_line:
        return "kafka"
    if "-m" in command_line:
        module = tuple(command_line[command_line.index("-m") + 1 :])
        if module[0] in REPLACED:
            return REPLACED[module[0]]
        for role, arguments in MODULES.items():
            if module == arguments:
                return role
    program = Path(command_line[0]).name if command_line else ""
    return program.partition(":")[0] or "unknown"


def _wait_until_ready(process: ChildProcess, log: Path) -> Server:
    deadline_s = time.monotonic() + READY_S_MAX
    while time.monotonic() < deadline_s:
        if ready := parse_ready(log.read_text(errors="replace")):
            return ready
        if process.has_ended():
            tail = log.read_text(errors="replace")[-500:]
            raise VoidRunError(f"millrace up ended before it was ready: {tail}")
        time.sleep(_POLL_S)
    raise VoidRunError(f"millrace up is not ready after {READY_S_MAX:g} s")


def _command_line(pid: int) -> list[str]:
    try:
        text = Path(f"/proc/{pid}/cmdline").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return []
    return text.rstrip("\0").split("\0")
