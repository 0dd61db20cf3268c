"""Processes that serve all workers of pytest-xdist over a Unix socket; the controller starts them.

Each runs a module with the number of a listening socket and a folder as its arguments. It ends once
its standard input is closed, as when the controller is killed.
"""

import os
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

_STOP_S_MAX = 30.0


class SessionHost:
    """The controller's side."""

    def __init__(self, module: str, variable: str) -> None:
        """Start the process; the environment variable names its socket to the workers."""
        # Not below pytest's own folder, which a passed session removes before the process ends.
        parent = os.environ.get("PYTEST_DEBUG_TEMPROOT")
        self._variable = variable
        self._folder = tempfile.mkdtemp(prefix="millrace-tests-", dir=parent)
        path = str(Path(self._folder) / "socket")
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path)
            listener.listen()
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, str(listener.fileno()), self._folder],
                stdin=subprocess.PIPE,
                pass_fds=(listener.fileno(),),
                cwd=Path(__file__).parents[2],
                start_new_session=True,  # an interrupt from the terminal is for the controller
            )
        os.environ[variable] = path

    def close(self) -> None:
        """Stop the process and what it runs."""
        del os.environ[self._variable]
        try:
            self._process.communicate(timeout=_STOP_S_MAX)
        finally:
            self._process.kill()  # what it runs ends with it
            self._process.wait()
            shutil.rmtree(self._folder, ignore_errors=True)
