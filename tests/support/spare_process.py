"""A fork of this process that becomes the next process that `multiprocessing` spawns.

It has the modules that this process has imported when it is forked, and nothing of what follows: as
a spawned process does, it has the environment of the time of the spawn, unpickles its work and runs
the module that its parent has named as the main module.
"""

import fcntl
import json
import os
import socket
import sys
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing import util
from types import ModuleType
from typing import Any, NoReturn

_REQUEST_BYTES_MAX = 2**20
_DESCRIPTORS_MAX = 64
_ABOVE_DESCRIPTORS = 512
"""No descriptor that `multiprocessing` passes on has such a number."""


def keep_spare() -> None:
    """Fork the spare process. It ends unused if this process ends before."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pid = os.fork()
    if pid == 0:
        ours.close()
        exit_after(partial(_run, theirs))
    theirs.close()
    launch: Callable[..., int] = util.spawnv_passfds

    def use_spare(path: bytes, arguments: Sequence[Any], passed: Sequence[int]) -> int:
        if "--multiprocessing-fork" not in arguments:  # not a `Process`
            return launch(path, arguments, passed)
        util.spawnv_passfds = launch
        code = arguments[arguments.index("-c") + 1]
        request = {"code": code, "environment": {**os.environ}, "descriptors": [*passed]}
        socket.send_fds(ours, [json.dumps(request).encode()], [*passed])
        ours.close()
        return pid

    util.spawnv_passfds = use_spare  # type: ignore[assignment]


def replace_environment(environment: dict[str, str]) -> None:
    """Leave only these variables."""
    os.environ.clear()
    os.environ.update(environment)


def exit_after(work: Callable[[], object]) -> NoReturn:
    """Do the work of a forked process, and end it with the status that Python would have."""
    status = 1
    try:
        work()
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001 (the process that forked must not continue here)
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _run(requests: socket.socket) -> None:
    """Wait for the work of this process and do it."""
    data, received, _, _ = socket.recv_fds(requests, _REQUEST_BYTES_MAX, _DESCRIPTORS_MAX)
    if not data:
        return
    request = json.loads(data)
    replace_environment(request["environment"])
    _renumber(received, request["descriptors"])
    sys.argv = ["-c", "--multiprocessing-fork"]
    sys.modules["__main__"] = ModuleType("__main__")
    exec(request["code"], {})


def _renumber(received: Sequence[int], numbers: Sequence[int]) -> None:
    """Close all descriptors but the standard ones and those, and give those their numbers."""
    high = [fcntl.fcntl(one, fcntl.F_DUPFD, _ABOVE_DESCRIPTORS) for one in received]
    os.closerange(3, _ABOVE_DESCRIPTORS)
    for one, number in zip(high, numbers, strict=True):
        os.dup2(one, number)
        os.close(one)
