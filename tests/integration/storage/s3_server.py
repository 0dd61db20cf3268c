"""A real S3 server process: moto's, one request at a time.

S3 promises that of rival conditional writes one wins. moto looks first and writes later, and its
threads may switch in between; so requests take turns here.
"""

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Iterable
from typing import Any

from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import run_simple


class OneAtATime:
    """A WSGI application that lets one request in."""

    def __init__(self) -> None:
        self._application = DomainDispatcherApplication(create_backend_app)
        self._turn = threading.Lock()

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        with self._turn:
            # Complete before the turn ends; only sending it happens beside others.
            return list(self._application(environ, start_response))


PR_SET_PDEATHSIG = 1


def die_with(parent: int) -> None:
    """Let the kernel end this process when `parent` does, however that ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it died before the line above
        sys.exit(1)


if __name__ == "__main__":
    die_with(int(sys.argv[2]))
    run_simple("127.0.0.1", int(sys.argv[1]), OneAtATime(), threaded=True)
