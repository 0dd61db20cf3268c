"""Embedded stacks for tests: start, kill, restart and stop `millrace up` and its roles."""

import os
import re
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
from openai import DefaultHttpxClient, OpenAI

from cli.stack.data_folder import StackState, read_state
from cli.stack.processes.role_children import KAFKA
from tests.support.until import STEP_S_MAX, until, until_found
from topics.settings import KafkaSettings

READY_S_MAX = 120.0
STOP_S_MAX = 60.0

_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""Stacks speak plain HTTP: no client loads the certificates of authorities, 23 ms of CPU each."""

_READY = re.compile(r"ready (http://127\.0\.0\.1:\d+) key (sk-\S+)\n")

ROLE_MODULES = {
    "api": "api",
    "intake": "jobs",
    "batcher": "batcher",
    "batcher-interactive": "batcher",
    "gpu-consumer": "gpu_consumers",
    "results-writer": "results writer",
    "finaliser": "results finaliser",
    "webhooks": "results.webhooks",
}


class _HttpClient(DefaultHttpxClient):
    """Closes its connections when nobody has it any more, as the official client's own does."""

    def __del__(self) -> None:
        self.close()


@dataclass(slots=True)
class Stack:
    """A running `millrace up`."""

    process: subprocess.Popen[str]
    url: str
    key: str
    data: Path
    model: str

    @property
    def client(self) -> OpenAI:
        """Return the official client of the stack."""
        http_client = _HttpClient(verify=_TLS)
        return OpenAI(
            base_url=f"{self.url}/v1", api_key=self.key, max_retries=6, http_client=http_client
        )

    @property
    def state(self) -> StackState:
        """Return the addresses of its services."""
        state = read_state(self.data)
        assert state is not None
        return state

    @property
    def kafka(self) -> KafkaSettings:
        """Return the settings of a client of its broker."""
        state = self.state
        return KafkaSettings.from_env(
            {KAFKA: state.kafka_bootstrap_servers, **state.kafka_credentials}
        )

    def request(self, method: str, path: str, **options: Any) -> httpx.Response:
        """Send one request with the stack's key."""
        headers = {"authorization": f"Bearer {self.key}", **options.pop("headers", {})}
        options = {"timeout": 60, "verify": _TLS, **options}
        return httpx.request(method, self.url + path, headers=headers, **options)

    def pid(self, role: str) -> int | None:
        """Return the process id of a role, or None while it does not run."""
        for child in psutil.Process(self.process.pid).children():
            try:
                if role_of(child) == role:
                    return child.pid
            except psutil.Error:
                continue
        return None

    def kill(self, role: str) -> None:
        """Kill a role with SIGKILL, at once."""
        pid = until_found(lambda: self.pid(role))
        os.kill(pid, signal.SIGKILL)

    def processes(self) -> list[psutil.Process]:
        """Return the stack's process and all its descendants."""
        top = psutil.Process(self.process.pid)
        return [top, *top.children(recursive=True)]

    def kill_everything(self) -> None:
        """Kill the stack's own process and wait until the kernel has ended the others."""
        processes = self.processes()
        self.process.kill()
        self.wait()
        until(
            lambda: not any(is_alive(p) for p in processes),
            "nothing left after SIGKILL",
            STEP_S_MAX,
        )

    def wait(self) -> None:
        """Wait for its process to end."""
        self.process.wait(STOP_S_MAX)
        assert self.process.stdout is not None
        self.process.stdout.close()

    def stop(self) -> float:
        """Stop it as Ctrl-C does and return the seconds it took."""
        started_s = time.monotonic()
        self.process.send_signal(signal.SIGINT)
        self.wait()
        return time.monotonic() - started_s


def start_stack(data: Path, *options: str, model: str = "simulated") -> Stack:
    """Start `millrace up` on `data` and wait for its ready line.

    With external services in the environment, objects are stored in `data`.
    """
    data.mkdir(parents=True, exist_ok=True)
    (data / "logs").mkdir(exist_ok=True)
    log = (data / "logs" / "up.log").open("a")
    objects = {"MILLRACE_OBJECTS_ROOT": str(data / "objects")} if KAFKA in os.environ else {}
    process = subprocess.Popen(
        [sys.executable, "-m", "cli.main", "up", "--data", str(data), "--port", "0", *options],
        env={**objects, **os.environ},
        stdout=subprocess.PIPE,
        stderr=log,
        text=True,
    )
    log.close()
    assert process.stdout is not None
    line = process.stdout.readline()
    ready = _READY.fullmatch(line)
    assert ready, f"{line!r}; see {data}/logs"
    return Stack(process, ready[1], ready[2], data, model)


@contextmanager
def running_stack(data: Path, *options: str, model: str = "simulated") -> Iterator[Stack]:
    """Run a stack for a block, and require that no process of it remains."""
    stack = start_stack(data, *options, model=model)
    processes = stack.processes()
    try:
        yield stack
    finally:
        if stack.process.poll() is None:
            processes += stack.processes()
            stack.stop()
        until(lambda: not any(is_alive(p) for p in processes), "an empty stack", STEP_S_MAX)


def role_of(process: psutil.Process) -> str | None:
    """Return the role that a process of a stack runs; None for the broker and the database."""
    command = " ".join(process.cmdline())
    for role, module in ROLE_MODULES.items():
        if f"-m {module}" in command:
            interactive = process.environ().get("MILLRACE_BATCHER_JOB_CLASS") == "interactive"
            return "batcher-interactive" if role == "batcher" and interactive else role
    return None


def is_alive(process: psutil.Process) -> bool:
    """Whether a process still runs; a zombie is dead."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
