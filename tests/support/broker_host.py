"""One broker for all workers of pytest-xdist, in a process that the controller starts.

An idle broker takes a twentieth of a core, and its start as much CPU as fifty tests. The process
starts the broker when the first worker asks, and stops it when the controller ends, also when the
controller is killed: then its standard input is closed.
"""

import os
import select
import shutil
import socket
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

ADDRESS = "TESTS_BROKER_SOCKET"
"""Names the Unix socket of the process to the workers."""

_ANSWER_S_MAX = 120.0


class BrokerHost:
    """The controller's side."""

    def __init__(self) -> None:
        """Start the process; the broker starts when a worker asks."""
        self._folder = tempfile.mkdtemp(prefix="millrace-tests-")
        os.environ[ADDRESS] = str(Path(self._folder) / "broker")
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(os.environ[ADDRESS])
            listener.listen()
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(listener.fileno())],
                stdin=subprocess.PIPE,
                pass_fds=(listener.fileno(),),
                cwd=Path(__file__).parents[2],
                start_new_session=True,  # an interrupt from the terminal is for the controller
            )

    def close(self) -> None:
        """Stop the broker and the process."""
        del os.environ[ADDRESS]
        self._process.communicate()
        shutil.rmtree(self._folder)


def broker_of_session(folder: Path) -> str:
    """Return `host:port` of the broker of all workers; it runs in the `folder` of the first."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(_ANSWER_S_MAX)
        connection.connect(os.environ[ADDRESS])
        connection.sendall(f"{folder}\n".encode())
        with connection.makefile() as answers:
            address = answers.readline().strip()
    assert address, "the broker of this session did not start"
    return address


def host(listener: socket.socket) -> None:
    """Answer workers until standard input is closed."""
    address = ""
    with ExitStack() as stack:
        while True:
            ready, _, _ = select.select([sys.stdin, listener], [], [])
            if sys.stdin in ready:
                return
            connection, _ = listener.accept()
            with connection, connection.makefile("rw") as lines:
                folder = lines.readline().strip()
                if not address:
                    from benchmarks.stacks.services import running_kafka  # imports for a second

                    Path(folder).mkdir(parents=True)
                    address = stack.enter_context(running_kafka(Path(folder))).address
                lines.write(f"{address}\n")


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as unix:
        host(unix)
