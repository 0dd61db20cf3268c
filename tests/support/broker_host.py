"""One broker for all workers of pytest-xdist, in a process that the controller starts.

An idle broker takes a twentieth of a core, and its start as much CPU as fifty tests. The process, a
`SessionHost`, starts the broker when the first worker asks, and stops it when the controller ends.
"""

import os
import select
import shutil
import socket
import sys
from contextlib import ExitStack, suppress
from pathlib import Path

ADDRESS = "TESTS_BROKER_SOCKET"
"""Names the Unix socket of the process to the workers."""

HOST_MODULE = __name__

_ANSWER_S_MAX = 120.0

_HEAP = "-Xmx1g"
"""The topics of all tests stay: with half of it, collections take 0.8 s each in the end."""


def broker_of_session() -> str:
    """Return `host:port` of the broker of all workers."""
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(_ANSWER_S_MAX)
            connection.connect(os.environ[ADDRESS])
            with connection.makefile() as answers:
                address = answers.readline().strip()
    except OSError as failure:
        raise AssertionError("the broker of this session does not answer") from failure
    assert address, "the broker of this session did not start"
    return address


def host(listener: socket.socket, folder: Path) -> None:
    """Answer workers until standard input is closed."""
    address = ""
    with ExitStack() as stack:
        while True:
            ready, _, _ = select.select([sys.stdin, listener], [], [])
            if sys.stdin in ready:
                return
            connection, _ = listener.accept()
            with connection:
                if not address:
                    from benchmarks.stacks.services import running_kafka  # imports for a second

                    address = stack.enter_context(running_kafka(folder, _HEAP)).address
                with suppress(OSError):  # the worker has ended, or waited for too long
                    connection.sendall(f"{address}\n".encode())


if __name__ == "__main__":
    try:
        with socket.socket(fileno=int(sys.argv[1])) as unix:
            host(unix, Path(sys.argv[2]))
    finally:
        shutil.rmtree(sys.argv[2], ignore_errors=True)  # the controller may have been killed
