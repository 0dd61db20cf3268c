"""The main program of a validation process: `python -m jobs.validation.validation_main FD`."""

import logging
import os
import signal
import sys
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any

from core.errors import MillraceError
from core.runtime.logs import configure_logs
from jobs.validation.validation_process import (
    ANSWER_S_MAX,
    NICENESS,
    FindModelByName,
    ReadBlock,
    ValidationProcessError,
)
from jobs.validation.validation_task import ValidationTask
from registry.model_version import ModelVersion

_LOG = logging.getLogger(__name__)


class ParentCalls:
    """The callables of a validation, answered by the parent."""

    def __init__(self, connection: "Connection[Any, Any]") -> None:
        """`connection` to the parent. Its methods raise EOFError when the parent has ended."""
        self._connection = connection

    def read_file(self, number: int) -> Iterator[bytes]:
        """See `ReadFile`."""
        is_first = True
        while True:
            block: bytes = self._ask(ReadBlock(number, is_first))
            if not block:
                return
            is_first = False
            yield block

    def find_model(self, name: str) -> ModelVersion | None:
        """See `FindModel`."""
        version: ModelVersion | None = self._ask(FindModelByName(name))
        return version

    def _ask(self, request: object) -> Any:
        self._connection.send(request)
        return receive(self._connection)


def receive(connection: "Connection[Any, Any]") -> Any:
    """Wait for a message, and let the kernel end this process if it computes too long after it.

    A parent that lives would kill it earlier.
    """
    signal.alarm(0)
    message = connection.recv()
    signal.alarm(int(ANSWER_S_MAX) + 30)
    return message


def main(descriptor: int) -> None:
    """Validate what arrives at the connection `descriptor` until its other end is closed."""
    configure_logs("intake")
    os.nice(NICENESS)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # a signal to the group: intake ends this process
    with Connection(descriptor) as connection:
        parent = ParentCalls(connection)
        while True:
            try:
                task: ValidationTask = receive(connection)
                connection.send(_validate(task, parent))
            except (EOFError, ConnectionError):
                return


def _validate(task: ValidationTask, parent: ParentCalls) -> object:
    try:
        return task.validate(parent.read_file, parent.find_model)
    except (EOFError, ConnectionError):
        raise
    except MillraceError as failure:
        return failure
    except Exception:  # noqa: BLE001  a defect on one job must not end the others
        _LOG.exception("validation failed")
        return ValidationProcessError()


if __name__ == "__main__":
    main(int(sys.argv[1]))
