"""An actuator that runs a command of the operator: the order on stdin, the answer on stdout.

Exit codes: 0 done, 3 a newer epoch was carried out, 4 denied, 5 changed by somebody else. The
command keeps the epochs. It gets no variable of this process that could hold a secret.
"""

import asyncio
import contextlib
import os
import signal
from asyncio.subprocess import Process, SubprocessStreamProtocol
from collections.abc import Mapping, Sequence
from typing import ClassVar, Final

from autoscaler.actuators.actuator import (
    ActuatorConflictError,
    ActuatorDeniedError,
    ActuatorError,
    ActuatorTimeoutError,
    Observed,
    PoolOrder,
    StaleEpochError,
    UnexpectedAnswerError,
)
from autoscaler.actuators.outside.order_messages import (
    ANSWER_BYTES_MAX,
    check_applied,
    failure_of,
    observe_message,
    order_message,
    read_observed,
)

PASSED_VARIABLES: Final = ("HOME", "LANG", "LC_ALL", "PATH", "TMPDIR", "TZ")
"""Variables that the command gets. Others are set by the command itself, as `env` does."""

_EXITS: Final[Mapping[int, type[ActuatorError]]] = {
    3: StaleEpochError,
    4: ActuatorDeniedError,
    5: ActuatorConflictError,
}
_CONCURRENT_MAX: Final = 4
"""Commands at a time; others wait within their own limit."""


_BUFFER_BYTES: Final = 64 * 1024
_END_S: Final = 0.5  # for a killed process to be reaped


class CommandActuator:
    """Runs a command for each order."""

    kind: ClassVar[str] = "command"
    chooses_removals: ClassVar[bool] = True

    def __init__(
        self, name: str, command: Sequence[str], timeout_s: float, env: Mapping[str, str]
    ) -> None:
        """`name` is that of the table in the policy file; of `env` some variables are passed on."""
        self._name = name
        self._command = tuple(command)
        self._timeout_s = timeout_s
        self._env = {key: env[key] for key in PASSED_VARIABLES if key in env}
        self._slots = asyncio.Semaphore(_CONCURRENT_MAX)

    async def apply(self, order: PoolOrder) -> None:
        """Run the command with an order. Raises ActuatorError."""
        check_applied(await self._output_of(order_message(self._name, order)), order)

    async def observe(self, pool: str) -> Observed:
        """Run the command with `{"action":"observe"}`. Raises ActuatorError."""
        return read_observed(
            await self._output_of(observe_message(self._name, pool)), pool, self._name
        )

    async def close(self) -> None:
        """Release nothing: no command outlives its call."""

    async def _output_of(self, message: bytes) -> bytes:
        try:
            async with asyncio.timeout(self._timeout_s), self._slots:
                output, exit_code = await self._run(message)
        except TimeoutError:
            raise ActuatorTimeoutError from None
        if exit_code != 0:
            raise failure_of(output, _EXITS.get(exit_code, ActuatorError))
        return output

    async def _run(self, message: bytes) -> tuple[bytes, int]:
        """Return output and exit code. Ends the whole process group of the command."""
        loop = asyncio.get_running_loop()
        try:
            # As `create_subprocess_exec`, which gives no way to close the transport.
            transport, protocol = await loop.subprocess_exec(
                lambda: SubprocessStreamProtocol(limit=_BUFFER_BYTES, loop=loop),
                *self._command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
                env=self._env,
                start_new_session=True,
            )
        except (OSError, ValueError):  # ValueError: a null byte in an argument
            raise ActuatorError("The command cannot be started.") from None
        process = Process(transport, protocol, loop)
        try:
            _, output = await asyncio.gather(_send(process, message), _read(process))
            return output, await process.wait()
        finally:
            # Also after a cancellation: children of the command would go on changing replicas.
            with contextlib.suppress(ProcessLookupError, PermissionError):  # of another user now
                os.killpg(process.pid, signal.SIGKILL)
            try:
                with contextlib.suppress(TimeoutError):  # one that left the group has the pipe
                    await asyncio.wait_for(process.wait(), _END_S)
            finally:
                transport.close()


async def _send(process: asyncio.subprocess.Process, message: bytes) -> None:
    assert process.stdin is not None
    with contextlib.suppress(ConnectionError):  # a command need not read its order
        process.stdin.write(message)
        await process.stdin.drain()
    process.stdin.close()


async def _read(process: asyncio.subprocess.Process) -> bytes:
    """Return the whole output. Raises UnexpectedAnswerError if it is too large."""
    assert process.stdout is not None
    parts = bytearray()
    while part := await process.stdout.read(64 * 1024):
        parts += part
        if len(parts) > ANSWER_BYTES_MAX:
            raise UnexpectedAnswerError("The output of the command is too large.")
    return bytes(parts)
