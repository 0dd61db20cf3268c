"""A process that has imported vLLM once, and forks into the programs of tests that use vLLM.

An import takes seven seconds of CPU, in a program and in its engine core again: more than all else
that most of them do. A forked program runs its module as `python -m` does, and the process that it
spawns first is a fork as well. Tests of what happens before the import, of logs, and of roles and
stacks start Python anew.
"""

import gc
import json
import os
import runpy
import select
import signal
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from core.runtime.garbage_collection import collect_rarely
from tests.support.spare_process import exit_after, keep_spare, replace_environment

_READ_BYTES = 2**16
_IMPORTS = ("gpu_consumers.engines.vllm.serving", "vllm.v1.worker.cpu_worker")


class Host:
    """Starts a program for each connection, and reports its number and its end there."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._running: dict[int, tuple[int, socket.socket]] = {}  # by the descriptor of a process
        self._has_imported = False

    def serve(self) -> None:
        """Serve until standard input is closed; then kill what runs."""
        while True:
            connections = [connection for _, connection in self._running.values()]
            readable, _, _ = select.select(
                [sys.stdin, self._listener, *self._running, *connections], [], []
            )
            if sys.stdin in readable:
                break
            for process, (pid, connection) in [*self._running.items()]:
                if connection in readable:  # the worker has ended
                    os.kill(pid, signal.SIGKILL)
                if process in readable or connection in readable:
                    self._report_end(process)
            if self._listener in readable:
                connection, _ = self._listener.accept()
                self._start(connection)
        for process, (pid, _) in [*self._running.items()]:
            os.kill(pid, signal.SIGKILL)
            self._report_end(process)

    def _start(self, connection: socket.socket) -> None:
        request, descriptors, _, _ = socket.recv_fds(connection, _READ_BYTES, 2)
        while request and not request.endswith(b"\n"):
            request += connection.recv(_READ_BYTES)
        if not self._has_imported:
            import_vllm()
            self._has_imported = True
        pid = os.fork()
        if pid == 0:
            self._close_inherited()
            connection.close()
            exit_after(partial(_run, json.loads(request), descriptors))
        for descriptor in descriptors:
            os.close(descriptor)
        self._running[os.pidfd_open(pid)] = pid, connection
        _answer(connection, pid)

    def _report_end(self, process: int) -> None:
        pid, connection = self._running.pop(process)
        _, status = os.waitpid(pid, 0)
        os.close(process)
        with connection:
            _answer(connection, os.waitstatus_to_exitcode(status))

    def _close_inherited(self) -> None:
        self._listener.close()
        for process, (_, connection) in self._running.items():
            os.close(process)
            connection.close()


def _answer(connection: socket.socket, number: int) -> None:
    with suppress(OSError):  # the worker has ended
        connection.sendall(b"%d\n" % number)


def import_vllm() -> None:
    """Import what programs and engine cores import, as a replica does."""
    from gpu_consumers.engines.settings import EngineSettings
    from gpu_consumers.engines.vllm.log_redaction import redact_vllm_logs
    from gpu_consumers.engines.vllm.vllm_engine import vllm_environment

    collect_rarely()
    values = {"KIND": "vllm", "MODEL_NAME": "m", "MODEL_PATH": "m"}
    settings = EngineSettings.from_env({f"MILLRACE_ENGINE_{k}": v for k, v in values.items()})
    os.environ.update(vllm_environment(settings))
    redact_vllm_logs()
    for name in _IMPORTS:
        import_module(name)
    gc.collect()
    gc.freeze()
    assert len([*Path("/proc/self/task").iterdir()]) == 1, "a fork would lack the other threads"


def _run(request: dict[str, Any], descriptors: Sequence[int]) -> None:
    """Become a program."""
    with Path(os.devnull).open("rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    for number, descriptor in enumerate(descriptors, start=1):
        os.dup2(descriptor, number)
        os.close(descriptor)
    replace_environment(request["environment"])
    keep_spare()
    sys.argv = [request["module"], *request["arguments"]]
    runpy.run_module(request["module"], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as unix:
        Host(unix).serve()
