"""Validates files in processes of their own, which have a lower priority and can be killed.

    intake:  task ─►        block ─►             model version ─►
    process:        ◄─ ReadBlock     ◄─ FindModel                 ... ◄─ ValidationResult

Parsing lines keeps an interpreter busy for minutes, and the threads of a process share one. The
process has no connections: it asks for each block and each model, and ends when its parent has
ended. It protects intake from lines that crash or block the parser; messages are pickles, so not
from an attacker who runs code in it.
"""

import os
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe
from typing import Final

from core.clock import Clock
from core.errors import Disposition, MillraceError
from jobs.validation.file_validation import ValidationResult
from jobs.validation.model_rule import FindModel
from jobs.validation.validation_task import ReadFile, ValidationTask

NICENESS: Final = 10
"""Added to the niceness of intake: a tenth of the CPU time of a role, while roles need it all."""

ANSWER_S_MAX: Final = 600.0
"""Longest silence of a process. A block of 1 MiB takes about 0.1 s; the ids of a hundred million
items are sorted in half a minute, or five minutes with a tenth of a core."""

MESSAGE_S_MAX: Final = 20.0
"""Longest time without progress of one message: the other end reads it, or has stopped."""

_POLL_S: Final = 0.2
# `-P`: the working directory may hold packages with the names of ours.
_COMMAND: Final = (sys.executable, "-P", "-m", "jobs.validation.validation_main")


@dataclass(frozen=True, slots=True)
class ReadBlock:
    """Asks for the next block of a file, or for its first; empty bytes are its end."""

    file_number: int
    is_first: bool


@dataclass(frozen=True, slots=True)
class FindModelByName:
    """Asks for the version that a name means to the job."""

    name: str


class ValidationProcessError(MillraceError):
    """A validation process ended or did not answer."""

    code = "validation_process_failed"
    disposition = Disposition.RETRY


class ValidationProcess:
    """One process, which validates one file after the other. Used by one thread at a time."""

    def __init__(self, clock: Clock, command: tuple[str, ...] = _COMMAND) -> None:
        """Start it. Raises OSError."""
        self._clock = clock
        self._connection, theirs = Pipe()
        _limit_messages(self._connection)
        with theirs:
            self._popen = subprocess.Popen(  # noqa: S603  the command is ours
                (*command, str(theirs.fileno())),
                env=_environment(os.environ),
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )

    @property
    def is_alive(self) -> bool:
        """Whether the process runs."""
        return self._popen.poll() is None

    def validate(
        self,
        task: ValidationTask,
        read_file: ReadFile,
        find_model: FindModel,
        raise_if_stopped: Callable[[], None],
    ) -> ValidationResult:
        """Validate one file. After an exception the process must be killed.

        `raise_if_stopped` is called while the process computes. Raises ValidationProcessError, an
        error of the task, and the errors of the callables.
        """
        files = _OpenFile(read_file)
        try:
            self._send(task)
            while True:
                match self._receive(raise_if_stopped):
                    case ReadBlock() as request:
                        self._send(files.read(request))
                        files.read_ahead()  # while the process parses
                    case FindModelByName(name):
                        self._send(find_model(name))
                    case MillraceError() as failure:
                        raise failure
                    case ValidationResult() as result:
                        return result
        finally:
            files.close()

    def kill(self) -> None:
        """End the process now."""
        self._popen.kill()
        self._popen.wait()
        self._connection.close()

    def _send(self, answer: object) -> None:
        try:
            self._connection.send(answer)
        except OSError:  # it has ended, or does not read
            raise ValidationProcessError from None

    def _receive(self, raise_if_stopped: Callable[[], None]) -> object:
        asked_s = self._clock.monotonic_s()
        try:
            while not self._connection.poll(_POLL_S):
                raise_if_stopped()
                if self._clock.monotonic_s() - asked_s > ANSWER_S_MAX:
                    raise ValidationProcessError
            return self._connection.recv()
        except (EOFError, OSError):
            raise ValidationProcessError from None


class ValidationProcesses:
    """The idle processes of intake; as many as ever validated at once. Thread-safe."""

    def __init__(self, clock: Clock, command: tuple[str, ...] = _COMMAND) -> None:
        """Start no process yet."""
        self._clock, self._command = clock, command
        self._idle: list[ValidationProcess] = []

    def validate(
        self,
        task: ValidationTask,
        read_file: ReadFile,
        find_model: FindModel,
        raise_if_stopped: Callable[[], None],
    ) -> ValidationResult:
        """See `ValidationProcess.validate`."""
        process = self._take()
        try:
            result = process.validate(task, read_file, find_model, raise_if_stopped)
        except BaseException:
            process.kill()
            raise
        self._idle.append(process)
        return result

    def close(self) -> None:
        """Kill the idle processes. Call it when nothing validates any more."""
        while self._idle:
            self._idle.pop().kill()

    def _take(self) -> ValidationProcess:
        with suppress(IndexError):
            while True:
                process = self._idle.pop()
                if process.is_alive:
                    return process
                process.kill()
        try:
            return ValidationProcess(self._clock, self._command)
        except OSError as failure:
            raise ValidationProcessError from failure


class _OpenFile:
    """The file that the process reads now."""

    def __init__(self, read_file: ReadFile) -> None:
        self._read_file = read_file
        self._blocks: Iterator[bytes] = iter(())
        self._next: bytes | None = None  # read ahead

    def read(self, request: ReadBlock) -> bytes:
        if request.is_first:
            self.close()
            self._blocks, self._next = iter(self._read_file(request.file_number)), None
        if self._next is None:
            self.read_ahead()
        block, self._next = self._next, None
        return block or b""

    def read_ahead(self) -> None:
        """Read the block that the process will ask for next."""
        self._next = next(self._blocks, b"")

    def close(self) -> None:
        """Close a file of which the process did not read the end."""
        if close := getattr(self._blocks, "close", None):
            close()


def _limit_messages(connection: "Connection[object, object]") -> None:
    """Let a message fail that makes no progress for `MESSAGE_S_MAX`."""
    with socket.socket(fileno=os.dup(connection.fileno())) as same:
        for option in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
            same.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", int(MESSAGE_S_MAX), 0))


def _environment(env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of the process: those of Python, and no setting or secret."""
    return {k: v for k, v in env.items() if k.startswith(("PYTHON", "LC_")) or k in _INHERITED}


_INHERITED: Final = ("PATH", "LANG", "TZ", "LD_LIBRARY_PATH")
