"""Starts programs that use vLLM as forks of a process that has imported it: see `vllm_host`."""

import json
import os
import select
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from tests.support.session_hosts import SessionHost

ADDRESS = "TESTS_VLLM_SOCKET"
"""Names the Unix socket of the process to the workers."""

HOST_MODULE = "tests.support.vllm_host"

_ANSWER_S_MAX = 200.0


class VllmProgram:
    """A running program. It is killed when this process ends."""

    def __init__(self, connection: socket.socket) -> None:
        """The process has sent the number of the new one on `connection`, or will soon."""
        self._connection, self._answers = connection, connection.makefile("r")
        self.pid = int(self._answers.readline())
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return the exit status, negative after a signal; None while the program runs."""
        return self.wait(0)

    def wait(self, timeout_s: float) -> int | None:
        """Wait for its end; see `poll`."""
        if self.returncode is None and select.select([self._connection], [], [], timeout_s)[0]:
            self.returncode = int(self._answers.readline())
            self._answers.close()
            self._connection.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)


def start_program(
    module: str,
    arguments: Sequence[str],
    env: Mapping[str, str],
    *,
    output: BinaryIO,
    errors: BinaryIO,
) -> VllmProgram:
    """Run a module as `python -m` does; the first program waits until vLLM is imported."""
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(_ANSWER_S_MAX)
    connection.connect(os.environ[ADDRESS])
    fields = {"module": module, "arguments": [*arguments], "environment": {**env}}
    request = json.dumps(fields).encode() + b"\n"
    sent = socket.send_fds(connection, [request], [output.fileno(), errors.fileno()])
    connection.sendall(request[sent:])
    return VllmProgram(connection)


def run_program(
    module: str, arguments: Sequence[str], env: Mapping[str, str], folder: Path, timeout_s: float
) -> bytes:
    """Run a module to its end and return its output; `folder` is empty."""
    output_path, errors_path = folder / "output", folder / "errors"
    with output_path.open("wb") as output, errors_path.open("wb") as errors:
        program = start_program(module, arguments, env, output=output, errors=errors)
    status = program.wait(timeout_s)
    assert status == 0, f"status {status}: {errors_path.read_text()[-5_000:]}"
    return output_path.read_bytes()


@contextmanager
def running_host() -> Iterator[None]:
    """Start the process for a block, unless the controller has started it."""
    if ADDRESS in os.environ:
        yield
        return
    host = SessionHost(HOST_MODULE, ADDRESS)
    try:
        yield
    finally:
        host.close()
